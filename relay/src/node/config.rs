//! Configuration of a node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use libp2p::Multiaddr;
use serde::{Deserialize, Serialize};

use super::routing::Routing;
use crate::certificates::SystemClock;
use crate::config_file::Invalid;
use crate::proxies::IpNetwork;
use crate::webtransport::WebTransportConfig;

/// Larger limits are taken for a mistake.
const LIMIT_MAX: u32 = 1_000_000;

/// How a node listens and what it allows.
#[derive(Clone)]
pub struct NodeConfig {
    /// Addresses to listen on: TCP, WebSocket, QUIC, WebRTC-direct or WebTransport; `/tcp/0` and `/udp/0` take
    /// a free port. Default none.
    pub listen: Vec<Multiaddr>,
    /// Addresses announced in addition to the discovered ones: a DNS name, or a port that
    /// a router or a proxy forwards. Default none.
    pub announce: Vec<Multiaddr>,
    /// Where the certificates of WebTransport and WebRTC are kept; `None` is a node without both.
    pub certificates_dir: Option<PathBuf>,
    /// Clock for the certificates. Default the system's clock.
    pub clock: SystemClock,
    /// Connections and handshakes.
    pub limits: NodeLimits,
    /// Proxies that pass WebSockets on, whose `X-Forwarded-For` is believed. Default none.
    pub trusted_proxies: Vec<IpNetwork>,
    /// The WebTransport listener.
    pub webtransport: WebTransportConfig,
    /// A connection without streams is closed after this. Default 60 s.
    pub idle_timeout: Duration,
    /// Relays to be reached through while no peer can dial the node itself, each with its `/p2p/…`.
    /// Default none.
    pub relays: Vec<Multiaddr>,
    /// Whether to ask the gateway to pass ports on (UPnP). Default no.
    pub upnp: bool,
    /// Whether to carry streams between others, and how much. Default no.
    pub relay_service: Option<RelayLimits>,
    /// How long a dial through a relay waits for a direct connection to come of it before it goes on through
    /// the relay. Default 10 s.
    pub hole_punch_timeout: Duration,
    /// Whether to dial others back who ask whether they can be dialled (AutoNAT v2). Default yes.
    pub dials_back: bool,
    /// Part in the routing of the DHT (Kademlia). Default none.
    pub routing: Option<Routing>,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            announce: Vec::new(),
            certificates_dir: None,
            clock: Arc::new(SystemTime::now),
            limits: NodeLimits::default(),
            trusted_proxies: Vec::new(),
            webtransport: WebTransportConfig::default(),
            idle_timeout: Duration::from_secs(60),
            relays: Vec::new(),
            upnp: false,
            relay_service: None,
            hole_punch_timeout: Duration::from_secs(10),
            dials_back: true,
            routing: None,
        }
    }
}

/// Limits of connections, handshakes and streams of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeLimits {
    /// Connections in all, inbound and outbound. Default 1024.
    pub connections: u32,
    /// Connections with one peer. Default 8.
    pub connections_per_peer: u32,
    /// Inbound connections from one address, or from one /64 of IPv6: as many as may stand behind one
    /// router. Default 256.
    pub connections_per_address: u32,
    /// Inbound connections that one such address may begin in a minute, as many as that at once. Default
    /// 3000: a handshake takes about a millisecond, so one address takes a twentieth of a processor at most.
    pub connections_per_address_and_minute: u32,
    /// Inbound handshakes under way, those of WebRTC counted apart; one more ends the oldest. WebTransport has
    /// its own bound, [`WebTransportConfig::max_pending_handshakes`]. Default 256.
    pub pending_handshakes: usize,
    /// A dial or an inbound handshake ends after this. Default 10 s.
    #[serde(with = "humantime_serde")]
    pub handshake_timeout: Duration,
    /// Streams in both directions of one connection; one more ends the connection, waits on QUIC, or is reset
    /// on WebRTC. WebTransport has its own bound, [`WebTransportConfig::max_streams_per_connection`]. All
    /// streams of a connection together have at most 8 MiB received and not read. Default 128.
    pub streams_per_connection: usize,
    /// Messages of one peer in a minute that no honest peer sends: too long, no message, forged. One more, and
    /// it is disconnected and blocked. Default 60.
    pub bad_messages_per_peer_and_minute: u32,
    /// How long a peer is blocked for that. Default 1 min.
    #[serde(with = "humantime_serde")]
    pub block_duration: Duration,
    /// No further connection is taken while the process holds more memory than this; what a connection that
    /// stands may hold is bounded by itself. Default four fifths of what the machine has, or its container.
    pub memory: Option<ByteSize>,
}

impl Default for NodeLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_peer: 8,
            connections_per_address: 256,
            connections_per_address_and_minute: 3000,
            pending_handshakes: 256,
            handshake_timeout: Duration::from_secs(10),
            streams_per_connection: 128,
            bad_messages_per_peer_and_minute: 60,
            block_duration: Duration::from_secs(60),
            memory: None,
        }
    }
}

impl NodeLimits {
    /// Checks every value that its type does not; keys are those of the section `[limits]`.
    ///
    /// # Errors
    /// The first that cannot work.
    pub fn validate(&self) -> Result<(), Invalid> {
        let seconds = Duration::from_secs;
        for (key, got) in [
            ("limits.connections", self.connections),
            ("limits.connections_per_peer", self.connections_per_peer),
            ("limits.connections_per_address", self.connections_per_address),
            ("limits.connections_per_address_and_minute", self.connections_per_address_and_minute),
            ("limits.bad_messages_per_peer_and_minute", self.bad_messages_per_peer_and_minute),
        ] {
            Invalid::check_range(key, got, 1..=LIMIT_MAX)?;
        }
        let (handshakes, streams) = (self.pending_handshakes, self.streams_per_connection);
        Invalid::check_range("limits.pending_handshakes", handshakes, 1..=LIMIT_MAX as usize)?;
        Invalid::check_range("limits.streams_per_connection", streams, 8..=LIMIT_MAX as usize)?;
        let timeout = Duration::from_millis(100)..=seconds(300);
        Invalid::check_duration("limits.handshake_timeout", self.handshake_timeout, timeout)?;
        Invalid::check_duration("limits.block_duration", self.block_duration, seconds(1)..=seconds(24 * 3600))
    }
}

/// Limits of a relay, for each peer and in all (circuit relay v2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelayLimits {
    /// Peers that are reached through this relay, at most; of one address (a /64 of IPv6) as many as are still free. Default
    /// 1024.
    pub reservations: usize,
    /// How long a reservation lasts unless it is renewed. Default 1 h.
    #[serde(with = "humantime_serde")]
    pub reservation_duration: Duration,
    /// Relayed connections at the same time; one address (a /64 of IPv6) may have at
    /// most as many as are still free. Default 256.
    pub circuits: usize,
    /// Of which to or from one peer. Default 16.
    pub circuits_per_peer: usize,
    /// Connections that one address may ask for in a minute. Default 60.
    pub circuits_per_address_and_minute: u32,
    /// How long one connection is relayed. Default 1 h.
    #[serde(with = "humantime_serde")]
    pub circuit_duration: Duration,
    /// Bytes relayed for one connection, both directions together. Default 1 GiB.
    pub circuit_bytes: ByteSize,
}

impl Default for RelayLimits {
    fn default() -> Self {
        Self {
            reservations: 1024,
            reservation_duration: Duration::from_secs(3600),
            circuits: 256,
            circuits_per_peer: 16,
            circuits_per_address_and_minute: 60,
            circuit_duration: Duration::from_secs(3600),
            circuit_bytes: ByteSize::gib(1),
        }
    }
}
