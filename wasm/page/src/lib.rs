//! The visitor's page: what is being trained, one button, curves, and a box to try the model.
//!
//! Runs on the main thread and stays small: it never computes with tensors and never speaks to a
//! peer; the worker does both. [`state`] decides, [`view`] draws, the rest joins them to the browser.

mod card;
mod chart;
mod conduct;
mod draw;
#[cfg(test)]
mod fixture;
mod format;
#[cfg(test)]
mod golden;
mod history;
mod hold;
mod kept;
mod preflight;
mod sentence;
mod state;

mod app;
mod backbone;
mod base;
mod controls;
mod dom;
mod front;
mod graphics;
mod picture;
mod receipts;
mod renewal;
mod resume;
mod rtc;
mod senses;
mod share;
mod sketch;
mod tabs;
mod view;
mod worker;

use barnraise_messages::DeviceChoice;
use wasm_bindgen::prelude::*;
use web_sys::{Element, HtmlAnchorElement, UrlSearchParams};

use crate::app::App;
use crate::base::Place;
use crate::dom::{document, window};
use crate::resume::Before;
use crate::state::{Capabilities, Event, Page, WebGpu};

/// Sets the page up; called by the generated loader.
#[wasm_bindgen(start)]
fn start() -> Result<(), JsValue> {
    console_error_panic_hook::set_once();
    match base::here() {
        Place::Front => Ok(front::show()?),
        Place::Run(base) => begin(&base),
    }
}

/// Sets up the page of a run, which is asked for below `base`.
fn begin(base: &str) -> Result<(), JsValue> {
    for id in ["model-download", "model-card"] {
        let link: HtmlAnchorElement = dom::by_id(id)?;
        let address = link.get_attribute("href").unwrap_or_default();
        link.set_href(&format!("{base}{address}"));
    }
    let query = UrlSearchParams::new_with_str(&window().location().search()?)?;
    let device_choice = match query.get("device").as_deref() {
        Some("cpu") => DeviceChoice::Cpu,
        Some("webgpu") => DeviceChoice::WebGpu,
        _ => DeviceChoice::Auto,
    };
    let origin = format!("{}{base}", window().location().origin()?);
    let page = Page::new(capabilities(), device_choice, origin, app::kept_identity());
    let page = page.reached_by(app::kept_way()).within(preflight::probe::surroundings());
    let page = page.remembering(app::kept()).called(app::kept_name()).asking_from(random());
    let page = page.knowing(app::kept_run()).conducted_by(senses::conductor());
    let siblings = tabs::Siblings::find();
    let page = if siblings.is_some() { page.among_tabs() } else { page };
    let page = page.invited_by(base::invitation());
    let worker_url = document().body().and_then(|body| body.get_attribute("data-worker"));
    let worker_url = worker_url.ok_or_else(|| JsValue::from_str("the page does not name its worker"))?;
    let app = App::new(page, view::View::find()?, worker_url, siblings.clone());
    controls::listen(&app)?;
    senses::follow(&app);
    if let Some(siblings) = siblings {
        siblings.join(&app);
    }
    app.draw();
    renewal::begin(&app);
    wasm_bindgen_futures::spawn_local(backbone::follow(app.clone()));
    wasm_bindgen_futures::spawn_local(backbone::follow_leaders(app.clone()));
    wasm_bindgen_futures::spawn_local(backbone::follow_models(app.clone()));
    app.count_receipts();
    if graphics::at_first_sight() == WebGpu::Asking {
        let asking = app.clone();
        wasm_bindgen_futures::spawn_local(async move {
            asking.dispatch(Event::GraphicsKnown(graphics::ask().await));
        });
    }
    let is_set = |name| query.get(name).as_deref() == Some("1");
    if is_set("selfcheck") {
        app.dispatch(Event::CheckDevice);
    }
    let was_pressed = was_pressed()?;
    let goes_on = match resume::before() {
        // Whoever pressed the button since wants it to go on.
        _ if was_pressed => Some(false),
        Before::Contributed { is_paused } => Some(is_paused),
        Before::Rested => is_set("autostart").then_some(false),
        Before::BrokeOff => None,
    };
    if let Some(is_paused) = goes_on {
        app.dispatch(Event::GoOn { is_paused });
    }
    Ok(())
}

/// Whether the visitor pressed the button while this program was still on its way.
fn was_pressed() -> Result<bool, JsValue> {
    let toggle: Element = dom::by_id("toggle")?;
    Ok(toggle.get_attribute("data-wanted").as_deref() == Some("true"))
}

/// Anything: tabs that count from there do not meet.
fn random() -> u32 {
    (js_sys::Math::random() * f64::from(u32::MAX)) as u32
}

fn capabilities() -> Capabilities {
    let window = window();
    Capabilities { secure: window.is_secure_context(), web_gpu: graphics::at_first_sight() }
}
