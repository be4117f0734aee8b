//! Requests to the backbone's web server, whose answers are JSON.

use gloo::net::http::Request;
use serde::de::DeserializeOwned;

use crate::state::AnswerError;

pub(crate) const RUN_URL: &str = "/api/run";
pub(crate) const RUNS_URL: &str = "/api/runs";

/// Requests the text at a URL.
pub(crate) async fn text(url: &str) -> Result<String, AnswerError> {
    let response = Request::get(url).send().await.map_err(|_| AnswerError::NoAnswer)?;
    if !response.ok() {
        return Err(AnswerError::Status(response.status()));
    }
    response.text().await.map_err(|_| AnswerError::CutShort)
}

/// Requests a value.
pub(crate) async fn get<T: DeserializeOwned>(url: &str) -> Result<T, AnswerError> {
    read(&text(url).await?)
}

/// Reads the text of an answer.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, AnswerError> {
    serde_json::from_str(text).map_err(|error| AnswerError::Unreadable(error.to_string()))
}
