//! Asks the browser for its properties and tries the transports, each for seconds at most; an open connection is
//! closed at once. Never before the first paint, and never while the tab computes.

mod rtc;

use std::rc::Rc;

use barnraise_messages::TransportKind;
use gloo::net::http::{Method, RequestBuilder};
use gloo::timers::callback::Timeout;
use js_sys::{Array, Function, Object, Promise, Reflect, Uint8Array};
use wasm_bindgen::closure::Closure;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::WebSocket;

use crate::app::App;
use crate::dom::{DomListener, document, now_ms, window};
use crate::kept::BrowserStorage;
use crate::preflight::{Address, BrowserIdentity, ProbeResult, Surroundings, TRANSPORTS};
use crate::state::{PageEvent, WorkerState};

/// Time limit of an attempt.
const ATTEMPT_MS: u32 = 4000;
/// Longest shown reason.
const REASON_CHARS_MAX: usize = 120;

/// The browser's properties that need no request.
pub(crate) fn surroundings() -> Surroundings {
    let navigator = JsValue::from(window().navigator());
    let number = |name: &str| Reflect::get(&navigator, &name.into()).ok().and_then(|value| value.as_f64());
    let user_agent = Reflect::get(&navigator, &"userAgent".into()).ok().and_then(|value| value.as_string());
    let location = window().location();
    Surroundings {
        browser: BrowserIdentity::of(&user_agent.unwrap_or_default()),
        is_encrypted: location.protocol().is_ok_and(|protocol| protocol == "https:"),
        host: location.host().unwrap_or_default(),
        transports: TRANSPORTS.into_iter().filter(|transport| constructor(*transport).is_some()).collect(),
        memory_gib: number("deviceMemory"),
        n_processors: number("hardwareConcurrency").map(|n| n as u32),
        is_storage_blocked: !BrowserStorage::Local.is_there(),
    }
}

/// The browser's constructor of a transport, if there is one.
fn constructor(transport: TransportKind) -> Option<Function> {
    let name = match transport {
        TransportKind::WebTransport => "WebTransport",
        TransportKind::WebRtc => "RTCPeerConnection",
        TransportKind::WebSocket => "WebSocket",
    };
    Reflect::get(&window(), &name.into()).ok()?.dyn_into().ok()
}

/// Starts the attempts after the next paint, unless the tab computes by then.
pub(crate) fn begin(app: &Rc<App>, attempts: Vec<(TransportKind, Address)>) {
    let app = Rc::clone(app);
    let frame = Closure::once_into_js(move || {
        // The paint comes right after the frame's callbacks.
        Timeout::new(0, move || try_all(&app, attempts)).forget();
    });
    // A closed window needs no attempts.
    let _ = window().request_animation_frame(frame.unchecked_ref());
}

fn try_all(app: &Rc<App>, attempts: Vec<(TransportKind, Address)>) {
    let measuring = Rc::clone(app);
    spawn_local(async move {
        if let Some(n_bytes) = program_bytes().await {
            measuring.dispatch(PageEvent::ProgramMeasured(n_bytes));
        }
    });
    if !attempts.is_empty() && app.with_page(|page| page.peer != WorkerState::Absent) {
        app.dispatch(PageEvent::PreflightLeft);
        return;
    }
    for (transport, address) in attempts {
        let app = Rc::clone(app);
        // Each in its own turn of the event loop, so that no turn is long.
        Timeout::new(0, move || {
            spawn_local(async move {
                let tried = attempt(&address).await;
                app.dispatch(PageEvent::TransportProbed(transport, tried));
            });
        })
        .forget();
    }
}

/// Bytes of the training program, as compressed for this browser.
async fn program_bytes() -> Option<u64> {
    let address = document().body()?.get_attribute("data-program")?;
    let asked = RequestBuilder::new(&address).method(Method::HEAD).send().await.ok()?;
    let length = asked.headers().get("content-length").filter(|_| asked.ok())?;
    length.parse().ok().filter(|n_bytes| *n_bytes > 0)
}

/// Opens a connection and closes it.
async fn attempt(address: &Address) -> ProbeResult {
    let since_ms = now_ms();
    let (opened, close) = match open(address) {
        Ok(opening) => opening,
        Err(error) => return ProbeResult::Failed { reason: reason(&error) },
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
        Ok(value) if value == JsValue::FALSE => ProbeResult::Silent,
        Ok(_) => ProbeResult::Works { after_ms: (now_ms() - since_ms).round() as u32 },
        Err(error) => ProbeResult::Failed { reason: reason(&error) },
    }
}

/// A promise that resolves when the connection is open, and the function that closes it.
type PendingProbe = (Promise, Box<dyn FnOnce()>);

fn open(address: &Address) -> Result<PendingProbe, JsValue> {
    match address {
        Address::Session { url, certificates } => open_web_transport(url, certificates),
        Address::Connection(address) => rtc::open(address),
        Address::Socket { url } => open_web_socket(url),
    }
}

/// Uses the API by name, as its bindings are unstable.
fn open_web_transport(url: &str, certificates: &[[u8; 32]]) -> Result<PendingProbe, JsValue> {
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
    let constructor = constructor(TransportKind::WebTransport).ok_or("this browser has none")?;
    let session = Reflect::construct(&constructor, &Array::of2(&url.into(), &options))?;
    let ready: Promise = Reflect::get(&session, &"ready".into())?.dyn_into()?;
    let closed: Promise = Reflect::get(&session, &"closed".into())?.dyn_into()?;
    for promise in [&ready, &closed] {
        // Without a handler a rejected promise would be reported as an error of the page.
        let quiet: Function = Closure::once_into_js(|_: JsValue| ()).unchecked_into();
        Reflect::get(promise, &"catch".into())?.dyn_into::<Function>()?.call1(promise, &quiet)?;
    }
    let close = move || {
        let close = Reflect::get(&session, &"close".into()).and_then(|close| close.dyn_into::<Function>());
        // Throws if the session has failed.
        let _ = close.and_then(|close| close.call0(&session));
    };
    Ok((ready, Box::new(close)))
}

fn open_web_socket(url: &str) -> Result<PendingProbe, JsValue> {
    let socket = WebSocket::new(url)?;
    let mut listeners = Vec::new();
    let opened = Promise::new(&mut |resolve, reject| {
        let on_open = move |_| drop(resolve.call1(&JsValue::NULL, &JsValue::TRUE));
        // The browser gives no reason.
        let on_error = move |_| drop(reject.call1(&JsValue::NULL, &"".into()));
        listeners.push(DomListener::new(&socket, "open", on_open));
        listeners.push(DomListener::new(&socket, "error", on_error));
    });
    let close = move || {
        drop(listeners);
        let _ = socket.close();
    };
    Ok((opened, Box::new(close)))
}

/// The browser's message of an error, in one line.
fn reason(error: &JsValue) -> String {
    let message = error.as_string().or_else(|| Reflect::get(error, &"message".into()).ok()?.as_string());
    message.unwrap_or_default().chars().filter(|letter| !letter.is_control()).take(REASON_CHARS_MAX).collect()
}
