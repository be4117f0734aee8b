//! The visitor's page: what is being trained, one button, curves, and a box to try the model.
//!
//! Runs on the main thread and stays small: it never computes with tensors and never speaks to a
//! peer; the worker does both. [`state`] decides, [`view`] draws, the rest connects them to the browser.

mod browser_totals;
mod chart;
mod cost;
mod draw;
mod expert_grid;
#[cfg(test)]
mod fixture;
mod format;
#[cfg(test)]
mod golden;
mod history;
mod hold;
mod limits;
mod preflight;
mod report;
mod sentence;
mod state;

mod app;
mod backbone;
mod base;
mod controls;
mod database;
mod dom;
mod effects;
mod front;
mod graphics;
mod kept;
mod kept_own;
mod photo;
mod picture;
mod probe;
mod receipts;
mod renewal;
mod requests;
mod resume;
mod rtc;
mod sensors;
mod share;
mod sketch;
mod tabs;
mod view;
mod worker;

use std::rc::Rc;

use barnraise_messages::DeviceChoice;
use wasm_bindgen::prelude::*;
use web_sys::{Element, HtmlAnchorElement, HtmlElement, UrlSearchParams};

use crate::app::App;
use crate::base::PageAddress;
use crate::dom::{document, window};
use crate::effects::Effects;
use crate::preflight::{Capabilities, WebGpu};
use crate::resume::Before;
use crate::sensors::Sensors;
use crate::state::{PageEvent, PageState};

/// Sets the page up; called by the generated loader.
#[wasm_bindgen(start)]
fn start() -> Result<(), JsValue> {
    console_error_panic_hook::set_once();
    match base::here() {
        PageAddress::Front => Ok(front::show()?),
        PageAddress::Run(base) => begin(&base),
    }
}

/// Sets up the page of a run; `base` is the prefix of its requests.
fn begin(base: &str) -> Result<(), JsValue> {
    for id in ["model-download", "model-card"] {
        let link: HtmlAnchorElement = dom::by_id(id)?;
        let address = link.get_attribute("href").unwrap_or_default();
        link.set_href(&format!("{base}{address}"));
    }
    // A page of one run among several leads back to their list.
    let all_runs: HtmlElement = dom::by_id("all-runs")?;
    all_runs.set_hidden(base.is_empty());
    let query = UrlSearchParams::new_with_str(&window().location().search()?)?;
    let device_choice = match query.get("device").as_deref() {
        Some("cpu") => DeviceChoice::Cpu,
        Some("webgpu") => DeviceChoice::WebGpu,
        _ => DeviceChoice::Auto,
    };
    let origin = format!("{}{base}", window().location().origin()?);
    let page = PageState::new(capabilities(), device_choice, origin, kept::identity());
    let page = page.reached_by(kept::transport()).within(probe::surroundings());
    let page =
        page.remembering(kept::totals().unwrap_or_default()).called(kept::name()).asking_from(random());
    let page = page.knowing(kept::run()).with_limits(sensors::resource_limits());
    let siblings = tabs::Siblings::find();
    let page = if siblings.is_some() { page.among_tabs() } else { page };
    let page = page.invited_by(base::invitation()).looking_for_own();
    let worker_url = document().body().and_then(|body| body.get_attribute("data-worker"));
    let worker_url = worker_url.ok_or_else(|| JsValue::from_str("the page does not name its worker"))?;
    let sensors = Rc::new(Sensors::default());
    let effects = Rc::new(Effects::new(worker_url, siblings.clone(), Rc::clone(&sensors)));
    let performing = Rc::clone(&effects);
    let app = App::new(page, view::PageView::find()?, move |app, action| performing.perform(app, action));
    controls::listen(&app, &sensors)?;
    sensors.follow(&app);
    if let Some(siblings) = siblings {
        siblings.join(&app);
    }
    app.draw();
    renewal::begin(&app);
    wasm_bindgen_futures::spawn_local(backbone::follow(app.clone()));
    wasm_bindgen_futures::spawn_local(backbone::follow_leaders(app.clone()));
    wasm_bindgen_futures::spawn_local(backbone::follow_models(app.clone()));
    effects.begin(&app);
    if graphics::at_first_sight() == WebGpu::Asking {
        let asking = app.clone();
        wasm_bindgen_futures::spawn_local(async move {
            asking.dispatch(PageEvent::GraphicsKnown(graphics::ask().await));
        });
    }
    let is_set = |name| query.get(name).as_deref() == Some("1");
    if is_set("selfcheck") {
        app.dispatch(PageEvent::CheckDevice);
    }
    let was_pressed = was_pressed()?;
    let goes_on = match resume::before() {
        // A click on the button since then starts it.
        _ if was_pressed => Some(false),
        Before::Contributed { is_paused } => Some(is_paused),
        Before::Rested => is_set("autostart").then_some(false),
        Before::BrokeOff => None,
    };
    if let Some(is_paused) = goes_on {
        app.dispatch(PageEvent::GoOn { is_paused });
    }
    Ok(())
}

/// Whether the visitor pressed the button while this program was loading.
fn was_pressed() -> Result<bool, JsValue> {
    let toggle: Element = dom::by_id("toggle")?;
    Ok(toggle.get_attribute("data-wanted").as_deref() == Some("true"))
}

/// First request number: random, so that the tabs' numbers differ.
fn random() -> u32 {
    (js_sys::Math::random() * f64::from(u32::MAX)) as u32
}

fn capabilities() -> Capabilities {
    let window = window();
    Capabilities { secure: window.is_secure_context(), web_gpu: graphics::at_first_sight() }
}
