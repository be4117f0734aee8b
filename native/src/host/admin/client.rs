//! A client of an admin API. Blocks; each question is one request.

use std::time::Duration;

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::host::problem::ProblemBody;

/// Longest wait for an answer: a little longer than the server's own timeout.
const ANSWER_MAX: Duration = Duration::from_secs(40);
/// Largest answer that is read whole.
const ANSWER_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// See the module.
pub(crate) struct AdminClient {
    agent: ureq::Agent,
    base: String,
    token: String,
}

impl AdminClient {
    /// Of the API at `base`, such as `http://127.0.0.1:8082`.
    pub(crate) fn new(base: String, token: String) -> Self {
        let agent = ureq::Agent::config_builder()
            .timeout_connect(Some(ANSWER_MAX))
            .timeout_recv_response(Some(ANSWER_MAX))
            .http_status_as_error(false)
            .max_redirects(0)
            // No proxy may see the token.
            .proxy(None)
            .user_agent(concat!("barnraise/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Self { agent, base, token }
    }

    /// `GET` of a path below the API.
    ///
    /// # Errors
    /// There is no answer, one that says why not, or one that is not understood.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.read(self.open(path)?, path)
    }

    /// A command, with a body or without one.
    ///
    /// # Errors
    /// As of [`Self::get`].
    pub(crate) fn send<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<T> {
        let request = match method {
            "PATCH" => self.agent.patch(self.url(path)),
            _ => self.agent.post(self.url(path)),
        };
        let request = request.header("authorization", self.bearer());
        let answer = match body {
            Value::Null => request.send_empty(),
            body => request.header("content-type", "application/json").send(body.to_string()),
        };
        self.read(self.answer(answer, path)?, path)
    }

    fn url(&self, path: &str) -> String {
        format!("{}/admin/v1{path}", self.base)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    fn answer(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
        path: &str,
    ) -> anyhow::Result<ureq::Body> {
        let response = answer.with_context(|| {
            format!("{} cannot be reached: does it run, and is its operator served there?", self.base)
        })?;
        let status = response.status();
        let body = response.into_body();
        if status.is_success() {
            return Ok(body);
        }
        let bytes = body.into_with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        match serde_json::from_slice::<ProblemBody>(&bytes) {
            Ok(problem) => bail!("{}", problem.detail),
            Err(_) => bail!("{}: {status}, and no reason", self.url(path)),
        }
    }

    /// The body of a `GET`, to be read by the caller.
    ///
    /// # Errors
    /// There is no answer, or one that says why not.
    pub(crate) fn open(&self, path: &str) -> anyhow::Result<ureq::Body> {
        let request = self.agent.get(self.url(path)).header("authorization", self.bearer());
        self.answer(request.call(), path)
    }

    fn read<T: DeserializeOwned>(&self, body: ureq::Body, path: &str) -> anyhow::Result<T> {
        let bytes = body.into_with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        serde_json::from_slice(&bytes).with_context(|| format!("{} is not understood", self.url(path)))
    }
}
