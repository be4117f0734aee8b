//! Readiness of a backbone, for monitoring: `/readyz`, and the operator's page, which is served before the backbone has
//! started.
//!
//! A backbone that answers is alive. It is ready once it has data and model, listens, and reaches its database.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use barnraise_relay::server::HostNames;
use barnraise_relay::tasks;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt as _;

use crate::host::contributions::Store;
use crate::host::http_listener::BoundedListener;
use crate::host::problem::Problem;
use crate::storage::disk_space::DiskSpace;

/// Most connections to the operator's page.
const CONNECTIONS_MAX: usize = 256;
/// Timeout of a query to the database.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(2);
/// The result of a query is reused for this long.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A step of a backbone's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartupStep {
    /// The data is loaded and split into shards.
    Data,
    /// The newest valid checkpoint and the journal after it are restored.
    Checkpoint,
    /// The listeners for contributors and for visitors are bound.
    Listeners,
    /// The database of contributions is open.
    Database,
}

impl StartupStep {
    const ALL: [Self; 4] = [Self::Data, Self::Checkpoint, Self::Listeners, Self::Database];

    const fn reason(self) -> &'static str {
        match self {
            Self::Data => "the data is being loaded",
            Self::Checkpoint => "the last checkpoint is not restored yet",
            Self::Listeners => "not all addresses are listened at yet",
            Self::Database => "the database of contributions is not open yet",
        }
    }
}

/// Readiness of a backbone. Clones are cheap and share their state. The default waits for nothing.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<ReadinessState>);

#[derive(Debug, Default)]
struct ReadinessState {
    missing: Mutex<BTreeSet<StartupStep>>,
    going_down: CancellationToken,
    store: OnceLock<Store>,
    room: OnceLock<DiskSpace>,
    /// Time and result of the latest query to the database. Concurrent requests wait for the same query.
    asked: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

impl Readiness {
    /// A backbone that starts. It is not ready any more once `going_down` is cancelled.
    #[must_use]
    pub fn starting(going_down: CancellationToken) -> Self {
        let missing = Mutex::new(StartupStep::ALL.into());
        Self(Arc::new(ReadinessState { missing, going_down, ..ReadinessState::default() }))
    }

    /// Marks a step as done.
    pub fn done(&self, part: StartupStep) {
        self.0.missing.lock().unwrap_or_else(PoisonError::into_inner).remove(&part);
    }

    /// Marks the database as open; it is queried from now on.
    pub fn has(&self, store: &Store) {
        let _ = self.0.store.set(store.clone());
        self.done(StartupStep::Database);
    }

    /// Sets the disk that contributions are stored on.
    pub fn stores_in(&self, room: &DiskSpace) {
        let _ = self.0.room.set(room.clone());
    }

    /// Why the backbone is not ready; empty if it is.
    pub async fn reasons(&self) -> Vec<&'static str> {
        let mut reasons: Vec<_> = {
            let missing = self.0.missing.lock().unwrap_or_else(PoisonError::into_inner);
            missing.iter().map(|part| part.reason()).collect()
        };
        if self.0.going_down.is_cancelled() {
            reasons.push("it is going down");
        }
        if let Some(trouble) = self.0.room.get().and_then(DiskSpace::trouble) {
            reasons.push(trouble.reason());
        }
        if let Some(store) = self.0.store.get()
            && !self.answers(store).await
        {
            reasons.push("the database of contributions does not answer");
        }
        reasons
    }

    async fn answers(&self, store: &Store) -> bool {
        let mut asked = self.0.asked.lock().await;
        if let Some((at, answered)) = *asked
            && at.elapsed() < ASKED_AGAIN_AFTER
        {
            return answered;
        }
        let answered = tokio::time::timeout(DATABASE_TIMEOUT, store.is_at_hand()).await.unwrap_or(false);
        *asked = Some((Instant::now(), answered));
        answered
    }
}

/// `GET /readyz`
pub async fn ready(State(readiness): State<Readiness>) -> Response {
    let reasons = readiness.reasons().await;
    let no_store = [(header::CACHE_CONTROL, "no-store")];
    if reasons.is_empty() {
        return (no_store, "ready\n").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, no_store, reasons.join("\n") + "\n").into_response()
}

/// The operator's page, which answers before the backbone has started.
#[derive(Debug)]
pub struct OperatorPage {
    address: SocketAddr,
    rest: Arc<OnceLock<Router>>,
    _serving: AbortOnDropHandle<()>,
}

impl OperatorPage {
    /// Serves `/healthz` and `/readyz` until `stop` is cancelled, to requests whose `Host` is one of `names`. A
    /// connection ends after `timeout` without a response.
    ///
    /// # Errors
    /// The address is in use, or not one of this machine.
    pub async fn open(
        address: SocketAddr,
        names: HostNames,
        timeout: Duration,
        readiness: Readiness,
        stop: CancellationToken,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await;
        let listener =
            listener.with_context(|| format!("the operator's page cannot be served at {address}"))?;
        let address = listener.local_addr()?;
        let rest = Arc::default();
        let routes = guarded(routes(readiness, Arc::clone(&rest)), names);
        let listener = BoundedListener::new(listener, CONNECTIONS_MAX, timeout, None).tap_io(|_| ());
        let routes = routes.into_make_service_with_connect_info::<SocketAddr>();
        let serving = axum::serve(listener, routes).into_future();
        // It ends without waiting for open requests, which only read.
        let serving = async move { drop(stop.run_until_cancelled(serving).await) };
        Ok(Self { address, rest, _serving: tasks::spawn("operator's page", serving) })
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds the other routes, once the backbone has started.
    pub fn show(&self, rest: Router) {
        let _ = self.rest.set(rest);
    }
}

fn routes(readiness: Readiness, rest: Arc<OnceLock<Router>>) -> Router {
    let ready = Router::new().route("/readyz", get(ready)).with_state(readiness);
    ready.fallback_service(Router::new().fallback(shown).with_state(rest))
}

/// Protects metrics and admin API against DNS rebinding: requests for other host names are refused.
fn guarded(routes: Router, names: HostNames) -> Router {
    routes.layer(middleware::from_fn_with_state(names, refuse_others))
}

async fn refuse_others(State(names): State<HostNames>, request: Request, next: Next) -> Response {
    match names.check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => Problem::Host(error).into_response(),
    }
}

async fn shown(State(rest): State<Arc<OnceLock<Router>>>, request: Request) -> Response {
    match rest.get() {
        Some(routes) => routes.clone().oneshot(request).await.into_response(),
        None if request.uri().path() == "/healthz" => {
            let no_store = [(header::CACHE_CONTROL, "no-store")];
            (no_store, Json(serde_json::json!({ "status": "starting" }))).into_response()
        }
        None => Problem::Starting.into_response(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::body::{Body, to_bytes};
    use libp2p::PeerId;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::host::problem::ProblemBody;

    async fn ask(routes: &Router, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = routes.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        (status, String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap())
    }

    #[tokio::test]
    async fn what_is_missing_is_named_until_all_is_there() {
        let (stop, folder) = (CancellationToken::new(), tempfile::tempdir().unwrap());
        let readiness = Readiness::starting(stop.clone());
        let routes = routes(readiness.clone(), Arc::default());
        let (status, reasons) = ask(&routes, "/readyz").await;
        assert_eq!((status, reasons.lines().count()), (503, 4));
        readiness.done(StartupStep::Data);
        readiness.done(StartupStep::Checkpoint);
        readiness.done(StartupStep::Listeners);
        let waiting = ask(&routes, "/readyz").await;
        assert_eq!(waiting, (503, "the database of contributions is not open yet\n".into()));
        let store = Store::open(folder.path(), None, "r", PeerId::random()).await.unwrap();
        readiness.has(&store);
        assert_eq!(ask(&routes, "/readyz").await, (200, "ready\n".into()));
        stop.cancel();
        assert_eq!(ask(&routes, "/readyz").await, (503, "it is going down\n".into()));
    }

    #[tokio::test]
    async fn a_database_that_went_away_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let readiness = Readiness::default();
        let store = Store::open(folder.path(), None, "r", PeerId::random()).await.unwrap();
        readiness.has(&store);
        store.close().await;
        assert_eq!(readiness.reasons().await, ["the database of contributions does not answer"]);
    }

    #[tokio::test]
    async fn a_page_of_the_web_whose_name_leads_here_reads_nothing() {
        let rest = Arc::new(OnceLock::new());
        let shown = Router::new().route("/metrics", get(|| async { "counted" }));
        rest.set(shown.route("/admin/v1/runs", get(|| async { "runs" }))).unwrap();
        let names = HostNames::new("operator_names", &["backbone.internal".into()]);
        let routes = guarded(routes(Readiness::default(), rest), names);
        let ask = async |path: &str, host: &str| {
            let request = Request::get(path).header(header::HOST, host).body(Body::empty()).unwrap();
            let response = routes.clone().oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
            (status, String::from_utf8(body.to_vec()).unwrap())
        };
        for path in ["/metrics", "/healthz", "/readyz", "/admin/v1/runs", "/nothing"] {
            let (status, body) = ask(path, "evil.example:8082").await;
            assert_eq!(status, 421, "{path}");
            let problem: ProblemBody = serde_json::from_str(&body).unwrap();
            assert_eq!(problem.kind, "urn:barnraise:problem:host");
            let wanted = ["localhost", "operator_names", "\"evil.example:8082\""];
            assert!(wanted.iter().all(|want| problem.detail.contains(want)), "{}", problem.detail);
        }
        for host in ["127.0.0.1:8082", "[::1]:8082", "localhost:8082", "backbone.internal"] {
            assert_eq!(ask("/metrics", host).await, (200, "counted".into()), "{host}");
        }
    }

    /// Tests the page over a socket, not only its routes.
    #[tokio::test]
    async fn the_open_port_answers_by_its_own_names_alone() {
        let (stop, names) = (CancellationToken::new(), HostNames::new("operator_names", &[]));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let open =
            OperatorPage::open(any, names, Duration::from_secs(30), Readiness::default(), stop.clone());
        let page = open.await.unwrap();
        page.show(Router::new().route("/metrics", get(|| async { "counted" })));
        let ask = async |host: &str| {
            let mut stream = tokio::net::TcpStream::connect(page.address()).await.unwrap();
            let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answer = ask("evil.example").await;
        assert!(answer.starts_with("HTTP/1.1 421 ") && !answer.contains("counted"), "{answer}");
        let answer = ask("localhost").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("counted"), "{answer}");
        stop.cancel();
    }

    #[tokio::test]
    async fn the_operators_page_is_alive_before_it_has_anything_to_show() {
        let rest = Arc::new(OnceLock::new());
        let routes = routes(Readiness::default(), Arc::clone(&rest));
        assert_eq!(ask(&routes, "/healthz").await, (200, "{\"status\":\"starting\"}".into()));
        assert_eq!(ask(&routes, "/metrics").await.0, 503);
        rest.set(Router::new().route("/metrics", get(|| async { "counted" }))).unwrap();
        assert_eq!(ask(&routes, "/metrics").await, (200, "counted".into()));
        assert_eq!(ask(&routes, "/nothing").await.0, 404);
        assert_eq!(ask(&routes, "/readyz").await, (200, "ready\n".into()));
    }
}
