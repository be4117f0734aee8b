//! The admin API: operator commands over HTTP, at the operator's address, authenticated by the token.
//!
//! A handler checks the request, writes it to the audit log, sends a command to the run's core and returns the reply. No
//! handler decides anything or bypasses the core.

use std::net::SocketAddr;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{ConnectInfo, Path, Query, Request, State};
use axum::http::header;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use barnraise_swarm::PeerKey;
use libp2p::PeerId;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::export::{card, checkpoint, checkpoints};
use super::state::{Admin, HostedRun, PeerPath, audit_record, json_response};
use super::{guard, names};
use crate::host::audit::ENTRIES_MAX;
use crate::host::headers::api_headers;
use crate::host::operator::request::{OperatorCommand, OperatorReply};
use crate::host::operator::settings::{SettingError, SettingsChange};
use crate::host::operator::state::BLOCKED_MAX;
use crate::host::operator::view::{AuditList, ConvictedView, PeerList, RunList};
use crate::host::problem::Problem;
use barnraise_protocol::refusal::REASON_BYTES_MAX;

/// The description of the API, in OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("openapi.json");
/// Largest body of a request.
pub const BODY_BYTES_MAX: usize = 16 * 1024;
/// Longest reason, in characters.
const REASON_CHARS_MAX: usize = 300;
const _: () = assert!(
    REASON_BYTES_MAX + 100 <= barnraise_protocol::gradient::MESSAGE_BYTES_MAX
        && REASON_BYTES_MAX + 100 <= barnraise_protocol::state::MESSAGE_BYTES_MAX
        && REASON_BYTES_MAX + 100 <= barnraise_protocol::shard::MESSAGE_BYTES_MAX
);
/// Contributors in one answer.
const PEERS_MAX: usize = 100;
/// Largest offset into the list of peers.
const OFFSET_MAX: usize = 1_000_000;

impl Admin {
    /// All routes, `/admin/v1/…`.
    pub fn routes(self) -> Router {
        let routes = Router::new()
            .route("/openapi.json", get(openapi))
            .route("/runs", get(list))
            .route("/runs/{run}", get(show))
            .route("/runs/{run}/pause", post(pause))
            .route("/runs/{run}/resume", post(resume))
            .route("/runs/{run}/settings", patch(set))
            .route("/runs/{run}/rollback", post(roll_back))
            .route("/runs/{run}/checkpoints", get(checkpoints))
            .route("/runs/{run}/checkpoints/{epoch}", get(checkpoint))
            .route("/runs/{run}/checkpoints/{epoch}/card", get(card))
            .route("/runs/{run}/peers", get(peers))
            .route("/runs/{run}/peers/{peer}/block", post(block))
            .route("/runs/{run}/peers/{peer}/unblock", post(unblock))
            .route("/runs/{run}/peers/{peer}/hide", post(names::hide))
            .route("/runs/{run}/peers/{peer}/unhide", post(names::unhide))
            .route("/audit", get(audit))
            .fallback(|| async { Problem::NotFound })
            .method_not_allowed_fallback(|| async { Problem::Method })
            .layer(middleware::from_fn_with_state(self.clone(), authenticate))
            .layer(middleware::map_response(api_headers))
            .with_state(self);
        Router::new().nest("/admin/v1", routes)
    }
}

/// Refuses requests without the token, except for the description of the API.
async fn authenticate(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    if request.uri().path() == "/openapi.json" {
        return next.run(request).await;
    }
    guard::authenticate(State(admin.guard), request, next).await
}

async fn openapi() -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache")];
    (headers, OPENAPI).into_response()
}

async fn list(State(admin): State<Admin>) -> Result<Response, Problem> {
    let mut runs = Vec::new();
    for run in admin.runs() {
        runs.push(admin.show(run).await?);
    }
    Ok(json_response(&RunList { runs }))
}

type RunPath = Result<Path<String>, PathRejection>;

async fn show(State(admin): State<Admin>, path: RunPath) -> Result<Response, Problem> {
    let Path(id) = path?;
    Ok(json_response(&admin.show(admin.run(&id)?).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    reason: String,
    #[serde(default)]
    alone: bool,
}

async fn pause(
    State(admin): State<Admin>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    path: RunPath,
    request: Request,
) -> Result<Response, Problem> {
    let Path(id) = path?;
    admin.run(&id)?;
    let Pause { reason, alone } = read(request).await?;
    let reason = checked_reason(reason)?;
    let record = audit_record(caller, "pause", &id, json!({"reason": reason, "alone": alone}));
    admin.execute(&id, record, OperatorCommand::Pause { reason, alone }).await
}

async fn resume(
    State(admin): State<Admin>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    path: RunPath,
) -> Result<Response, Problem> {
    let Path(id) = path?;
    admin.execute(&id, audit_record(caller, "resume", &id, json!({})), OperatorCommand::Resume).await
}

async fn set(
    State(admin): State<Admin>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    path: RunPath,
    request: Request,
) -> Result<Response, Problem> {
    let Path(id) = path?;
    admin.run(&id)?;
    let asked: Value = read(request).await?;
    let change = SettingsChange::of(&asked).map_err(|error| match error {
        SettingError::Shape(reason) => Problem::Body(reason),
        error => Problem::Operator(error.into()),
    })?;
    admin.execute(&id, audit_record(caller, "set", &id, asked), OperatorCommand::Set(change)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RollBack {
    epoch: u64,
    #[serde(default)]
    alone: bool,
}

async fn roll_back(
    State(admin): State<Admin>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    path: RunPath,
    request: Request,
) -> Result<Response, Problem> {
    let Path(id) = path?;
    admin.run(&id)?;
    let RollBack { epoch, alone } = read(request).await?;
    let record = audit_record(caller, "rollback", &id, json!({"epoch": epoch, "alone": alone}));
    admin.execute(&id, record, OperatorCommand::RollBack { epoch, alone }).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PeersQuery {
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
}

async fn peers(
    State(admin): State<Admin>,
    path: RunPath,
    window: Result<Query<PeersQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Path(id) = path?;
    let Query(PeersQuery { offset, limit }) = window?;
    let run = admin.run(&id)?;
    if offset > OFFSET_MAX {
        return Err(Problem::Address(format!("offset={offset}: 0 to {OFFSET_MAX} is wanted")));
    }
    let limit = bounded("limit", limit.unwrap_or(PEERS_MAX), PEERS_MAX)?;
    let OperatorReply::Peers(mut list) = admin.ask(run, OperatorCommand::Peers { offset, limit }).await?
    else {
        return Err(Problem::Inside);
    };
    complete(run, &mut list).await;
    Ok(json_response(&*list))
}

/// Adds what the core does not know: totals of each contributor, convicted peers and hidden names.
async fn complete(run: &HostedRun, list: &mut PeerList) {
    for contributor in &mut list.contributors {
        let Ok(peer) = contributor.peer.parse::<PeerId>() else { continue };
        let Ok(totals) = run.contributions.of_peer(peer).await else { break };
        let given = totals.map(|totals| totals.totals).unwrap_or_default();
        contributor.n_samples_total = Some(given.n_samples);
        contributor.n_bytes_total = Some(given.n_bytes);
    }
    let convicted = run.gate.convicted().into_iter().filter_map(|(peer, work)| {
        let peer = PeerId::from_bytes(&peer.0).ok()?.to_string();
        Some(ConvictedView { peer, reason: work.to_string() })
    });
    list.convicted = convicted.take(BLOCKED_MAX).collect();
    list.hidden = names::hidden(run).await;
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    reason: String,
}

async fn block(
    State(admin): State<Admin>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    path: PeerPath,
    request: Request,
) -> Result<Response, Problem> {
    let Path((id, peer)) = path?;
    admin.run(&id)?;
    let key = peer_key(&peer)?;
    let Block { reason } = read(request).await?;
    let reason = checked_reason(reason)?;
    let record = audit_record(caller, "block", &id, json!({"peer": peer, "reason": reason}));
    admin.execute(&id, record, OperatorCommand::Block { peer: key, reason }).await
}

async fn unblock(
    State(admin): State<Admin>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    path: PeerPath,
) -> Result<Response, Problem> {
    let Path((id, peer)) = path?;
    admin.run(&id)?;
    let key = peer_key(&peer)?;
    admin
        .execute(
            &id,
            audit_record(caller, "unblock", &id, json!({"peer": peer})),
            OperatorCommand::Unblock { peer: key },
        )
        .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    limit: Option<usize>,
}

async fn audit(
    State(admin): State<Admin>,
    newest: Result<Query<AuditQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(AuditQuery { limit }) = newest?;
    let limit = bounded("limit", limit.unwrap_or(ENTRIES_MAX / 10), ENTRIES_MAX)?;
    let audit = admin.audit.clone();
    let read = tokio::task::spawn_blocking(move || audit.newest(limit)).await;
    match read {
        Ok(Ok(entries)) => Ok(json_response(&AuditList { entries })),
        Ok(Err(error)) => {
            tracing::error!(%error, "the audit log cannot be shown");
            Err(Problem::Inside)
        }
        Err(_) => Err(Problem::Inside),
    }
}

fn bounded(what: &str, got: usize, max: usize) -> Result<usize, Problem> {
    match (1..=max).contains(&got) {
        true => Ok(got),
        false => Err(Problem::Address(format!("{what}={got}: 1 to {max} is wanted"))),
    }
}

fn peer_key(text: &str) -> Result<PeerKey, Problem> {
    let peer = text.parse::<PeerId>();
    peer.map(|peer| PeerKey(peer.to_bytes())).map_err(|_| Problem::Address("a peer id is wanted".into()))
}

/// A reason that fits into a bounded message to contributors.
fn checked_reason(reason: String) -> Result<String, Problem> {
    let n_chars = reason.chars().count();
    let good = (1..=REASON_CHARS_MAX).contains(&n_chars) && !reason.chars().any(char::is_control);
    match good && reason.len() <= REASON_BYTES_MAX && !reason.trim().is_empty() {
        true => Ok(reason),
        false => Err(Problem::Body(format!(
            "a reason of 1 to {REASON_CHARS_MAX} characters in one line is wanted, and of {REASON_BYTES_MAX} bytes at most"
        ))),
    }
}

/// The body of a command.
///
/// # Errors
/// It is no such object in JSON.
pub(crate) async fn read<T: DeserializeOwned>(request: Request) -> Result<T, Problem> {
    let media = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media = media.and_then(|text| text.split(';').next()).map(str::trim);
    if !media.is_some_and(|media| media.eq_ignore_ascii_case("application/json")) {
        return Err(Problem::MediaType);
    }
    let bytes = to_bytes(request.into_body(), BODY_BYTES_MAX).await;
    let bytes = bytes.map_err(|_| Problem::TooLong(BODY_BYTES_MAX))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| Problem::Body(error.to_string()))?;
    // Serde would take a list for a struct.
    if !value.is_object() {
        return Err(Problem::Body("an object is wanted".into()));
    }
    T::deserialize(value).map_err(|error| Problem::Body(error.to_string()))
}

#[cfg(test)]
mod tests;
