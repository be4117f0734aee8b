//! The visitor's page: what is being trained, one button, curves, and a box to try the model.
//!
//! Runs on the main thread and stays small: it never computes with tensors and never speaks to a
//! peer; the worker does both. [`state`] decides, [`view`] draws, the rest joins them to the browser.

mod chart;
mod draw;
#[cfg(test)]
mod fixture;
mod format;
mod history;
mod hold;
mod kept;
mod preflight;
mod sentence;
mod state;

mod app;
mod backbone;
mod controls;
mod dom;
mod graphics;
mod picture;
mod rtc;
mod sketch;
mod view;
mod worker;

use barnraise_messages::DeviceChoice;
use wasm_bindgen::prelude::*;
use web_sys::UrlSearchParams;

use crate::app::App;
use crate::dom::{document, window};
use crate::state::{Capabilities, Event, Page, WebGpu};

/// Sets the page up; called by the generated loader.
#[wasm_bindgen(start)]
fn start() -> Result<(), JsValue> {
    console_error_panic_hook::set_once();
    let query = UrlSearchParams::new_with_str(&window().location().search()?)?;
    let device_choice = match query.get("device").as_deref() {
        Some("cpu") => DeviceChoice::Cpu,
        Some("webgpu") => DeviceChoice::WebGpu,
        _ => DeviceChoice::Auto,
    };
    let origin = window().location().origin()?;
    let page = Page::new(capabilities(), device_choice, origin, app::kept_identity());
    let page = page.reached_by(app::kept_way()).within(preflight::probe::surroundings());
    let page = page.remembering(app::kept());
    let fragment = window().location().hash()?;
    let page = page.invited_by(fragment.strip_prefix("#invitation=").map(str::to_owned));
    let worker_url = document().body().and_then(|body| body.get_attribute("data-worker"));
    let worker_url = worker_url.ok_or_else(|| JsValue::from_str("the page does not name its worker"))?;
    let app = App::new(page, view::View::find()?, worker_url);
    controls::listen(&app)?;
    app.draw();
    wasm_bindgen_futures::spawn_local(backbone::follow(app.clone()));
    wasm_bindgen_futures::spawn_local(backbone::follow_leaders(app.clone()));
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
    if is_set("autostart") {
        app.dispatch(Event::Toggle);
    }
    Ok(())
}

fn capabilities() -> Capabilities {
    let window = window();
    Capabilities { secure: window.is_secure_context(), web_gpu: graphics::at_first_sight() }
}
