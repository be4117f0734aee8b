//! The admin API through its router and one request at a time: no socket, and a core that only answers.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use barnraise_native::host::access::Gate;
use barnraise_native::host::admin::token::TokenHash;
use barnraise_native::host::admin::{Admin, HostedRun, http};
use barnraise_native::host::audit::AuditLog;
use barnraise_native::host::clock::system_clock;
use barnraise_native::host::contributions::{Batch, Store};
use barnraise_native::host::operator::request::{
    OperatorCommand, OperatorError, OperatorHandle, OperatorReply, OperatorRequest,
};
use barnraise_native::host::operator::settings::{EffectiveSettings, Settings};
use barnraise_native::host::operator::view::{RunState, RunView};
use barnraise_native::host::problem::ProblemBody;
use barnraise_native::storage::Storage;
use barnraise_native::storage::checkpoint::{Checkpoint, Checkpoints};
use barnraise_protocol::access::{AccessMode, Authority, KeyPair, PublicKey, UnixTime};
use barnraise_protocol::receipt::Receipt;
use barnraise_protocol::run::{Preset, RunDescription};
use barnraise_protocol::{DisplayName, Sha256Hash};
use barnraise_swarm::access::Policy;
use barnraise_swarm::collection::CollectionLimits;
use libp2p::PeerId;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::ServiceExt;

use crate::fixture;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const PEER: &str = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";

struct AdminHarness {
    folder: tempfile::TempDir,
    app: Router,
    checkpoints: Checkpoints,
    contributions: Store,
}

fn view() -> RunView {
    let limits = CollectionLimits {
        samples_per_second_max: 1000,
        collect_timeout: Duration::from_secs(5),
        contributors_max: 8,
        gradient_norm_max: 1000.0,
    };
    RunView {
        run: "r".into(),
        title: "t".into(),
        state: RunState::Training,
        paused: None,
        epoch: 3,
        n_samples: 1,
        target_batch_size: 1024,
        n_samples_total: 9,
        n_contributors: 0,
        samples_per_second: 0.0,
        train_loss: None,
        test_accuracy: None,
        learning_rate: 0.1,
        n_other_backbones: 0,
        n_blocked: 0,
        settings: EffectiveSettings::of(&limits, 10, std::collections::BTreeMap::new()),
        changed: Settings::default(),
    }
}

/// A core that answers commands. Each that changes the run must be in the audit log by then.
fn answer(folder: &std::path::Path, mut heard: mpsc::Receiver<OperatorRequest>) {
    let log = folder.join("audit.jsonl");
    tokio::spawn(async move {
        while let Some(asked) = heard.recv().await {
            if !matches!(asked.command, OperatorCommand::Show | OperatorCommand::Peers { .. }) {
                let written = fs::read_to_string(&log).unwrap();
                assert!(written.trim_end().lines().last().unwrap().contains("\"begun\""), "{written}");
            }
            let said = match asked.command {
                OperatorCommand::Unblock { .. } => Err(OperatorError::NotBlocked),
                _ => Ok(OperatorReply::Run(Box::new(view()))),
            };
            let _ = asked.answer.send(said);
        }
    });
}

/// A run whose model fits its data: pictures of one pixel, of one class.
fn description() -> RunDescription {
    let mut run = fixture::run();
    run.model.graph = Preset::Mlp { hidden: vec![] }.graph();
    run
}

async fn world() -> AdminHarness {
    let folder = tempfile::tempdir().unwrap();
    let key = KeyPair::from_seed(&[1; 32]).public();
    let authority = Authority { key, run_id: "r".into() };
    let policy = Policy { mode: AccessMode::Open, authority, clock_tolerance: Duration::from_secs(30) };
    let gate = Gate::new(policy, key, system_clock());
    let here = PeerId::from_bytes(&key.to_peer_id()).unwrap();
    let contributions = Store::open(folder.path(), None, "r", here).await.unwrap();
    let checkpoints = Checkpoints::new(Storage::open(folder.path()).unwrap(), 3);
    let (core, heard) = mpsc::channel(8);
    answer(folder.path(), heard);
    let run = HostedRun {
        description: Arc::new(description()),
        operator: OperatorHandle::new(core),
        gate,
        contributions: contributions.clone(),
        checkpoints: checkpoints.clone(),
    };
    let audit = AuditLog::open(folder.path(), system_clock()).unwrap();
    let app = Admin::new(vec![run], TokenHash::of(TOKEN), audit).routes();
    AdminHarness { folder, app, checkpoints, contributions }
}

fn request(method: &str, path: &str) -> axum::http::request::Builder {
    let from: SocketAddr = "198.51.100.7:9".parse().unwrap();
    let request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap());
    request.uri(format!("/admin/v1{path}")).extension(ConnectInfo(from))
}

impl AdminHarness {
    async fn send(&self, request: Request<Body>) -> Response {
        self.app.clone().oneshot(request).await.unwrap()
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> Response {
        let request = request(method, path).header("authorization", format!("Bearer {TOKEN}"));
        let request = request.header("content-type", "application/json");
        self.send(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    /// The problem that a request is answered with.
    async fn problem(&self, method: &str, path: &str, body: &str) -> (StatusCode, String) {
        problem(self.ask(method, path, body).await).await
    }
}

async fn problem(response: Response) -> (StatusCode, String) {
    let (status, headers) = (response.status(), response.headers().clone());
    assert_eq!(headers["content-type"], "application/problem+json", "{status}");
    assert_eq!(headers["cache-control"], "no-store");
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let problem: ProblemBody = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(problem.status, status.as_u16());
    assert!(problem.kind.starts_with("urn:barnraise:problem:"), "{problem:?}");
    (status, problem.detail)
}

/// Methods and paths of the description, as they can be asked.
fn described() -> Vec<(String, String)> {
    let described: Value = serde_json::from_str(http::OPENAPI).unwrap();
    let mut routes = Vec::new();
    for (path, methods) in described["paths"].as_object().unwrap() {
        let path = path.replace("{run}", "r").replace("{epoch}", "3").replace("{peer}", PEER);
        for method in methods.as_object().unwrap().keys() {
            routes.push((method.to_uppercase(), path.clone()));
        }
    }
    routes
}

#[tokio::test]
async fn the_description_has_every_route_and_no_other() {
    let world = world().await;
    let routes = described();
    for (method, path) in &routes {
        let (status, text) = {
            let response = world.ask(method, path, "{}").await;
            let status = response.status();
            let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
            (status, String::from_utf8_lossy(&bytes).into_owned())
        };
        assert_ne!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        assert!(!text.contains("nothing at this address"), "{method} {path}: {text}");
        for other in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            if routes.iter().any(|(method, at)| method == other && at == path) {
                continue;
            }
            let response = world.ask(other, path, "{}").await;
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{other} {path}");
            assert!(response.headers()["allow"].to_str().unwrap().contains(method.as_str()), "{path}");
        }
    }
    // The routes are counted in the source of the router.
    let source = include_str!("../src/host/admin/http.rs");
    assert_eq!(source.matches(".route(\"").count(), {
        let described: Value = serde_json::from_str(http::OPENAPI).unwrap();
        described["paths"].as_object().unwrap().len()
    });
}

#[tokio::test]
async fn nobody_without_the_token_gets_past_and_guesses_are_slowed_down() {
    let world = world().await;
    for (method, path) in described().iter().filter(|(_, path)| path != "/openapi.json") {
        let response = world.send(request(method, path).body(Body::empty()).unwrap()).await;
        // The first few lack the token, later ones are too many.
        assert!(matches!(response.status().as_u16(), 401 | 429), "{method} {path}: {}", response.status());
    }
    let guess = || request("GET", "/nowhere").header("authorization", "Bearer guessed").body(Body::empty());
    let mut statuses = Vec::new();
    for _ in 0..40 {
        let response = world.send(guess().unwrap()).await;
        if response.status() == StatusCode::UNAUTHORIZED {
            assert!(response.headers()["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
        }
        statuses.push(problem(response).await.0.as_u16());
    }
    assert_eq!((statuses[0], statuses.last()), (401, Some(&429)), "{statuses:?}");
    assert_eq!(
        world.ask("GET", "/runs", "").await.status(),
        StatusCode::OK,
        "the token is good all the same"
    );
    let basic = request("GET", "/runs").header("authorization", format!("Basic {TOKEN}"));
    assert_ne!(world.send(basic.body(Body::empty()).unwrap()).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn no_web_page_is_answered() {
    let world = world().await;
    let of_page = [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site"), ("origin", "null")];
    for (method, (name, value)) in
        ["GET", "OPTIONS"].into_iter().flat_map(|method| of_page.map(|of| (method, of)))
    {
        let page = request(method, "/runs").header(name, value);
        let page = page.header("access-control-request-method", "GET");
        let page = page.header("authorization", format!("Bearer {TOKEN}")).body(Body::empty()).unwrap();
        let response = world.send(page).await;
        assert!(!response.headers().keys().any(|name| name.as_str().starts_with("access-control")));
        assert_eq!(
            response.headers()["content-security-policy"],
            "default-src 'none'; frame-ancestors 'none'"
        );
        assert_eq!(problem(response).await.0, StatusCode::FORBIDDEN);
    }
    let typed = request("GET", "/runs").header("sec-fetch-site", "none");
    let typed = typed.header("authorization", format!("Bearer {TOKEN}")).body(Body::empty()).unwrap();
    assert_eq!(world.send(typed).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_said() {
    let world = world().await;
    let reason = |text: &str| json!({"reason": text}).to_string();
    let long = "x".repeat(20_000);
    let other_peer = format!("/runs/r/peers/{PEER}/unblock");
    let strangers_name = format!("/runs/r/peers/{PEER}/hide");
    for (method, path, body, status, want) in [
        ("GET", "/nowhere", "", 404, "nothing at this address"),
        ("GET", "/runs/other", "", 404, "no run `other`"),
        ("POST", "/runs/other/resume", "", 404, "no run `other`"),
        ("POST", "/runs/r/pause", "{", 400, "EOF"),
        ("POST", "/runs/r/pause", "{}", 400, "reason"),
        ("POST", "/runs/r/pause", &reason(" "), 400, "1 to 300 characters"),
        ("POST", "/runs/r/pause", &reason("a\nb"), 400, "one line"),
        ("POST", "/runs/r/pause", &reason(&"\u{1f9ab}".repeat(300)), 400, "900 bytes"),
        ("POST", "/runs/r/pause", r#"{"reason": "r", "force": true}"#, 400, "unknown field"),
        ("POST", "/runs/r/pause", &reason(&long), 413, "16384 bytes"),
        ("POST", "/runs/r/rollback", r#"{"epoch": -1}"#, 400, "invalid value"),
        ("PATCH", "/runs/r/settings", r#"{"title": "x"}"#, 422, "description"),
        ("PATCH", "/runs/r/settings", r#"{"titel": "x"}"#, 400, "unknown field"),
        ("POST", "/runs/r/rollback", "[3, false]", 400, "an object is wanted"),
        ("GET", "/runs/r/peers?offset=1000001", "", 400, "0 to 1000000"),
        ("GET", "/runs/r/peers?limit=101", "", 400, "1 to 100"),
        ("GET", "/runs/r/peers?page=1", "", 400, "unknown field"),
        ("POST", "/runs/r/peers/nobody/block", &reason("r"), 400, "a peer id"),
        ("POST", &other_peer, "", 404, "not blocked"),
        ("POST", "/runs/r/peers/nobody/hide", "", 400, "a peer id"),
        ("POST", &strangers_name, "", 404, "nothing of this peer was accepted"),
        ("GET", "/runs/r/checkpoints/3", "", 404, "no checkpoint of epoch 3"),
        ("GET", "/runs/r/checkpoints/x/card", "", 400, "a number"),
        ("GET", "/audit?limit=0", "", 400, "1 to 500"),
    ] {
        let (got, detail) = world.problem(method, path, body).await;
        assert_eq!(got.as_u16(), status, "{method} {path} {detail}");
        assert!(detail.contains(want), "{method} {path}: {detail}");
    }
    let plain = request("POST", "/runs/r/pause").header("authorization", format!("Bearer {TOKEN}"));
    let plain = plain.body(Body::from(reason("r"))).unwrap();
    assert_eq!(problem(world.send(plain).await).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test]
async fn what_is_done_is_written_down_with_its_outcome() {
    let world = world().await;
    let reason = json!({"reason": "new data"}).to_string();
    assert_eq!(world.ask("POST", "/runs/r/pause", &reason).await.status(), StatusCode::OK);
    assert_eq!(world.problem("POST", &format!("/runs/r/peers/{PEER}/unblock"), "").await.0, 404);
    let response = world.ask("GET", "/audit", "").await;
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let audit: Value = serde_json::from_slice(&bytes).unwrap();
    let said: Vec<String> = audit["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            assert_eq!((&entry["who"], &entry["from"]), (&json!("operator"), &json!("198.51.100.7:9")));
            format!("{} {} {}", entry["number"], entry["verb"], entry["outcome"])
        })
        .collect();
    let want = [
        "1 \"pause\" \"begun\"",
        "1 \"pause\" \"done\"",
        "2 \"unblock\" \"begun\"",
        "2 \"unblock\" \"the peer is not blocked\"",
    ];
    assert_eq!(said, want);
    let log = fs::read_to_string(world.folder.path().join("audit.jsonl")).unwrap();
    assert!(log.contains("new data") && !log.contains(TOKEN), "{log}");
}

/// A contribution of a peer, so that it is on the leaderboard.
fn receipt(peer: PeerId) -> Receipt {
    Receipt {
        run_id: "r".into(),
        peer: PublicKey::of_peer_id(&peer.to_bytes()).unwrap(),
        reducer: PublicKey([1; 32]),
        contribution_id: 1,
        epoch: 1,
        n_samples: 64,
        n_bytes: 100,
        milliseconds: 5,
        issued_at: UnixTime(1),
    }
}

#[tokio::test]
async fn a_name_is_hidden_for_good_until_it_is_shown_again_and_both_are_written_down() {
    let world = world().await;
    let peer: PeerId = PEER.parse().unwrap();
    let batch = Batch { receipts: vec![receipt(peer)], ..Batch::default() };
    assert_eq!(world.contributions.record(&batch).await.unwrap(), 1);
    let call = async |name: &str| {
        let name = DisplayName::new(name).unwrap();
        assert!(world.contributions.call(peer, Some(&name), 1).await.unwrap());
    };
    let shown = async || {
        let totals = world.contributions.of_peer(peer).await.unwrap().unwrap();
        assert_eq!(totals.totals.n_samples, 64, "its contributions stay");
        totals.name.map(|name| name.as_str().to_owned())
    };
    let tell =
        async |verb: &str| world.ask("POST", &format!("/runs/r/peers/{PEER}/{verb}"), "").await.status();
    call("Rude").await;
    assert_eq!(shown().await.as_deref(), Some("Rude"));
    assert_eq!(tell("unhide").await, StatusCode::NOT_FOUND, "it is shown");
    assert_eq!((tell("hide").await, tell("hide").await), (StatusCode::OK, StatusCode::OK));
    assert_eq!(shown().await, None);
    call("Ruder").await;
    assert_eq!(shown().await, None, "later names are hidden, too");
    assert_eq!(world.contributions.hidden_names().await.unwrap(), [(PEER.to_owned(), "Ruder".to_owned())]);
    assert_eq!(tell("unhide").await, StatusCode::OK);
    assert_eq!(shown().await.as_deref(), Some("Ruder"));
    let log = fs::read_to_string(world.folder.path().join("audit.jsonl")).unwrap();
    assert_eq!((log.matches("\"hide\"").count(), log.matches("\"unhide\"").count()), (4, 4), "{log}");
    assert!(log.contains(PEER) && log.contains("is not hidden"), "{log}");
}

#[tokio::test]
async fn a_checkpoint_comes_as_it_is_stored_and_its_card_has_the_hash() {
    let world = world().await;
    let checkpoint = Checkpoint {
        run_id: "r".into(),
        model: fixture::run().model,
        epoch: 3,
        n_samples_total: 9,
        parameters: std::sync::Arc::new(vec![0.5; 100_000]),
        optimizer_state: vec![1, 2, 3],
        included: [].into(),
        history: Vec::new(),
    };
    world.checkpoints.save(checkpoint).await.unwrap();
    let response = world.ask("GET", "/runs/r/checkpoints/3", "").await;
    let stored = fs::read(world.folder.path().join("checkpoints/000000000003.ckpt")).unwrap();
    assert_eq!(response.headers()["content-length"], stored.len().to_string());
    let disposition = response.headers()["content-disposition"].to_str().unwrap().to_owned();
    assert_eq!(disposition, "attachment; filename=\"r-000000000003.ckpt\"");
    let bytes = to_bytes(response.into_body(), 1 << 24).await.unwrap();
    assert!(bytes == stored);
    let response = world.ask("GET", "/runs/r/checkpoints/3/card", "").await;
    let card = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let card: Value = serde_json::from_slice(&card).unwrap();
    let hash = Sha256Hash::of(&stored);
    assert_eq!((&card["sha256"], &card["epoch"]), (&json!(hash.to_string()), &json!(3)));
    assert_eq!(card["n_parameters"], 2, "of the model on the data");
}
