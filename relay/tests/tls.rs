//! Connections over plain TCP: TLS among nodes and with others that speak it, Noise with those that don't.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use barnraise_relay::libp2p::core::Endpoint;
use barnraise_relay::libp2p::core::muxing::{StreamMuxerBox, StreamMuxerExt as _};
use barnraise_relay::libp2p::core::transport::{Boxed, DialOpts, ListenerId, PortUse, TransportEvent};
use barnraise_relay::libp2p::core::upgrade::Version;
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::libp2p::multiaddr::Protocol;
use barnraise_relay::libp2p::{Multiaddr, PeerId, Transport as _, noise, tcp, yamux};
use barnraise_relay::{Node, NodeConfig, NodeError};
use futures::{AsyncReadExt as _, AsyncWriteExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

use crate::common::*;

const TLS: &str = "/tls/1.0.0";
const BULK_BYTES: usize = 4 * 1024 * 1024;
/// After this long a test hangs.
const HANG: Duration = Duration::from_secs(60);

type Others = Boxed<(PeerId, StreamMuxerBox)>;

/// TCP as libp2p builds it, with one way to secure it.
macro_rules! tcp_with {
    ($security:expr) => {
        tcp::tokio::Transport::new(tcp::Config::default())
            .upgrade(Version::V1)
            .authenticate($security)
            .multiplex(yamux::Config::default())
            .boxed()
    };
}

fn only_noise(keypair: &Keypair) -> Others {
    tcp_with!(noise::Config::new(keypair).unwrap())
}

fn only_tls(keypair: &Keypair) -> Others {
    tcp_with!(libp2p_tls::Config::new(keypair).unwrap())
}

fn tcp_only() -> NodeConfig {
    NodeConfig { listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()], ..NodeConfig::default() }
}

fn port(node: &Node) -> u16 {
    let port = |part| if let Protocol::Tcp(port) = part { Some(port) } else { None };
    tcp_address(node).iter().find_map(port).unwrap()
}

/// Carries one connection to `node`, and tells the first that the node says on it.
async fn tapped(node: &Node, n_bytes: usize) -> (Multiaddr, oneshot::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tap = listener.local_addr().unwrap().port();
    let (port, peer) = (port(node), node.peer_id());
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let (mut from_dialer, mut to_dialer) = listener.accept().await.unwrap().0.into_split();
        let (mut from_node, mut to_node) =
            TcpStream::connect(("127.0.0.1", port)).await.unwrap().into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_dialer, &mut to_node).await });
        let mut first = vec![0; n_bytes];
        AsyncReadExt::read_exact(&mut from_node, &mut first).await.unwrap();
        AsyncWriteExt::write_all(&mut to_dialer, &first).await.unwrap();
        tell.send(first).unwrap();
        tokio::io::copy(&mut from_node, &mut to_dialer).await
    });
    (format!("/ip4/127.0.0.1/tcp/{tap}/p2p/{peer}").parse().unwrap(), told)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_agree_on_tls() {
    let agreed = b"\x13/multistream/1.0.0\n\x0b/tls/1.0.0\n";
    let node = echo_node(tcp_only()).await;
    let (address, told) = tapped(&node, agreed.len()).await;
    let dialer = dialer().await;
    assert_eq!(dialer.dial(address).await.unwrap(), node.peer_id());
    assert_eq!(told.await.unwrap(), agreed);
    echoes_bulk(&dialer, &node, BULK_BYTES).await;
}

/// Opens a stream and has `message` echoed, while the connection is kept going.
async fn echoed(mut muxer: StreamMuxerBox, message: &[u8]) -> Vec<u8> {
    let mut stream = poll_fn(|cx| muxer.poll_outbound_unpin(cx)).await.unwrap();
    let answer = async {
        negotiate(&mut stream, ECHO).await;
        round_trip(stream, message).await
    };
    let kept_going = poll_fn(|cx| match muxer.poll_unpin(cx) {
        Poll::Ready(Err(error)) => Poll::Ready(error),
        Poll::Ready(Ok(_)) => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        Poll::Pending => Poll::Pending,
    });
    let either = async {
        tokio::select! {
            answer = answer => answer,
            error = kept_going => panic!("the connection ended: {error}"),
        }
    };
    tokio::time::timeout(HANG, either).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_speaks_one_of_them_dials() {
    let node = echo_node(tcp_only()).await;
    for others in [only_noise, only_tls] {
        let mut transport = others(&Keypair::generate_ed25519());
        let opts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
        let (peer, muxer) = transport.dial(tcp_address(&node), opts).unwrap().await.unwrap();
        assert_eq!(peer, node.peer_id());
        let message = noise_bytes(100_000);
        assert!(echoed(muxer, &message).await == message);
    }
}

/// Listens until the test ends, accepts all peers and keeps the connections.
async fn listening(mut transport: Others) -> Multiaddr {
    transport.listen_on(ListenerId::next(), "/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
    let TransportEvent::NewAddress { listen_addr, .. } = transport.next().await.unwrap() else {
        panic!("want the address first");
    };
    tokio::spawn(async move {
        while let Some(event) = transport.next().await {
            let TransportEvent::Incoming { upgrade, .. } = event else { continue };
            tokio::spawn(async move {
                // The dialer leaves in the middle where another peer id was expected.
                let Ok((_, mut muxer)) = upgrade.await else { return };
                while poll_fn(|cx| muxer.poll_unpin(cx)).await.is_ok() {}
            });
        }
    });
    listen_addr
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_speaks_one_of_them_is_dialled_by_its_own_id_only() {
    for others in [only_noise, only_tls] {
        let keypair = Keypair::generate_ed25519();
        let peer = keypair.public().to_peer_id();
        let address = listening(others(&keypair)).await;
        let dialer = dialer().await;
        let another = Keypair::generate_ed25519().public().to_peer_id();
        let error = dialer.dial(address.clone().with_p2p(another).unwrap()).await.unwrap_err();
        let NodeError::Dial { reason, .. } = &error else { panic!("{error}") };
        assert!(reason.contains(&peer.to_string()), "{reason}");
        assert!(dialer.connected_peers().await.unwrap().is_empty());
        assert_eq!(dialer.dial(address.with_p2p(peer).unwrap()).await.unwrap(), peer);
    }
}

/// A socket on which the node waits for a TLS handshake.
async fn about_to_shake_hands(node: &Node) -> Compat<TcpStream> {
    let mut socket = TcpStream::connect(("127.0.0.1", port(node))).await.unwrap().compat();
    negotiate(&mut socket, TLS).await;
    socket
}

/// Waits until the node closes the connection; what it sends before is skipped.
async fn until_the_end(mut socket: Compat<TcpStream>) {
    let mut last_words = Vec::new();
    // A socket that is closed before all is read is reset.
    let _ = tokio::time::timeout(HANG, socket.read_to_end(&mut last_words)).await.unwrap();
}

fn counted(node: &Node, reason: &str) -> u64 {
    let name = format!("barnraise_violations_total{{reason=\"{reason}\"}} ");
    let metrics = node.metrics();
    metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

/// A node hangs up before it counts.
async fn until_counted(node: &Node, reason: &str, n_at_least: u64) {
    let counting = async {
        while counted(node, reason) < n_at_least {
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(HANG, counting).await;
    assert!(in_time.is_ok(), "{reason}: {}, want {n_at_least}", counted(node, reason));
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_instead_of_tls_ends_the_connection_and_no_other() {
    let node = echo_node(tcp_only()).await;
    let dialer = dialer().await;
    dialer.dial(tcp_address(&node)).await.unwrap();
    // The last is a handshake message of 16 MB, which nobody may have kept.
    let endless = [&[22, 3, 3, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &[0; 200_000]].concat();
    let garbage = [&[0_u8; 64][..], &[0xff; 200_000], b"GET / HTTP/1.1\r\n\r\n", &endless[..]];
    for bytes in garbage {
        let mut socket = about_to_shake_hands(&node).await;
        // The node may have hung up in the middle of it.
        let _ = socket.write_all(bytes).await;
        until_the_end(socket).await;
    }
    until_counted(&node, "handshake_failed", 4).await;
    assert_eq!(counted(&node, "handshake_timeout"), 0);
    echoes_bulk(&dialer, &node, BULK_BYTES).await;
    assert_eq!(node.connected_peers().await.unwrap(), [dialer.peer_id()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stops_in_the_middle_of_a_handshake_is_left() {
    let mut config = tcp_only();
    config.limits.handshake_timeout = Duration::from_secs(5);
    let node = echo_node(config).await;
    let mut sockets = vec![about_to_shake_hands(&node).await, about_to_shake_hands(&node).await];
    // The beginning of a handshake message that would be longer.
    sockets[1].write_all(&[22, 3, 1, 2, 0, 1, 0, 1]).await.unwrap();
    for socket in sockets {
        until_the_end(socket).await;
    }
    until_counted(&node, "handshake_timeout", 2).await;
    let dialer = dialer().await;
    dialer.dial(tcp_address(&node)).await.unwrap();
    echoes_bulk(&dialer, &node, BULK_BYTES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_nobody_finishes_do_not_block_new_ones() {
    let mut config = tcp_only();
    config.limits.pending_handshakes = 4;
    config.limits.handshake_timeout = Duration::from_secs(3600);
    let node = echo_node(config).await;
    let mut unfinished = Vec::new();
    for _ in 0..12 {
        unfinished.push(about_to_shake_hands(&node).await);
    }
    until_counted(&node, "handshake_gave_way", 8).await;
    let dialer = dialer().await;
    dialer.dial(tcp_address(&node)).await.unwrap();
    echoes_bulk(&dialer, &node, BULK_BYTES).await;
}
