//! The site of a process: one address for the pages of all its runs.
//!
//! A run alone is at `/`, and at `/run/<id>/` as each of several is. Of several, `/` leads to the front page at `/runs/`,
//! which shows those that may be listed; the others are found by whoever knows their address. What is below
//! `/run/<id>` is asked of that run as if it were alone: no part of a run knows where it is mounted.

pub mod apart;
mod invited;
mod knocking;
pub mod serve;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{StatusCode, Uri, header};
use axum::middleware;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Json, Router};
use barnraise_protocol::api::{DataKind, RunStatus, RunSummary, Runs};
use barnraise_protocol::dataset::SampleKind;
use tower::ServiceExt as _;

use crate::access::login;
use crate::access::rooms::Rooms;
use crate::access::store::Store as Invitations;
use crate::http::{HttpState, app, files, no_store, security_headers};
use crate::page::Page;
use crate::visitors::{Visitors, bound};

use knocking::Knocking;
pub use serve::{Open, serve};

/// Before the id of a run.
const RUN_PREFIX: &str = "/run/";
/// The front page.
const FRONT_PATH: &str = "/runs/";

/// A run as the site shows it.
#[derive(Clone)]
pub struct SiteRun {
    /// Its page and its API.
    pub http: HttpState,
    /// Whether the front page and `/api/runs` name it.
    pub is_listed: bool,
    /// Where codes let somebody in.
    pub rooms: Option<Rooms>,
    /// Where its invitations are, if they are made here.
    pub invitations: Option<Invitations>,
}

/// All runs of a process.
pub struct Site {
    page: Page,
    runs: Vec<SiteRun>,
    visitors: Option<Visitors>,
}

/// What the routes share.
struct Shared {
    /// In the order of the command line.
    runs: Vec<SiteRun>,
    knocking: Knocking,
    by_id: BTreeMap<String, Router>,
    /// The page's files.
    files: Router,
    /// Whatever is below no run.
    root: Router,
}

impl Site {
    /// The runs in the order in which they are listed, each with an id of its own.
    pub fn new(page: Page, runs: Vec<SiteRun>) -> Self {
        Self { page, runs, visitors: None }
    }

    /// For visitors that are bounded.
    #[must_use]
    pub fn with_visitors(self, visitors: Visitors) -> Self {
        Self { visitors: Some(visitors), ..self }
    }

    /// All routes.
    pub fn routes(self) -> Router {
        let Self { page, runs, visitors } = self;
        let by_id = runs.iter().map(|run| (run.http.status().run.run_id.clone(), app(run.http.clone())));
        let by_id: BTreeMap<String, Router> = by_id.collect();
        let files = files(&page);
        let root = match &runs[..] {
            [alone] => app(alone.http.clone()),
            several => front(several, files.clone()),
        };
        let shared = Arc::new(Shared { runs, knocking: Knocking::default(), by_id, files, root });
        let routes = Router::new()
            .route("/api/runs", get(list))
            .route("/api/rooms/{code}", get(knocking::room))
            .route("/api/invitations/{hash}", get(invited::invited))
            .fallback(below)
            .with_state(shared);
        let routes = match visitors {
            Some(visitors) => routes.layer(middleware::from_fn_with_state(visitors, bound)),
            None => routes,
        };
        routes.layer(middleware::map_response(security_headers))
    }
}

/// What is at the root where several runs are.
fn front(runs: &[SiteRun], files: Router) -> Router {
    let to_front = get(|| async { Redirect::temporary(FRONT_PATH) });
    let readiness: Vec<_> = runs.iter().map(|run| run.http.readiness().clone()).collect();
    let ready = move || {
        let readiness = readiness.clone();
        async move {
            for run in readiness {
                let response = crate::readiness::ready(State(run)).await;
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
        .route(login::STYLE_PATH, get(login::style))
        .route("/api/{*path}", get(which_run))
        .fallback_service(files)
}

/// Whoever asks for "the" run where there are several.
async fn which_run() -> Response {
    let text = "404: several runs are here, each below /run/<id>; /api/runs lists them\n";
    (StatusCode::NOT_FOUND, no_store(), text).into_response()
}

/// `GET /api/runs`
async fn list(State(site): State<Arc<Shared>>) -> Response {
    let listed = site.runs.iter().filter(|run| run.is_listed);
    let runs = listed.map(|run| summary(&run.http.status())).collect();
    let takes_codes = site.runs.iter().any(|run| run.rooms.is_some());
    (no_store(), Json(Runs { runs, takes_codes })).into_response()
}

fn summary(status: &RunStatus) -> RunSummary {
    let RunStatus { run, progress, paused, .. } = status;
    RunSummary {
        id: run.run_id.clone(),
        title: run.title.clone(),
        purpose: run.purpose.clone(),
        access: run.access.mode,
        data: match run.manifest.samples {
            SampleKind::Images { .. } => DataKind::Images,
            SampleKind::Tokens(_) => DataKind::Text,
        },
        epoch: progress.epoch,
        n_contributors: progress.n_contributors,
        test_accuracy: progress.test_accuracy,
        is_paused: paused.is_some(),
    }
}

/// What a path leads to.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Root,
    Front,
    /// Without the slash at its end, below which everything is.
    Slashless(String),
    Run {
        id: &'a str,
        path: &'a str,
    },
}

fn place(path: &str) -> Place<'_> {
    match path {
        FRONT_PATH => return Place::Front,
        "/runs" => return Place::Slashless(FRONT_PATH.into()),
        _ => {}
    }
    match path.strip_prefix(RUN_PREFIX) {
        None => Place::Root,
        Some(rest) => match rest.find('/') {
            Some(at) => Place::Run { id: &rest[..at], path: &rest[at..] },
            None => Place::Slashless(format!("{path}/")),
        },
    }
}

async fn below(State(site): State<Arc<Shared>>, mut request: Request) -> Response {
    let (router, path) = match place(request.uri().path()) {
        Place::Root => (Some(&site.root), None),
        Place::Front => (Some(&site.files), Some("/".to_owned())),
        Place::Slashless(path) => {
            let known = path
                .strip_prefix(RUN_PREFIX)
                .is_none_or(|id| site.by_id.contains_key(id.trim_end_matches('/')));
            return if known { Redirect::temporary(&path).into_response() } else { nothing() };
        }
        Place::Run { id, path } => (site.by_id.get(id), Some(path.to_owned())),
    };
    let Some(router) = router.cloned() else { return nothing() };
    if let Some(path) = path {
        let Some(uri) = at(request.uri(), &path) else { return nothing() };
        *request.uri_mut() = uri;
    }
    let Ok(response) = router.oneshot(request).await;
    response
}

/// The same question at another path.
fn at(uri: &Uri, path: &str) -> Option<Uri> {
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{path}{query}")).ok()?);
    Uri::from_parts(parts).ok()
}

fn nothing() -> Response {
    let text = "404: there is no such run at this address\n";
    (StatusCode::NOT_FOUND, [(header::CACHE_CONTROL, "no-store")], text).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_path_leads_to_a_run_to_the_front_or_to_the_root() {
        for (path, want) in [
            ("/", Place::Root),
            ("/api/run", Place::Root),
            ("/runners", Place::Root),
            ("/runs", Place::Slashless("/runs/".into())),
            ("/runs/", Place::Front),
            ("/run/a", Place::Slashless("/run/a/".into())),
            ("/run/", Place::Slashless("/run//".into())),
            ("/run/a/", Place::Run { id: "a", path: "/" }),
            ("/run/a/api/run", Place::Run { id: "a", path: "/api/run" }),
            ("/run/a//b", Place::Run { id: "a", path: "//b" }),
            ("/run//evil.example", Place::Run { id: "", path: "/evil.example" }),
        ] {
            assert_eq!(place(path), want, "{path}");
        }
    }

    #[test]
    fn the_question_stays_and_the_path_changes() {
        let moved = at(&"http://h:1/run/a/api/x?limit=3&b".parse().unwrap(), "/api/x").unwrap();
        assert_eq!(moved, "http://h:1/api/x?limit=3&b");
        assert_eq!(at(&"/run/a/".parse().unwrap(), "/").unwrap(), "/");
    }
}
