//! `ways`: download and upload speed of a Chromium tab on each of its transports, as a share of the speed of one plain
//! WebTransport stream without our code.
//!
//! The page is the one that ships, but its worker is another: it makes connections as the training worker does
//! and moves bytes by the bulk protocol. The bare stream has the same server of QUIC and HTTP/3 with the same limits.
//! All transports in turn within one run.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, ensure};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Html;
use axum::routing::{get, post};
use axum::{Json, Router};
use barnraise_bench_peer::{PULL, SERVE, noise};
use barnraise_protocol::bulk::{self, Partial, Transfer};
use barnraise_relay::certificates::Certificates;
use barnraise_relay::libp2p::Stream;
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::udp::bind_udp;
use barnraise_relay::webtransport::WebTransportConfig;
use barnraise_relay::{Node, NodeConfig};
use barnraise_tests::artifacts;
use barnraise_tests::browser::{Graphics, Tab};
use clap::Args;
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;
use tower_http::services::ServeDir;
use wtransport::endpoint::IncomingSessionFuture;
use wtransport::quinn::{self, TokioRuntime};
use wtransport::{RecvStream, SendStream};

use crate::paths;
use crate::ratio::{Spread, table};
use crate::transports::serve;

/// Transports of a tab with an address to listen on, the preferred one first.
const TAB_TRANSPORTS: [(&str, &str); 3] = [
    ("WebTransport", "/ip4/127.0.0.1/udp/0/quic-v1/webtransport"),
    ("WebRTC-direct", "/ip4/127.0.0.1/udp/0/webrtc-direct"),
    ("WebSocket", "/ip4/127.0.0.1/tcp/0/ws"),
];
/// Written at once on the bare stream.
const PIECE_BYTES: usize = 64 * 1024;
/// What the server of the bare stream says in the end.
const DONE: u8 = 1;
/// A tab without an answer by then has failed.
const ANSWER_MAX: Duration = Duration::from_secs(1800);
/// Of the page, its worker's file follows.
const WORKER: &str = "data-worker=\"";

#[derive(Debug, Args)]
pub(crate) struct TabTransportArgs {
    /// MiB in each measurement
    #[arg(long, default_value_t = 64)]
    mib: usize,
    /// Measurements of each way in each direction
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Only these ways beside the bare stream: webtransport, webrtc-direct, ws
    #[arg(long, value_delimiter = ',', default_value = "webtransport,webrtc-direct,ws")]
    only: Vec<String>,
}

impl TabTransportArgs {
    /// Name and address of each measured transport.
    fn ways(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        TAB_TRANSPORTS.into_iter().filter(|(_, listen)| self.only.iter().any(|kind| kind == kind_of(listen)))
    }
}

/// The last part of an address to listen on.
fn kind_of(listen: &str) -> &str {
    listen.rsplit('/').next().unwrap_or_default()
}

/// The worker's measurements to make.
#[derive(Debug, Clone, Serialize)]
struct WorkerPlan {
    ways: Vec<DialTarget>,
    n_bytes: usize,
    n_rounds: usize,
}

#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum DialTarget {
    Bare {
        url: String,
        /// SHA-256 of its certificates.
        certhashes: Vec<Vec<u8>>,
    },
    Node {
        address: String,
    },
}

/// The worker's measurements of one transport.
#[derive(Debug, Clone, Deserialize)]
struct Figures {
    down_ms: Vec<f64>,
    up_ms: Vec<f64>,
}

/// `ways`
pub(crate) async fn compare(args: &TabTransportArgs) -> Result<()> {
    barnraise_relay::install_crypto_provider();
    let folder = std::env::temp_dir().join(format!("barnraise-bench-{}", std::process::id()));
    let measured = measure(args, &folder).await;
    // What it held, certificates, is of no use to anybody.
    let _ = std::fs::remove_dir_all(folder);
    print(args, &measured?);
    Ok(())
}

async fn measure(args: &TabTransportArgs, folder: &Path) -> Result<Vec<Figures>> {
    let n_bytes = args.mib * 1024 * 1024;
    let listen = args.ways().map(|(_, listen)| listen.parse()).collect::<Result<_, _>>()?;
    let config = NodeConfig { listen, certificates_dir: Some(folder.join("node")), ..NodeConfig::default() };
    let node = start(config, n_bytes).await?;
    let mut ways = vec![bare(&folder.join("bare"), n_bytes)?];
    for (name, listen) in args.ways() {
        let kind = kind_of(listen);
        let addresses = node.addresses().into_iter().map(|address| address.to_string());
        let address = addresses.into_iter().find(|address| address.split('/').any(|part| part == kind));
        ways.push(DialTarget::Node { address: address.with_context(|| format!("no {name}"))? });
    }
    let outcome = ask(WorkerPlan { ways, n_bytes, n_rounds: args.rounds }).await?;
    if let Some(error) = outcome.get("error") {
        return Err(anyhow!("the tab: {error}"));
    }
    serde_json::from_value(outcome["figures"].clone()).with_context(|| format!("no figures: {outcome}"))
}

/// Opens the page with the other worker, and waits for what that one says.
async fn ask(plan: WorkerPlan) -> Result<Value> {
    let web_root = artifacts::web_root()?;
    let page = with_another_worker(&std::fs::read_to_string(web_root.join("index.html"))?)?;
    let (sender, mut outcomes) = mpsc::channel(1);
    let script = ([("content-type", "text/javascript")], include_str!("../web/ways-worker.js"));
    let router = Router::new()
        .route("/", get(async || Html(page)))
        .route("/ways-worker.js", get(async move || script))
        .route("/plan", get(async || Json(plan)))
        .route("/outcome", post(take))
        .with_state(sender)
        .nest_service("/peer", ServeDir::new(paths::bench_peer()?))
        .fallback_service(ServeDir::new(web_root));
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}/?device=cpu&autostart=1", listener.local_addr()?);
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let tab = Tab::open("ways", Graphics::NoAdapter, &url).await?;
    let outcome = tokio::time::timeout(ANSWER_MAX, outcomes.recv()).await;
    let console = tab.console().await;
    server.abort();
    let outcome = outcome.ok().flatten();
    outcome.with_context(|| format!("the tab did not say what it measured; its console: {console:#?}"))
}

async fn take(State(sender): State<mpsc::Sender<Value>>, Json(outcome): Json<Value>) -> StatusCode {
    match sender.try_send(outcome) {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::CONFLICT,
    }
}

fn with_another_worker(page: &str) -> Result<String> {
    let (before, rest) = page.split_once(WORKER).context("the page names no worker")?;
    let (_, after) = rest.split_once('"').context("the page names no worker")?;
    Ok(format!("{before}{WORKER}/ways-worker.js\"{after}"))
}

/// A node that offers the bytes and pulls them.
async fn start(config: NodeConfig, n_bytes: usize) -> Result<Node> {
    let node = Node::start(Keypair::generate_ed25519(), config).await?;
    let bytes: Arc<[u8]> = noise(n_bytes).into();
    let transfer = Transfer::of(&bytes);
    serve(node.accept(PULL)?, move |mut stream| {
        let bytes = Arc::clone(&bytes);
        async move {
            bulk::serve(&mut stream, &bytes, |_| {}).await.map_err(io::Error::other)?;
            end(stream).await
        }
    });
    serve(node.accept(SERVE)?, move |mut stream| async move {
        let mut partial = Partial::new(transfer, transfer.n_bytes).map_err(io::Error::other)?;
        bulk::pull(&mut stream, &mut partial, |_| {}).await.map_err(io::Error::other)?;
        end(stream).await
    });
    Ok(node)
}

/// Closes a stream after the tab did: one that is dropped before its end was read stops the tab from closing it.
async fn end(mut stream: Stream) -> io::Result<()> {
    match stream.read(&mut [0]).await? {
        0 => stream.close().await,
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A server of bare streams until the program ends.
fn bare(folder: &Path, n_bytes: usize) -> Result<DialTarget> {
    let certificates = Certificates::open(folder, Arc::new(SystemTime::now))?;
    let quic = WebTransportConfig::default().quic_server(&certificates)?;
    let socket = bind_udp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let url = format!("https://{}/", socket.local_addr()?);
    let endpoint =
        quinn::Endpoint::new(quinn::EndpointConfig::default(), Some(quic), socket, Arc::new(TokioRuntime))?;
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(async move {
                if let Err(error) = session(incoming, n_bytes).await {
                    eprintln!("a bare session ended: {error:#}");
                }
            });
        }
    });
    let certhashes = certificates.hashes_in_addresses().iter().map(|hash| hash.digest().to_vec()).collect();
    Ok(DialTarget::Bare { url, certhashes })
}

async fn session(incoming: quinn::Incoming, n_bytes_max: usize) -> Result<()> {
    let request = IncomingSessionFuture::with_quic_connecting(incoming.accept()?).await?;
    let session = request.accept().await?;
    loop {
        let stream = session.accept_bi().await?;
        tokio::spawn(async move {
            if let Err(error) = exchange(stream, n_bytes_max).await {
                eprintln!("a bare stream broke: {error:#}");
            }
        });
    }
}

/// Sends as many bytes as the first eight say, reads to the end, and says so.
async fn exchange((mut send, mut receive): (SendStream, RecvStream), n_bytes_max: usize) -> Result<()> {
    let mut count = [0; 8];
    receive.read_exact(&mut count).await?;
    let mut n_left = usize::try_from(u64::from_be_bytes(count))?;
    ensure!(n_left <= n_bytes_max, "{n_left} bytes are wanted, there are {n_bytes_max}");
    let mut piece = noise(PIECE_BYTES);
    while n_left > 0 {
        let n_written = n_left.min(PIECE_BYTES);
        send.write_all(&piece[..n_written]).await?;
        n_left -= n_written;
    }
    while receive.read(&mut piece).await?.is_some() {}
    send.write_all(&[DONE]).await?;
    Ok(send.finish().await?)
}

fn print(args: &TabTransportArgs, measured: &[Figures]) {
    let n_bytes = (args.mib * 1024 * 1024) as f64;
    let heading = ["", "down, MB/s", "share of bare", "up, MB/s", "share of bare"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    let names = std::iter::once("a bare stream of WebTransport").chain(args.ways().map(|(name, _)| name));
    let Some(bare) = measured.first() else { return };
    for (name, figures) in names.zip(measured) {
        let mut row = vec![name.to_owned()];
        for (ms, bare_ms) in [(&figures.down_ms, &bare.down_ms), (&figures.up_ms, &bare.up_ms)] {
            let speeds: Vec<f64> = ms.iter().map(|ms| n_bytes / 1e3 / ms).collect();
            let shares: Vec<f64> = bare_ms.iter().zip(ms).map(|(bare, ms)| bare / ms).collect();
            row.push(Spread::of(&speeds).to_string());
            row.push(Spread::of(&shares).to_string());
        }
        rows.push(row);
    }
    println!("\n{} MiB one way, {} rounds\n\n{}", args.mib, args.rounds, table(&rows));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_page_gets_another_worker_and_keeps_the_rest() {
        let page = r#"<body data-worker="/assets/worker-1.js" data-program="/p.wasm">"#;
        let want = r#"<body data-worker="/ways-worker.js" data-program="/p.wasm">"#;
        assert_eq!(with_another_worker(page).unwrap(), want);
        assert!(with_another_worker("<body>").is_err());
    }
}
