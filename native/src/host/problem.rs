//! Errors of the admin API, as problem details (RFC 9457).

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use barnraise_relay::server::WrongHost;
use serde::{Deserialize, Serialize};

use crate::host::operator::request::OperatorError;

/// Media type of the body.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Why a request has no effect.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The request has no token.
    #[error("a token is wanted: `Authorization: Bearer …`, with what is in admin.token in the run's folder")]
    NoToken,
    /// The token is another one.
    #[error("this is not the operator's token")]
    WrongToken,
    /// This address sent too many wrong tokens.
    #[error("too many attempts with a wrong token from this address: come again in a minute")]
    TooManyAttempts,
    /// A web page made the request.
    #[error(
        "requests of web pages are refused here, with any token: the header `Origin` or `Sec-Fetch-Site` says \
        that this is one"
    )]
    Origin,
    /// The header `Host` is no name of this address.
    #[error(transparent)]
    Host(#[from] WrongHost),
    /// No such address.
    #[error("there is nothing at this address; /admin/v1/openapi.json describes what there is")]
    NotFound,
    /// The address has no such method.
    #[error("this address does not take that method: the header `Allow` says which ones it takes")]
    Method,
    /// No such run.
    #[error("there is no run `{0}` here")]
    NoRun(String),
    /// No such checkpoint.
    #[error("no checkpoint of epoch {0} is kept")]
    NoCheckpoint(u64),
    /// A part of the address is malformed.
    #[error("{0}")]
    Address(String),
    /// The body is not JSON.
    #[error("the body is to be JSON, and its Content-Type application/json")]
    MediaType,
    /// The body is too long.
    #[error("the body may have {0} bytes at most")]
    TooLong(usize),
    /// The body is malformed.
    #[error("{0}")]
    Body(String),
    /// The core refused the command.
    #[error(transparent)]
    Operator(#[from] OperatorError),
    /// The peer is not on the leaderboard.
    #[error("nothing of this peer was accepted here, so no name of it is shown")]
    NoContributor,
    /// The name is not hidden.
    #[error("the name of this peer is not hidden")]
    NotHidden,
    /// A host of experts cannot do that now.
    #[error("{0}")]
    Refused(String),
    /// Too many exports at a time.
    #[error("other exports are under way: come again in a moment")]
    Busy,
    /// The core has not started yet.
    #[error("the backbone is starting; /readyz says what it waits for")]
    Starting,
    /// The core has stopped.
    #[error("the backbone is shutting down")]
    ShuttingDown,
    /// The core did not answer in time.
    #[error("the backbone did not answer in time; the command may still take effect: look")]
    Timeout,
    /// The audit log could not be written.
    #[error("it could not be written to the audit log, so it was not done")]
    Audit,
    /// A disk or a database failed.
    #[error("something inside failed; the backbone's log says what")]
    Inside,
}

/// The body of an error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemBody {
    /// URN of the kind of problem.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind, for people.
    pub title: String,
    /// The status of the answer.
    pub status: u16,
    /// What is wrong with this request.
    pub detail: String,
}

impl Problem {
    fn kind(&self) -> (StatusCode, &'static str) {
        match self {
            Self::NoToken => (StatusCode::UNAUTHORIZED, "no-token"),
            Self::WrongToken => (StatusCode::UNAUTHORIZED, "wrong-token"),
            Self::TooManyAttempts => (StatusCode::TOO_MANY_REQUESTS, "too-many-attempts"),
            Self::Origin => (StatusCode::FORBIDDEN, "origin"),
            Self::Host(_) => (StatusCode::MISDIRECTED_REQUEST, "host"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found"),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "method"),
            Self::NoRun(_) => (StatusCode::NOT_FOUND, "no-run"),
            Self::NoCheckpoint(_) => (StatusCode::NOT_FOUND, "no-checkpoint"),
            Self::Address(_) => (StatusCode::BAD_REQUEST, "address"),
            Self::MediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "media-type"),
            Self::TooLong(_) => (StatusCode::PAYLOAD_TOO_LARGE, "too-long"),
            Self::Body(_) => (StatusCode::BAD_REQUEST, "body"),
            Self::Operator(error) => of_word(error),
            Self::NoContributor => (StatusCode::NOT_FOUND, "no-contributor"),
            Self::NotHidden => (StatusCode::NOT_FOUND, "not-hidden"),
            Self::Refused(_) => (StatusCode::CONFLICT, "refused"),
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
            Self::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting"),
            Self::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "shutting-down"),
            Self::Timeout => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
            Self::Audit => (StatusCode::SERVICE_UNAVAILABLE, "audit"),
            Self::Inside => (StatusCode::SERVICE_UNAVAILABLE, "inside"),
        }
    }
}

fn of_word(error: &OperatorError) -> (StatusCode, &'static str) {
    match error {
        OperatorError::Others { .. } => (StatusCode::CONFLICT, "other-backbones"),
        OperatorError::NoCheckpoint { .. } => (StatusCode::NOT_FOUND, "no-checkpoint"),
        OperatorError::NotEarlier { .. } => (StatusCode::CONFLICT, "not-earlier"),
        OperatorError::Unfit { .. } => (StatusCode::CONFLICT, "unfit-checkpoint"),
        OperatorError::Setting(_) => (StatusCode::UNPROCESSABLE_ENTITY, "setting"),
        OperatorError::NoServer => (StatusCode::CONFLICT, "no-server"),
        OperatorError::NotBlocked => (StatusCode::NOT_FOUND, "not-blocked"),
        OperatorError::TooManyBlocked => (StatusCode::CONFLICT, "too-many-blocked"),
        OperatorError::Kept(_) | OperatorError::Checkpoints(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, "storage")
        }
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::Address(rejection.body_text())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::Address(rejection.body_text())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, kind) = self.kind();
        let detail = match &self {
            // Paths of this machine go to the log only.
            Self::Operator(error @ (OperatorError::Kept(_) | OperatorError::Checkpoints(_))) => {
                tracing::error!(%error, "an operator command failed");
                Self::Inside.to_string()
            }
            problem => problem.to_string(),
        };
        let title = status.canonical_reason().unwrap_or_default().to_owned();
        let kind = format!("urn:barnraise:problem:{kind}");
        let mut response =
            (status, Json(ProblemBody { kind, title, status: status.as_u16(), detail })).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if status == StatusCode::UNAUTHORIZED {
            let realm = HeaderValue::from_static("Bearer realm=\"barnraise\"");
            headers.insert(header::WWW_AUTHENTICATE, realm);
        }
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("60"));
        }
        response
    }
}
