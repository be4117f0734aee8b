//! Several runs at one address, through the site's routes and one request at a time: no socket.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use barnraise_native::host::access::store::{InvitationTerms, Store};
use barnraise_native::host::http::HttpState;
use barnraise_native::host::page::{File, PageSource};
use barnraise_native::host::readiness::{Readiness, StartupStep};
use barnraise_native::host::site::{Site, SiteRun};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::api::{DataKind, LiveProgress, RunStatus, Runs};
use barnraise_protocol::contribute::RunProgress;
use barnraise_protocol::run::RunDescription;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::fixture;

const PAGE: &[File] = &[
    File { path: "assets/a.js", tag: "a", plain: b"//", brotli: None, gzip: None },
    File { path: "index.html", tag: "b", plain: b"<!doctype html>page", brotli: None, gzip: None },
];

fn status(id: &str) -> RunStatus {
    RunStatus {
        run: described(id),
        n_parameters: 2,
        addresses: Vec::new(),
        progress: RunProgress {
            epoch: 3,
            n_samples: 10,
            target_batch_size: 1024,
            n_contributors: 2,
            samples_per_second: 50.0,
            train_loss: None,
            test_accuracy: Some(0.5),
        },
        history: Vec::new(),
        devices: Vec::new(),
        paused: (id == "c").then(|| "new data".into()),
        majority_accuracy: None,
    }
}

fn described(id: &str) -> RunDescription {
    let mut run = fixture::run();
    run.identity.run_id = id.into();
    run.identity.title = format!("The run {id}");
    run
}

fn run(id: &str, is_listed: bool) -> SiteRun {
    let (_, status) = watch::channel(status(id));
    let (_, events) = broadcast::channel::<LiveProgress>(1);
    let http = HttpState::new(PageSource::Inside(PAGE), status, events);
    SiteRun { http, is_listed, rooms: None, invitations: None }
}

fn site(runs: Vec<SiteRun>) -> Router {
    Site::new(&PageSource::Inside(PAGE), runs).routes()
}

async fn get(site: &Router, path: &str) -> Response {
    site.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap()
}

async fn body(response: Response) -> String {
    String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
}

async fn run_at(site: &Router, path: &str) -> String {
    serde_json::from_str::<RunStatus>(&body(get(site, path).await).await).unwrap().run.identity.run_id
}

fn location(response: &Response) -> &str {
    response.headers().get("location").map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_run_alone_is_at_the_root_and_below_its_id() {
    let site = site(vec![run("a", true)]);
    assert_eq!(run_at(&site, "/api/run").await, "a");
    assert_eq!(run_at(&site, "/run/a/api/run").await, "a");
    for path in ["/", "/run/a/", "/runs/"] {
        assert_eq!(body(get(&site, path).await).await, "<!doctype html>page", "{path}");
    }
    assert_eq!(body(get(&site, "/healthz").await).await, "ok\n");
    assert_eq!(get(&site, "/api/nothing").await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn several_runs_are_each_below_their_id_and_the_root_leads_to_all() {
    let site = site(vec![run("a", true), run("b", true)]);
    for id in ["a", "b"] {
        assert_eq!(run_at(&site, &format!("/run/{id}/api/run?x=1")).await, id);
        let page = get(&site, &format!("/run/{id}/")).await;
        assert_eq!(page.headers()["content-type"], "text/html");
        assert_eq!(location(&get(&site, &format!("/run/{id}")).await), format!("/run/{id}/"));
    }
    let root = get(&site, "/").await;
    assert_eq!((root.status(), location(&root)), (StatusCode::TEMPORARY_REDIRECT, "/runs/"));
    let front = get(&site, "/runs/").await;
    assert_eq!(front.headers()["x-content-type-options"], "nosniff");
    assert_eq!(body(front).await, "<!doctype html>page");
    for path in ["/index.html", "/assets/a.js", "/healthz", "/readyz"] {
        assert_eq!(get(&site, path).await.status(), StatusCode::OK, "{path}");
    }
    for path in
        ["/api/run", "/run/c/", "/run/c", "/run/", "/run//evil.example", "/run/c/api/run", "/run/a/run/b/"]
    {
        let response = get(&site, path).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
        assert_eq!(response.headers()["cache-control"], "no-store", "{path}");
    }
    assert!(body(get(&site, "/api/run").await).await.contains("/api/runs"));
}

#[tokio::test]
async fn the_list_has_what_may_be_listed_and_nothing_else() {
    let site = site(vec![run("a", true), run("hidden", false), run("c", true)]);
    let text = body(get(&site, "/api/runs").await).await;
    assert!(!text.contains("hidden"), "{text}");
    let Runs { runs, takes_codes } = serde_json::from_str(&text).unwrap();
    let ids: Vec<&str> = runs.iter().map(|run| run.id.as_str()).collect();
    assert_eq!((ids, takes_codes), (vec!["a", "c"], false));
    assert_eq!((runs[0].title.as_str(), runs[0].data), ("The run a", DataKind::Images));
    assert_eq!((runs[0].epoch, runs[0].n_contributors, runs[0].test_accuracy), (3, 2, Some(0.5)));
    assert_eq!((runs[0].is_paused, runs[1].is_paused), (false, true));
    assert_eq!(run_at(&site, "/run/hidden/api/run").await, "hidden", "found by its address");
}

#[tokio::test]
async fn an_invitation_leads_to_its_run_listed_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).await.unwrap();
    // Used up and expired: the run reports that.
    let terms = InvitationTerms { uses: 0, expires_at: UnixTime(2), may_host: false };
    store.invite("a-code", terms, UnixTime(1)).await.unwrap();
    let mut hidden = run("hidden", false);
    hidden.invitations = Some(store);
    let site = site(vec![run("a", true), hidden]);
    let asked = async |what: &str| get(&site, &format!("/api/invitations/{what}")).await;
    let answer = asked(&Sha256Hash::of(b"a-code").to_string()).await;
    assert_eq!(answer.headers()["cache-control"], "no-store");
    assert_eq!(body(answer).await, r#"{"run":"hidden"}"#);
    for unknown in ["a-code", "", "x", &Sha256Hash::of(b"another").to_string()] {
        assert_eq!(asked(unknown).await.status(), StatusCode::NOT_FOUND, "{unknown}");
    }
}

#[tokio::test]
async fn all_are_ready_or_none_is() {
    let readiness = Readiness::starting(CancellationToken::new());
    let mut waiting = run("b", true);
    waiting.http = waiting.http.with_readiness(readiness.clone());
    let site = site(vec![run("a", true), waiting]);
    assert_eq!(get(&site, "/readyz").await.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(&site, "/run/a/readyz").await.status(), StatusCode::OK);
    for part in [StartupStep::Data, StartupStep::Checkpoint, StartupStep::Listeners, StartupStep::Database] {
        readiness.done(part);
    }
    assert_eq!(get(&site, "/readyz").await.status(), StatusCode::OK);
}
