//! Listens to the fields of a row, and to the ratings that a visitor gives.

use std::cell::RefCell;
use std::rc::Rc;

use gloo::timers::callback::Timeout;
use wasm_bindgen::JsCast;
use web_sys::{Element, EventTarget, HtmlInputElement};

use super::on;
use crate::app::App;
use crate::dom::{DomError, by_id, document};
use crate::state::{PageEvent, PageState};

/// Pause in typing after which a row is told of: telling takes a moment only.
const TYPING_PAUSE_MS: u32 = 150;

pub(super) fn listen(app: &Rc<App>) -> Result<(), DomError> {
    let row: EventTarget = by_id("row-form")?;
    on(&row, "submit", app, |app, event| {
        event.prevent_default();
        app.dispatch(PageEvent::RowAsked(cells(app)));
    });
    let pause = RefCell::new(None);
    on(&row, "input", app, move |app, _| {
        let app = Rc::clone(app);
        // A timer before it is cancelled.
        let timer = Timeout::new(TYPING_PAUSE_MS, move || app.dispatch(PageEvent::RowTyped(cells(&app))));
        pause.replace(Some(timer));
    });
    let (item, rating): (HtmlInputElement, HtmlInputElement) = (by_id("rate-item")?, by_id("rate-rating")?);
    on(&by_id::<EventTarget>("rate-form")?, "submit", app, move |app, event| {
        event.prevent_default();
        app.dispatch(PageEvent::ItemRated { name: item.value(), rating: rating.value() });
        item.set_value("");
        let _ = item.focus();
    });
    on(&by_id::<EventTarget>("rated")?, "click", app, |app, event| {
        let target = event.target().and_then(|target| target.dyn_into::<Element>().ok());
        let button = target.and_then(|target| target.closest("button").ok().flatten());
        let item = button.and_then(|button| button.get_attribute("data-item")?.parse().ok());
        if let Some(item) = item {
            app.dispatch(PageEvent::ItemUnrated(item));
        }
    });
    Ok(())
}

/// What stands in the fields. A comma is a point where it can be nothing else.
fn cells(app: &Rc<App>) -> Vec<String> {
    let value = |index: usize| {
        let field = document().get_element_by_id(&format!("row-{index}"))?;
        let value = js_sys::Reflect::get(&field, &"value".into()).ok()?.as_string()?;
        Some(if field.tag_name() == "INPUT" { value.replace(',', ".") } else { value })
    };
    let n_fields = app.with_page(PageState::n_fields);
    (0..n_fields).map(|index| value(index).unwrap_or_default()).collect()
}
