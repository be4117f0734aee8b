//! Failures of the browser's WebRTC, for the worker.

use barnraise_messages::rtc::RtcFailure;
use js_sys::Reflect;
use wasm_bindgen::JsValue;

use super::sdp::SdpError;

impl From<SdpError> for RtcFailure {
    fn from(error: SdpError) -> Self {
        Self::Offer { detail: error.to_string() }
    }
}

/// An error of the browser.
pub(super) fn failure(error: &JsValue) -> RtcFailure {
    RtcFailure::Browser { detail: describe(error) }
}

/// The browser's message of an error.
pub(super) fn describe(error: &JsValue) -> String {
    let message = Reflect::get(error, &"message".into()).ok().and_then(|text| text.as_string());
    message.unwrap_or_else(|| format!("{error:?}"))
}
