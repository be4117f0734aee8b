//! The worker's line to the page.

use barnraise_messages::PeerToPage;
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
