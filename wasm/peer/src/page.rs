//! The worker's line to the page.

use std::cell::RefCell;
use std::rc::Rc;

use barnraise_messages::news::News;
use barnraise_messages::{Event, PeerToPage};
use js_sys::Array;
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{DedicatedWorkerGlobalScope, MessagePort};

/// The scope of this worker; `None` elsewhere.
pub(crate) fn scope() -> Option<DedicatedWorkerGlobalScope> {
    js_sys::global().dyn_into().ok()
}

/// Posts a message. One that cannot be posted is named on the console: there is nobody else to tell.
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

/// What JavaScript says about an error, in words.
pub(crate) fn describe(error: &JsValue) -> String {
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) => String::from(error.message()),
        None => format!("{error:?}"),
    }
}

/// How long a page that is far behind is given before it is looked at again, in milliseconds.
const CATCH_UP_MS: u32 = 50;

/// Tells the page what the contributor tells, as fast as the page takes it. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Teller(Rc<RefCell<News>>);

impl Teller {
    /// Something happened.
    pub(crate) fn tell(&self, event: Event) {
        self.0.borrow_mut().add(event);
        self.post_news();
    }

    /// The page has taken what was posted last.
    pub(crate) fn on_taken(&self) {
        self.0.borrow_mut().on_taken();
        self.post_news();
    }

    /// Returns once the page is not too far behind.
    pub(crate) async fn let_catch_up(&self) {
        while self.0.borrow().is_full() {
            gloo::timers::future::TimeoutFuture::new(CATCH_UP_MS).await;
        }
    }

    fn post_news(&self) {
        let news = self.0.borrow_mut().take();
        if let Some(news) = news {
            post(&news);
        }
    }
}
