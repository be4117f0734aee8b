//! Connections to a node by each transport and through a relay, and their bounds.

use std::cell::Cell;
use std::time::Duration;

use barnraise_relay::libp2p::core::upgrade::InboundConnectionUpgrade as _;
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::libp2p::multiaddr::Protocol;
use barnraise_relay::libp2p::{Multiaddr, noise};
use barnraise_relay::server::{HostNames, operator_routes};
use barnraise_relay::{Node, NodeConfig, NodeEvent, Path, Reachability, RelayLimits};
use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::common::*;

const TCP: &str = "/ip4/127.0.0.1/tcp/0";
const WEBSOCKET: &str = "/ip4/127.0.0.1/tcp/0/ws";
const QUIC: &str = "/ip4/127.0.0.1/udp/0/quic-v1";
const WEBTRANSPORT: &str = "/ip4/127.0.0.1/udp/0/quic-v1/webtransport";

/// After this long a test hangs.
const HANG: Duration = Duration::from_secs(120);

fn listening(addresses: &[&str]) -> NodeConfig {
    let listen = addresses.iter().map(|address| address.parse().unwrap()).collect();
    NodeConfig { listen, ..NodeConfig::default() }
}

const BULK_BYTES: usize = 4 * 1024 * 1024;
/// What tabs and backbones move where a model is large.
const LARGE_BYTES: usize = 64 * 1024 * 1024;
/// For how long a reader stops in the middle.
const PAUSE: Duration = Duration::from_secs(3);
/// Most that two ends and what is between them hold of what was written and not read.
const HELD_BYTES_MAX: usize = 16 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn every_way_carries_everything() {
    let node = echo_node(listening(&[TCP, WEBSOCKET, QUIC])).await;
    let addresses = node.addresses();
    assert_eq!(addresses.len(), 3, "{addresses:?}");
    for address in addresses {
        let dialer = dialer_of(&address, &NodeConfig::default()).await;
        let path = dialer.path(node.peer_id()).await.unwrap();
        let expected = Path::Direct { address, is_hole_punched: false };
        assert_eq!(path, Some(expected));
        echoes_bulk(&dialer, &node, BULK_BYTES).await;
    }
}

/// A browser's WebRTC is tested with a browser: two ends of webrtc-rs on a busy machine can lose a minute to one
/// lost datagram.
#[tokio::test(flavor = "multi_thread")]
async fn webtransport_waits_for_a_reader_that_pauses() {
    barnraise_relay::install_crypto_provider();
    let directory = tempfile::tempdir().unwrap();
    let certificates_dir = Some(directory.path().join("node"));
    let node = echo_node(NodeConfig { certificates_dir, ..listening(&[WEBTRANSPORT]) }).await;
    let client = WebTransportClient::connect(&webtransport_address(&node)).await;
    echoes_with_a_pause(client.open(ECHO).await).await;
}

/// Writes as fast as it can and reads with a pause; all of it comes back, and little is held meanwhile.
async fn echoes_with_a_pause<S: AsyncRead + AsyncWrite>(stream: S) {
    let sent = noise_bytes(LARGE_BYTES);
    let (mut reader, mut writer) = stream.split();
    let n_written = Cell::new(0);
    let writing = async {
        for chunk in sent.chunks(64 * 1024) {
            writer.write_all(chunk).await.unwrap();
            n_written.set(n_written.get() + chunk.len());
        }
        writer.close().await.unwrap();
    };
    let reading = async {
        let mut received = vec![0; LARGE_BYTES / 4];
        reader.read_exact(&mut received).await.unwrap();
        tokio::time::sleep(PAUSE).await;
        let n_held = n_written.get() - received.len();
        assert!(n_held <= HELD_BYTES_MAX, "{n_held} bytes were taken from the writer and not read");
        reader.read_to_end(&mut received).await.unwrap();
        received
    };
    let ((), received) = tokio::join!(writing, reading);
    assert_eq!(received.len(), sent.len(), "bytes that came back");
    assert!(received == sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_cannot_take_every_place() {
    let mut config = listening(&[TCP, QUIC]);
    config.limits.connections_per_address = 2;
    let node = echo_node(config).await;
    let mut events = node.events();
    let address = |way: &str| node.addresses().into_iter().find(|a| a.to_string().contains(way)).unwrap();
    let (first, second, third) = (dialer().await, dialer().await, dialer().await);
    for (dialer, way) in [(&first, "tcp"), (&second, "quic")] {
        dialer.dial(address(way)).await.unwrap();
        assert_eq!(events.recv().await.unwrap(), NodeEvent::Connected(dialer.peer_id()));
    }
    assert!(third.dial(address("tcp")).await.is_err());
    echoes_bulk(&first, &node, BULK_BYTES).await;
    // A place that was left is free again.
    let left = second.peer_id();
    second.shutdown().await;
    assert_eq!(events.recv().await.unwrap(), NodeEvent::Disconnected(left));
    third.dial(address("tcp")).await.unwrap();
}

async fn relay(limits: RelayLimits) -> Node {
    let config = NodeConfig { relay_service: Some(limits), ..listening(&[TCP, QUIC]) };
    Node::start(Keypair::generate_ed25519(), config).await.unwrap()
}

/// A node that lets nobody in, as if behind a router.
async fn closed_node(relay: &Node) -> Node {
    let mut config = NodeConfig { relays: vec![tcp_address(relay)], ..listening(&[TCP]) };
    config.limits.connections_per_address = 0;
    echo_node(config).await
}

/// Looks again whenever the node's addresses changed.
async fn until<T>(node: &Node, look: impl Fn(&Node) -> Option<T>) -> T {
    let mut events = node.events();
    let found = async {
        loop {
            if let Some(found) = look(node) {
                return found;
            }
            while events.recv().await.unwrap() != NodeEvent::AddressesChanged {}
        }
    };
    tokio::time::timeout(HANG, found).await.expect("it did not happen")
}

async fn circuit(node: &Node) -> Multiaddr {
    let look = |node: &Node| node.addresses().into_iter().find(|a| a.to_string().contains("p2p-circuit"));
    until(node, look).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_nobody_can_dial_is_reached_through_its_relay() {
    let relay = relay(RelayLimits::default()).await;
    let node = closed_node(&relay).await;
    let circuit = circuit(&node).await;
    assert_eq!(node.reachability(), Reachability::Private);
    let config = NodeConfig { hole_punch_timeout: Duration::ZERO, ..NodeConfig::default() };
    let dialer = Node::start(Keypair::generate_ed25519(), config).await.unwrap();
    assert_eq!(dialer.dial(circuit).await.unwrap(), node.peer_id());
    let path = dialer.path(node.peer_id()).await.unwrap().unwrap();
    assert_eq!(path, Path::Relayed { relay: Some(relay.peer_id()) });
    echoes_bulk(&dialer, &node, BULK_BYTES).await;
    for event in ["ReservationReqAccepted", "CircuitReqAccepted"] {
        let line = format!("libp2p_relay_events_total{{event=\"{event}\"}} ");
        let counted = |metrics: &str| {
            metrics.lines().any(|have| have.strip_prefix(&line).is_some_and(|count| count != "0"))
        };
        until_metrics(&relay, event, counted).await;
    }
}

/// A relay that says that the circuit stands, and is the other side of it itself: it proves no key but its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_answers_for_another_is_left() {
    const HOP: &str = "/libp2p/circuit/relay/0.2.0/hop";
    /// A status, which is that it stands; its length is before it.
    const STANDS: [u8; 5] = [4, 0x08, 2, 0x28, 100];
    /// What a dialer says first, and hears again: `/multistream/1.0.0` and `/noise`, each with its length and a line's end.
    const CHOICE_BYTES: usize = 20 + 8;
    let keypair = Keypair::generate_ed25519();
    let relay = Node::start(keypair.clone(), listening(&[TCP])).await.unwrap();
    let mut incoming = relay.accept(HOP).unwrap();
    let lying = tokio::spawn(async move {
        let (_, mut stream) = incoming.recv().await.unwrap();
        let mut length = [0];
        stream.read_exact(&mut length).await.unwrap();
        stream.read_exact(&mut vec![0; length[0].into()]).await.unwrap();
        stream.write_all(&STANDS).await.unwrap();
        stream.flush().await.unwrap();
        let mut choice = [0; CHOICE_BYTES];
        stream.read_exact(&mut choice).await.unwrap();
        assert!(choice.ends_with(b"/noise\n"), "nothing is said in the clear: {choice:?}");
        stream.write_all(&choice).await.unwrap();
        stream.flush().await.unwrap();
        let noise = noise::Config::new(&keypair).unwrap();
        // It learns who dials, which a relay knows.
        noise.upgrade_inbound(stream, "/noise").await.map(|(peer, _)| peer)
    });
    let dialer = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
    let victim = Keypair::generate_ed25519().public().to_peer_id();
    let circuit = tcp_address(&relay).with(Protocol::P2pCircuit).with(Protocol::P2p(victim));
    let error = dialer.dial(circuit).await.unwrap_err().to_string();
    assert!(error.contains(&relay.peer_id().to_string()), "who answered is named: {error}");
    assert_eq!(lying.await.unwrap().unwrap(), dialer.peer_id());
    assert!(!dialer.connected_peers().await.unwrap().contains(&victim));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_can_be_dialled_takes_no_reservation_but_where_it_insists() {
    let relay = relay(RelayLimits::default()).await;
    let relays = vec![tcp_address(&relay)];
    let node = echo_node(NodeConfig { relays, ..listening(&[TCP]) }).await;
    until(&node, |node| (node.reachability() == Reachability::Public).then_some(())).await;
    assert!(!relay.metrics().contains("event=\"ReservationReqAccepted\""));
    // Unless it insists: who dials may be a browser, which cannot by TCP.
    node.reserve(tcp_address(&relay)).await;
    let circuit = circuit(&node).await;
    assert_eq!(node.reachability(), Reachability::Public);
    let config = NodeConfig { hole_punch_timeout: Duration::ZERO, ..NodeConfig::default() };
    let dialer = Node::start(Keypair::generate_ed25519(), config).await.unwrap();
    assert_eq!(dialer.dial(circuit).await.unwrap(), node.peer_id());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_circuit_ends_when_its_bytes_are_used_up() {
    let limits = RelayLimits { circuit_bytes: bytesize::ByteSize::kib(256), ..RelayLimits::default() };
    let relay = relay(limits).await;
    let node = closed_node(&relay).await;
    let circuit = circuit(&node).await;
    let config = NodeConfig { hole_punch_timeout: Duration::ZERO, ..NodeConfig::default() };
    let dialer = Node::start(Keypair::generate_ed25519(), config).await.unwrap();
    dialer.dial(circuit).await.unwrap();
    let mut stream = dialer.open(node.peer_id(), ECHO).await.unwrap();
    let sent = noise_bytes(4 * 1024 * 1024);
    let all = async {
        stream.write_all(&sent).await?;
        stream.close().await?;
        stream.read_to_end(&mut Vec::new()).await.map(|n| n == sent.len())
    };
    assert!(!matches!(all.await, Ok(true)), "sixteen times the limit came through");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_health_addresses_and_metrics() {
    let node = relay(RelayLimits::default()).await;
    let dialer = dialer().await;
    dialer.dial(tcp_address(&node)).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = HostNames::new("http_names", &["relay".into()]).guard(operator_routes(node.clone()));
    let served = tokio::spawn(axum::serve(listener, routes).into_future());
    let ask = |path: &'static str, host: &'static str| async move {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await.unwrap();
        answer
    };
    let get = |path: &'static str| ask(path, "relay");
    let foreign = ask("/metrics", "evil.example").await;
    assert!(foreign.starts_with("HTTP/1.1 421") && foreign.contains("http_names"), "{foreign}");
    assert!(!foreign.contains("libp2p_"), "{foreign}");
    assert!(get("/readyz").await.ends_with("ready\n"));
    let health = get("/healthz").await;
    assert!(health.starts_with("HTTP/1.1 200") && health.contains(&node.peer_id().to_string()), "{health}");
    let addresses = get("/addresses").await;
    assert!(addresses.contains(&tcp_address(&node).to_string()), "{addresses}");
    let metrics = get("/metrics").await;
    assert!(metrics.contains("libp2p_swarm_connections_incoming_total") && metrics.ends_with("# EOF\n"));
    node.shutdown().await;
    assert!(get("/healthz").await.starts_with("HTTP/1.1 503"));
    assert!(get("/readyz").await.starts_with("HTTP/1.1 503"));
    served.abort();
}
