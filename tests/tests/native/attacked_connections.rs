//! Connections that flood what Yamux answers by itself, or streams that nobody reads, and take nothing: a backbone holds
//! no more for each than is said in SECURITY.md.

use std::time::Duration;

use barnraise_tests::client::within;
use barnraise_tests::load::ProcessUsage;
use barnraise_tests::process::TestRun;
use barnraise_tests::source_proxy::SourceProxy;
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::core::Endpoint;
use libp2p::core::transport::{DialOpts, PortUse};
use libp2p::core::upgrade::OutboundConnectionUpgrade as _;
use libp2p::identity::Keypair;
use libp2p::tcp::tokio::TcpStream;
use libp2p::{Multiaddr, Transport as _, noise, tcp};

use super::SMALL;

/// Of one address, which may have 40.
const CONNECTIONS: usize = 24;
/// What one connection may have come and not read, and what not sent.
const HELD_KIB_MAX: u64 = 9 * 1024;
/// What each floods, if it is let: many times as much.
const FLOOD_BYTES: usize = 96 * 1024 * 1024;
/// A flood of which nothing is taken for so long is one that is held back; slower machines only take longer.
const STALL: Duration = Duration::from_secs(3);
/// Steps that honest contributors make meanwhile.
const STEPS: u64 = 3;

const DATA: u8 = 0;
const PING: u8 = 2;
const SYN: u16 = 1;
/// Credit of a new stream.
const CREDIT: u32 = 256 * 1024;

type Secured = noise::Output<TcpStream>;

/// A connection whose streams this test makes by hand.
async fn connect(backbone: &Multiaddr) -> Secured {
    let mut address = backbone.clone();
    address.pop();
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let mut stream = tcp::tokio::Transport::default().dial(address, options).unwrap().await.unwrap();
    choose(&mut stream, "/noise").await;
    let noise = noise::Config::new(&Keypair::generate_ed25519()).unwrap();
    let (_, mut secured) = noise.upgrade_outbound(stream, "/noise").await.unwrap();
    choose(&mut secured, "/yamux/1.0.0").await;
    secured
}

/// multistream-select 1.0, by hand.
async fn choose<S: futures::AsyncRead + futures::AsyncWrite + Unpin>(stream: &mut S, protocol: &str) {
    let line = |text: &str| [&[text.len() as u8 + 1], text.as_bytes(), b"\n"].concat();
    let said = [line("/multistream/1.0.0"), line(protocol)].concat();
    stream.write_all(&said).await.unwrap();
    stream.flush().await.unwrap();
    let mut heard = vec![0; said.len()];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(heard, said);
}

fn frame(kind: u8, flags: u16, stream: u32, length: u32) -> Vec<u8> {
    let [f0, f1] = flags.to_be_bytes();
    [&[0, kind, f0, f1][..], &stream.to_be_bytes(), &length.to_be_bytes()].concat()
}

/// Pings, whose answers nobody takes.
fn pings(number: u32) -> Vec<u8> {
    (0..4096).flat_map(|nonce| frame(PING, SYN, 0, number * 4096 + nonce)).collect()
}

/// A stream with all that may be sent on one, of which the protocol is never said.
fn streams(number: u32) -> Vec<u8> {
    let bytes = vec![19; CREDIT as usize];
    [frame(DATA, SYN, 2 * number + 1, CREDIT), bytes].concat()
}

/// Writes until nothing is taken any more, or the connection ends; bytes that were taken.
async fn flood(connection: &mut Secured, piece: fn(u32) -> Vec<u8>) -> usize {
    let mut n_bytes = 0;
    for number in 0.. {
        let piece = piece(number);
        match tokio::time::timeout(STALL, connection.write_all(&piece)).await {
            Ok(Ok(())) if n_bytes < FLOOD_BYTES => n_bytes += piece.len(),
            // Held back, ended, or let on.
            _ => break,
        }
    }
    n_bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_floods_and_takes_nothing_costs_no_more_memory_than_is_said() {
    let limits = "[limits]\nconnections_per_address = 40\nconnections_per_address_and_minute = 60\n\
                  [conversations]\nfirst_message_timeout = \"1s\"\n";
    let mut test_run =
        TestRun::new(&format!("{SMALL}\n{limits}")).unwrap().with_listen(&["/ip4/127.0.0.1/tcp/0"]);
    let backbone = test_run.backbone().await.unwrap();
    let address = backbone.tcp().unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    backbone.wait_for_epoch(2).await.unwrap();
    let rss_kib = || ProcessUsage::of(backbone.pid().unwrap()).unwrap().rss_kib;
    for (what, piece, is_held_back, from) in
        [("pings", pings as fn(u32) -> Vec<u8>, true, 2), ("streams", streams, false, 3)]
    {
        // Each from its own address: the backbone may still count connections of the flood before, and the peer's.
        let proxy = SourceProxy::open([127, 0, 0, from].into(), &address).await.unwrap();
        let before = rss_kib();
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(within("a connection", connect(&proxy.address())).await.unwrap());
        }
        let flooding = connections.iter_mut().map(|connection| flood(connection, piece));
        let taken = futures::future::join_all(flooding).await;
        let epoch = backbone.status().await.unwrap().progress.epoch;
        backbone.wait_for_epoch(epoch + STEPS).await.unwrap();
        let grown = rss_kib().saturating_sub(before);
        println!(
            "{what}: {grown} KiB more for {CONNECTIONS} connections, of which {taken:?} bytes were taken"
        );
        assert!(grown <= CONNECTIONS as u64 * HELD_KIB_MAX, "{what}: {grown} KiB more");
        // Streams that say nothing of use are ended, and what comes for them is thrown away.
        let largest = taken.into_iter().max().unwrap_or_default();
        assert!(!is_held_back || largest < FLOOD_BYTES, "{what}: {largest} bytes were taken");
    }
    joined.interrupt().unwrap();
    assert!(joined.end().await.unwrap().status.success());
}
