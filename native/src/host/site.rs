//! The site of a process: one address for the pages of all its runs.
//!
//! Each run is at `/run/<id>/`; a single one is also at `/`. With several runs `/` redirects to the front page at
//! `/runs/`, which shows the listed runs; an unlisted run is found by its address only. A request below
//! `/run/<id>` reaches the run's router without that prefix: no part of a run knows where it is mounted. Runs are added
//! and removed while the site is served.

mod invited;
mod room_codes;
mod serving;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{StatusCode, Uri};
use axum::middleware;
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Json, Router};
use barnraise_protocol::api::{DataKind, RunStatus, RunSummary, Runs};
use tower::ServiceExt as _;

use crate::host::access::login_style;
use crate::host::access::rooms::Rooms;
use crate::host::access::store::Store as Invitations;
use crate::host::headers::{no_store, security_headers};
use crate::host::http::{HttpState, app, files};
use crate::host::page::PageSource;
use crate::host::visitors::{Visitors, bound};

use room_codes::RoomCodeLimiter;
pub(crate) use serving::{Serving, serve};

/// Before the id of a run.
const RUN_PREFIX: &str = "/run/";
/// The front page.
const FRONT_PATH: &str = "/runs/";

/// Answer at the address of a run that is not here.
const NO_RUN: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
    <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
    <title>Barnraise: no such run</title><h1>There is no such run at this address</h1>\
    <p>It may have ended, or the address is misspelt. <a href=\"/runs/\">All runs that are here</a></p></html>\n";

/// A run as the site shows it.
#[derive(Clone)]
pub struct SiteRun {
    /// Its page and its API.
    pub http: HttpState,
    /// Whether the front page and `/api/runs` name it.
    pub is_listed: bool,
    /// Its rooms, if it takes room codes.
    pub rooms: Option<Rooms>,
    /// Its access database, if this backbone is the authority.
    pub invitations: Option<Invitations>,
}

/// All runs of a process. Cheap to clone.
#[derive(Clone)]
pub struct Site {
    state: Arc<SiteState>,
    visitors: Option<Visitors>,
}

/// State of the routes.
struct SiteState {
    code_limiter: RoomCodeLimiter,
    /// The page's files.
    files: Router,
    runs: RwLock<Arc<MountedRuns>>,
}

/// The runs of a site at one time.
struct MountedRuns {
    /// In the order in which they are listed.
    runs: Vec<SiteRun>,
    by_id: BTreeMap<String, Router>,
    /// Routes of all other paths.
    root: Router,
}

impl MountedRuns {
    fn new(runs: Vec<SiteRun>, files: &Router) -> Self {
        let by_id = runs.iter().map(|run| (run.id(), app(run.http.clone()))).collect();
        let root = match &runs[..] {
            [alone] => app(alone.http.clone()),
            several => front(several, files.clone()),
        };
        Self { runs, by_id, root }
    }
}

impl SiteRun {
    fn id(&self) -> String {
        self.http.status().run.identity.run_id.clone()
    }
}

impl SiteState {
    fn runs(&self) -> Arc<MountedRuns> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Vec<SiteRun>)) {
        let mut mounted = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        let mut runs = mounted.runs.clone();
        change(&mut runs);
        *mounted = Arc::new(MountedRuns::new(runs, &self.files));
    }
}

impl Site {
    /// A site of `runs`, in the order in which they are listed. Ids are unique.
    pub fn new(page: &PageSource, runs: Vec<SiteRun>) -> Self {
        let files = files(page);
        let runs = RwLock::new(Arc::new(MountedRuns::new(runs, &files)));
        let state = Arc::new(SiteState { code_limiter: RoomCodeLimiter::default(), files, runs });
        Self { state, visitors: None }
    }

    /// Adds a run, the last one in the list.
    pub fn add(&self, run: SiteRun) {
        self.state.change(|runs| runs.push(run));
    }

    /// Removes a run: from the next request on it is not here.
    pub fn remove(&self, id: &str) {
        self.state.change(|runs| runs.retain(|run| run.id() != id));
    }

    /// Limits the visitors.
    #[must_use]
    pub fn with_visitors(self, visitors: Visitors) -> Self {
        Self { visitors: Some(visitors), ..self }
    }

    /// All routes.
    pub fn routes(self) -> Router {
        let Self { state, visitors } = self;
        let routes = Router::new()
            .route("/api/runs", get(list))
            .route("/api/rooms/{code}", get(room_codes::room))
            .route("/api/invitations/{hash}", get(invited::invited))
            .fallback(dispatch)
            .with_state(state);
        let routes = match visitors {
            Some(visitors) => routes.layer(middleware::from_fn_with_state(visitors, bound)),
            None => routes,
        };
        routes.layer(middleware::map_response(security_headers))
    }
}

/// Routes at the root of several runs.
fn front(runs: &[SiteRun], files: Router) -> Router {
    let to_front = get(|| async { Redirect::temporary(FRONT_PATH) });
    let readiness: Vec<_> = runs.iter().map(|run| run.http.readiness().clone()).collect();
    let ready = move || {
        let readiness = readiness.clone();
        async move {
            for run in readiness {
                let response = crate::host::readiness::ready(State(run)).await;
                if response.status() != StatusCode::OK {
                    return response;
                }
            }
            (no_store(), "ready\n").into_response()
        }
    };
    Router::new()
        .route("/", to_front)
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        // The pages of a login name it without knowing where they are mounted.
        .merge(login_style())
        .route("/api/{*path}", get(which_run))
        .fallback_service(files)
}

/// Answers requests for the API of a single run where there are several.
async fn which_run() -> Response {
    let text = "404: several runs are here, each below /run/<id>; /api/runs lists them\n";
    (StatusCode::NOT_FOUND, no_store(), text).into_response()
}

/// `GET /api/runs`
async fn list(State(site): State<Arc<SiteState>>) -> Response {
    let mounted = site.runs();
    let listed = mounted.runs.iter().filter(|run| run.is_listed);
    let runs = listed.map(|run| summary(&run.http.status())).collect();
    let takes_codes = mounted.runs.iter().any(|run| run.rooms.is_some());
    (no_store(), Json(Runs { runs, takes_codes })).into_response()
}

fn summary(status: &RunStatus) -> RunSummary {
    let RunStatus { run, progress, paused, .. } = status;
    RunSummary {
        id: run.identity.run_id.clone(),
        title: run.identity.title.clone(),
        purpose: run.identity.purpose.clone(),
        access: run.access.mode,
        data: DataKind::of(&run.data.manifest.samples),
        epoch: progress.epoch,
        n_contributors: progress.n_contributors,
        test_accuracy: progress.test_accuracy,
        is_paused: paused.is_some(),
    }
}

/// Target of a request's path.
#[derive(Debug, PartialEq, Eq)]
enum RouteTarget<'a> {
    Root,
    Front,
    /// The slash at the end is missing: a redirect to this path.
    Slashless(String),
    Run {
        id: &'a str,
        path: &'a str,
    },
}

fn route_target(path: &str) -> RouteTarget<'_> {
    match path {
        FRONT_PATH => return RouteTarget::Front,
        "/runs" => return RouteTarget::Slashless(FRONT_PATH.into()),
        _ => {}
    }
    match path.strip_prefix(RUN_PREFIX) {
        None => RouteTarget::Root,
        Some(rest) => match rest.find('/') {
            Some(at) => RouteTarget::Run { id: &rest[..at], path: &rest[at..] },
            None => RouteTarget::Slashless(format!("{path}/")),
        },
    }
}

async fn dispatch(State(site): State<Arc<SiteState>>, mut request: Request) -> Response {
    let mounted = site.runs();
    let (router, path) = match route_target(request.uri().path()) {
        RouteTarget::Root => (Some(&mounted.root), None),
        RouteTarget::Front => (Some(&site.files), Some("/".to_owned())),
        RouteTarget::Slashless(path) => {
            let known = path
                .strip_prefix(RUN_PREFIX)
                .is_none_or(|id| mounted.by_id.contains_key(id.trim_end_matches('/')));
            return if known { Redirect::temporary(&path).into_response() } else { nothing() };
        }
        RouteTarget::Run { id, path } => (mounted.by_id.get(id), Some(path.to_owned())),
    };
    let Some(router) = router.cloned() else { return nothing() };
    if let Some(path) = path {
        let Some(uri) = at(request.uri(), &path) else { return nothing() };
        *request.uri_mut() = uri;
    }
    let Ok(response) = router.oneshot(request).await;
    response
}

/// The same URI with another path; the query stays.
fn at(uri: &Uri, path: &str) -> Option<Uri> {
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{path}{query}")).ok()?);
    Uri::from_parts(parts).ok()
}

fn nothing() -> Response {
    (StatusCode::NOT_FOUND, no_store(), Html(NO_RUN)).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_path_leads_to_a_run_to_the_front_or_to_the_root() {
        for (path, want) in [
            ("/", RouteTarget::Root),
            ("/api/run", RouteTarget::Root),
            ("/runners", RouteTarget::Root),
            ("/runs", RouteTarget::Slashless("/runs/".into())),
            ("/runs/", RouteTarget::Front),
            ("/run/a", RouteTarget::Slashless("/run/a/".into())),
            ("/run/", RouteTarget::Slashless("/run//".into())),
            ("/run/a/", RouteTarget::Run { id: "a", path: "/" }),
            ("/run/a/api/run", RouteTarget::Run { id: "a", path: "/api/run" }),
            ("/run/a//b", RouteTarget::Run { id: "a", path: "//b" }),
            ("/run//evil.example", RouteTarget::Run { id: "", path: "/evil.example" }),
        ] {
            assert_eq!(route_target(path), want, "{path}");
        }
    }

    #[test]
    fn the_question_stays_and_the_path_changes() {
        let moved = at(&"http://h:1/run/a/api/x?limit=3&b".parse().unwrap(), "/api/x").unwrap();
        assert_eq!(moved, "http://h:1/api/x?limit=3&b");
        assert_eq!(at(&"/run/a/".parse().unwrap(), "/").unwrap(), "/");
    }
}
