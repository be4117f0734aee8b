//! The page's handle of the training worker: messages to and from it, its WebRTC connections, and its end.

use gloo::timers::callback::Timeout;
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{ErrorEvent, MessageEvent, MessagePort, Worker, WorkerOptions, WorkerType};

use barnraise_messages::{PageToPeer, PeerToPage};

use crate::dom::DomListener;
use crate::rtc::RtcConnections;
use crate::state::{PageEvent, PeerLoss};

/// Shortest interval between two batches of the worker's events.
const NEWS_GAP_MS: u32 = 100;

/// A running worker. Dropping it ends it.
pub(crate) struct PeerWorker {
    worker: Worker,
    _listeners: [DomListener; 3],
}

impl PeerWorker {
    /// Starts the worker at `url`; its messages go to `dispatch`.
    pub(crate) fn spawn(url: &str, dispatch: impl Fn(PageEvent) + Clone + 'static) -> Result<Self, JsValue> {
        let options = WorkerOptions::new();
        options.set_type(WorkerType::Module);
        options.set_name("peer");
        let worker = Worker::new_with_options(url, &options)?;
        let on_message = {
            let dispatch = dispatch.clone();
            let rtc = RtcConnections::default();
            let worker = worker.clone();
            move |event: web_sys::Event| match read(&event) {
                PageEvent::FromPeer(PeerToPage::Events { messages }) => {
                    messages.into_iter().map(PageEvent::FromPeer).for_each(&dispatch);
                    let worker = worker.clone();
                    let ask = move || {
                        // A worker that has ended needs no answer.
                        let _ = serde_wasm_bindgen::to_value(&PageToPeer::Acknowledged)
                            .map_err(JsValue::from)
                            .and_then(|taken| worker.post_message(&taken));
                    };
                    Timeout::new(NEWS_GAP_MS, ask).forget();
                }
                PageEvent::FromPeer(PeerToPage::DialRtc { ufrag, answer }) => {
                    if let Some(port) = port(&event) {
                        rtc.dial(ufrag, answer, &port);
                    }
                }
                event => dispatch(event),
            }
        };
        let on_error = {
            let dispatch = dispatch.clone();
            move |event: web_sys::Event| dispatch(lost(&reason(&event)))
        };
        let on_unreadable = move |_: web_sys::Event| {
            dispatch(lost("it sent what this page cannot read"));
        };
        let listeners = [
            DomListener::new(&worker, "message", on_message),
            DomListener::new(&worker, "error", on_error),
            DomListener::new(&worker, "messageerror", on_unreadable),
        ];
        Ok(Self { worker, _listeners: listeners })
    }

    /// Ends the worker; earlier messages may still arrive.
    pub(crate) fn end(&self) {
        self.worker.terminate();
    }

    /// Posts a message.
    pub(crate) fn post(&self, message: &PageToPeer) -> Result<(), JsValue> {
        self.worker.post_message(&serde_wasm_bindgen::to_value(message)?)
    }
}

impl Drop for PeerWorker {
    fn drop(&mut self) {
        self.end();
    }
}

fn read(event: &web_sys::Event) -> PageEvent {
    let data = event.unchecked_ref::<MessageEvent>().data();
    match serde_wasm_bindgen::from_value::<PeerToPage>(data) {
        Ok(message) => PageEvent::FromPeer(message),
        Err(error) => lost(&format!("it sent what this page cannot read: {error}")),
    }
}

/// The port that came with a message.
fn port(event: &web_sys::Event) -> Option<MessagePort> {
    event.unchecked_ref::<MessageEvent>().ports().get(0).dyn_into().ok()
}

fn lost(words: &str) -> PageEvent {
    PageEvent::PeerLost { reason: PeerLoss::of_words(words) }
}

fn reason(event: &web_sys::Event) -> String {
    // A script that cannot be loaded is a plain event without a message.
    match event.dyn_ref::<ErrorEvent>().map(ErrorEvent::message) {
        Some(message) if !message.is_empty() => message,
        _ => "its script could not be loaded".into(),
    }
}
