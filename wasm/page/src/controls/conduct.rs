//! What a visitor can set of how the tab works.

use std::rc::Rc;

use wasm_bindgen::JsCast;
use web_sys::{EventTarget, HtmlInputElement, HtmlSelectElement};

use super::on;
use crate::app::App;
use crate::conduct::{BatteryRule, Change, Input, minute_of};
use crate::dom::{DomError, by_id};
use crate::senses;
use crate::state::Event;

/// Listens for as long as the page is open.
pub(super) fn listen(app: &Rc<App>) -> Result<(), DomError> {
    press(app, "pause", Input::TogglePause)?;
    press(app, "anyway", Input::Waive)?;
    press(app, "conduct-defaults", Input::Set(Change::Defaults))?;
    check(app, "heeds-heat", Change::HeedsHeat)?;
    check(app, "on-metered", Change::OnMetered)?;
    check(app, "scheduled", Change::IsScheduled)?;
    check(app, "in-background", Change::InBackground)?;
    check(app, "screen-on", Change::KeepsScreenOn)?;
    listen_to_presence(app)?;
    listen_to_days(app)?;
    input(app, "throttle", "input", |text| text.parse().ok().map(Change::Duty))?;
    // A field that is being typed into says nothing until it holds a time.
    input(app, "hours-from", "change", |text| minute_of(text).map(Change::From))?;
    input(app, "hours-until", "change", |text| minute_of(text).map(Change::Until))?;
    select(app, "data-cap", |text| Change::CapMb(text.parse().ok()))?;
    select(app, "battery-rule", |text| {
        let rule = BatteryRule::ALL.into_iter().find(|rule| rule.name() == text);
        Change::Battery(rule.unwrap_or(BatteryRule::Charging))
    })
}

fn set(app: &Rc<App>, change: Change) {
    app.dispatch(Event::Conduct(Input::Set(change)));
}

fn press(app: &Rc<App>, id: &'static str, input: Input) -> Result<(), DomError> {
    on(&by_id::<EventTarget>(id)?, "click", app, move |app, _| app.dispatch(Event::Conduct(input)));
    Ok(())
}

fn check(app: &Rc<App>, id: &'static str, change: impl Fn(bool) -> Change + 'static) -> Result<(), DomError> {
    let field: HtmlInputElement = by_id(id)?;
    let read = field.clone();
    on(&field, "change", app, move |app, _| set(app, change(read.checked())));
    Ok(())
}

fn input(
    app: &Rc<App>,
    id: &'static str,
    event: &'static str,
    change: impl Fn(&str) -> Option<Change> + 'static,
) -> Result<(), DomError> {
    let field: HtmlInputElement = by_id(id)?;
    let read = field.clone();
    on(&field, event, app, move |app, _| {
        if let Some(change) = change(&read.value()) {
            set(app, change);
        }
    });
    Ok(())
}

fn select(
    app: &Rc<App>,
    id: &'static str,
    change: impl Fn(&str) -> Change + 'static,
) -> Result<(), DomError> {
    let field: HtmlSelectElement = by_id(id)?;
    let read = field.clone();
    on(&field, "change", app, move |app, _| set(app, change(&read.value())));
    Ok(())
}

/// The browser asks the visitor, and may only do so within the click.
fn listen_to_presence(app: &Rc<App>) -> Result<(), DomError> {
    let field: HtmlInputElement = by_id("only-away")?;
    let read = field.clone();
    on(&field, "change", app, move |app, _| {
        if read.checked() {
            senses::ask_for_presence(app);
        }
        set(app, Change::OnlyAway(read.checked()));
    });
    Ok(())
}

fn listen_to_days(app: &Rc<App>) -> Result<(), DomError> {
    on(&by_id::<EventTarget>("days")?, "change", app, |app, event| {
        let field = event.target().and_then(|target| target.dyn_into::<HtmlInputElement>().ok());
        let day = field.as_ref().and_then(|field| field.get_attribute("data-day")?.parse().ok());
        if let Some((field, day)) = field.zip(day) {
            set(app, Change::Day(day, field.checked()));
        }
    });
    Ok(())
}
