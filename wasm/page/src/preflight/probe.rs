//! Asks the browser and tries the ways, each for itself and for seconds at most; a connection that stands is
//! closed at once. Never on the way of the first paint, and never while the tab is at work.

use std::rc::Rc;

use barnraise_messages::Way;
use gloo::net::http::{Method, RequestBuilder};
use gloo::timers::callback::Timeout;
use js_sys::{Array, Function, Object, Promise, Reflect, Uint8Array};
use wasm_bindgen::closure::Closure;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::WebSocket;

use super::{Address, Browser, Surroundings, Tried, WAYS, rtc};
use crate::app::App;
use crate::dom::{Listener, document, now_ms, window};
use crate::state::{Event, Peer};

/// How long an attempt may take.
const ATTEMPT_MS: u32 = 4000;
/// Longest reason of a browser that is shown.
const REASON_CHARS_MAX: usize = 120;

/// What the browser tells without being asked for anything.
pub(crate) fn surroundings() -> Surroundings {
    let navigator = JsValue::from(window().navigator());
    let number = |name: &str| Reflect::get(&navigator, &name.into()).ok().and_then(|value| value.as_f64());
    let user_agent = Reflect::get(&navigator, &"userAgent".into()).ok().and_then(|value| value.as_string());
    let location = window().location();
    Surroundings {
        browser: Browser::of(&user_agent.unwrap_or_default()),
        is_encrypted: location.protocol().is_ok_and(|protocol| protocol == "https:"),
        host: location.host().unwrap_or_default(),
        ways: WAYS.into_iter().filter(|way| constructor(*way).is_some()).collect(),
        memory_gib: number("deviceMemory"),
        n_processors: number("hardwareConcurrency").map(|n| n as u32),
    }
}

/// What opens a connection of this way, where the browser has it.
fn constructor(way: Way) -> Option<Function> {
    let name = match way {
        Way::WebTransport => "WebTransport",
        Way::WebRtc => "RTCPeerConnection",
        Way::WebSocket => "WebSocket",
    };
    Reflect::get(&window(), &name.into()).ok()?.dyn_into().ok()
}

/// Tries everything once what is on the page was painted, unless the tab is at work by then.
pub(crate) fn begin(app: &Rc<App>, attempts: Vec<(Way, Address)>) {
    let app = Rc::clone(app);
    let frame = Closure::once_into_js(move || {
        // The paint comes right after the frame's callbacks.
        Timeout::new(0, move || try_all(&app, attempts)).forget();
    });
    // A window that is gone shows nothing either.
    let _ = window().request_animation_frame(frame.unchecked_ref());
}

fn try_all(app: &Rc<App>, attempts: Vec<(Way, Address)>) {
    let measuring = Rc::clone(app);
    spawn_local(async move {
        if let Some(n_bytes) = program_bytes().await {
            measuring.dispatch(Event::ProgramMeasured(n_bytes));
        }
    });
    if !attempts.is_empty() && app.with_page(|page| page.peer != Peer::Absent) {
        app.dispatch(Event::PreflightLeft);
        return;
    }
    for (way, address) in attempts {
        let app = Rc::clone(app);
        // Each in a turn of its own, so that none of them is a long one.
        Timeout::new(0, move || {
            spawn_local(async move {
                let tried = attempt(&address).await;
                app.dispatch(Event::WayTried(way, tried));
            });
        })
        .forget();
    }
}

/// Bytes of the training program as the server would send them to this browser.
async fn program_bytes() -> Option<u64> {
    let address = document().body()?.get_attribute("data-program")?;
    let asked = RequestBuilder::new(&address).method(Method::HEAD).send().await.ok()?;
    let length = asked.headers().get("content-length").filter(|_| asked.ok())?;
    length.parse().ok().filter(|n_bytes| *n_bytes > 0)
}

/// Opens a connection and closes it.
async fn attempt(address: &Address) -> Tried {
    let since_ms = now_ms();
    let (opened, close) = match open(address) {
        Ok(opening) => opening,
        Err(error) => return Tried::Failed { reason: reason(&error) },
    };
    let mut timer = None;
    let silence = Promise::new(&mut |resolve, _| {
        timer = Some(Timeout::new(ATTEMPT_MS, move || {
            let _ = resolve.call1(&JsValue::NULL, &JsValue::FALSE);
        }));
    });
    let first = JsFuture::from(Promise::race(&Array::of2(&opened, &silence))).await;
    drop(timer);
    close();
    match first {
        // What a connection resolves to is not `false`.
        Ok(value) if value == JsValue::FALSE => Tried::Silent,
        Ok(_) => Tried::Works { after_ms: (now_ms() - since_ms).round() as u32 },
        Err(error) => Tried::Failed { reason: reason(&error) },
    }
}

/// Resolves when the connection stands, and what ends it.
pub(super) type Opening = (Promise, Box<dyn FnOnce()>);

fn open(address: &Address) -> Result<Opening, JsValue> {
    match address {
        Address::Session { url, certificates } => open_web_transport(url, certificates),
        Address::Connection(address) => rtc::open(address),
        Address::Socket { url } => open_web_socket(url),
    }
}

/// By name, as the bindings of it are not stable.
fn open_web_transport(url: &str, certificates: &[[u8; 32]]) -> Result<Opening, JsValue> {
    let hashes = Array::new();
    for certificate in certificates {
        let hash = Object::new();
        Reflect::set(&hash, &"algorithm".into(), &"sha-256".into())?;
        Reflect::set(&hash, &"value".into(), &Uint8Array::from(&certificate[..]))?;
        hashes.push(&hash);
    }
    let options = Object::new();
    if hashes.length() > 0 {
        Reflect::set(&options, &"serverCertificateHashes".into(), &hashes)?;
    }
    let constructor = constructor(Way::WebTransport).ok_or("this browser has none")?;
    let session = Reflect::construct(&constructor, &Array::of2(&url.into(), &options))?;
    let ready: Promise = Reflect::get(&session, &"ready".into())?.dyn_into()?;
    let closed: Promise = Reflect::get(&session, &"closed".into())?.dyn_into()?;
    for promise in [&ready, &closed] {
        // A promise that fails while nobody waits for it would be an error of the page.
        let quiet: Function = Closure::once_into_js(|_: JsValue| ()).unchecked_into();
        Reflect::get(promise, &"catch".into())?.dyn_into::<Function>()?.call1(promise, &quiet)?;
    }
    let close = move || {
        let close = Reflect::get(&session, &"close".into()).and_then(|close| close.dyn_into::<Function>());
        // Throws where it failed already.
        let _ = close.and_then(|close| close.call0(&session));
    };
    Ok((ready, Box::new(close)))
}

fn open_web_socket(url: &str) -> Result<Opening, JsValue> {
    let socket = WebSocket::new(url)?;
    let mut listeners = Vec::new();
    let opened = Promise::new(&mut |resolve, reject| {
        let on_open = move |_| drop(resolve.call1(&JsValue::NULL, &JsValue::TRUE));
        // The browser tells nobody why.
        let on_error = move |_| drop(reject.call1(&JsValue::NULL, &"".into()));
        listeners.push(Listener::new(&socket, "open", on_open));
        listeners.push(Listener::new(&socket, "error", on_error));
    });
    let close = move || {
        drop(listeners);
        let _ = socket.close();
    };
    Ok((opened, Box::new(close)))
}

/// What the browser says of an error, in one line.
fn reason(error: &JsValue) -> String {
    let message = error.as_string().or_else(|| Reflect::get(error, &"message".into()).ok()?.as_string());
    message.unwrap_or_default().chars().filter(|letter| !letter.is_control()).take(REASON_CHARS_MAX).collect()
}
