//! The state behind the admin API: the hosted runs, the token, the audit log, and how a command gets to a run.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use barnraise_protocol::run::RunDescription;
use barnraise_relay::tasks::TaskSet;
use serde_json::Value;
use tokio::sync::{Semaphore, oneshot};

use super::audited::with_audit;
use super::guard::TokenGuard;
use super::token::TokenHash;
use crate::host::access::Gate;
use crate::host::audit::{AuditLog, AuditRecord, OPERATOR};
use crate::host::contributions::Store;
use crate::host::operator::request::{OperatorCommand, OperatorHandle, OperatorReply, OperatorRequest};
use crate::host::operator::view::RunView;
use crate::host::problem::Problem;
use crate::storage::checkpoint::Checkpoints;

/// Longest wait for the core's reply.
const ANSWER_MAX: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 30_000 });
/// Checkpoint exports at a time.
const EXPORTS_MAX: usize = 2;

pub(super) type PeerPath = Result<Path<(String, String)>, PathRejection>;

/// A run that this backbone hosts.
#[derive(Clone)]
pub struct HostedRun {
    /// Its description.
    pub description: Arc<RunDescription>,
    /// To the driver of the run, which executes the commands.
    pub operator: OperatorHandle,
    /// Knows the convicted peers.
    pub gate: Gate,
    /// Totals of each contributor.
    pub contributions: Store,
    /// Stored checkpoints.
    pub checkpoints: Checkpoints,
}

/// State of all handlers. Cheap to clone.
#[derive(Clone)]
pub struct Admin {
    runs: Arc<BTreeMap<String, HostedRun>>,
    pub(super) guard: TokenGuard,
    pub(super) audit: AuditLog,
    pub(super) exports: Arc<Semaphore>,
    /// Commands under way, which go on to their end also where nobody waits for the answer.
    pub(super) commands: Arc<TaskSet>,
}

impl Admin {
    /// - `runs`: the runs that this backbone hosts
    /// - `token`: hash of the operator's token
    pub fn new(runs: Vec<HostedRun>, token: TokenHash, audit: AuditLog) -> Self {
        let runs = runs.into_iter().map(|run| (run.description.identity.run_id.clone(), run)).collect();
        Self {
            runs: Arc::new(runs),
            guard: TokenGuard::new(token),
            audit,
            exports: Arc::new(Semaphore::new(EXPORTS_MAX)),
            commands: Arc::default(),
        }
    }

    /// Waits for the commands that are under way, and for their last lines in the audit log.
    pub async fn finish(&self) {
        self.commands.finish(ANSWER_MAX).await;
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = &HostedRun> {
        self.runs.values()
    }

    pub(super) fn run(&self, id: &str) -> Result<&HostedRun, Problem> {
        self.runs.get(id).ok_or_else(|| Problem::NoRun(id.chars().take(100).collect()))
    }

    /// Sends a command to the core of a run, and waits for its reply.
    async fn say(&self, run: &HostedRun, word: OperatorCommand) -> Result<OperatorReply, Problem> {
        let (answer, said) = oneshot::channel();
        let request = OperatorRequest { command: word, answer };
        run.operator.send(request).await.map_err(|_| Problem::ShuttingDown)?;
        Ok(said.await.map_err(|_| Problem::ShuttingDown)??)
    }

    /// The same with a timeout.
    pub(super) async fn ask(&self, run: &HostedRun, word: OperatorCommand) -> Result<OperatorReply, Problem> {
        let said = tokio::time::timeout(ANSWER_MAX, self.say(run, word)).await;
        said.unwrap_or(Err(Problem::Timeout))
    }

    pub(super) async fn show(&self, run: &HostedRun) -> Result<RunView, Problem> {
        match self.ask(run, OperatorCommand::Show).await? {
            OperatorReply::Run(view) => Ok(*view),
            OperatorReply::Peers(_) => Err(Problem::Inside),
        }
    }

    /// Executes a command that changes the run, between the two lines of the audit log. It completes even if the client
    /// has disconnected meanwhile, or was answered with a timeout.
    pub(super) async fn execute(
        &self,
        run: &str,
        record: AuditRecord,
        word: OperatorCommand,
    ) -> Result<Response, Problem> {
        let run = self.run(run)?.clone();
        let admin = self.clone();
        let done = self.commands.answer("command", async move {
            // Without a timeout: the log must have the outcome.
            match with_audit(&admin.audit, &record, admin.say(&run, word)).await? {
                OperatorReply::Run(view) => Ok(json_response(&*view)),
                OperatorReply::Peers(_) => Err(Problem::Inside),
            }
        });
        match tokio::time::timeout(ANSWER_MAX, done).await {
            Ok(done) => done.unwrap_or(Err(Problem::Inside)),
            Err(_) => Err(Problem::Timeout),
        }
    }
}

pub(crate) fn audit_record(
    caller: SocketAddr,
    verb: &'static str,
    run: &str,
    arguments: Value,
) -> AuditRecord {
    AuditRecord { who: OPERATOR, from: caller.to_string(), verb, run: run.to_owned(), arguments }
}

pub(crate) fn json_response(value: &impl serde::Serialize) -> Response {
    let no_store: (HeaderName, HeaderValue) = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    ([no_store], Json(value)).into_response()
}

/// A response whose body is streamed.
pub(super) fn stream_response<const N: usize>(
    headers: [(HeaderName, HeaderValue); N],
    body: Body,
) -> Response {
    (headers, body).into_response()
}
