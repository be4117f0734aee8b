//! The state behind the admin API: the hosted runs, the token, the audit log, and how a command gets to a run.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use barnraise_protocol::run::RunDescription;
use barnraise_relay::tasks::TaskSet;
use barnraise_swarm::guard::RateLimiter;
use serde_json::Value;
use tokio::sync::{Semaphore, oneshot};

use super::token::TokenHash;
use crate::host::access::Gate;
use crate::host::audit::{AuditError, AuditLog, AuditRecord, OPERATOR};
use crate::host::contributions::Store;
use crate::host::operator::request::{OperatorCommand, OperatorHandle, OperatorReply, OperatorRequest};
use crate::host::operator::view::RunView;
use crate::host::problem::Problem;
use crate::storage::checkpoint::Checkpoints;

/// Longest wait for the core's reply.
const ANSWER_MAX: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 30_000 });
/// Wrong tokens of one address in a minute; beyond that the answer is `429 Too Many Requests`.
const FAILURES_PER_MINUTE: u32 = 20;
/// Most addresses whose failures are counted.
const ADDRESSES_MAX: usize = 10_000;
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
    token: TokenHash,
    pub(super) audit: AuditLog,
    failures: Arc<Mutex<RateLimiter<IpAddr>>>,
    started: Instant,
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
            token,
            audit,
            failures: Arc::new(Mutex::new(RateLimiter::new(FAILURES_PER_MINUTE, ADDRESSES_MAX))),
            started: Instant::now(),
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

    /// Whether this is the operator's token.
    pub(super) fn is_token(&self, given: &str) -> bool {
        self.token.is_of(given)
    }

    /// Counts a request without the token; `false` where its address sent too many.
    pub(super) fn may_fail(&self, from: &IpAddr) -> bool {
        let now = self.started.elapsed();
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).take(now, from)
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
            match admin.with_audit(&record, admin.say(&run, word)).await? {
                OperatorReply::Run(view) => Ok(json_response(&*view)),
                OperatorReply::Peers(_) => Err(Problem::Inside),
            }
        });
        match tokio::time::timeout(ANSWER_MAX, done).await {
            Ok(done) => done.unwrap_or(Err(Problem::Inside)),
            Err(_) => Err(Problem::Timeout),
        }
    }

    /// Runs `doing` between the two lines of the audit log.
    pub(super) async fn with_audit<T>(
        &self,
        record: &AuditRecord,
        doing: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        let number = self.audited(record, |audit, record| audit.begin(record)).await?;
        let done = doing.await;
        let error = done.as_ref().err().map(ToString::to_string);
        let end = move |audit: &AuditLog, record: &AuditRecord| audit.end(number, record, error.as_deref());
        // The command took effect: a missing second line is logged, and no error of the request.
        let _ = self.audited(record, end).await;
        done
    }

    /// Writes to the audit log on a thread that may block.
    pub(super) async fn audited<T: Send + 'static>(
        &self,
        record: &AuditRecord,
        write: impl FnOnce(&AuditLog, &AuditRecord) -> Result<T, AuditError> + Send + 'static,
    ) -> Result<T, Problem> {
        let (audit, record) = (self.audit.clone(), record.clone());
        let written = tokio::task::spawn_blocking(move || write(&audit, &record)).await;
        match written {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                tracing::error!(%error, "an operator command is not in the audit log");
                Err(Problem::Audit)
            }
            Err(_) => Err(Problem::Inside),
        }
    }
}

pub(super) fn audit_record(
    caller: SocketAddr,
    verb: &'static str,
    run: &str,
    arguments: Value,
) -> AuditRecord {
    AuditRecord { who: OPERATOR, from: caller.to_string(), verb, run: run.to_owned(), arguments }
}

pub(super) fn json_response(value: &impl serde::Serialize) -> Response {
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
