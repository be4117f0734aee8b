//! `transports`: transfer speed of each transport between two nodes of this machine, as a share of plain TCP.
//!
//! One direction, one stream, a sender that never waits, a receiver that answers one byte once it has all of
//! them. Then the same bytes by the project's own protocol for bulk, whose receiver asks for numbered chunks and
//! compares checksums and a hash. All ways in turn, over and over; both ends share this process and its threads.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use barnraise_bench_peer::{PULL, noise};
use barnraise_protocol::bulk::{self, Partial, Transfer};
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::libp2p::{Multiaddr, PeerId, Stream};
use barnraise_relay::{IncomingStreams, Node, NodeConfig, NodeEvent, RelayLimits};
use barnraise_tests::load::{LoadSession, TransportKind};
use clap::Args;
use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::ratio::{Spread, short, table};

/// Takes all bytes, then says so.
const SINK: &str = "/barnraise-bench/sink/1";
/// Written at once.
const PIECE_BYTES: usize = 64 * 1024;
/// What the receiver says in the end.
const DONE: u8 = 1;
/// Longer than a reservation at a relay takes.
const HANG: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
pub(crate) struct TransportArgs {
    /// MiB in each measurement
    #[arg(long, default_value_t = 64)]
    mib: usize,
    /// Measurements of each way
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

/// One transport to the node, and its measurements in bytes per second.
struct TransportRun {
    name: String,
    link: TransportLink,
    plain: Vec<f64>,
    bulk: Vec<f64>,
}

enum TransportLink {
    Tcp(std::net::SocketAddr),
    Node {
        dialer: Node,
        peer: PeerId,
    },
    /// WebTransport: natively only the tests dial it.
    Session(LoadSession),
}

/// `transports`.
pub(crate) async fn compare(args: &TransportArgs) -> Result<()> {
    barnraise_relay::install_crypto_provider();
    let bytes: Arc<[u8]> = noise(args.mib * 1024 * 1024).into();
    let folder = std::env::temp_dir().join(format!("barnraise-bench-{}", std::process::id()));
    let mut contenders = contenders(&bytes, &folder).await?;
    for round in 0..=args.rounds {
        for contender in &mut contenders {
            let plain = contender.link.send(&bytes).await.with_context(|| contender.name.clone())?;
            let bulk = contender.link.pull(&bytes).await.with_context(|| contender.name.clone())?;
            // The first one warms up: windows grow, code is loaded.
            if round > 0 {
                contender.plain.push(bytes.len() as f64 / plain.as_secs_f64());
                contender.bulk.extend(bulk.map(|bulk| bytes.len() as f64 / bulk.as_secs_f64()));
            }
        }
    }
    // What it held, certificates, is of no use to anybody.
    let _ = std::fs::remove_dir_all(folder);
    print(args, &contenders);
    Ok(())
}

fn print(args: &TransportArgs, contenders: &[TransportRun]) {
    let tcp = contenders.first().map(|tcp| tcp.plain.clone()).unwrap_or_default();
    let share = |values: &[f64]| {
        let shares: Vec<f64> = values.iter().zip(&tcp).map(|(value, tcp)| value / tcp).collect();
        Spread::of(&shares).to_string()
    };
    let megabytes = |values: &[f64]| short(Spread::of(values).median / 1e6);
    let heading = ["", "MB/s", "share of plain TCP", "by the bulk protocol, MB/s", "share of plain TCP"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for contender in contenders {
        let has_bulk = !contender.bulk.is_empty();
        rows.push(vec![
            contender.name.clone(),
            megabytes(&contender.plain),
            share(&contender.plain),
            if has_bulk { megabytes(&contender.bulk) } else { String::new() },
            if has_bulk { share(&contender.bulk) } else { String::new() },
        ]);
    }
    println!("\n{} MiB one way, {} rounds\n\n{}", args.mib, args.rounds, table(&rows));
}

async fn contenders(bytes: &Arc<[u8]>, folder: &std::path::Path) -> Result<Vec<TransportRun>> {
    let mut contenders = vec![contender("plain TCP", TransportLink::Tcp(tcp_sink().await?))];
    let listen = [
        "/ip4/127.0.0.1/tcp/0",
        "/ip4/127.0.0.1/udp/0/quic-v1",
        "/ip4/127.0.0.1/tcp/0/ws",
        "/ip4/127.0.0.1/udp/0/quic-v1/webtransport",
        "/ip4/127.0.0.1/udp/0/webrtc-direct",
    ];
    let config = NodeConfig {
        listen: listen.iter().map(|address| address.parse()).collect::<Result<_, _>>()?,
        certificates_dir: Some(folder.to_owned()),
        ..NodeConfig::default()
    };
    let node = start(config, bytes).await?;
    for (name, has) in [
        ("libp2p TCP", "/tcp/"),
        ("QUIC", "/quic-v1/p2p"),
        ("WebSocket", "/ws"),
        ("WebTransport", "/webtransport"),
        ("WebRTC-direct", "/webrtc-direct"),
    ] {
        let is_way = |address: &&Multiaddr| {
            let text = address.to_string();
            text.contains(has) && (name != "libp2p TCP" || !text.contains("/ws"))
        };
        let addresses = node.addresses();
        let address = addresses.iter().find(is_way).cloned().with_context(|| format!("no {name}"))?;
        let link = if TransportKind::WebTransport.of(std::slice::from_ref(&address)).is_some() {
            TransportLink::Session(Box::pin(LoadSession::dial(&[address])).await?)
        } else {
            // WebRTC is dialled by those who have a certificate for it, because they listen.
            let listen = match address.to_string().contains("/webrtc-direct") {
                true => vec!["/ip4/127.0.0.1/udp/0/webrtc-direct".parse()?],
                false => Vec::new(),
            };
            let certificates_dir = Some(folder.join("dialer"));
            dial(address, NodeConfig { listen, certificates_dir, ..NodeConfig::default() }).await?
        };
        contenders.push(contender(name, link));
    }
    contenders.push(contender("libp2p TCP through a relay", relayed(bytes).await?));
    // A node lives as long as a handle to it.
    tokio::spawn(async move {
        let _kept = node;
        std::future::pending::<()>().await;
    });
    Ok(contenders)
}

fn contender(name: &str, link: TransportLink) -> TransportRun {
    TransportRun { name: name.to_owned(), link, plain: Vec::new(), bulk: Vec::new() }
}

async fn dial(address: Multiaddr, config: NodeConfig) -> Result<TransportLink> {
    let dialer = Node::start(Keypair::generate_ed25519(), config).await?;
    let peer = dialer.dial(address).await?;
    Ok(TransportLink::Node { dialer, peer })
}

/// A relay in between, and a node that is reached through it alone.
async fn relayed(bytes: &Arc<[u8]>) -> Result<TransportLink> {
    let listening = || anyhow::Ok(vec!["/ip4/127.0.0.1/tcp/0".parse()?]);
    let limits = RelayLimits { circuit_bytes: bytesize::ByteSize::tib(1), ..RelayLimits::default() };
    let config = NodeConfig { listen: listening()?, relay_service: Some(limits), ..NodeConfig::default() };
    let relay = Node::start(Keypair::generate_ed25519(), config).await?;
    let address = relay.addresses().into_iter().next().context("the relay does not listen")?;
    let mut config = NodeConfig { listen: listening()?, relays: vec![address], ..NodeConfig::default() };
    config.limits.connections_per_address = 0;
    let node = start(config, bytes).await?;
    let mut events = node.events();
    let circuit = async {
        loop {
            let is_circuit = |address: &Multiaddr| address.to_string().contains("p2p-circuit");
            if let Some(circuit) = node.addresses().into_iter().find(is_circuit) {
                return anyhow::Ok(circuit);
            }
            while events.recv().await? != NodeEvent::AddressesChanged {}
        }
    };
    let circuit = tokio::time::timeout(HANG, circuit).await.context("the relay took nobody in")??;
    let config = NodeConfig { hole_punch_timeout: Duration::ZERO, ..NodeConfig::default() };
    let link = dial(circuit, config).await?;
    tokio::spawn(async move {
        let _kept = (relay, node);
        std::future::pending::<()>().await;
    });
    Ok(link)
}

/// A node that takes and offers.
async fn start(config: NodeConfig, bytes: &Arc<[u8]>) -> Result<Node> {
    let node = Node::start(Keypair::generate_ed25519(), config).await?;
    serve(node.accept(SINK)?, |mut stream| async move { sink(&mut stream).await });
    let bytes = Arc::clone(bytes);
    serve(node.accept(PULL)?, move |mut stream| {
        let bytes = Arc::clone(&bytes);
        async move { bulk::serve(&mut stream, &bytes, |_| {}).await.map_err(io::Error::other) }
    });
    Ok(node)
}

/// Handles each stream in a task of its own.
pub(crate) fn serve<F: Future<Output = io::Result<()>> + Send + 'static>(
    mut incoming: IncomingStreams,
    handle: impl Fn(Stream) -> F + Send + 'static,
) {
    tokio::spawn(async move {
        while let Some((_, stream)) = incoming.recv().await {
            let handled = handle(stream);
            tokio::spawn(async move {
                if let Err(error) = handled.await {
                    eprintln!("a stream broke: {error}");
                }
            });
        }
    });
}

impl TransportLink {
    /// How long it takes until all bytes are there, opening the stream included.
    async fn send(&self, bytes: &[u8]) -> Result<Duration> {
        let from = Instant::now();
        match self {
            Self::Tcp(address) => {
                let mut stream = tokio::net::TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                for piece in bytes.chunks(PIECE_BYTES) {
                    stream.write_all(piece).await?;
                }
                stream.shutdown().await?;
                ensure!(stream.read_u8().await? == DONE, "another answer came");
            }
            Self::Node { dialer, peer } => source(&mut dialer.open(*peer, SINK).await?, bytes).await?,
            Self::Session(session) => source(&mut session.conversation(SINK).await?, bytes).await?,
        }
        Ok(from.elapsed())
    }

    /// Likewise by the bulk protocol; `None` where that is not spoken.
    async fn pull(&self, bytes: &[u8]) -> Result<Option<Duration>> {
        let transfer = Transfer::of(bytes);
        let from = Instant::now();
        let mut stream = match self {
            Self::Tcp(_) => return Ok(None),
            Self::Node { dialer, peer } => dialer.open(*peer, PULL).await?,
            Self::Session(session) => session.conversation(PULL).await?,
        };
        let mut partial = Partial::new(transfer, transfer.n_bytes)?;
        let pulled = bulk::pull(&mut stream, &mut partial, |_| {}).await?;
        let elapsed = from.elapsed();
        ensure!(pulled == bytes, "other bytes came");
        Ok(Some(elapsed))
    }
}

async fn source<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> Result<()> {
    for piece in bytes.chunks(PIECE_BYTES) {
        stream.write_all(piece).await?;
    }
    stream.close().await?;
    let mut answer = [0];
    stream.read_exact(&mut answer).await?;
    ensure!(answer == [DONE], "another answer came");
    Ok(())
}

async fn sink<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    while stream.read(&mut piece).await? > 0 {}
    stream.write_all(&[DONE]).await?;
    stream.close().await
}

async fn tcp_sink() -> Result<std::net::SocketAddr> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut piece = vec![0; PIECE_BYTES];
            while stream.read(&mut piece).await? > 0 {}
            stream.write_u8(DONE).await?;
        }
        io::Result::Ok(())
    });
    Ok(address)
}
