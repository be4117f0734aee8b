//! Messages from the worker to the page.

use std::cell::RefCell;
use std::rc::Rc;

use barnraise_messages::event_queue::EventQueue;
use barnraise_messages::{ContributorEvent, PeerToPage};
use js_sys::Array;
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{DedicatedWorkerGlobalScope, MessagePort};

/// The scope of this worker; `None` elsewhere.
pub(crate) fn scope() -> Option<DedicatedWorkerGlobalScope> {
    js_sys::global().dyn_into().ok()
}

/// Posts a message. A failure goes to the console: there is no other channel.
pub(crate) fn post(message: &PeerToPage) {
    let posted = serde_wasm_bindgen::to_value(message)
        .map_err(JsValue::from)
        .and_then(|value| scope().ok_or(JsValue::NULL)?.post_message(&value));
    if let Err(error) = posted {
        gloo::console::error!("a message to the page was lost:", error);
    }
}

/// Posts a message with a port that belongs to it.
///
/// # Errors
/// Outside of a dedicated worker.
pub(crate) fn post_with_port(message: &PeerToPage, port: &MessagePort) -> Result<(), JsValue> {
    let message = serde_wasm_bindgen::to_value(message)?;
    scope().ok_or(JsValue::NULL)?.post_message_with_transfer(&message, &Array::of1(port))
}

/// The message of a JavaScript error.
pub(crate) fn describe(error: &JsValue) -> String {
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) => String::from(error.message()),
        None => format!("{error:?}"),
    }
}

/// Interval between checks of a page that is far behind, in milliseconds.
const CATCH_UP_MS: u32 = 50;

/// Sends the contributor's events to the page, as fast as the page takes them. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct EventSender(Rc<RefCell<EventQueue>>);

impl EventSender {
    /// Queues an event.
    pub(crate) fn send(&self, event: ContributorEvent) {
        self.0.borrow_mut().add(event);
        self.post_events();
    }

    /// The page has taken what was posted last.
    pub(crate) fn on_acknowledged(&self) {
        self.0.borrow_mut().on_acknowledged();
        self.post_events();
    }

    /// Returns once the page is not too far behind.
    pub(crate) async fn wait_for_page(&self) {
        while self.0.borrow().is_full() {
            gloo::timers::future::TimeoutFuture::new(CATCH_UP_MS).await;
        }
    }

    fn post_events(&self) {
        let events = self.0.borrow_mut().take();
        if let Some(events) = events {
            post(&events);
        }
    }
}
