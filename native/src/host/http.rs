//! The HTTP server of a run: the page with its assets, and the state of the run as JSON.
//!
//! Training never passes through here. Every route is a `GET` without side effects, except for
//! the last step of a login (`host/access/login.rs`), where a run has one.
//! A slow reader of live events loses old ones; the backbone's memory stays bounded.

use std::convert::Infallible;
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
use axum::{Extension, Json, Router};
use barnraise_protocol::access::AccessMode;
use barnraise_protocol::api::{
    Contributions, ContributionsQuery, ContributorTotals, LiveProgress, RunStatus,
};
use barnraise_swarm::history::last_evaluation;
use futures::{Stream, StreamExt, stream};
use tokio::sync::{broadcast, watch};
use tokio_stream::wrappers::BroadcastStream;
use tower_http::compression::CompressionLayer;

use crate::host::contributions::{BadQuery, Question, Store, StoreError};
use crate::host::data_files::DataFiles;
use crate::host::headers::security_headers;
use crate::host::models::ModelFiles;
use crate::host::page::PageSource;
use crate::host::readiness::{Readiness, ready};
use crate::host::visitors::{Seats, Visitor};

/// Most readers of `/api/events` at a time; further ones are answered `503 Service Unavailable`.
pub const EVENT_READERS_MAX: usize = 4096;
/// Most readers of one address.
const EVENT_READERS_OF_ONE_MAX: usize = 256;
/// A comment is sent after this much silence, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Shown at `/` while there is no page to serve.
const NO_PAGE: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
    <title>Barnraise: the page is not built</title><h1>The page is not built</h1>\
    <p>The backbone runs, but its web folder has no <code>index.html</code>. \
    Run <code>cargo xtask build</code>, then reload; no restart is needed.</p>\
    <p>The run itself is at <a href=\"/api/run\">/api/run</a>.</p></html>";

/// State of the server.
#[derive(Clone)]
pub struct HttpState {
    page: PageSource,
    status: watch::Receiver<RunStatus>,
    events: Arc<broadcast::Receiver<LiveProgress>>,
    event_readers: Seats,
    login: Option<Router>,
    contributions: Option<Store>,
    models: Option<ModelFiles>,
    data: Option<DataFiles>,
    readiness: Readiness,
}

/// Why `/api/contributions` has no answer.
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
                // The error goes to the log only.
                tracing::warn!(%error, "contributions cannot be shown");
                let retry = [(header::RETRY_AFTER, "10")];
                let text = "the database does not answer, try again in a moment\n";
                (StatusCode::SERVICE_UNAVAILABLE, no_store, retry, text).into_response()
            }
        }
    }
}

impl HttpState {
    /// - `page`: files of the page
    /// - `status`: present status of the run
    /// - `events`: live events; when its sender is dropped, the streams of all readers end
    pub fn new(
        page: PageSource,
        status: watch::Receiver<RunStatus>,
        events: broadcast::Receiver<LiveProgress>,
    ) -> Self {
        let event_readers = Seats::new(EVENT_READERS_MAX, EVENT_READERS_OF_ONE_MAX);
        Self {
            page,
            status,
            events: Arc::new(events),
            event_readers,
            login: None,
            contributions: None,
            models: None,
            data: None,
            readiness: Readiness::default(),
        }
    }

    /// The present status of the run.
    pub(crate) fn status(&self) -> watch::Ref<'_, RunStatus> {
        self.status.borrow()
    }

    /// Readiness of the backbone.
    pub(crate) fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// With the login pages of a run with a list.
    #[must_use]
    pub fn with_login(self, login: Option<Router>) -> Self {
        Self { login, ..self }
    }

    /// With the readiness of the backbone.
    #[must_use]
    pub fn with_readiness(self, readiness: Readiness) -> Self {
        Self { readiness, ..self }
    }

    /// With the database of contributions.
    #[must_use]
    pub fn with_contributions(self, store: Store) -> Self {
        Self { contributions: Some(store), ..self }
    }

    /// With the model files, in a run that publishes its model.
    #[must_use]
    pub fn with_models(self, models: Option<ModelFiles>) -> Self {
        Self { models, ..self }
    }

    /// With the files by which a visitor's own become samples, where no model files are that have them.
    #[must_use]
    pub(crate) fn with_data(self, data: DataFiles) -> Self {
        Self { data: Some(data), ..self }
    }
}

/// The page's files.
pub(crate) fn files(page: &PageSource) -> Router {
    page.routes(get(not_found)).layer(middleware::from_fn(file_headers))
}

/// All routes of a run. [`crate::host::site`], where it is mounted, limits the visitors.
pub fn app(state: HttpState) -> Router {
    let files = files(&state.page);
    let readiness = Router::new().route("/readyz", get(ready)).with_state(state.readiness.clone());
    let login = state.login.clone().unwrap_or_default();
    let (status, store) = (state.status.clone(), state.contributions.clone());
    let models = match (state.models.clone(), state.data.clone()) {
        (Some(models), _) => models.routes(status, store),
        (None, Some(data)) => data.routes(),
        (None, None) => Router::new(),
    };
    let routes = Router::new()
        // Text of tens of kilobytes; events are small, and would wait in a compressor.
        .route("/api/run", get(run).layer(CompressionLayer::new()))
        .route("/api/events", get(events))
        .route("/api/contributions", get(contributions).layer(CompressionLayer::new()))
        .route("/api/{*path}", get(not_found))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(state)
        .merge(readiness)
        .merge(login)
        .merge(models)
        .fallback_service(files);
    routes.layer(middleware::map_response(security_headers))
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
    let mut contributions = store.contributions(&question).await?;
    if state.status.borrow().run.access.mode != AccessMode::Open {
        contributions = without_people(contributions);
    }
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(contributions)))
}

/// The public part of the contributions to a closed run: totals without peers. A peer that asks for itself knows its own
/// id, which is listed nowhere.
fn without_people(all: Contributions) -> Contributions {
    let peer = all.peer.map(|own| ContributorTotals { name: None, ..own });
    Contributions { contributors: Vec::new(), aggregators: Vec::new(), relays: Vec::new(), peer, ..all }
}

async fn events(State(state): State<HttpState>, visitor: Option<Extension<Visitor>>) -> Response {
    let visitor = visitor.map(|Extension(visitor)| visitor);
    let Some(seat) = state.event_readers.take(visitor) else {
        let text = "too many readers of events, come again in a minute\n";
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "60")], text).into_response();
    };
    // Subscribed before the status is read, so that no event is lost in between.
    let later = BroadcastStream::new(state.events.resubscribe());
    let stream = event_stream(first_event(&state.status.borrow()), later).map(move |event| {
        let _held_while_read = &seat;
        event
    });
    let sse = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    // Tells nginx and other proxies not to buffer events.
    ([(HeaderName::from_static("x-accel-buffering"), "no")], sse).into_response()
}

fn first_event(status: &RunStatus) -> LiveProgress {
    let devices = status.devices.clone();
    let (evaluation, paused) = (last_evaluation(&status.history), status.paused.clone());
    LiveProgress { progress: status.progress, steps: Vec::new(), evaluation, devices, paused }
}

/// The present status, then live events; a slow reader misses some.
fn event_stream(
    first: LiveProgress,
    later: BroadcastStream<LiveProgress>,
) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::iter([first])
        .chain(later.filter_map(async |progress| progress.ok()))
        .filter_map(async |progress| Event::default().event("progress").json_data(progress).ok())
        .map(Ok)
}

/// Answers requests for files that the page does not have.
async fn not_found(uri: Uri) -> Response {
    let no_store = [(header::CACHE_CONTROL, "no-store")];
    if matches!(uri.path(), "/" | "/index.html") {
        return (StatusCode::NOT_FOUND, no_store, Html(NO_PAGE)).into_response();
    }
    (StatusCode::NOT_FOUND, no_store, "404: there is nothing at this address\n").into_response()
}

/// Cache headers. Names of files under `/assets/` contain a hash of their content, so they may be cached for ever; all
/// others are revalidated each time, which costs a 304.
async fn file_headers(request: Request, next: Next) -> Response {
    let is_asset = request.uri().path().starts_with("/assets/");
    let mut response = next.run(request).await;
    let found = response.status().is_success() || response.status() == StatusCode::NOT_MODIFIED;
    if found {
        let cache = if is_asset { "public, max-age=31536000, immutable" } else { "no-cache" };
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
        // The encoding depends on the client: a shared cache must not mix up the variants.
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    }
    response
}
