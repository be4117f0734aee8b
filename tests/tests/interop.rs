//! Code that is not ours dials our backbone by the addresses that it prints: js-libp2p, in Node.js and in
//! Chromium, learns who answers, is answered its pings, and refuses a peer that answers in another's place.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::Html;
use axum::routing::get;
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::npm::{Installed, NpmProgram};
use barnraise_tests::process::{HANG, TestRun};
use libp2p::Multiaddr;
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use serde_json::Value;
use tokio::net::TcpListener;
use url::Url;

const JS_LIBP2P: NpmProgram<'_> = NpmProgram {
    name: "interop",
    files: &[
        ("package.json", include_str!("../interop/package.json")),
        ("package-lock.json", include_str!("../interop/package-lock.json")),
        (".npmrc", include_str!("../interop/.npmrc")),
        ("older-node.js", include_str!("../interop/older-node.js")),
        ("dial.js", include_str!("../interop/dial.js")),
        ("repeat.js", include_str!("../interop/repeat.js")),
        ("in-node.js", include_str!("../interop/in-node.js")),
        ("in-browser.js", include_str!("../interop/in-browser.js")),
    ],
};
const PAGE: &str = include_str!("../interop/index.html");

const RUN: &str = r#"
[run]
id = "test-run"

[model]
kind = { mlp = { hidden = [32] } }

[network]
upnp = false

# A browser on a busy machine takes its time.
[limits]
handshake_timeout = "60s"
"#;
/// For one dial of many, one after the other, however busy the machine is.
const REPEATED_DIAL: Duration = Duration::from_secs(3);

const TCP: &str = "/ip4/127.0.0.1/tcp/0";
const WEBSOCKET: &str = "/ip4/127.0.0.1/tcp/0/ws";
const WEBTRANSPORT: &str = "/ip4/127.0.0.1/udp/0/quic-v1/webtransport";
const WEBRTC: &str = "/ip4/127.0.0.1/udp/0/webrtc-direct";

async fn js_libp2p() -> Result<Installed> {
    tokio::task::spawn_blocking(|| JS_LIBP2P.install()).await?
}

/// The same place, where somebody else is expected.
fn in_another_name(address: &Multiaddr) -> Multiaddr {
    let other = Keypair::generate_ed25519().public().to_peer_id();
    let named = |part| if matches!(part, Protocol::P2p(_)) { Protocol::P2p(other) } else { part };
    address.iter().map(named).collect()
}

/// js-libp2p reached the backbone at `address`, and it is who it should be.
fn ensure_met(outcome: &Value, address: &Multiaddr) -> Result<()> {
    let met = outcome.get("met").with_context(|| format!("{address}: {outcome}"))?;
    let said = |key: &str| met.get(key).and_then(Value::as_str).unwrap_or_default();
    let Some(Protocol::P2p(peer)) = address.iter().last() else { anyhow::bail!("{address} names nobody") };
    ensure!(said("peer") == peer.to_string(), "{address}: {met}");
    ensure!(said("way") == address.to_string(), "{address}: {met}");
    ensure!(said("agentVersion") == concat!("barnraise/", env!("CARGO_PKG_VERSION")), "{address}: {met}");
    ensure!(said("protocolVersion") == "/barnraise/1", "{address}: {met}");
    let protocols = met.get("protocols").and_then(Value::as_array).cloned().unwrap_or_default();
    ensure!(protocols.contains(&barnraise_protocol::run::PROTOCOL.into()), "{address}: {met}");
    ensure!(met.get("pingMs").is_some_and(Value::is_number), "{address}: {met}");
    Ok(())
}

/// The answer came, and its handshake did not attest who was expected.
fn ensure_refused(outcome: &Value, address: &Multiaddr) -> Result<()> {
    let refused = outcome.get("refused").and_then(Value::as_str);
    let refused = refused.with_context(|| format!("{address}: {outcome}"))?;
    ensure!(refused.contains("does not match expected"), "{address}: {refused}");
    Ok(())
}

#[tokio::test]
async fn js_libp2p_in_node_dials_by_tcp_and_by_websocket() -> Result<()> {
    let packages = js_libp2p().await?;
    let mut test_run = TestRun::new(RUN)?.with_listen(&[TCP, WEBSOCKET]);
    let backbone = test_run.backbone().await?;
    ensure!(backbone.addresses().len() == 2, "{:?}", backbone.addresses());
    for address in backbone.addresses() {
        ensure_met(&node(&packages, address).await?, address)?;
        let other = in_another_name(address);
        ensure_refused(&node(&packages, &other).await?, &other)?;
    }
    Ok(())
}

async fn node(packages: &Installed, address: &Multiaddr) -> Result<Value> {
    let (packages, address) = (packages.clone(), address.to_string());
    let printed = tokio::task::spawn_blocking(move || packages.node("in-node.js", &[&address])).await??;
    serde_json::from_str(&printed).with_context(|| format!("an outcome: {printed:?}"))
}

#[tokio::test]
async fn js_libp2p_in_chromium_dials_by_every_way_of_a_browser() -> Result<()> {
    let page = page().await?;
    let mut test_run = TestRun::new(RUN)?.with_listen(&[WEBTRANSPORT, WEBSOCKET, WEBRTC]);
    let backbone = test_run.backbone().await?;
    ensure!(backbone.addresses().len() == 3, "{:?}", backbone.addresses());
    let tab = Tab::open("js-libp2p", Graphics::NoAdapter, "about:blank").await?;
    for address in backbone.addresses() {
        ensure_met(&chromium(&tab, &page, address).await?, address)?;
        let other = in_another_name(address);
        ensure_refused(&chromium(&tab, &page, &other).await?, &other)?;
    }
    Ok(())
}

/// js-libp2p's ping finishes its stream with its last word, and libp2p's drops the stream once that is answered. A
/// reset would overtake one answer in five.
#[tokio::test]
async fn the_first_ping_after_each_of_200_webtransport_dials_is_answered() -> Result<()> {
    ensure_repeated(WEBTRANSPORT, 200).await
}

/// js-libp2p closes a connection once every stream's end was acknowledged, which rust-libp2p's streams never do.
#[tokio::test]
async fn a_webrtc_connection_is_closed_and_dialled_again() -> Result<()> {
    ensure_repeated(WEBRTC, 20).await
}

/// A page dials, pings at once and closes, so many times over.
async fn ensure_repeated(listen: &str, times: u32) -> Result<()> {
    let page = page().await?;
    let mut test_run = TestRun::new(RUN)?.with_listen(&[listen]);
    let backbone = test_run.backbone().await?;
    let [address] = backbone.addresses() else { anyhow::bail!("{:?}", backbone.addresses()) };
    let tab = Tab::open("js-libp2p", Graphics::NoAdapter, "about:blank").await?;
    let (address, n_times) = (address.to_string(), times.to_string());
    let query = [("dial", address.as_str()), ("times", n_times.as_str())];
    let outcome = shown(&tab, &page, &query, HANG + REPEATED_DIAL * times).await?;
    ensure!(outcome.get("repeated").and_then(Value::as_u64) == Some(u64::from(times)), "{listen}: {outcome}");
    Ok(())
}

async fn page() -> Result<Url> {
    let packages = js_libp2p().await?;
    serve(tokio::task::spawn_blocking(move || packages.bundle("in-browser.js")).await??).await
}

async fn chromium(tab: &Tab, page: &Url, address: &Multiaddr) -> Result<Value> {
    shown(tab, page, &[("dial", &address.to_string())], HANG).await
}

/// What the page shows in the end that is asked for so, after this long at most.
async fn shown(tab: &Tab, page: &Url, query: &[(&str, &str)], at_most: Duration) -> Result<Value> {
    let mut url = page.clone();
    url.query_pairs_mut().extend_pairs(query);
    tab.goto(url.as_str()).await?;
    let shown = tab.until("text('outcome')", at_most).await?;
    let shown = shown.as_str().context("the page shows no text")?;
    serde_json::from_str(shown).with_context(|| format!("an outcome: {shown:?}"))
}

/// Serves the page on loopback, where it may use WebTransport, for as long as the test runs.
async fn serve(module: String) -> Result<Url> {
    let module = move || async move { ([(CONTENT_TYPE, "text/javascript")], module) };
    let router = Router::new().route("/", get(async || Html(PAGE))).route("/bundle.js", get(module));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = Url::parse(&format!("http://{}/", listener.local_addr()?))?;
    tokio::spawn(axum::serve(listener, router).into_future());
    Ok(url)
}
