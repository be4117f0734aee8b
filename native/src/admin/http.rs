//! The admin API: the operator's words over HTTP, at the operator's address, for whoever has the token.
//!
//! A handler checks what came, writes it to the audit log, says it to the core of the run and shows the answer; none
//! decides anything, and none reaches around the core.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{ConnectInfo, Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use axum::{Json, Router};
use barnraise_swarm::guard::RateLimiter;
use libp2p::PeerId;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::audit::{Audit, Deed, ENTRIES_MAX, OPERATOR};
use super::export::{card, checkpoint, checkpoints};
use super::names;
use super::problem::Problem;
use super::settings::Change;
use super::token::TokenHash;
use super::view::{AuditList, PeerList, RunList, RunView};
use crate::access::Gate;
use crate::backbone::core::CoreEvent;
use crate::backbone::core::operator::{Asked, Said, Word};
use crate::contributions::Store;
use crate::http::api_headers;
use crate::storage::checkpoint::Checkpoints;
use crate::visitors::source_of;
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::PeerKey;

/// The description of the API, in OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("openapi.json");
/// Largest body of a request.
pub const BODY_BYTES_MAX: usize = 16 * 1024;
/// Longest reason, in characters.
const REASON_CHARS_MAX: usize = 300;
/// And in bytes: a blocked peer reads it in the smallest of messages, behind some words.
const REASON_BYTES_MAX: usize = 900;
const _: () = assert!(
    REASON_BYTES_MAX + 100 <= barnraise_protocol::gradient::MESSAGE_BYTES_MAX
        && REASON_BYTES_MAX + 100 <= barnraise_protocol::state::MESSAGE_BYTES_MAX
        && REASON_BYTES_MAX + 100 <= barnraise_protocol::shard::MESSAGE_BYTES_MAX
);
/// Contributors in one answer.
const PEERS_MAX: usize = 100;
/// Deepest place that can be asked for.
const OFFSET_MAX: usize = 1_000_000;
/// How long the core may take.
const ANSWER_MAX: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 30_000 });
/// Wrong tokens of one address in a minute that are answered as such.
const FAILURES_PER_MINUTE: u32 = 20;
/// Addresses whose failures are remembered.
const ADDRESSES_MAX: usize = 10_000;
/// Checkpoints that are read for somebody at a time.
const EXPORTS_MAX: usize = 2;

/// A run that this backbone hosts.
#[derive(Clone)]
pub struct Run {
    /// What it is.
    pub description: Arc<RunDescription>,
    /// Where everything is decided.
    pub core: mpsc::Sender<CoreEvent>,
    /// Who is out.
    pub gate: Gate,
    /// Who gave what.
    pub contributions: Store,
    /// What is kept.
    pub checkpoints: Checkpoints,
}

/// All that handlers need. Cheap to clone.
#[derive(Clone)]
pub struct Admin {
    runs: Arc<BTreeMap<String, Run>>,
    token: TokenHash,
    audit: Audit,
    failures: Arc<Mutex<RateLimiter<IpAddr>>>,
    started: Instant,
    pub(super) exports: Arc<Semaphore>,
}

impl Admin {
    /// - `runs`: that this backbone hosts
    /// - `token`: of whoever may
    pub fn new(runs: Vec<Run>, token: TokenHash, audit: Audit) -> Self {
        let runs = runs.into_iter().map(|run| (run.description.run_id.clone(), run)).collect();
        Self {
            runs: Arc::new(runs),
            token,
            audit,
            failures: Arc::new(Mutex::new(RateLimiter::new(FAILURES_PER_MINUTE, ADDRESSES_MAX))),
            started: Instant::now(),
            exports: Arc::new(Semaphore::new(EXPORTS_MAX)),
        }
    }

    pub(super) fn run(&self, id: &str) -> Result<&Run, Problem> {
        self.runs.get(id).ok_or_else(|| Problem::NoRun(id.chars().take(100).collect()))
    }

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

    /// Says something to the core of a run, and waits until that has an answer.
    async fn say(&self, run: &Run, word: Word) -> Result<Said, Problem> {
        let (answer, said) = oneshot::channel();
        let event = CoreEvent::Operator(Asked { word, answer });
        run.core.send(event).await.map_err(|_| Problem::ShuttingDown)?;
        Ok(said.await.map_err(|_| Problem::ShuttingDown)??)
    }

    /// The same for somebody who does not wait for ever.
    async fn ask(&self, run: &Run, word: Word) -> Result<Said, Problem> {
        let said = tokio::time::timeout(ANSWER_MAX, self.say(run, word)).await;
        said.unwrap_or(Err(Problem::Timeout))
    }

    pub(super) async fn show(&self, run: &Run) -> Result<RunView, Problem> {
        match self.ask(run, Word::Show).await? {
            Said::Run(view) => Ok(*view),
            Said::Peers(_) => Err(Problem::Inside),
        }
    }

    /// Does something that lasts, between the two lines of the audit log. It is done to its end even if whoever asked
    /// is gone meanwhile, or was told that it takes too long.
    async fn tell(&self, run: &str, deed: Deed, word: Word) -> Result<Response, Problem> {
        let run = self.run(run)?.clone();
        let admin = self.clone();
        let done = tokio::spawn(async move {
            // However long it takes: the log says how it ended.
            match admin.between(&deed, admin.say(&run, word)).await? {
                Said::Run(view) => Ok(json_response(&*view)),
                Said::Peers(_) => Err(Problem::Inside),
            }
        });
        match tokio::time::timeout(ANSWER_MAX, done).await {
            Ok(done) => done.unwrap_or(Err(Problem::Inside)),
            Err(_) => Err(Problem::Timeout),
        }
    }

    /// Does something between the two lines of the audit log.
    pub(super) async fn between<T>(
        &self,
        deed: &Deed,
        doing: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        let number = self.audited(deed, |audit, deed| audit.begin(deed)).await?;
        let done = doing.await;
        let error = done.as_ref().err().map(ToString::to_string);
        let end = move |audit: &Audit, deed: &Deed| audit.end(number, deed, error.as_deref());
        // It is done: that the second line is missing is for the log.
        let _ = self.audited(deed, end).await;
        done
    }

    /// The disk is waited for where nobody else waits.
    pub(super) async fn audited<T: Send + 'static>(
        &self,
        deed: &Deed,
        write: impl FnOnce(&Audit, &Deed) -> Result<T, super::audit::AuditError> + Send + 'static,
    ) -> Result<T, Problem> {
        let (audit, deed) = (self.audit.clone(), deed.clone());
        let written = tokio::task::spawn_blocking(move || write(&audit, &deed)).await;
        match written {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                tracing::error!(%error, "an operator's word is not in the audit log");
                Err(Problem::Audit)
            }
            Err(_) => Err(Problem::Inside),
        }
    }
}

pub(super) fn deed(caller: SocketAddr, verb: &'static str, run: &str, arguments: Value) -> Deed {
    Deed { who: OPERATOR, from: caller.to_string(), verb, run: run.to_owned(), arguments }
}

/// Lets nobody past without the token, but to the description of what there is.
async fn authenticate(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    if request.uri().path() == "/openapi.json" {
        return next.run(request).await;
    }
    if is_of_a_page(request.headers()) {
        return Problem::Origin.into_response();
    }
    let given = bearer(request.headers());
    if given.is_some_and(|token| admin.token.is_of(token)) {
        return next.run(request).await;
    }
    let from = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| source_of(info.0.ip()));
    if let Some(from) = from {
        let now = admin.started.elapsed();
        let mut failures = admin.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if !failures.take(now, &from) {
            return Problem::TooManyAttempts.into_response();
        }
        drop(failures);
        tracing::warn!(%from, has_token = given.is_some(), "refused at the admin API");
    }
    match given {
        None => Problem::NoToken.into_response(),
        Some(_) => Problem::WrongToken.into_response(),
    }
}

/// Browsers say so of whatever a page asks for, and `none` of what a person typed.
fn is_of_a_page(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    headers.contains_key(header::ORIGIN) || site.is_some_and(|site| site != "none")
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

async fn openapi() -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache")];
    (headers, OPENAPI).into_response()
}

async fn list(State(admin): State<Admin>) -> Result<Response, Problem> {
    let mut runs = Vec::new();
    for run in admin.runs.values() {
        runs.push(admin.show(run).await?);
    }
    Ok(json_response(&RunList { runs }))
}

type RunPath = Result<Path<String>, PathRejection>;
pub(super) type PeerPath = Result<Path<(String, String)>, PathRejection>;

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
    let deed = deed(caller, "pause", &id, json!({"reason": reason, "alone": alone}));
    admin.tell(&id, deed, Word::Pause { reason, alone }).await
}

async fn resume(
    State(admin): State<Admin>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    path: RunPath,
) -> Result<Response, Problem> {
    let Path(id) = path?;
    admin.tell(&id, deed(caller, "resume", &id, json!({})), Word::Resume).await
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
    let change = Change::of(&asked).map_err(|error| match error {
        super::settings::SettingError::Shape(reason) => Problem::Body(reason),
        error => Problem::Word(error.into()),
    })?;
    admin.tell(&id, deed(caller, "set", &id, asked), Word::Set(change)).await
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
    let deed = deed(caller, "rollback", &id, json!({"epoch": epoch, "alone": alone}));
    admin.tell(&id, deed, Word::RollBack { epoch, alone }).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Window {
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
}

async fn peers(
    State(admin): State<Admin>,
    path: RunPath,
    window: Result<Query<Window>, QueryRejection>,
) -> Result<Response, Problem> {
    let Path(id) = path?;
    let Query(Window { offset, limit }) = window?;
    let run = admin.run(&id)?;
    if offset > OFFSET_MAX {
        return Err(Problem::Address(format!("offset={offset}: 0 to {OFFSET_MAX} is wanted")));
    }
    let limit = bounded("limit", limit.unwrap_or(PEERS_MAX), PEERS_MAX)?;
    let Said::Peers(mut list) = admin.ask(run, Word::Peers { offset, limit }).await? else {
        return Err(Problem::Inside);
    };
    complete(run, &mut list).await;
    Ok(json_response(&*list))
}

/// What the core does not know: what was accepted so far, who was convicted, and whose name is hidden.
async fn complete(run: &Run, list: &mut PeerList) {
    for contributor in &mut list.contributors {
        let Ok(peer) = contributor.peer.parse::<PeerId>() else { continue };
        let Ok(totals) = run.contributions.of_peer(peer).await else { break };
        let given = totals.map(|totals| totals.given).unwrap_or_default();
        contributor.n_samples_total = Some(given.n_samples);
        contributor.n_bytes_total = Some(given.n_bytes);
    }
    let convicted = run.gate.convicted().into_iter().filter_map(|(peer, epoch)| {
        let peer = PeerId::from_bytes(&peer.0).ok()?.to_string();
        Some(super::view::ConvictedView { peer, epoch })
    });
    list.convicted = convicted.take(super::kept::BLOCKED_MAX).collect();
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
    let deed = deed(caller, "block", &id, json!({"peer": peer, "reason": reason}));
    admin.tell(&id, deed, Word::Block { peer: key, reason }).await
}

async fn unblock(
    State(admin): State<Admin>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    path: PeerPath,
) -> Result<Response, Problem> {
    let Path((id, peer)) = path?;
    admin.run(&id)?;
    let key = peer_key(&peer)?;
    admin.tell(&id, deed(caller, "unblock", &id, json!({"peer": peer})), Word::Unblock { peer: key }).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Newest {
    limit: Option<usize>,
}

async fn audit(
    State(admin): State<Admin>,
    newest: Result<Query<Newest>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(Newest { limit }) = newest?;
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

/// Contributors read it, in a message that is bounded.
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

async fn read<T: DeserializeOwned>(request: Request) -> Result<T, Problem> {
    let media = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media = media.and_then(|text| text.split(';').next()).map(str::trim);
    if !media.is_some_and(|media| media.eq_ignore_ascii_case("application/json")) {
        return Err(Problem::MediaType);
    }
    let bytes = to_bytes(request.into_body(), BODY_BYTES_MAX).await;
    let bytes = bytes.map_err(|_| Problem::TooLong(BODY_BYTES_MAX))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| Problem::Body(error.to_string()))?;
    // Lists would pass for objects without names.
    if !value.is_object() {
        return Err(Problem::Body("an object is wanted".into()));
    }
    T::deserialize(value).map_err(|error| Problem::Body(error.to_string()))
}

pub(super) fn json_response(value: &impl serde::Serialize) -> Response {
    let no_store: (HeaderName, HeaderValue) = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    ([no_store], Json(value)).into_response()
}

/// A body that is sent as it is read.
pub(super) fn stream_response<const N: usize>(
    headers: [(HeaderName, HeaderValue); N],
    body: Body,
) -> Response {
    (headers, body).into_response()
}

#[cfg(test)]
mod tests;
