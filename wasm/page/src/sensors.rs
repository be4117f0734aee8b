//! Sensors: reads battery, link, presence and time from the browser, and keeps the screen on. Not every browser has
//! each of these; [`crate::limits`] decides what follows.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use gloo::timers::callback::{Interval, Timeout};
use js_sys::{Array, Function, Object, Promise, Reflect};
use serde_json::Value;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::EventTarget;

use crate::app::App;
use crate::dom::{DomListener, document, network_information, now_ms, window};
use crate::kept::BrowserStorage;
use crate::limits::{
    Battery, DataUsage, Hardware, Input, LimitsRequest, LocalTime, NetworkLink, Presence, ResourceLimits,
    ScreenLock, Settings,
};
use crate::preflight::LITTLE_MEMORY_GIB;
use crate::state::PageEvent;

/// Storage key of the visitor's settings.
const SETTINGS_KEY: &str = "barnraise.settings";
/// Storage key of today's data usage.
const USAGE_KEY: &str = "barnraise.usage";
/// Storage key of the end of a rest from heat, in milliseconds since 1970.
const REST_KEY: &str = "barnraise.rest";
/// Interval of the clock. Browsers tick less often while the page is hidden.
const TICK_MS: u32 = 2000;
/// A browser that has not reported the battery by then will not report it.
const BATTERY_MS: u32 = 3000;
/// A visitor without any input for so long is away. Browsers allow no shorter threshold.
const AWAY_MS: u32 = 60_000;

/// State of the sensors that the browser holds for the tab.
#[derive(Debug, Default)]
pub(crate) struct Sensors {
    is_watching_presence: Cell<bool>,
    is_screen_wanted: Cell<bool>,
    /// Keeps the screen on until it is released.
    screen: RefCell<Option<JsValue>>,
}

/// The resource limits with the stored settings and the first state of all sensors.
pub(crate) fn resource_limits() -> ResourceLimits {
    let hardware = hardware();
    let kept: Value = BrowserStorage::Local.get(SETTINGS_KEY).unwrap_or_default();
    let written: DataUsage = BrowserStorage::Local.get(USAGE_KEY).unwrap_or_default();
    let battery = if has(&navigator(), "getBattery") { Battery::Asking } else { Battery::Unknown };
    let presence = if has(&window(), "IdleDetector") { Presence::NotTold } else { Presence::NotInBrowser };
    let lock = if has(&navigator(), "wakeLock") { ScreenLock::Off } else { ScreenLock::NotInBrowser };
    let rest_until_ms: f64 = BrowserStorage::Local.get(REST_KEY).unwrap_or_default();
    ResourceLimits::new(hardware, Settings::read(&kept, hardware), written, local_time())
        .sensing(battery, link(), presence, lock)
        .resting(now_ms(), rest_until_ms - js_sys::Date::now())
}

impl Sensors {
    /// Reports every change to the page, for as long as it is open.
    pub(crate) fn follow(self: &Rc<Self>, app: &Rc<App>) {
        follow_battery(app);
        if let Some(connection) = network_information() {
            tell_on(app, &connection, "change", || Input::Link(link()));
        }
        tell_on(app, &document(), "visibilitychange", || Input::Hidden(document().hidden()));
        tell(app, Input::Hidden(document().hidden()));
        let (sensors, ticking) = (Rc::clone(self), Rc::clone(app));
        Interval::new(TICK_MS, move || {
            tell(&ticking, Input::Clock(local_time()));
            sensors.look_for_presence(&ticking);
        })
        .forget();
        self.look_for_presence(app);
    }

    /// Carries out a request of the resource limits.
    pub(crate) fn perform(self: &Rc<Self>, app: &Rc<App>, request: LimitsRequest) {
        match request {
            LimitsRequest::Keep(settings) => {
                // Private windows may refuse: the settings then last as long as the tab.
                BrowserStorage::Local.set(SETTINGS_KEY, &settings.to_value());
            }
            LimitsRequest::Write { day, bytes } => write(app, |written| written.with(day, bytes)),
            LimitsRequest::WriteWaiver { day } => write(app, |written| written.waived(day)),
            LimitsRequest::WriteRest { milliseconds } => {
                BrowserStorage::Local.set(REST_KEY, &(js_sys::Date::now() + milliseconds));
            }
            LimitsRequest::KeepScreenOn(is_on) => {
                self.is_screen_wanted.set(is_on);
                let (sensors, app) = (Rc::clone(self), Rc::clone(app));
                spawn_local(async move { sensors.mind_screen(&app).await });
            }
        }
    }

    /// Watches presence where the visitor has permitted it before. The permission is requested only on a click.
    fn look_for_presence(self: &Rc<Self>, app: &Rc<App>) {
        let is_unknown =
            |limits: &ResourceLimits| limits.settings().only_away && limits.presence == Presence::NotTold;
        if app.with_page(|page| is_unknown(&page.limits)) {
            let (sensors, app) = (Rc::clone(self), Rc::clone(app));
            spawn_local(async move { sensors.watch_presence(&app).await });
        }
    }

    /// Requests the permission to detect whether the device is in use. Only within a click.
    pub(crate) fn ask_for_presence(self: &Rc<Self>, app: &Rc<App>) {
        let detector = get(&window(), "IdleDetector");
        let Ok(asked) = call(&detector, "requestPermission", &Array::new()) else { return };
        let (sensors, app) = (Rc::clone(self), Rc::clone(app));
        spawn_local(async move {
            // Starting the detector shows whether it was granted.
            let _ = JsFuture::from(Promise::resolve(&asked)).await;
            sensors.watch_presence(&app).await;
        });
    }

    async fn watch_presence(&self, app: &Rc<App>) {
        if self.is_watching_presence.replace(true) {
            return;
        }
        match start_detector().await {
            Ok(detector) => {
                tell(app, Input::Presence(read_presence(&detector)));
                let read = detector.clone();
                tell_on(app, &detector, "change", move || Input::Presence(read_presence(&read)));
            }
            Err(_) => self.is_watching_presence.set(false),
        }
    }

    /// Acquires or releases the screen lock, as wanted.
    async fn mind_screen(self: &Rc<Self>, app: &Rc<App>) {
        if !self.is_screen_wanted.get() {
            if let Some(held) = self.screen.take() {
                // The browser may have released it, as it does when the page is hidden.
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
            Ok(held) if self.is_screen_wanted.get() => {
                self.mind_release(app, &held);
                if let Some(before) = self.screen.replace(Some(held)) {
                    let _ = call(&before, "release", &Array::new());
                }
                tell(app, Input::ScreenLock(ScreenLock::On));
            }
            // No longer wanted.
            Ok(held) => drop(call(&held, "release", &Array::new())),
            Err(_) => tell(app, Input::ScreenLock(ScreenLock::Refused)),
        }
    }

    /// Reports a release by the browser, for example on a low battery. It also releases the lock of a hidden page, which
    /// requests it again when it is shown.
    fn mind_release(self: &Rc<Self>, app: &Rc<App>, held: &JsValue) {
        let Some(lock) = held.dyn_ref::<EventTarget>() else { return };
        let (sensors, app, released) = (Rc::clone(self), Rc::clone(app), held.clone());
        let heard = move |_| {
            let is_held = sensors.screen.borrow().as_ref() == Some(&released);
            if is_held && sensors.is_screen_wanted.get() && !document().hidden() {
                tell(&app, Input::ScreenLock(ScreenLock::Refused));
            }
        };
        DomListener::new(lock, "release", heard).keep();
    }
}

/// Changes the stored usage, which other tabs write as well.
fn write(app: &Rc<App>, change: impl FnOnce(DataUsage) -> DataUsage) {
    if !BrowserStorage::Local.is_there() {
        return;
    }
    let written = change(BrowserStorage::Local.get(USAGE_KEY).unwrap_or_default());
    if BrowserStorage::Local.set(USAGE_KEY, &written) {
        tell(app, Input::Written(written));
    }
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

fn link() -> NetworkLink {
    let Some(connection) = network_information() else { return NetworkLink::default() };
    let kind = get(&connection, "type").as_string();
    NetworkLink {
        is_metered: kind.as_deref() == Some("cellular") || get(&connection, "metered").is_truthy(),
        saves_data: get(&connection, "saveData").is_truthy(),
    }
}

fn follow_battery(app: &Rc<App>) {
    let Ok(asked) = call(&navigator(), "getBattery", &Array::new()) else {
        // An API that throws counts as missing.
        return tell(app, Input::Battery(Battery::Unknown));
    };
    let waiting = Rc::clone(app);
    Timeout::new(BATTERY_MS, move || {
        if waiting.with_page(|page| page.limits.battery == Battery::Asking) {
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

fn tell(app: &Rc<App>, input: Input) {
    app.dispatch(PageEvent::Limits(input));
}

/// Reports the result of `read` on each event `name` of `target`.
fn tell_on(app: &Rc<App>, target: &EventTarget, name: &'static str, read: impl Fn() -> Input + 'static) {
    let app = Rc::clone(app);
    DomListener::new(target, name, move |_| tell(&app, read())).keep();
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
