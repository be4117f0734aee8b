//! The node's transports and behaviours, put together.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use libp2p::core::muxing::StreamMuxerBox;
use libp2p::identity::Keypair;
use libp2p::metrics::{BandwidthTransport, Metrics, Registry as MetricsRegistry};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{
    Multiaddr, Swarm, Transport as _, autonat, connection_limits, dcutr, identify, memory_connection_limits,
    ping, relay, upnp,
};
use tokio_util::task::TaskTracker;

use super::circuits::Circuits;
use super::config::RelayLimits;
use super::guard::{self, Guard};
use super::patience::Patient;
use super::reserved::ReservedPeers;
use super::routing::{self, Kademlia};
use super::within::Within;
use super::{NodeCertificates, NodeConfig, NodeError, Reach, address_limit, dial_back, transport};
use crate::memory;
use crate::streams::{self, Registry};
use crate::usage::{MeteredMuxer, Usage};

/// Our protocol version in identify; peers of another major version do not understand our streams.
const PROTOCOL_VERSION: &str = "/barnraise/1";
/// A connection that is closed has so long to say so to the other side.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(NetworkBehaviour)]
pub(super) struct NodeBehaviour {
    // First, so that a denied connection reaches no other behaviour.
    limits: connection_limits::Behaviour,
    address_limit: address_limit::AddressLimitBehaviour,
    guard: guard::GuardBehaviour,
    memory_limit: memory_connection_limits::Behaviour,
    pub(super) identify: identify::Behaviour,
    ping: ping::Behaviour,
    pub(super) streams: streams::StreamBehaviour,
    reachability: Toggle<autonat::v2::client::Behaviour>,
    reachability_service: Toggle<dial_back::DialBackBehaviour>,
    relay_client: relay::client::Behaviour,
    relay_service: Toggle<relay::Behaviour>,
    hole_punching: Within<dcutr::Behaviour>,
    upnp: Toggle<upnp::tokio::Behaviour>,
    pub(super) routing: Toggle<Within<Kademlia>>,
}

pub(super) type NodeSwarmEvent = SwarmEvent<NodeBehaviourEvent>;

/// A swarm that is not polled yet, with its metrics and task tracker.
pub(super) struct NodeNetwork {
    pub(super) swarm: Swarm<NodeBehaviour>,
    /// End with the WebTransport listener.
    pub(super) quic_tasks: TaskTracker,
    /// Counts the swarm's events.
    pub(super) metrics: Metrics,
    /// The circuits by the address that asked for them.
    pub(super) circuits: Circuits,
    /// The peers that are reached through this one, by their addresses.
    pub(super) reserved: ReservedPeers,
    /// Meters relayed circuits.
    pub(super) usage: Option<Arc<Usage>>,
}

pub(super) fn build(
    keypair: &Keypair,
    config: &NodeConfig,
    certificates: Option<NodeCertificates>,
    registry: Registry,
    guard: &Guard,
    reach: &Reach,
    metrics_registry: &mut MetricsRegistry,
) -> Result<NodeNetwork, NodeError> {
    let peer_id = keypair.public().to_peer_id();
    let (circuits, relay_client) = relay::client::new(peer_id);
    let (transport, quic_tasks) = transport::build(keypair, config, certificates, circuits, guard.metrics())?;
    let n_circuits = config.relay_service.as_ref().map_or(0, |limits| limits.circuits);
    let circuits = Circuits::new(n_circuits, guard.metrics().clone());
    let (n_reserved, duration) = config
        .relay_service
        .as_ref()
        .map_or((0, Duration::ZERO), |limits| (limits.reservations, limits.reservation_duration));
    let reserved = ReservedPeers::new(n_reserved, duration, guard.metrics().clone());
    let usage = config.relay_service.as_ref().map(|_| Usage::new(metrics_registry));
    let (meter, metrics) = (usage.clone(), guard.metrics().clone());
    let transport = BandwidthTransport::new(transport, metrics_registry)
        .map(move |(peer, connection), _| {
            let connection = Patient::new(connection, CLOSE_TIMEOUT, metrics);
            match meter {
                Some(usage) => (peer, StreamMuxerBox::new(MeteredMuxer::new(connection, usage))),
                None => (peer, StreamMuxerBox::new(connection)),
            }
        })
        .boxed();
    let behaviour = NodeBehaviour {
        limits: connection_limits::Behaviour::new(limits(config)),
        address_limit: address_limit::AddressLimitBehaviour::new(
            config.limits.connections_per_address,
            config.limits.connections_per_address_and_minute,
        ),
        guard: guard::GuardBehaviour::new(guard.clone()),
        memory_limit: memory_limit(config),
        identify: identify::Behaviour::new(identify(keypair)),
        ping: ping::Behaviour::default(),
        streams: streams::StreamBehaviour::new(registry),
        // A node that does not listen has no address to test.
        reachability: (!config.listen.is_empty()).then(autonat::v2::client::Behaviour::default).into(),
        reachability_service: config
            .dials_back
            .then(|| dial_back::DialBackBehaviour::new(reach.clone(), guard.metrics().clone()))
            .into(),
        relay_client,
        relay_service: config
            .relay_service
            .as_ref()
            .map(|limits| relay::Behaviour::new(peer_id, relay_config(limits, &circuits, &reserved)))
            .into(),
        hole_punching: Within::new(dcutr::Behaviour::new(peer_id), reach.clone(), guard.metrics().clone()),
        upnp: asks_gateway(config).then(upnp::tokio::Behaviour::default).into(),
        routing: config
            .routing
            .map(|routing| {
                Within::new(routing::behaviour(peer_id, routing), reach.clone(), guard.metrics().clone())
            })
            .into(),
    };
    let swarm_config =
        libp2p::swarm::Config::with_tokio_executor().with_idle_connection_timeout(config.idle_timeout);
    let mut swarm = Swarm::new(transport, behaviour, peer_id, swarm_config);
    for address in &config.announce {
        swarm.add_external_address(address.clone());
    }
    let metrics = Metrics::new(metrics_registry);
    Ok(NodeNetwork { swarm, quic_tasks, metrics, circuits, reserved, usage })
}

fn identify(keypair: &Keypair) -> identify::Config {
    identify::Config::new(PROTOCOL_VERSION.to_owned(), keypair.public())
        .with_agent_version(concat!("barnraise/", env!("CARGO_PKG_VERSION")).to_owned())
        .with_push_listen_addr_updates(true)
        // What peers say of themselves is dialled where `routing` looked at it, and nowhere else.
        .with_cache_size(0)
}

/// Dials under way.
const PENDING_DIALS_MAX: u32 = 64;

fn limits(config: &NodeConfig) -> connection_limits::ConnectionLimits {
    connection_limits::ConnectionLimits::default()
        .with_max_established(Some(config.limits.connections))
        .with_max_established_per_peer(Some(config.limits.connections_per_peer))
        .with_max_pending_outgoing(Some(PENDING_DIALS_MAX))
}

/// Without a number four fifths of what the machine has, or the group that the process is in.
fn memory_limit(config: &NodeConfig) -> memory_connection_limits::Behaviour {
    const SHARE: f64 = 0.8;
    let of_group = || memory::of_group().map(|n_bytes| n_bytes / 5 * 4);
    let limit = config.limits.memory.map(|bytes| bytes.as_u64()).or_else(of_group);
    match limit {
        Some(n_bytes) => memory_connection_limits::Behaviour::with_max_bytes(
            usize::try_from(n_bytes).unwrap_or(usize::MAX),
        ),
        None => memory_connection_limits::Behaviour::with_max_percentage(SHARE),
    }
}

/// Only this machine reaches a loopback address, with or without a gateway's port mapping.
fn asks_gateway(config: &NodeConfig) -> bool {
    config.upnp && !config.listen.iter().all(is_loopback)
}

/// Whether only this machine reaches the address.
pub(super) fn is_loopback(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_loopback(),
        Some(Protocol::Ip6(ip)) => ip.is_loopback(),
        _ => true,
    }
}

/// Connections of one peer that may have a reservation. libp2p counts those before the new one.
const RESERVATIONS_PER_PEER: usize = 3;

fn relay_config(limits: &RelayLimits, circuits: &Circuits, reserved: &ReservedPeers) -> relay::Config {
    let per_minute = NonZeroU32::new(limits.circuits_per_address_and_minute).unwrap_or(NonZeroU32::MIN);
    let config = relay::Config {
        // The limit is one of peers.
        max_reservations: limits.reservations.saturating_mul(RESERVATIONS_PER_PEER),
        max_reservations_per_peer: RESERVATIONS_PER_PEER - 1,
        reservation_duration: limits.reservation_duration,
        reservation_rate_limiters: Vec::new(),
        max_circuits: limits.circuits,
        max_circuits_per_peer: limits.circuits_per_peer,
        // The wire has 32 bits for the seconds.
        max_circuit_duration: limits.circuit_duration.min(Duration::from_secs(u32::MAX.into())),
        max_circuit_bytes: limits.circuit_bytes.as_u64(),
        circuit_src_rate_limiters: Vec::new(),
    };
    // One more each time; as many as fit into a minute may come at once.
    let every = Duration::from_secs(60) / per_minute.get();
    let mut config = config.circuit_src_per_ip(per_minute, every).reservation_rate_per_ip(per_minute, every);
    // Last, because what it grants is granted: the other limiters have agreed by then.
    config.circuit_src_rate_limiters.push(Box::new(circuits.clone()));
    config.reservation_rate_limiters.push(Box::new(reserved.clone()));
    config
}
