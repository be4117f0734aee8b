//! The operator's address of a host: what it serves, for everybody on this machine, and commands, for those who have the token in
//! its folder.
//!
//! Commands go to the driver of the host; none takes effect before it is in the audit log.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware;
use axum::response::Response;
use axum::routing::{get, post};
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::LayerId;
use barnraise_relay::server::{HostNames, operator_routes};
use barnraise_relay::tasks::TaskSet;
use libp2p::PeerId;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::control::{HostCommand, HostCommandError, HostControl};
use super::state::HostState;
use super::store::place_of;
use super::view::HostStage;
use crate::host::admin::address::note_address;
use crate::host::admin::audited::with_audit;
use crate::host::admin::guard::{TokenGuard, authenticate};
use crate::host::admin::http::read;
use crate::host::admin::state::{audit_record, json_response};
use crate::host::admin::token::TokenHash;
use crate::host::audit::AuditLog;
use crate::host::clock::system_clock;
use crate::host::headers::api_headers;
use crate::host::problem::Problem;
use crate::host::readiness::{OperatorPage, Readiness};

/// A connection ends after so long without an answer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time for what others are to take; as long as a handover of many large experts.
const LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Longest wait for the commands under way, when the host ends.
const FINISH_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the operator who has drained the host to hear how it went.
const HEARD_MAX: Duration = Duration::from_secs(3);

/// The operator's address of a host, until it is dropped.
pub(super) struct HostOperating {
    page: OperatorPage,
    folder: PathBuf,
    stop: CancellationToken,
    commands: Arc<TaskSet>,
}

#[derive(Clone)]
struct OperatedHost {
    state: Arc<HostState>,
    control: HostControl,
    guard: TokenGuard,
    audit: AuditLog,
    /// They go on to their end also where nobody waits for the answer.
    commands: Arc<TaskSet>,
}

impl HostOperating {
    /// Serves it, and writes the address into the folder, where the commands look for it.
    ///
    /// # Errors
    /// The address is in use, or the folder cannot be written.
    pub(super) async fn open(
        address: SocketAddr,
        folder: &Path,
        (state, control): (Arc<HostState>, HostControl),
    ) -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let names = HostNames::new("operator_names", &[]);
        let page = OperatorPage::open(address, names, TIMEOUT, Readiness::default(), stop.clone()).await?;
        let (guard, audit) =
            (TokenGuard::new(TokenHash::load_or_create(folder)?), AuditLog::open(folder, system_clock())?);
        let commands = Arc::<TaskSet>::default();
        let of_node = operator_routes(state.home.node.clone());
        let host = OperatedHost { state, control, guard, audit, commands: Arc::clone(&commands) };
        page.show(of_node.merge(routes(host)));
        note_address(Some(page.address()), folder)?;
        Ok(Self { page, folder: folder.to_owned(), stop, commands })
    }

    /// Ends it. A host that was drained waits a moment until its operator has heard how it went.
    pub(super) async fn finish(self, state: &HostState) {
        if state.stage() == HostStage::Drained {
            // Without it, they see that the host is gone.
            let _ = tokio::time::timeout(HEARD_MAX, state.drained_heard.notified()).await;
        }
        self.commands.finish(FINISH_MAX).await;
        self.stop.cancel();
        if let Err(error) = note_address(None, &self.folder) {
            tracing::warn!(%error, "the operator's address could not be taken back");
        }
        drop(self.page);
    }
}

fn routes(host: OperatedHost) -> Router {
    let commands = Router::new()
        .route("/drain", post(drain))
        .route("/move", post(move_one))
        .route("/freeze", post(freeze))
        .route("/experts", get(show))
        .fallback(|| async { Problem::NotFound })
        .method_not_allowed_fallback(|| async { Problem::Method })
        .layer(middleware::from_fn_with_state(host.guard.clone(), authenticate))
        .with_state(host.clone());
    Router::new()
        .nest("/admin/v1", commands)
        .route("/experts", get(show))
        .layer(middleware::map_response(api_headers))
        .with_state(host)
}

async fn show(State(host): State<OperatedHost>) -> Response {
    let view = host.state.view();
    if view.stage == HostStage::Drained {
        host.state.drained_heard.notify_one();
    }
    json_response(&view)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    limit_s: u64,
}

async fn drain(
    State(host): State<OperatedHost>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    request: Request,
) -> Result<Response, Problem> {
    let Drain { limit_s } = read(request).await?;
    let command = HostCommand::Drain { limit: limit(limit_s)? };
    host.carry_out(caller, "drain", json!({"limit_s": limit_s}), command).await
}

/// Least time for a host that is named: as long as the place is kept for it, and some more, in which others may take it.
const NAMED_LIMIT_MIN_S: u64 = 45;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    layer: u16,
    uid: String,
    limit_s: u64,
    /// Peer id of the host that is to have it.
    to: Option<String>,
}

async fn move_one(
    State(host): State<OperatedHost>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    request: Request,
) -> Result<Response, Problem> {
    let Move { layer, uid, limit_s, to } = read(request).await?;
    let place = place_of(&format!("{layer}-{uid}"));
    let place = place.ok_or_else(|| Problem::Body("a uid such as \"3.17\" is wanted".into()))?;
    let key = to.as_deref().map(host_key).transpose()?;
    if key.is_some() && limit_s < NAMED_LIMIT_MIN_S {
        return Err(Problem::Body(format!(
            "limit_s={limit_s}: at least {NAMED_LIMIT_MIN_S} is wanted where a host is named, for which the place is kept half a minute"
        )));
    }
    let command = HostCommand::Move { place, limit: limit(limit_s)?, to: key };
    let arguments = json!({"layer": layer, "uid": place.1.to_string(), "limit_s": limit_s, "to": to});
    host.carry_out(caller, "move", arguments, command).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Freeze {
    layer: u16,
    is_frozen: bool,
}

async fn freeze(
    State(host): State<OperatedHost>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    request: Request,
) -> Result<Response, Problem> {
    let Freeze { layer, is_frozen } = read(request).await?;
    let command = HostCommand::Freeze { layer: LayerId(layer), is_frozen };
    let verb = if is_frozen { "freeze" } else { "unfreeze" };
    host.carry_out(caller, verb, json!({"layer": layer}), command).await
}

fn host_key(text: &str) -> Result<PublicKey, Problem> {
    let key = text.parse::<PeerId>().ok().and_then(|peer| PublicKey::of_peer_id(&peer.to_bytes()));
    key.ok_or_else(|| {
        Problem::Body(format!("to={text:?}: the peer id of a host is wanted, such as 12D3Koo…"))
    })
}

fn limit(seconds: u64) -> Result<Duration, Problem> {
    let limit = Duration::from_secs(seconds);
    let is_good = (Duration::from_secs(1)..=LIMIT_MAX).contains(&limit);
    let wanted = || Problem::Body(format!("limit_s={seconds}: 1 to {} is wanted", LIMIT_MAX.as_secs()));
    is_good.then_some(limit).ok_or_else(wanted)
}

impl OperatedHost {
    /// Has a command carried out, between the two lines of the audit log, and shows the host after it.
    async fn carry_out(
        self,
        caller: SocketAddr,
        verb: &'static str,
        arguments: Value,
        command: HostCommand,
    ) -> Result<Response, Problem> {
        let record = audit_record(caller, verb, &self.state.run_id, arguments);
        let commands = Arc::clone(&self.commands);
        let done = commands.answer("command of a host", async move {
            let doing = async { self.control.send(command).await.map_err(problem) };
            with_audit(&self.audit, &record, doing).await?;
            Ok(json_response(&self.state.view()))
        });
        done.await.unwrap_or(Err(Problem::Inside))
    }
}

fn problem(error: HostCommandError) -> Problem {
    match error {
        HostCommandError::Store(error) => {
            tracing::error!(%error, "a command could not be stored");
            Problem::Inside
        }
        error => Problem::Refused(error.to_string()),
    }
}
