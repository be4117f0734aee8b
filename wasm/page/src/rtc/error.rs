//! Why WebRTC fails. The worker gets the text, for the line that says which transports did not work.

use js_sys::Reflect;
use wasm_bindgen::JsValue;

use super::sdp::SdpError;

/// Why a connection or a channel cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum RtcError {
    #[error("this browser has no WebRTC")]
    NotInBrowser,
    #[error("{reason}")]
    Browser { reason: String },
    #[error("the browser's offer has no text")]
    NoOffer,
    #[error("the browser's offer lacks what the specification wants: {0}")]
    Offer(#[from] SdpError),
    #[error("too many connections at once")]
    TooMany,
    #[error("no connection yet")]
    NotConnected,
    #[error("the browser opens no further channel: {reason}")]
    NoChannel { reason: String },
    #[error("nothing answers at the backbone's address any more, or ever did")]
    Lost,
    #[error("the worker sent what the page cannot read: {reason}")]
    Unreadable { reason: String },
}

impl From<JsValue> for RtcError {
    fn from(error: JsValue) -> Self {
        Self::Browser { reason: describe(&error) }
    }
}

/// The browser's message of an error.
pub(super) fn describe(error: &JsValue) -> String {
    let message = Reflect::get(error, &"message".into()).ok().and_then(|text| text.as_string());
    message.unwrap_or_else(|| format!("{error:?}"))
}
