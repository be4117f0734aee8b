//! How fast bytes go between two nodes of one machine, by each way that one dials: `cargo run --release -p
//! barnraise-relay --example speed -- serve`, then `… -- dial ADDRESS` for each address that it printed.
//!
//! One stream, one direction at a time, a sender that never waits, a receiver that answers one byte once it has
//! all of them.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::libp2p::{Multiaddr, Stream};
use barnraise_relay::{IncomingStreams, Node, NodeConfig, install_crypto_provider};
use clap::{Parser, Subcommand};
use futures::{AsyncReadExt as _, AsyncWriteExt as _};

/// Takes all bytes, then says so.
const SINK: &str = "/barnraise-bench/sink/1";
/// Sends as many bytes as it is asked for.
const SOURCE: &str = "/barnraise-bench/source/1";
/// Written at once.
const PIECE_BYTES: usize = 64 * 1024;
/// What the receiver says in the end.
const DONE: u8 = 1;
const WAYS: [&str; 5] = [
    "/ip4/127.0.0.1/udp/0/webrtc-direct",
    "/ip4/127.0.0.1/udp/0/quic-v1/webtransport",
    "/ip4/127.0.0.1/udp/0/quic-v1",
    "/ip4/127.0.0.1/tcp/0",
    "/ip4/127.0.0.1/tcp/0/ws",
];

#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    role: SpeedRole,
    /// Where certificates are kept
    #[arg(long, global = true, default_value = "/tmp/barnraise-speed")]
    folder: PathBuf,
}

#[derive(Debug, Subcommand)]
enum SpeedRole {
    /// Takes and gives bytes until it is interrupted
    Serve,
    /// Sends to an address that `serve` printed, then receives
    Dial {
        /// With its /p2p/…
        address: Multiaddr,
        /// MiB in each measurement
        #[arg(long, default_value_t = 64)]
        mib: usize,
        /// Measurements of each direction
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
}

#[tokio::main]
async fn main() -> Result<()> {
    install_crypto_provider();
    let Arguments { role, folder } = Arguments::parse();
    match role {
        SpeedRole::Serve => serve(folder.join("serve")).await,
        SpeedRole::Dial { address, mib, rounds } => {
            dial(folder.join("dial"), address, mib * 1024 * 1024, rounds).await
        }
    }
}

async fn start(certificates_dir: PathBuf, listen: &[&str]) -> Result<Node> {
    let listen = listen.iter().map(|address| address.parse()).collect::<Result<_, _>>()?;
    let config = NodeConfig { listen, certificates_dir: Some(certificates_dir), ..NodeConfig::default() };
    Ok(Node::start(Keypair::generate_ed25519(), config).await?)
}

async fn serve(folder: PathBuf) -> Result<()> {
    let node = start(folder, &WAYS).await?;
    for address in node.addresses() {
        println!("{address}");
    }
    answer(node.accept(SINK)?, |stream| async move { sink(stream).await });
    answer(node.accept(SOURCE)?, |stream| async move { source(stream).await });
    tokio::signal::ctrl_c().await?;
    node.shutdown().await;
    Ok(())
}

fn answer<F: Future<Output = io::Result<()>> + Send + 'static>(
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

async fn sink(mut stream: Stream) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    while stream.read(&mut piece).await? > 0 {}
    stream.write_all(&[DONE]).await?;
    stream.close().await
}

async fn source(mut stream: Stream) -> io::Result<()> {
    let mut asked = [0; 8];
    stream.read_exact(&mut asked).await?;
    let mut n_left = usize::try_from(u64::from_be_bytes(asked)).unwrap_or(usize::MAX);
    let piece = noise();
    while n_left > 0 {
        let n_bytes = n_left.min(piece.len());
        stream.write_all(&piece[..n_bytes]).await?;
        n_left -= n_bytes;
    }
    stream.close().await
}

async fn dial(folder: PathBuf, address: Multiaddr, n_bytes: usize, rounds: usize) -> Result<()> {
    // WebRTC is dialled by those who have a certificate for it, because they listen.
    let node = start(folder, &WAYS[..1]).await?;
    let peer = node.dial(address).await?;
    for round in 0..rounds {
        let mut stream = node.open(peer, SINK).await?;
        let up = timed(send(&mut stream, n_bytes)).await?;
        let mut stream = node.open(peer, SOURCE).await?;
        let down = timed(receive(&mut stream, n_bytes)).await?;
        let megabytes = |elapsed: Duration| n_bytes as f64 / 1e6 / elapsed.as_secs_f64();
        println!("{round}: up {:.1} MB/s, down {:.1} MB/s", megabytes(up), megabytes(down));
    }
    node.shutdown().await;
    Ok(())
}

async fn timed(transfer: impl Future<Output = Result<()>>) -> Result<Duration> {
    let from = Instant::now();
    transfer.await?;
    Ok(from.elapsed())
}

async fn send(stream: &mut Stream, n_bytes: usize) -> Result<()> {
    let piece = noise();
    let mut n_left = n_bytes;
    while n_left > 0 {
        let n_written = n_left.min(piece.len());
        stream.write_all(&piece[..n_written]).await?;
        n_left -= n_written;
    }
    stream.close().await?;
    let mut answer = [0];
    stream.read_exact(&mut answer).await.context("no answer")?;
    ensure!(answer == [DONE], "another answer came");
    Ok(())
}

async fn receive(stream: &mut Stream, n_bytes: usize) -> Result<()> {
    stream.write_all(&(n_bytes as u64).to_be_bytes()).await?;
    stream.flush().await?;
    let (mut n_received, mut piece) = (0, vec![0; PIECE_BYTES]);
    loop {
        match stream.read(&mut piece).await? {
            0 => break,
            n_read => n_received += n_read,
        }
    }
    ensure!(n_received == n_bytes, "{n_received} bytes came of {n_bytes}");
    Ok(())
}

/// Bytes that nothing on the way could compress.
fn noise() -> Vec<u8> {
    let mut random = barnraise_swarm::random::SplitMix64::new(7);
    (0..PIECE_BYTES / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}
