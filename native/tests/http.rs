//! The HTTP server through `app()` and one request at a time: no socket.

use std::fs;
use std::path::Path;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::Response;
use barnraise_native::host::contributions::{Batch, Store};
use barnraise_native::host::http::{EVENT_READERS_MAX, HttpState, app};
use barnraise_native::host::page::{File, PageSource};
use barnraise_native::host::readiness::{Readiness, StartupStep};
use barnraise_native::host::site::{Site, SiteRun};
use barnraise_native::host::visitors::Visitors;
use barnraise_protocol::access::{AccessMode, KeyPair, UnixTime};
use barnraise_protocol::api::{
    AcceptedTotals, Contributions, ContributorTotals, DeviceCount, EvaluationPoint, HistoryPoint,
    LiveProgress, RunStatus,
};
use barnraise_protocol::contribute::{DeviceKind, RunProgress};
use barnraise_protocol::receipt::Receipt;
use futures::StreamExt;
use libp2p::PeerId;
use tokio::sync::{broadcast, watch};
use tower::ServiceExt;

use crate::fixture;

const ASSET: &str = "assets/peer-0123abcd.wasm";

struct HttpHarness {
    folder: tempfile::TempDir,
    status: watch::Sender<RunStatus>,
    events: broadcast::Sender<LiveProgress>,
    state: HttpState,
}

fn world() -> HttpHarness {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("assets")).unwrap();
    write(folder.path(), "index.html", b"<!doctype html>page");
    write(folder.path(), "index.html.br", b"page in brotli");
    write(folder.path(), "app.webmanifest", b"{}");
    write(folder.path(), "worker.js", b"//");
    write(folder.path(), ASSET, b"\0asm plain");
    write(folder.path(), &format!("{ASSET}.br"), b"wasm in brotli");
    write(folder.path(), &format!("{ASSET}.gz"), b"wasm in gzip");
    let (status, status_receiver) = watch::channel(run_status(3));
    let (events, events_receiver) = broadcast::channel(2);
    let state =
        HttpState::new(PageSource::Folder(folder.path().to_owned()), status_receiver, events_receiver);
    HttpHarness { folder, status, events, state }
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).unwrap();
}

fn progress(epoch: u64) -> RunProgress {
    RunProgress {
        epoch,
        n_samples: 10,
        target_batch_size: 1024,
        n_contributors: 2,
        samples_per_second: 50.0,
        train_loss: Some(0.5),
        test_accuracy: None,
    }
}

fn live(epoch: u64) -> LiveProgress {
    let evaluation = Some(EvaluationPoint { epoch: 2, test_accuracy: 0.4 });
    LiveProgress { progress: progress(epoch), steps: vec![], evaluation, devices: vec![], paused: None }
}

fn point((epoch, test_accuracy): (u64, Option<f32>)) -> HistoryPoint {
    HistoryPoint { epoch, n_samples_total: epoch * 1024, train_loss: Some(0.5), test_accuracy }
}

fn run_status(epoch: u64) -> RunStatus {
    RunStatus {
        run: fixture::run(),
        n_parameters: 2,
        addresses: vec!["/ip4/127.0.0.1/udp/4001/quic-v1/webtransport".into()],
        progress: progress(epoch),
        // The newest step is not evaluated yet.
        history: [(1, Some(0.3)), (2, Some(0.4)), (3, None)].map(point).into(),
        devices: vec![DeviceCount { device: DeviceKind::NativeCpu, n_contributors: 2 }],
        paused: None,
        majority_accuracy: None,
    }
}

async fn get(state: &HttpState, path: &str, accept_encoding: &str) -> Response {
    let request = Request::get(path).header("accept-encoding", accept_encoding).body(Body::empty()).unwrap();
    app(state.clone()).oneshot(request).await.unwrap()
}

async fn body(response: Response) -> String {
    String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

/// Path, accepted encodings, the used encoding, content type, end of the cache header, and text.
type Wanted<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str, &'a str);

/// Requests a file and compares the response; returns its headers.
async fn comes(state: &HttpState, wanted: Wanted<'_>) -> HeaderMap {
    let (path, accept, encoding, content_type, cache, text) = wanted;
    let response = get(state, path, accept).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let headers = response.headers().clone();
    assert_eq!(header(&headers, "content-encoding"), encoding, "{path} {accept}");
    assert!(header(&headers, "content-type").starts_with(content_type), "{path}: {headers:?}");
    assert!(header(&headers, "cache-control").ends_with(cache), "{path}: {headers:?}");
    assert_eq!(header(&headers, "vary"), "accept-encoding");
    assert_eq!(body(response).await, text);
    headers
}

#[tokio::test]
async fn the_page_and_its_assets_come_compressed_typed_and_cached() {
    let world = world();
    for wanted in [
        ("/", "gzip, br", "br", "text/html", "no-cache", "page in brotli"),
        ("/", "identity", "", "text/html", "no-cache", "<!doctype html>page"),
        ("/worker.js", "br", "", "text/javascript", "no-cache", "//"),
        ("/app.webmanifest", "br", "", "application/manifest+json", "no-cache", "{}"),
        (&format!("/{ASSET}"), "br", "br", "application/wasm", "immutable", "wasm in brotli"),
        (&format!("/{ASSET}"), "gzip", "gzip", "application/wasm", "immutable", "wasm in gzip"),
        (&format!("/{ASSET}"), "", "", "application/wasm", "immutable", "\0asm plain"),
    ] {
        let headers = comes(&world.state, wanted).await;
        assert!(!header(&headers, "last-modified").is_empty());
    }
}

const INSIDE: &[File] = &[
    File { path: "app.webmanifest", tag: "a1", plain: b"{}", brotli: None, gzip: None },
    File {
        path: "assets/peer-0123abcd.wasm",
        tag: "b2",
        plain: b"\0asm plain",
        brotli: Some(b"wasm in brotli"),
        gzip: Some(b"wasm in gzip"),
    },
    File {
        path: "index.html",
        tag: "c3",
        plain: b"<!doctype html>page",
        brotli: Some(b"page in brotli"),
        gzip: None,
    },
];

fn inside() -> HttpState {
    let (_, status) = watch::channel(run_status(3));
    let (_, events) = broadcast::channel(2);
    HttpState::new(PageSource::Inside(INSIDE), status, events)
}

#[tokio::test]
async fn a_page_in_the_program_is_sent_as_one_in_a_folder() {
    let state = inside();
    for wanted in [
        ("/", "gzip, br", "br", "text/html", "no-cache", "page in brotli"),
        ("/index.html", "identity", "", "text/html", "no-cache", "<!doctype html>page"),
        ("/app.webmanifest", "br", "", "application/manifest+json", "no-cache", "{}"),
        (&format!("/{ASSET}"), "br", "br", "application/wasm", "immutable", "wasm in brotli"),
        (&format!("/{ASSET}"), "gzip", "gzip", "application/wasm", "immutable", "wasm in gzip"),
        (&format!("/{ASSET}"), "br;q=0", "", "application/wasm", "immutable", "\0asm plain"),
    ] {
        let headers = comes(&state, wanted).await;
        assert!(header(&headers, "content-security-policy").contains("default-src 'self'"));
    }
    for path in ["/nothing", "/assets/", "/assets/../index.html", "/%69ndex.html", "/index.html.br"] {
        let response = get(&state, path, "br").await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
        assert_eq!(header(response.headers(), "cache-control"), "no-store");
    }
    let post = Request::post("/").body(Body::empty()).unwrap();
    assert_eq!(app(state).oneshot(post).await.unwrap().status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_page_in_the_program_that_is_known_costs_a_304() {
    let state = inside();
    let first = get(&state, "/", "br").await;
    let tag = first.headers()["etag"].clone();
    let plain = get(&state, "/", "identity").await;
    assert_ne!(plain.headers()["etag"], tag, "another encoding, another tag");
    for (known, status) in [
        (tag.to_str().unwrap().to_owned(), StatusCode::NOT_MODIFIED),
        (format!("\"other\", W/{}", tag.to_str().unwrap()), StatusCode::NOT_MODIFIED),
        ("\"other\"".to_owned(), StatusCode::OK),
    ] {
        let request = Request::get("/").header("accept-encoding", "br").header("if-none-match", known);
        let response = app(state.clone()).oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(header(response.headers(), "cache-control"), "no-cache");
        assert_eq!(response.headers()["etag"], tag);
    }
}

#[tokio::test]
async fn who_is_not_ready_says_why() {
    let world = world();
    assert_eq!(body(get(&world.state, "/readyz", "").await).await, "ready\n");
    let readiness = Readiness::starting(Default::default());
    readiness.done(StartupStep::Data);
    let response = get(&world.state.with_readiness(readiness), "/readyz", "").await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(header(response.headers(), "cache-control"), "no-store");
    let reasons = body(response).await;
    assert!(!reasons.contains("data is") && reasons.contains("checkpoint"), "{reasons}");
}

#[tokio::test]
async fn an_unchanged_page_costs_a_304() {
    let world = world();
    let first = get(&world.state, "/", "br").await;
    let modified = first.headers()["last-modified"].clone();
    let request = Request::get("/").header("if-modified-since", modified).body(Body::empty()).unwrap();
    let response = app(world.state).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
    assert_eq!(header(response.headers(), "cache-control"), "no-cache");
}

#[tokio::test]
async fn every_answer_has_the_security_headers() {
    let world = world();
    let asset = format!("/{ASSET}");
    for (method, path) in [
        ("GET", "/"),
        ("HEAD", "/"),
        ("GET", "/nothing"),
        ("GET", asset.as_str()),
        ("GET", "/assets/gone.wasm"),
        ("GET", "/api/run"),
        ("GET", "/api/events"),
        ("GET", "/api/contributions"),
        ("GET", "/api/contributions?limit=x"),
        ("GET", "/api/nothing"),
        ("GET", "/healthz"),
        ("POST", "/api/run"),
        ("POST", "/"),
        ("OPTIONS", "/api/run"),
        ("GET", "/%2e%2e/x"),
    ] {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let response = app(world.state.clone()).oneshot(request).await.unwrap();
        let headers = response.headers();
        for nothing in ["camera=()", "microphone=()", "geolocation=()"] {
            assert!(header(headers, "permissions-policy").contains(nothing), "{method} {path}");
        }
        assert_eq!(header(headers, "strict-transport-security"), "", "there is no certificate here");
        let policy = header(headers, "content-security-policy");
        // The whole policy: anything more would be allowed to an injected script.
        let allowed = [
            "default-src 'self'",
            "script-src 'self' 'wasm-unsafe-eval'",
            "style-src 'self'",
            "img-src 'self' data: blob:",
            "connect-src 'self' https: ws: wss:",
            "worker-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ];
        assert_eq!(policy.split("; ").collect::<Vec<_>>(), allowed, "{path}");
        assert_eq!(header(headers, "x-content-type-options"), "nosniff");
        assert_eq!(header(headers, "referrer-policy"), "no-referrer");
        assert_eq!(header(headers, "cross-origin-opener-policy"), "same-origin");
        assert_eq!(header(headers, "cross-origin-embedder-policy"), "require-corp");
        assert_eq!(header(headers, "cross-origin-resource-policy"), "same-origin");
    }
}

/// A request that comes from `remote`.
fn from(remote: &str, method: &str, path: &str) -> axum::http::request::Builder {
    let remote: std::net::SocketAddr = format!("{remote}:9").parse().unwrap();
    Request::builder().method(method).uri(path).extension(axum::extract::ConnectInfo(remote))
}

#[tokio::test]
async fn other_sites_may_not_read_what_is_answered() {
    let world = world();
    for (method, path) in [("GET", "/api/run"), ("OPTIONS", "/api/run"), ("OPTIONS", "/"), ("GET", "/")] {
        let request = from("198.51.100.7", method, path)
            .header("origin", "https://evil.example")
            .header("access-control-request-method", "GET")
            .body(Body::empty())
            .unwrap();
        let response = app(world.state.clone()).oneshot(request).await.unwrap();
        let opens = |name: &axum::http::HeaderName| name.as_str().starts_with("access-control");
        assert!(!response.headers().keys().any(opens), "{method} {path}: {:?}", response.headers());
    }
}

fn site(world: &HttpHarness, visitors: Visitors) -> Router {
    let run = SiteRun { http: world.state.clone(), is_listed: true, rooms: None, invitations: None };
    let page = PageSource::Folder(world.folder.path().to_owned());
    Site::new(&page, vec![run]).with_visitors(visitors).routes()
}

/// Every route of the page, as it stands in the source, only reads.
#[tokio::test]
async fn nothing_but_the_confirmation_of_a_login_changes_anything() {
    const SOURCES: [&str; 5] = [
        include_str!("../src/host/http.rs"),
        include_str!("../src/host/site.rs"),
        include_str!("../src/serve.rs"),
        include_str!("../src/host/models/serve.rs"),
        include_str!("../src/host/access/login.rs"),
    ];
    let made = |method: &str| SOURCES.iter().map(|source| source.matches(method).count()).sum::<usize>();
    assert_eq!(made(", post("), 1, "the confirmation of a login");
    for method in [", put(", ", patch(", ", delete(", ", any(", ", on("] {
        assert_eq!(made(method), 0, "{method}");
    }
    let world = world();
    let site = site(&world, Visitors::new(&[], 10_000, None));
    let routes = SOURCES.iter().flat_map(|source| source.split(".route(\"").skip(1));
    let filled = |path: &str| match path.split_once('{') {
        Some((before, _)) => format!("{before}x"),
        None => path.to_owned(),
    };
    let paths: Vec<String> = routes
        .filter_map(|route| Some(filled(route.split_once('"')?.0)))
        .filter(|path| path != "/login/confirm")
        .collect();
    assert!(paths.len() > 5, "{paths:?}");
    for (path, method) in
        paths.iter().flat_map(|path| ["POST", "PUT", "PATCH", "DELETE"].map(|of| (path, of)))
    {
        let request = from("198.51.100.7", method, path).body(Body::empty()).unwrap();
        let status = site.clone().oneshot(request).await.unwrap().status();
        assert!(
            matches!(status, StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_FOUND),
            "{method} {path}: {status}"
        );
    }
}

#[tokio::test]
async fn who_asks_too_often_or_sends_too_much_is_told_so_and_nobody_else_suffers() {
    let world = world();
    let proxies = ["10.0.0.1".parse().unwrap()];
    let app = site(&world, Visitors::new(&proxies, 3, None));
    let ask = async |remote: &str, visitor: &str| {
        let request = from(remote, "GET", "/healthz").header("x-forwarded-for", visitor);
        app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    };
    for _ in 0..3 {
        assert_eq!(ask("198.51.100.7", "203.0.113.1").await.status(), StatusCode::OK);
    }
    let refused = ask("198.51.100.7", "203.0.113.2").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS, "a forged address does not help");
    assert_eq!(header(refused.headers(), "retry-after"), "60");
    assert_eq!(header(refused.headers(), "x-content-type-options"), "nosniff");
    assert_eq!(ask("10.0.0.1", "198.51.100.7").await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        ask("10.0.0.1", "198.51.100.8").await.status(),
        StatusCode::OK,
        "another visitor of the proxy"
    );
    let long = from("198.51.100.9", "POST", "/login/confirm").header("content-length", "20000");
    let long = app.clone().oneshot(long.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(long.status(), StatusCode::PAYLOAD_TOO_LARGE);
    for (remote, want) in [("10.0.0.1", "max-age=31536000"), ("198.51.100.10", "")] {
        let request = from(remote, "GET", "/healthz").header("x-forwarded-proto", "https");
        let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(header(response.headers(), "strict-transport-security"), want, "{remote}");
    }
}

#[tokio::test]
async fn one_address_does_not_take_all_streams_of_events() {
    let world = world();
    let app = site(&world, Visitors::new(&[], 10_000, None));
    let ask = async |remote: &str| {
        let request = from(remote, "GET", "/api/events").body(Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap()
    };
    let mut held = Vec::new();
    loop {
        let response = ask("198.51.100.7").await;
        if response.status() != StatusCode::OK {
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            break;
        }
        held.push(response);
        assert!(held.len() < EVENT_READERS_MAX / 2, "nothing is left for others");
    }
    assert_eq!(ask("198.51.100.8").await.status(), StatusCode::OK);
    drop(held);
    assert_eq!(ask("198.51.100.7").await.status(), StatusCode::OK, "they are free again");
}

#[tokio::test]
async fn what_is_not_there_is_a_short_404_that_nobody_caches() {
    let world = world();
    // Beside the folder of the page, with a name that no other test has.
    let beside = world.folder.path().parent().unwrap();
    let outside = tempfile::Builder::new().prefix("barnraise-outside").tempfile_in(beside).unwrap();
    fs::write(outside.path(), b"secret").unwrap();
    let name = outside.path().file_name().unwrap().to_str().unwrap();
    let [plain, encoded] = ["..", "%2e%2e"].map(|above| format!("/{above}/{name}"));
    for path in ["/nothing", "/assets/gone.wasm", "/api/nothing", &plain, &encoded] {
        let response = get(&world.state, path, "br").await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
        assert_eq!(header(response.headers(), "cache-control"), "no-store", "{path}");
        assert_eq!(body(response).await, "404: there is nothing at this address\n");
    }
}

#[tokio::test]
async fn a_missing_page_says_how_to_build_it_and_appears_without_a_restart() {
    let world = world();
    fs::remove_file(world.folder.path().join("index.html")).unwrap();
    fs::remove_file(world.folder.path().join("index.html.br")).unwrap();
    let response = get(&world.state, "/", "br").await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    assert!(header(response.headers(), "content-type").starts_with("text/html"));
    assert!(body(response).await.contains("cargo xtask build"));
    write(world.folder.path(), "index.html", b"built");
    assert_eq!(body(get(&world.state, "/", "br").await).await, "built");
}

#[tokio::test]
async fn the_run_is_json_and_follows_the_watch() {
    let world = world();
    let compressed = get(&world.state, "/api/run", "br").await;
    assert_eq!(header(compressed.headers(), "content-encoding"), "br");
    let response = get(&world.state, "/api/run", "").await;
    assert_eq!(header(response.headers(), "content-type"), "application/json");
    assert_eq!(header(response.headers(), "cache-control"), "no-store");
    let status: RunStatus = serde_json::from_str(&body(response).await).unwrap();
    assert_eq!(status, run_status(3));
    world.status.send_replace(run_status(4));
    let status: RunStatus =
        serde_json::from_str(&body(get(&world.state, "/api/run", "").await).await).unwrap();
    assert_eq!(status.progress.epoch, 4);
    assert_eq!(body(get(&world.state, "/healthz", "").await).await, "ok\n");
    let post = Request::post("/api/run").body(Body::empty()).unwrap();
    let response = app(world.state).oneshot(post).await.unwrap();
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn events_begin_with_the_present_drop_old_ones_and_end_with_the_run() {
    let world = world();
    let response = get(&world.state, "/api/events", "br").await;
    assert_eq!(header(response.headers(), "content-type"), "text/event-stream");
    let mut stream = response.into_body().into_data_stream();
    let first = stream.next().await.unwrap().unwrap();
    let expected = format!(
        "event: progress\ndata: {}\n\n",
        serde_json::to_string(&LiveProgress { devices: run_status(3).devices, ..live(3) }).unwrap()
    );
    assert_eq!(String::from_utf8_lossy(&first), expected);
    // The channel holds two: of three events, a slow reader sees the last two.
    for epoch in [5, 6, 7] {
        world.events.send(live(epoch)).unwrap();
    }
    for epoch in [6, 7] {
        let event = String::from_utf8(stream.next().await.unwrap().unwrap().to_vec()).unwrap();
        let data = event.strip_prefix("event: progress\ndata: ").unwrap();
        assert_eq!(serde_json::from_str::<LiveProgress>(data.trim()).unwrap(), live(epoch));
    }
    drop(world.events);
    assert!(stream.next().await.is_none(), "the stream ends when the backbone does");
}

#[tokio::test]
async fn who_gave_what_is_answered_within_bounds() {
    let world = world();
    let nothing = get(&world.state, "/api/contributions", "").await;
    assert_eq!(nothing.status(), StatusCode::NOT_FOUND, "nothing is kept");

    let (peer, reducer) = (KeyPair::from_seed(&[2; 32]), KeyPair::from_seed(&[1; 32]));
    let peer_id = |key: &KeyPair| PeerId::from_bytes(&key.public().to_peer_id()).unwrap();
    let store = Store::open(world.folder.path(), None, "r", peer_id(&reducer)).await.unwrap();
    let receipt = Receipt {
        run_id: "r".into(),
        peer: peer.public(),
        reducer: reducer.public(),
        contribution_id: 1,
        epoch: 4,
        n_samples: 64,
        n_bytes: 1000,
        milliseconds: 2500,
        issued_at: UnixTime(1),
    };
    store.record(&Batch { receipts: vec![receipt], ..Batch::default() }).await.unwrap();
    let state = world.state.clone().with_contributions(store.clone());
    let response = get(&state, &format!("/api/contributions?limit=0&peer={}", peer_id(&peer)), "").await;
    assert_eq!(header(response.headers(), "cache-control"), "no-store");
    let answer: Contributions = serde_json::from_str(&body(response).await).unwrap();
    let given = AcceptedTotals { n_contributions: 1, n_samples: 64, n_bytes: 1000, seconds: 2 };
    assert_eq!((answer.totals, answer.n_contributors, answer.contributors.len()), (given, 1, 0));
    let totals =
        ContributorTotals { peer: peer_id(&peer).to_string(), name: None, totals: given, last_epoch: 4 };
    assert_eq!(answer.peer, Some(totals.clone()));
    let text = body(get(&state, "/api/contributions", "").await).await;
    let answer: Contributions = serde_json::from_str(&text).unwrap();
    assert_eq!(answer.contributors, std::slice::from_ref(&totals));

    // In a closed run strangers see totals without peers.
    for mode in [AccessMode::Invitation, AccessMode::Allowlist] {
        world.status.send_modify(|status| status.run.access.mode = mode);
        let text = body(get(&state, "/api/contributions", "").await).await;
        assert!(!text.contains(&peer_id(&peer).to_string()), "{text}");
        assert!(!text.contains(&peer_id(&reducer).to_string()), "{text}");
        let answer: Contributions = serde_json::from_str(&text).unwrap();
        assert_eq!((answer.totals, answer.n_contributors), (given, 1));
        // A peer that knows its own id sees its totals.
        let own = get(&state, &format!("/api/contributions?peer={}", peer_id(&peer)), "").await;
        let own: Contributions = serde_json::from_str(&body(own).await).unwrap();
        assert_eq!((own.peer, own.contributors), (Some(totals.clone()), vec![]));
    }

    for bad in ["limit=101", "offset=10001", "limit=-1", "peer=nobody", "order=bytes"] {
        let response = get(&state, &format!("/api/contributions?{bad}"), "").await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{bad}");
        assert!(body(response).await.len() > 5, "{bad}: why is said");
    }
    store.close().await;
    let response = get(&state, "/api/contributions?limit=7", "").await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(header(response.headers(), "retry-after"), "10");
}
