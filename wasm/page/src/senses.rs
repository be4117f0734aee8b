//! What the browser says of the device, its battery, its link and its visitor, and what it does for the tab. Each of
//! these is there or not, in each browser; [`crate::conduct`] decides what follows.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use gloo::storage::{LocalStorage, Storage};
use gloo::timers::callback::{Interval, Timeout};
use js_sys::{Array, Function, Object, Promise, Reflect};
use serde_json::Value;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::EventTarget;

use crate::app::App;
use crate::conduct::{
    Battery, Conductor, Hardware, Input, Link, LocalTime, Presence, Request, ScreenLock, Settings, Usage,
};
use crate::dom::{Listener, document, now_ms, window};
use crate::preflight::LITTLE_MEMORY_GIB;
use crate::state::Event;

/// Where the visitor's settings are kept.
const SETTINGS_KEY: &str = "barnraise.conduct";
/// Where it is kept what was sent and received today.
const USAGE_KEY: &str = "barnraise.usage";
/// Where it is kept until when the device rests from heat, in milliseconds since 1970.
const REST_KEY: &str = "barnraise.rest";
/// How often the clock is looked at. Browsers do so less often while the page is hidden.
const TICK_MS: u32 = 2000;
/// A browser that has not said by then how the battery is will not say it.
const BATTERY_MS: u32 = 3000;
/// Whoever touched nothing for so long is away. Browsers allow no less.
const AWAY_MS: u32 = 60_000;

/// What the browser holds for the tab.
#[derive(Debug, Default)]
pub(crate) struct Senses {
    is_watching_presence: Cell<bool>,
    is_screen_wanted: Cell<bool>,
    /// Keeps the screen on until it is released.
    screen: RefCell<Option<JsValue>>,
}

/// As everything is at the beginning.
pub(crate) fn conductor() -> Conductor {
    let hardware = hardware();
    let kept: Value = LocalStorage::get(SETTINGS_KEY).unwrap_or_default();
    let written: Usage = LocalStorage::get(USAGE_KEY).unwrap_or_default();
    let battery = if has(&navigator(), "getBattery") { Battery::Asking } else { Battery::Unknown };
    let presence = if has(&window(), "IdleDetector") { Presence::NotTold } else { Presence::NotInBrowser };
    let lock = if has(&navigator(), "wakeLock") { ScreenLock::Off } else { ScreenLock::NotInBrowser };
    let rest_until_ms: f64 = LocalStorage::get(REST_KEY).unwrap_or_default();
    Conductor::new(hardware, Settings::read(&kept, hardware), written, local_time())
        .sensing(battery, link(), presence, lock)
        .resting(now_ms(), rest_until_ms - js_sys::Date::now())
}

/// Tells the page of every change, for as long as it is open.
pub(crate) fn follow(app: &Rc<App>) {
    follow_battery(app);
    if let Some(connection) = connection() {
        tell_on(app, &connection, "change", || Input::Link(link()));
    }
    tell_on(app, &document(), "visibilitychange", || Input::Hidden(document().hidden()));
    tell(app, Input::Hidden(document().hidden()));
    let ticking = Rc::clone(app);
    Interval::new(TICK_MS, move || {
        tell(&ticking, Input::Clock(local_time()));
        look_for_presence(&ticking);
    })
    .forget();
    look_for_presence(app);
}

/// Allowed at an earlier visit, in another tab, in the browser's settings, or not: asked for only on a click.
fn look_for_presence(app: &Rc<App>) {
    let is_unknown =
        |conductor: &Conductor| conductor.settings().only_away && conductor.presence == Presence::NotTold;
    if app.with_page(|page| is_unknown(&page.conductor)) {
        let app = Rc::clone(app);
        spawn_local(async move { watch_presence(&app).await });
    }
}

/// Does what the conductor wants.
pub(crate) fn perform(app: &Rc<App>, request: Request) {
    match request {
        Request::Keep(settings) => {
            // Private windows may refuse: the settings then last as long as the tab.
            let _ = LocalStorage::set(SETTINGS_KEY, settings.to_value());
        }
        Request::Write { day, bytes } => write(app, |written| written.with(day, bytes)),
        Request::WriteWaiver { day } => write(app, |written| written.waived(day)),
        Request::WriteRest { milliseconds } => {
            let _ = LocalStorage::set(REST_KEY, js_sys::Date::now() + milliseconds);
        }
        Request::KeepScreenOn(is_on) => {
            app.senses.is_screen_wanted.set(is_on);
            let app = Rc::clone(app);
            spawn_local(async move { mind_screen(&app).await });
        }
    }
}

/// What other tabs wrote meanwhile is in the storage, where there is one.
fn write(app: &Rc<App>, change: impl FnOnce(Usage) -> Usage) {
    let Ok(stored) = LocalStorage::get::<Usage>(USAGE_KEY).or_else(|_| first_of_day()) else { return };
    let written = change(stored);
    if LocalStorage::set(USAGE_KEY, written).is_ok() {
        tell(app, Input::Written(written));
    }
}

/// Nothing was written yet, or what is there is nothing.
fn first_of_day() -> Result<Usage, ()> {
    let is_there = window().local_storage().is_ok_and(|storage| storage.is_some());
    if is_there { Ok(Usage::default()) } else { Err(()) }
}

fn hardware() -> Hardware {
    let hint = get(&get(&navigator(), "userAgentData"), "mobile").is_truthy();
    let agent = get(&navigator(), "userAgent").as_string().unwrap_or_default();
    let is_touched = matches_media("(pointer: coarse) and (hover: none)");
    let memory_gib = get(&navigator(), "deviceMemory").as_f64();
    Hardware {
        is_phone: hint || agent.contains("Mobi") || is_touched,
        is_small: memory_gib.is_some_and(|gib| gib <= LITTLE_MEMORY_GIB),
    }
}

fn matches_media(query: &str) -> bool {
    let list = call(&window(), "matchMedia", &Array::of1(&query.into()));
    list.is_ok_and(|list| get(&list, "matches").is_truthy())
}

fn local_time() -> LocalTime {
    let now = js_sys::Date::new_0();
    LocalTime::of(now.get_time(), -now.get_timezone_offset())
}

fn connection() -> Option<EventTarget> {
    get(&navigator(), "connection").dyn_into().ok()
}

/// Whether the browser tells what kind of link it has.
pub(crate) fn tells_of_link() -> bool {
    connection().is_some()
}

fn link() -> Link {
    let Some(connection) = connection() else { return Link::default() };
    let kind = get(&connection, "type").as_string();
    Link {
        is_metered: kind.as_deref() == Some("cellular") || get(&connection, "metered").is_truthy(),
        saves_data: get(&connection, "saveData").is_truthy(),
    }
}

fn follow_battery(app: &Rc<App>) {
    let Ok(asked) = call(&navigator(), "getBattery", &Array::new()) else {
        // One that is there and throws tells as little as one that is not.
        return tell(app, Input::Battery(Battery::Unknown));
    };
    let waiting = Rc::clone(app);
    Timeout::new(BATTERY_MS, move || {
        if waiting.with_page(|page| page.conductor.battery == Battery::Asking) {
            tell(&waiting, Input::Battery(Battery::Unknown));
        }
    })
    .forget();
    let app = Rc::clone(app);
    spawn_local(async move {
        let answered = JsFuture::from(Promise::resolve(&asked)).await;
        let Some(battery) = answered.ok().and_then(|battery| battery.dyn_into::<EventTarget>().ok()) else {
            return tell(&app, Input::Battery(Battery::Unknown));
        };
        tell(&app, Input::Battery(read_battery(&battery)));
        for change in ["chargingchange", "levelchange"] {
            let read = battery.clone();
            tell_on(&app, &battery, change, move || Input::Battery(read_battery(&read)));
        }
    });
}

fn read_battery(battery: &EventTarget) -> Battery {
    match (get(battery, "charging").as_bool(), get(battery, "level").as_f64()) {
        (Some(is_charging), Some(level)) => Battery::Known { is_charging, level: level as f32 },
        _ => Battery::Unknown,
    }
}

/// Asks the visitor whether the browser may tell when nobody uses the device. Only within a click.
pub(crate) fn ask_for_presence(app: &Rc<App>) {
    let detector = get(&window(), "IdleDetector");
    let Ok(asked) = call(&detector, "requestPermission", &Array::new()) else { return };
    let app = Rc::clone(app);
    spawn_local(async move {
        // Whether it may is found out by doing it.
        let _ = JsFuture::from(Promise::resolve(&asked)).await;
        watch_presence(&app).await;
    });
}

async fn watch_presence(app: &Rc<App>) {
    if app.senses.is_watching_presence.replace(true) {
        return;
    }
    match start_detector().await {
        Ok(detector) => {
            tell(app, Input::Presence(read_presence(&detector)));
            let read = detector.clone();
            tell_on(app, &detector, "change", move || Input::Presence(read_presence(&read)));
        }
        Err(_) => app.senses.is_watching_presence.set(false),
    }
}

async fn start_detector() -> Result<EventTarget, JsValue> {
    let constructor: Function = get(&window(), "IdleDetector").dyn_into()?;
    let detector = Reflect::construct(&constructor, &Array::new())?;
    let options = Object::new();
    Reflect::set(&options, &"threshold".into(), &AWAY_MS.into())?;
    let started = call(&detector, "start", &Array::of1(&options))?;
    JsFuture::from(Promise::resolve(&started)).await?;
    detector.dyn_into()
}

fn read_presence(detector: &EventTarget) -> Presence {
    let is = |name, wanted: &str| get(detector, name).as_string().as_deref() == Some(wanted);
    match () {
        () if is("screenState", "locked") || is("userState", "idle") => Presence::Away,
        () if is("userState", "active") => Presence::Here,
        () => Presence::NotTold,
    }
}

/// Asks for the screen to be kept on, or lets go of it, as is wanted by now.
async fn mind_screen(app: &Rc<App>) {
    if !app.senses.is_screen_wanted.get() {
        if let Some(held) = app.senses.screen.take() {
            // It may have let go by itself, as it does when the page is hidden.
            let _ = call(&held, "release", &Array::new());
        }
        return tell(app, Input::ScreenLock(ScreenLock::Off));
    }
    let lock = get(&navigator(), "wakeLock");
    let asked = call(&lock, "request", &Array::of1(&"screen".into()));
    let held = match asked {
        Ok(asked) => JsFuture::from(Promise::resolve(&asked)).await,
        Err(error) => Err(error),
    };
    match held {
        Ok(held) if app.senses.is_screen_wanted.get() => {
            mind_release(app, &held);
            if let Some(before) = app.senses.screen.replace(Some(held)) {
                let _ = call(&before, "release", &Array::new());
            }
            tell(app, Input::ScreenLock(ScreenLock::On));
        }
        // Nobody wants it any more.
        Ok(held) => drop(call(&held, "release", &Array::new())),
        Err(_) => tell(app, Input::ScreenLock(ScreenLock::Refused)),
    }
}

/// A browser may let go by itself, of a battery that is low for one; of a page that is hidden it always does, and that page
/// asks again when it is seen.
fn mind_release(app: &Rc<App>, held: &JsValue) {
    let Some(lock) = held.dyn_ref::<EventTarget>() else { return };
    let (app, released) = (Rc::clone(app), held.clone());
    let heard = move |_| {
        let is_held = app.senses.screen.borrow().as_ref() == Some(&released);
        if is_held && app.senses.is_screen_wanted.get() && !document().hidden() {
            tell(&app, Input::ScreenLock(ScreenLock::Refused));
        }
    };
    Listener::new(lock, "release", heard).keep();
}

fn tell(app: &Rc<App>, input: Input) {
    app.dispatch(Event::Conduct(input));
}

/// Tells what `read` finds, each time `target` says that it is another one.
fn tell_on(app: &Rc<App>, target: &EventTarget, name: &'static str, read: impl Fn() -> Input + 'static) {
    let app = Rc::clone(app);
    Listener::new(target, name, move |_| tell(&app, read())).keep();
}

fn navigator() -> JsValue {
    window().navigator().into()
}

/// A property, or undefined where there is none.
fn get(object: &JsValue, name: &str) -> JsValue {
    Reflect::get(object, &name.into()).unwrap_or_default()
}

fn has(object: &JsValue, name: &str) -> bool {
    get(object, name).is_truthy()
}

/// Calls a method; an error where there is none.
fn call(object: &JsValue, name: &str, arguments: &Array) -> Result<JsValue, JsValue> {
    get(object, name).dyn_into::<Function>()?.apply(object, arguments)
}
