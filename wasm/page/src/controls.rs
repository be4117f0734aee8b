//! What a visitor can press, draw or pick, and what the browser reports by itself.

mod conduct;

use std::cell::Cell;
use std::rc::Rc;

use barnraise_messages::DisplayName;
use wasm_bindgen::closure::Closure;
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{Element, EventTarget, HtmlElement, HtmlInputElement, PerformanceEntry, PerformanceObserver};
use web_sys::{PerformanceObserverEntryList, PerformanceObserverInit};

use crate::app::App;
use crate::dom::{DomError, Listener, by_id, document, window};
use crate::draw;
use crate::sketch::Sketch;
use crate::state::{Event, Page};
use crate::view::View;

/// Listens for as long as the page is open.
pub(crate) fn listen(app: &Rc<App>) -> Result<(), DomError> {
    let sketch = Sketch::find()?;
    on(&by_id::<EventTarget>("toggle")?, "click", app, |app, _| app.dispatch(Event::Toggle));
    on(&by_id::<EventTarget>("take-over")?, "click", app, |app, _| app.dispatch(Event::TakeLoad));
    on(&by_id::<EventTarget>("load-model")?, "click", app, |app, _| app.dispatch(Event::LoadModel));
    on(&by_id::<EventTarget>("more")?, "click", app, |app, _| {
        app.with_view(|view| view.gallery.turn_page());
    });
    on(&by_id::<EventTarget>("table")?, "toggle", app, |app, _| app.draw_soon());
    on(&window(), "resize", app, |app, _| app.draw_soon());
    // No animation frame comes to a hidden page: draw what is due before it is one.
    on(&document(), "visibilitychange", app, |app, _| {
        app.dispatch(if document().hidden() { Event::Hidden } else { Event::Woke });
        app.draw();
    });
    on(&by_id::<EventTarget>("reload")?, "click", app, |app, _| app.dispatch(Event::Reload));
    listen_to_network(app);
    conduct::listen(app)?;
    listen_to_gallery(app, &sketch)?;
    listen_to_giving(app)?;
    mend_canvases(app, &sketch);
    listen_to_sketch(app, &sketch)?;
    count_long_tasks(app)
}

fn on(
    target: &EventTarget,
    name: &'static str,
    app: &Rc<App>,
    act: impl Fn(&Rc<App>, &web_sys::Event) + 'static,
) {
    let app = Rc::clone(app);
    Listener::new(target, name, move |event| act(&app, &event)).keep();
}

/// The network comes, goes or is another one; the page was frozen, or comes back out of the browser's memory.
fn listen_to_network(app: &Rc<App>) {
    on(&window(), "online", app, |app, _| app.dispatch(Event::Network { is_online: true }));
    on(&window(), "offline", app, |app, _| app.dispatch(Event::Network { is_online: false }));
    on(&window(), "pageshow", app, |app, _| app.dispatch(Event::Woke));
    on(&document(), "resume", app, |app, _| app.dispatch(Event::Woke));
    let navigator = JsValue::from(window().navigator());
    // Not every browser tells.
    let connection = js_sys::Reflect::get(&navigator, &"connection".into()).unwrap_or_default();
    if let Ok(connection) = connection.dyn_into::<EventTarget>() {
        on(&connection, "change", app, |app, _| app.dispatch(Event::Woke));
    }
    if !window().navigator().on_line() {
        app.dispatch(Event::Network { is_online: false });
    }
}

/// With the graphics process all canvases lose what is on them.
fn mend_canvases(app: &Rc<App>, sketch: &Rc<Sketch>) {
    let (app, sketch) = (Rc::clone(app), Rc::clone(sketch));
    Listener::keep_for_all_within(&document(), "contextrestored", move |_| {
        sketch.mend();
        app.with_view(View::mend);
    });
}

/// What belongs to the visitor: models, receipts, a card, a name.
fn listen_to_giving(app: &Rc<App>) -> Result<(), DomError> {
    on(&by_id::<EventTarget>("compare")?, "click", app, |app, _| app.dispatch(Event::ToggleComparison));
    on(&by_id::<EventTarget>("receipts")?, "click", app, |app, _| app.dispatch(Event::ReceiptsWanted));
    on(&by_id::<EventTarget>("share")?, "click", app, |app, _| app.dispatch(Event::CardWanted));
    let text: HtmlInputElement = by_id("fill-text")?;
    on(&by_id::<EventTarget>("fill-form")?, "submit", app, move |app, event| {
        event.prevent_default();
        app.dispatch(Event::TextAsked(text.value()));
    });
    let name: HtmlInputElement = by_id("name")?;
    let kept = app.with_page(|page| page.giving.name.clone());
    name.set_value(kept.as_ref().map(DisplayName::as_str).unwrap_or_default());
    on(&by_id::<EventTarget>("name-form")?, "submit", app, move |app, event| {
        event.prevent_default();
        app.dispatch(Event::NameTyped(name.value()));
    });
    Ok(())
}

fn listen_to_gallery(app: &Rc<App>, sketch: &Rc<Sketch>) -> Result<(), DomError> {
    let sketch = Rc::clone(sketch);
    on(&by_id::<EventTarget>("gallery")?, "click", app, move |app, event| {
        let target = event.target().and_then(|target| target.dyn_into::<Element>().ok());
        let button = target.and_then(|target| target.closest("button").ok().flatten());
        let idx = button.and_then(|button| button.get_attribute("data-idx")?.parse().ok());
        if let Some(idx) = idx {
            sketch.clear();
            app.dispatch(Event::Picked(idx));
        }
    });
    Ok(())
}

fn listen_to_sketch(app: &Rc<App>, sketch: &Rc<Sketch>) -> Result<(), DomError> {
    let (asking, drawn) = (Rc::clone(app), Rc::clone(sketch));
    sketch.listen(move || {
        // Before the run is known every picture is taken to be one of Fashion-MNIST.
        let shape = asking.with_page(Page::image_shape);
        let (height, width) = shape.map_or((28, 28), |shape| (shape.height.into(), shape.width.into()));
        let n_channels = shape.map_or(1, |shape| usize::from(shape.channels));
        let sample = drawn.ink().and_then(|(ink, side)| draw::to_sample(&ink, side, height, width));
        if let Some(sample) = sample {
            let pixels =
                sample.into_iter().flat_map(|value| std::iter::repeat_n(value, n_channels)).collect();
            asking.dispatch(Event::Drawn(pixels));
        }
    });
    let cleared = Rc::clone(sketch);
    on(&by_id::<EventTarget>("clear")?, "click", app, move |app, _| {
        cleared.clear();
        app.dispatch(Event::ForgetQuestion);
    });
    Ok(())
}

/// Counts, on the body, the tasks of the main thread over 50 ms since Start, and the longest of them.
fn count_long_tasks(app: &Rc<App>) -> Result<(), DomError> {
    let body: HtmlElement = by_id("long-tasks")?;
    let app = Rc::clone(app);
    let (n_tasks, longest_ms, since_ms) = (Cell::new(0_u32), Cell::new(0.0_f64), Cell::new(0.0_f64));
    let count = move |list: JsValue| {
        let started_ms = app.with_page(|page| page.started_at_ms).unwrap_or(0.0);
        if since_ms.replace(started_ms) != started_ms {
            n_tasks.set(0);
            longest_ms.set(0.0);
        }
        let entries = list.unchecked_into::<PerformanceObserverEntryList>().get_entries();
        let tasks = entries.iter().map(|entry| entry.unchecked_into::<PerformanceEntry>());
        for task in tasks.filter(|task| task.start_time() >= started_ms) {
            n_tasks.set(n_tasks.get() + 1);
            longest_ms.set(longest_ms.get().max(task.duration()));
        }
        let _ = body.set_attribute("data-count", &n_tasks.get().to_string());
        let _ = body.set_attribute("data-longest-ms", &longest_ms.get().to_string());
    };
    let count = Closure::<dyn Fn(JsValue)>::new(count).into_js_value();
    let observer = PerformanceObserver::new(count.unchecked_ref())?;
    // Browsers without that kind of entry ignore it.
    observer.observe(&PerformanceObserverInit::new(&js_sys::Array::of1(&"longtask".into())));
    Ok(())
}
