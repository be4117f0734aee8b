//! Listeners to the visitor's input and to the browser's own events.

mod limits;
mod own;
mod rows;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use barnraise_messages::DisplayName;
use gloo::timers::callback::Timeout;
use wasm_bindgen::closure::Closure;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::spawn_local;
use web_sys::{
    Element, EventTarget, File, HtmlElement, HtmlInputElement, PerformanceEntry, PerformanceObserver,
};
use web_sys::{PerformanceObserverEntryList, PerformanceObserverInit};

use crate::app::App;
use crate::dom::{DomError, DomListener, by_id, document, network_information, window};
use crate::draw;
use crate::photo;
use crate::sensors::Sensors;
use crate::sketch::Sketch;
use crate::state::{PageEvent, PageState};
use crate::view::PageView;

/// Pause in typing after which a text is gone on with.
const TYPING_PAUSE_MS: u32 = 700;

// Declared here because web-sys features are shared by the whole build, burn included.
#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_name = HTMLElement)]
    type Shown;

    #[wasm_bindgen(method, js_name = scrollIntoView)]
    fn show(this: &Shown, options: &js_sys::Object);
}

/// Listens for as long as the page is open.
pub(crate) fn listen(app: &Rc<App>, sensors: &Rc<Sensors>) -> Result<(), DomError> {
    let sketch = Sketch::find()?;
    on(&by_id::<EventTarget>("toggle")?, "click", app, |app, _| app.dispatch(PageEvent::Toggle));
    on(&by_id::<EventTarget>("take-over")?, "click", app, |app, _| app.dispatch(PageEvent::TakeLoad));
    on(&by_id::<EventTarget>("host-toggle")?, "click", app, |app, _| app.dispatch(PageEvent::ToggleHosting));
    on(&by_id::<EventTarget>("load-model")?, "click", app, |app, _| app.dispatch(PageEvent::LoadModel));
    on(&by_id::<EventTarget>("more")?, "click", app, |app, _| {
        app.with_view(|view| view.gallery.turn_page());
    });
    on(&by_id::<EventTarget>("table")?, "toggle", app, |app, _| app.draw_soon());
    on(&window(), "resize", app, |app, _| app.draw_soon());
    // A hidden page gets no animation frames: draw before it is hidden.
    on(&document(), "visibilitychange", app, |app, _| {
        app.dispatch(if document().hidden() { PageEvent::Hidden } else { PageEvent::Woke });
        app.draw();
    });
    on(&by_id::<EventTarget>("reload")?, "click", app, |app, _| app.dispatch(PageEvent::Reload));
    listen_to_network(app);
    limits::listen(app, sensors)?;
    listen_to_gallery(app, &sketch)?;
    listen_to_giving(app)?;
    rows::listen(app)?;
    own::listen(app)?;
    mend_canvases(app, &sketch);
    listen_to_sketch(app, &sketch)?;
    listen_to_photos(app)?;
    count_long_tasks(app)
}

fn on(
    target: &EventTarget,
    name: &'static str,
    app: &Rc<App>,
    act: impl Fn(&Rc<App>, &web_sys::Event) + 'static,
) {
    let app = Rc::clone(app);
    DomListener::new(target, name, move |event| act(&app, &event)).keep();
}

/// Listens to changes of the network, and to the page being resumed or restored from the back/forward cache.
fn listen_to_network(app: &Rc<App>) {
    on(&window(), "online", app, |app, _| app.dispatch(PageEvent::Network { is_online: true }));
    on(&window(), "offline", app, |app, _| app.dispatch(PageEvent::Network { is_online: false }));
    on(&window(), "pageshow", app, |app, _| app.dispatch(PageEvent::Woke));
    on(&document(), "resume", app, |app, _| app.dispatch(PageEvent::Woke));
    if let Some(connection) = network_information() {
        on(&connection, "change", app, |app, _| app.dispatch(PageEvent::Woke));
    }
    if !window().navigator().on_line() {
        app.dispatch(PageEvent::Network { is_online: false });
    }
}

/// Redraws all canvases after a crash of the graphics process cleared them.
fn mend_canvases(app: &Rc<App>, sketch: &Rc<Sketch>) {
    let (app, sketch) = (Rc::clone(app), Rc::clone(sketch));
    DomListener::keep_for_all_within(&document(), "contextrestored", move |_| {
        sketch.mend();
        app.with_view(PageView::mend);
    });
}

/// Listens to the controls for models, receipts, the card and the name.
fn listen_to_giving(app: &Rc<App>) -> Result<(), DomError> {
    on(&by_id::<EventTarget>("compare")?, "click", app, |app, _| app.dispatch(PageEvent::ToggleComparison));
    on(&by_id::<EventTarget>("receipts")?, "click", app, |app, _| app.dispatch(PageEvent::ReceiptsWanted));
    on(&by_id::<EventTarget>("share")?, "click", app, |app, _| app.dispatch(PageEvent::CardWanted));
    listen_to_text(app)?;
    let name: HtmlInputElement = by_id("name")?;
    let kept = app.with_page(|page| page.giving.name.clone());
    name.set_value(kept.as_ref().map(DisplayName::as_str).unwrap_or_default());
    on(&by_id::<EventTarget>("name-form")?, "submit", app, move |app, event| {
        event.prevent_default();
        app.dispatch(PageEvent::NameTyped(name.value()));
    });
    Ok(())
}

/// Listens to the text that the model is asked about, and to pauses in typing it.
fn listen_to_text(app: &Rc<App>) -> Result<(), DomError> {
    let text: HtmlInputElement = by_id("fill-text")?;
    let (asked, typed) = (text.clone(), text.clone());
    on(&by_id::<EventTarget>("fill-form")?, "submit", app, move |app, event| {
        event.prevent_default();
        app.dispatch(PageEvent::TextAsked(asked.value()));
    });
    let pause = RefCell::new(None);
    on(&text, "input", app, move |app, _| {
        let (app, typed) = (Rc::clone(app), typed.clone());
        // A timer before it is cancelled.
        let timer = Timeout::new(TYPING_PAUSE_MS, move || app.dispatch(PageEvent::TextTyped(typed.value())));
        pause.replace(Some(timer));
    });
    on(&by_id::<EventTarget>("fill-earlier")?, "click", app, |app, _| {
        app.dispatch(PageEvent::ToggleEarlierText);
    });
    Ok(())
}

/// A picked picture is asked about, and the answer brought into view: on a phone it is above the pictures.
fn listen_to_gallery(app: &Rc<App>, sketch: &Rc<Sketch>) -> Result<(), DomError> {
    let (sketch, answer) = (Rc::clone(sketch), by_id::<Shown>("answer")?);
    let nearest = js_sys::Object::new();
    js_sys::Reflect::set(&nearest, &"block".into(), &"nearest".into())?;
    on(&by_id::<EventTarget>("gallery")?, "click", app, move |app, event| {
        let target = event.target().and_then(|target| target.dyn_into::<Element>().ok());
        let button = target.and_then(|target| target.closest("button").ok().flatten());
        let idx = button.and_then(|button| button.get_attribute("data-idx")?.parse().ok());
        if let Some(idx) = idx {
            sketch.clear();
            app.dispatch(PageEvent::Picked(idx));
            answer.show(&nearest);
        }
    });
    Ok(())
}

fn listen_to_sketch(app: &Rc<App>, sketch: &Rc<Sketch>) -> Result<(), DomError> {
    let (asking, drawn) = (Rc::clone(app), Rc::clone(sketch));
    sketch.listen(move || {
        // Before the run is known, assume the shape of Fashion-MNIST.
        let shape = asking.with_page(PageState::image_shape);
        let (height, width) = shape.map_or((28, 28), |shape| (shape.height.into(), shape.width.into()));
        let n_channels = shape.map_or(1, |shape| usize::from(shape.channels));
        let sample = drawn.ink().and_then(|(ink, side)| draw::to_sample(&ink, side, height, width));
        if let Some(sample) = sample {
            let pixels =
                sample.into_iter().flat_map(|value| std::iter::repeat_n(value, n_channels)).collect();
            asking.dispatch(PageEvent::Drawn(pixels));
        }
    });
    let cleared = Rc::clone(sketch);
    on(&by_id::<EventTarget>("clear")?, "click", app, move |app, _| {
        cleared.clear();
        app.dispatch(PageEvent::ForgetQuestion);
    });
    Ok(())
}

/// A chosen photo is asked about. Choosing it once more asks once more.
fn listen_to_photos(app: &Rc<App>) -> Result<(), DomError> {
    let input: HtmlInputElement = by_id("photo")?;
    let chosen = input.clone();
    on(&input, "change", app, move |app, _| {
        let file = js_sys::Reflect::get(&chosen, &"files".into()).ok();
        let file = file.and_then(|files| js_sys::Reflect::get_u32(&files, 0).ok());
        let file = file.and_then(|file| file.dyn_into::<File>().ok());
        let (Some(file), Some(shape)) = (file, app.with_page(PageState::image_shape)) else { return };
        chosen.set_value("");
        let app = Rc::clone(app);
        spawn_local(async move {
            match photo::read(&file, shape).await {
                Ok(pixels) => app.dispatch(PageEvent::Drawn(pixels)),
                Err(_) => app.dispatch(PageEvent::PhotoUnreadable),
            }
        });
    });
    Ok(())
}

/// Counts long tasks of the main thread (over 50 ms) since Start, and the longest, in attributes of the body.
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
    // Browsers without this entry type ignore it.
    observer.observe(&PerformanceObserverInit::new(&js_sys::Array::of1(&"longtask".into())));
    Ok(())
}
