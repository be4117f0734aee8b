//! Nodes among each other.

use std::time::{Duration, Instant};

use barnraise_relay::libp2p::Multiaddr;
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::{Node, NodeConfig, NodeError, NodeEvent, OpenError, load_or_create_keypair};
use futures::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::common::*;

/// After this long a test hangs.
const HANG: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn tcp_dials_and_echoes() {
    let directory = tempfile::tempdir().unwrap();
    let node = echo_node(config(directory.path())).await;
    let dialer = dialer().await;
    let mut events = dialer.events();
    assert_eq!(dialer.dial(tcp_address(&node)).await.unwrap(), node.peer_id());
    assert_eq!(events.recv().await.unwrap(), NodeEvent::Connected(node.peer_id()));
    echoes_bulk(&dialer, &node, 3 * 1024 * 1024).await;
    let gone = node.peer_id();
    node.shutdown().await;
    assert_eq!(events.recv().await.unwrap(), NodeEvent::Disconnected(gone));
}

#[tokio::test(flavor = "multi_thread")]
async fn both_transports_serve_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let node = echo_node(config(directory.path())).await;
    let browser = WebTransportClient::connect(&webtransport_address(&node)).await;
    let dialer = dialer().await;
    dialer.dial(tcp_address(&node)).await.unwrap();
    let (native, web) = tokio::join!(
        async { round_trip(dialer.open(node.peer_id(), ECHO).await.unwrap(), b"native").await },
        async { round_trip(browser.open(ECHO).await, b"web").await },
    );
    assert_eq!((&native[..], &web[..]), (&b"native"[..], &b"web"[..]));
    let connected = node.connected_peers().await.unwrap();
    assert!(connected.contains(&browser.peer_id) && connected.contains(&dialer.peer_id()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_streams_is_not_lost() {
    const N_STREAMS: usize = 100;
    let node = Node::start(Keypair::generate_ed25519(), tcp_only()).await.unwrap();
    let mut incoming = node.accept(ECHO).unwrap();
    let dialer = dialer().await;
    dialer.dial(tcp_address(&node)).await.unwrap();
    let opening = (0..N_STREAMS).map(|_| async {
        let mut stream = dialer.open(node.peer_id(), ECHO).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        stream.flush().await.unwrap();
        stream
    });
    // Nobody takes a stream before all have come.
    let _opened = futures::future::join_all(opening).await;
    for _ in 0..N_STREAMS {
        let (peer, mut stream) = incoming.recv().await.unwrap();
        assert_eq!(peer, dialer.peer_id());
        stream.read_exact(&mut [0; 1]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_opened_says_why() {
    let node = echo_node(tcp_only()).await;
    let dialer = dialer().await;
    let stranger = dialer.open(node.peer_id(), ECHO).await.unwrap_err();
    assert!(matches!(stranger, NodeError::Open { source: OpenError::NotConnected, .. }), "{stranger}");
    dialer.dial(tcp_address(&node)).await.unwrap();
    let unknown = dialer.open(node.peer_id(), "/unknown/1").await.unwrap_err();
    assert!(matches!(unknown, NodeError::Open { source: OpenError::Unsupported, .. }), "{unknown}");
    let name = dialer.open(node.peer_id(), "no-slash").await.unwrap_err();
    assert!(matches!(name, NodeError::ProtocolName { .. }), "{name}");
    assert!(matches!(node.accept(ECHO), Err(NodeError::AlreadyAccepted { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_dialled_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let node = echo_node(config(directory.path())).await;
    let dialer = dialer().await;
    let mut nameless = tcp_address(&node);
    nameless.pop();
    assert!(matches!(dialer.dial(nameless.clone()).await, Err(NodeError::NoPeerId { .. })));
    let other = Keypair::generate_ed25519().public().to_peer_id();
    let wrong = nameless.with_p2p(other).unwrap();
    assert!(matches!(dialer.dial(wrong).await, Err(NodeError::Dial { .. })));
    let webtransport = dialer.dial(webtransport_address(&node)).await.unwrap_err();
    assert!(matches!(webtransport, NodeError::Dial { .. }), "{webtransport}");
    let address = tcp_address(&node);
    node.shutdown().await;
    let gone = dialer.dial(address).await.unwrap_err();
    assert!(gone.to_string().contains("refused"), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_resolved() {
    let node = echo_node(tcp_only()).await;
    let dialer = dialer().await;
    let named = tcp_address(&node).to_string().replace("/ip4/127.0.0.1/", "/dns4/localhost/");
    assert_eq!(dialer.dial(named.parse().unwrap()).await.unwrap(), node.peer_id());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_taken_is_named() {
    let node = echo_node(tcp_only()).await;
    let mut taken = tcp_address(&node);
    taken.pop();
    let again = NodeConfig { listen: vec![taken.clone()], ..NodeConfig::default() };
    let error = Node::start(Keypair::generate_ed25519(), again).await.unwrap_err();
    assert!(error.to_string().contains(&taken.to_string()), "{error}");
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let directory = tempfile::tempdir().unwrap();
    let mut udp = config(directory.path());
    udp.listen = vec![format!("/ip4/127.0.0.1/udp/{port}/quic-v1/webtransport").parse().unwrap()];
    let error = Node::start(Keypair::generate_ed25519(), udp).await.unwrap_err();
    assert!(error.to_string().contains(&port.to_string()), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn webtransport_without_certificates_is_refused_by_name() {
    let listen: Vec<Multiaddr> = vec!["/ip4/127.0.0.1/udp/0/quic-v1/webtransport".parse().unwrap()];
    let config = NodeConfig { listen, ..NodeConfig::default() };
    let error = Node::start(Keypair::generate_ed25519(), config).await.unwrap_err();
    assert!(error.to_string().contains("a directory for certificates"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_interface_has_its_address() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.listen = vec!["/ip4/0.0.0.0/udp/0/quic-v1/webtransport".parse().unwrap()];
    let node = echo_node(config).await;
    let addresses = node.addresses();
    assert!(addresses.iter().all(|address| !address.to_string().contains("0.0.0.0")), "{addresses:?}");
    let client = WebTransportClient::connect(&addresses[0]).await;
    assert_eq!(round_trip(client.open(ECHO).await, b"any").await, b"any");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_have_a_limit() {
    let mut config = tcp_only();
    config.limits.connections = 2;
    let node = echo_node(config).await;
    let mut events = node.events();
    let (first, second, third) = (dialer().await, dialer().await, dialer().await);
    for dialer in [&first, &second] {
        dialer.dial(tcp_address(&node)).await.unwrap();
        assert_eq!(events.recv().await.unwrap(), NodeEvent::Connected(dialer.peer_id()));
    }
    // The handshake stands before the listener knows who it is and closes.
    let mut third_events = third.events();
    third.dial(tcp_address(&node)).await.unwrap();
    assert_eq!(third_events.recv().await.unwrap(), NodeEvent::Connected(node.peer_id()));
    assert_eq!(third_events.recv().await.unwrap(), NodeEvent::Disconnected(node.peer_id()));
    assert_eq!(node.connected_peers().await.unwrap().len(), 2);
    assert_eq!(round_trip(first.open(node.peer_id(), ECHO).await.unwrap(), b"in").await, b"in");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_holds_too_much_memory_takes_no_further_connection() {
    let mut config = tcp_only();
    config.limits.memory = Some(bytesize::ByteSize::kib(1));
    let node = echo_node(config).await;
    let dialer = dialer().await;
    let mut events = dialer.events();
    // The handshake stands before the listener closes.
    if dialer.dial(tcp_address(&node)).await.is_ok() {
        assert_eq!(events.recv().await.unwrap(), NodeEvent::Connected(node.peer_id()));
        assert_eq!(events.recv().await.unwrap(), NodeEvent::Disconnected(node.peer_id()));
    }
    assert!(node.connected_peers().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_tcp_does_not_block_new_ones() {
    let mut config = tcp_only();
    config.limits.pending_handshakes = 4;
    config.limits.handshake_timeout = Duration::from_secs(3600);
    let node = echo_node(config).await;
    let address = tcp_address(&node).to_string();
    let port: u16 = address.split('/').nth(4).unwrap().parse().unwrap();
    let mut half_open = Vec::new();
    for _ in 0..12 {
        half_open.push(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    }
    let dialer = dialer().await;
    // The listener may still be taking up those before, and have this handshake give way.
    let opened = async {
        loop {
            // One that gave way is reset, at this end before its handshake is done or behind it.
            if dialer.dial(tcp_address(&node)).await.is_ok()
                && let Ok(stream) = dialer.open(node.peer_id(), ECHO).await
            {
                return stream;
            }
        }
    };
    let opened = tokio::time::timeout(HANG, opened).await;
    assert_eq!(round_trip(opened.unwrap(), b"in").await, b"in");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_hashes_and_peer_id() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("peer.key");
    let start = || async {
        Node::start(load_or_create_keypair(&key).unwrap(), config(directory.path())).await.unwrap()
    };
    let first = start().await;
    let address = webtransport_address(&first);
    first.shutdown().await;
    let second = start().await;
    let (before, after) = (ListenTarget::new(&address), ListenTarget::new(&webtransport_address(&second)));
    assert_eq!(before.certhashes, after.certhashes);
    assert_eq!((before.peer, before.peer), (after.peer, Some(second.peer_id())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_is_free_again_after_a_shutdown() {
    let directory = tempfile::tempdir().unwrap();
    let first = echo_node(config(directory.path())).await;
    let mut address = webtransport_address(&first);
    let client = WebTransportClient::connect(&address).await;
    first.shutdown().await;
    client.session.closed().await;
    address.pop();
    let mut again = config(directory.path());
    again.listen = vec![address];
    // A node waits for a moment only until all its connections have said goodbye: on a busy machine the port is free later.
    let began = Instant::now();
    let second = loop {
        match Node::start(Keypair::generate_ed25519(), again.clone()).await {
            Ok(node) => break node,
            Err(error) => assert!(began.elapsed() < HANG, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    spawn_echo(second.accept(ECHO).unwrap());
    let client = WebTransportClient::connect(&webtransport_address(&second)).await;
    assert_eq!(round_trip(client.open(ECHO).await, b"again").await, b"again");
}

fn tcp_only() -> NodeConfig {
    NodeConfig { listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()], ..NodeConfig::default() }
}
