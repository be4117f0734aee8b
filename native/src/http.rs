//! The HTTP side of a backbone: the page with its assets, and the run as JSON for whoever looks.
//!
//! Training never passes through here. Nothing a client sends has an effect, every route is a `GET`, but
//! for the last step of a login ([`crate::access::login`]), where a run has one.
//! A slow reader of events loses old events, never the backbone's memory.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use barnraise_protocol::api::{Contributions, ContributionsQuery, LiveProgress, RunStatus};
use futures::{Stream, StreamExt, stream};
use tokio::sync::{Semaphore, broadcast, watch};
use tokio_stream::wrappers::BroadcastStream;
use tower_http::services::ServeDir;

use crate::access::login::Login;
use crate::contributions::{BadQuery, Question, Store, StoreError};

/// Readers of `/api/events` at a time; a visitor beyond is asked to come again.
pub const EVENT_READERS_MAX: usize = 4096;
/// A comment is sent after this much silence, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What the page may do, and nothing else. `https:`, `ws:` and `wss:` in `connect-src` are for libp2p's
/// WebTransport and WebSocket addresses, whose hosts are known only at run time; `wasm-unsafe-eval`
/// allows WebAssembly to be compiled, and no other evaluation.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; \
    style-src 'self'; img-src 'self' data: blob:; connect-src 'self' https: ws: wss:; worker-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Sent with every answer.
const SECURITY_HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-embedder-policy"), "require-corp"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Shown at `/` while there is no page to serve.
const NO_PAGE: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
    <title>Barnraise: the page is not built</title><h1>The page is not built</h1>\
    <p>The backbone runs, but its web folder has no <code>index.html</code>. \
    Run <code>cargo xtask build</code>, then reload; no restart is needed.</p>\
    <p>The run itself is at <a href=\"/api/run\">/api/run</a>.</p></html>";

/// What the server shows.
#[derive(Clone)]
pub struct HttpState {
    web_root: PathBuf,
    status: watch::Receiver<RunStatus>,
    events: Arc<broadcast::Receiver<LiveProgress>>,
    event_readers: Arc<Semaphore>,
    login: Option<Login>,
    contributions: Option<Store>,
}

/// Why it is not answered who gave what.
#[derive(Debug, thiserror::Error)]
enum NoContributions {
    #[error(transparent)]
    Query(#[from] QueryRejection),
    #[error(transparent)]
    Bounds(#[from] BadQuery),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("nothing is kept of who contributed")]
    NotKept,
}

impl IntoResponse for NoContributions {
    fn into_response(self) -> Response {
        let no_store = [(header::CACHE_CONTROL, "no-store")];
        match self {
            Self::Query(rejection) => rejection.into_response(),
            Self::Bounds(error) => (StatusCode::BAD_REQUEST, no_store, format!("{error}\n")).into_response(),
            Self::NotKept => (StatusCode::NOT_FOUND, no_store, format!("{self}\n")).into_response(),
            Self::Store(error) => {
                // What went wrong inside is for the log, not for strangers.
                tracing::warn!(%error, "contributions cannot be shown");
                let retry = [(header::RETRY_AFTER, "10")];
                let text = "the database is not at hand, come again in a moment\n";
                (StatusCode::SERVICE_UNAVAILABLE, no_store, retry, text).into_response()
            }
        }
    }
}

impl HttpState {
    /// - `web_root`: folder with `index.html` and its assets, compressed variants beside them
    /// - `status`: the run as it stands
    /// - `events`: what changed; when its sender is dropped, the streams of all readers end
    pub fn new(
        web_root: PathBuf,
        status: watch::Receiver<RunStatus>,
        events: broadcast::Receiver<LiveProgress>,
    ) -> Self {
        let event_readers = Arc::new(Semaphore::new(EVENT_READERS_MAX));
        Self { web_root, status, events: Arc::new(events), event_readers, login: None, contributions: None }
    }

    /// With the pages of a run whose peers sign in.
    #[must_use]
    pub fn with_login(self, login: Option<Login>) -> Self {
        Self { login, ..self }
    }

    /// With who gave what.
    #[must_use]
    pub fn with_contributions(self, store: Store) -> Self {
        Self { contributions: Some(store), ..self }
    }
}

/// All routes.
pub fn app(state: HttpState) -> Router {
    let files =
        ServeDir::new(&state.web_root).precompressed_br().precompressed_gzip().fallback(get(not_found));
    let files = Router::new().fallback_service(files).layer(middleware::from_fn(file_headers));
    let login = state.login.clone().map_or_else(Router::new, Login::routes);
    Router::new()
        .route("/api/run", get(run))
        .route("/api/events", get(events))
        .route("/api/contributions", get(contributions))
        .route("/api/{*path}", get(not_found))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(state)
        .merge(login)
        .fallback_service(files)
        .layer(middleware::map_response(security_headers))
}

async fn run(State(state): State<HttpState>) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], Json(&*state.status.borrow())).into_response()
}

async fn contributions(
    State(state): State<HttpState>,
    query: Result<Query<ContributionsQuery>, QueryRejection>,
) -> Result<([(HeaderName, &'static str); 1], Json<Contributions>), NoContributions> {
    let Query(query) = query?;
    let question = Question::try_from(query)?;
    let store = state.contributions.as_ref().ok_or(NoContributions::NotKept)?;
    let contributions = store.contributions(&question).await?;
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(contributions)))
}

async fn events(State(state): State<HttpState>) -> Response {
    let Ok(permit) = Arc::clone(&state.event_readers).try_acquire_owned() else {
        let text = "too many readers of events, come again in a minute\n";
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "60")], text).into_response();
    };
    // Subscribed before the first look, so that nothing falls between the two.
    let later = BroadcastStream::new(state.events.resubscribe());
    let stream = event_stream(first_event(&state.status.borrow()), later).map(move |event| {
        let _held_while_read = &permit;
        event
    });
    let sse = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    // Told to nginx and its like: an event is worth sending at once.
    ([(HeaderName::from_static("x-accel-buffering"), "no")], sse).into_response()
}

fn first_event(status: &RunStatus) -> LiveProgress {
    let devices = status.devices.clone();
    LiveProgress { progress: status.progress, steps: Vec::new(), evaluation: None, devices }
}

/// The present state first, then changes as they come; what a slow reader missed is skipped.
fn event_stream(
    first: LiveProgress,
    later: BroadcastStream<LiveProgress>,
) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::iter([first])
        .chain(later.filter_map(async |progress| progress.ok()))
        .filter_map(async |progress| Event::default().event("progress").json_data(progress).ok())
        .map(Ok)
}

/// Answers for what the web folder does not have.
async fn not_found(uri: Uri) -> Response {
    let no_store = [(header::CACHE_CONTROL, "no-store")];
    if matches!(uri.path(), "/" | "/index.html") {
        return (StatusCode::NOT_FOUND, no_store, Html(NO_PAGE)).into_response();
    }
    (StatusCode::NOT_FOUND, no_store, "404: there is nothing at this address\n").into_response()
}

/// Names of files under `/assets/` hold a hash of their content, so they may be kept for ever; all
/// others are asked for each time, which costs a 304.
async fn file_headers(request: Request, next: Next) -> Response {
    let is_asset = request.uri().path().starts_with("/assets/");
    let mut response = next.run(request).await;
    let found = response.status().is_success() || response.status() == StatusCode::NOT_MODIFIED;
    if found {
        let cache = if is_asset { "public, max-age=31536000, immutable" } else { "no-cache" };
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
        // Compressed or not by what the client accepts: a shared cache must not mix them up.
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    }
    response
}

async fn security_headers(mut response: Response) -> Response {
    for (name, value) in SECURITY_HEADERS {
        // The pages of a login have a policy of their own, a stricter one.
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
