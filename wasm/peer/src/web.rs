//! Requests to the page's own web server.

use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::Response;

use crate::page;

/// Why the web server gave no answer that can be used. For people, without a full stop.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// Only workers ask.
    #[error("this is no worker")]
    NoWorker,
    /// The browser got no answer, or not all of it.
    #[error("the web server does not answer: {detail}")]
    NoAnswer {
        /// Of the browser.
        detail: String,
    },
    /// It refused.
    #[error("the web server answered with status {0}")]
    Status(u16),
    /// An answer that is not read to its end.
    #[error("the web server's answer is longer than {max}")]
    TooLong {
        /// Bytes of a file, characters of a text.
        max: usize,
    },
    /// Another version answered, or another server.
    #[error("the web server's answer is not understood: {0}")]
    NotUnderstood(#[from] serde_json::Error),
}

impl WebError {
    /// Whether it may answer the next time.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self, Self::NoAnswer { .. } | Self::Status(429 | 500..))
    }
}

impl From<JsValue> for WebError {
    fn from(error: JsValue) -> Self {
        Self::NoAnswer { detail: page::describe(&error) }
    }
}

/// Asks for an address.
///
/// # Errors
/// No answer, or a refusal.
pub(crate) async fn get(url: &str) -> Result<Response, WebError> {
    let scope = page::scope().ok_or(WebError::NoWorker)?;
    let response: Response = JsFuture::from(scope.fetch_with_str(url)).await?.dyn_into()?;
    match response.ok() {
        true => Ok(response),
        false => Err(WebError::Status(response.status())),
    }
}
