//! What a relay carries is metered, circuit by circuit.

use std::time::Duration;

use barnraise_relay::libp2p::Multiaddr;
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_relay::{Node, NodeConfig, NodeEvent, Path, RelayLimits};
use futures::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::common::*;

const BULK_BYTES: usize = 4 * 1024 * 1024;
/// Noise, Yamux and identify of a connection through a circuit, and the words that open one.
const OVERHEAD_BYTES: f64 = 512.0 * 1024.0;
/// After this long a test hangs.
const HANG: Duration = Duration::from_secs(120);

fn listening() -> NodeConfig {
    NodeConfig { listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()], ..NodeConfig::default() }
}

/// A relay, and a node that is reached through it at this address.
async fn relayed(limits: RelayLimits) -> (Node, Node, Multiaddr) {
    let config = NodeConfig { relay_service: Some(limits), ..listening() };
    let relay = Node::start(Keypair::generate_ed25519(), config).await.unwrap();
    let mut config = NodeConfig { relays: vec![tcp_address(&relay)], ..listening() };
    // As if behind a router.
    config.limits.connections_per_address = 0;
    let node = echo_node(config).await;
    let mut events = node.events();
    let circuit = async {
        loop {
            if let Some(circuit) =
                node.addresses().into_iter().find(|address| address.to_string().contains("p2p-circuit"))
            {
                return circuit;
            }
            while events.recv().await.unwrap() != NodeEvent::AddressesChanged {}
        }
    };
    let circuit = tokio::time::timeout(HANG, circuit).await.expect("no place at the relay");
    (relay, node, circuit)
}

async fn relayed_dialer() -> Node {
    let config = NodeConfig { hole_punch_timeout: Duration::ZERO, ..NodeConfig::default() };
    Node::start(Keypair::generate_ed25519(), config).await.unwrap()
}

fn metric(relay: &Node, name: &str) -> f64 {
    value_in(&relay.metrics(), name)
}

fn value_in(metrics: &str, name: &str) -> f64 {
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().unwrap())
}

/// The node's task counts circuits, and each stream its own bytes: neither waits for the other.
async fn until_is(relay: &Node, name: &str, value: f64) {
    until_metrics(relay, &format!("{name} {value}"), |metrics| value_in(metrics, name) == value).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_and_seconds_of_a_circuit_are_counted() {
    let (relay, node, circuit) = relayed(RelayLimits::default()).await;
    let dialer = relayed_dialer().await;
    dialer.dial(circuit).await.unwrap();
    echoes_bulk(&dialer, &node, BULK_BYTES).await;
    // Both ends know which relay it is.
    for (end, other) in [(&dialer, &node), (&node, &dialer)] {
        let path = end.path(other.peer_id()).await.unwrap();
        assert_eq!(path, Some(Path::Relayed { relay: Some(relay.peer_id()) }));
    }
    until_is(&relay, "barnraise_relay_circuits", 1.0).await;
    until_is(&relay, "barnraise_relay_circuits_opened_total", 1.0).await;
    for direction in ["to_destination", "from_destination"] {
        let name = format!("barnraise_relay_forwarded_bytes_total{{direction=\"{direction}\"}}");
        let beyond = metric(&relay, &name) - BULK_BYTES as f64;
        assert!((0.0..OVERHEAD_BYTES).contains(&beyond), "{direction}: {beyond} more than was sent");
    }
    assert_eq!(metric(&relay, "barnraise_relay_circuit_bytes_count"), 0.0, "it is still open");
    dialer.shutdown().await;
    until_is(&relay, "barnraise_relay_circuit_bytes_count", 1.0).await;
    let beyond = metric(&relay, "barnraise_relay_circuit_bytes_sum") - 2.0 * BULK_BYTES as f64;
    assert!((0.0..OVERHEAD_BYTES).contains(&beyond), "{beyond} more than was sent");
    until_is(&relay, "barnraise_relay_circuit_seconds_count", 1.0).await;
    assert!(metric(&relay, "barnraise_relay_circuit_seconds_sum") > 0.0);
    until_is(&relay, "barnraise_relay_circuits", 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn why_circuits_end_and_are_refused_is_counted() {
    let circuit_bytes = bytesize::ByteSize::kib(256);
    let limits = RelayLimits { circuit_bytes, circuits: 1, ..RelayLimits::default() };
    let (relay, node, circuit) = relayed(limits).await;
    let (first, second) = (relayed_dialer().await, relayed_dialer().await);
    first.dial(circuit.clone()).await.unwrap();
    assert!(second.dial(circuit).await.is_err(), "one circuit at a time");
    until_is(&relay, "barnraise_relay_circuits_refused_total{reason=\"limit\"}", 1.0).await;
    let mut stream = first.open(node.peer_id(), ECHO).await.unwrap();
    let sent = noise_bytes(BULK_BYTES);
    let all = async {
        stream.write_all(&sent).await?;
        stream.close().await?;
        stream.read_to_end(&mut Vec::new()).await.map(|n_bytes| n_bytes == sent.len())
    };
    assert!(!matches!(all.await, Ok(true)), "sixteen times the limit came through");
    until_is(&relay, "barnraise_relay_circuits_ended_total{reason=\"bytes\"}", 1.0).await;
}
