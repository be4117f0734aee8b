//! What a node is told at its start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use libp2p::Multiaddr;

use crate::certificates::Clock;
use crate::webtransport::WebTransportConfig;

/// How a node listens and what it allows.
#[derive(Clone)]
pub struct NodeConfig {
    /// Addresses to listen on, TCP or WebTransport; `/tcp/0` and `/udp/0` take a free port. Default none.
    pub listen: Vec<Multiaddr>,
    /// Where the WebTransport certificates are kept; `None` is a node without WebTransport.
    pub certificates_dir: Option<PathBuf>,
    /// What tells the time for the certificates. Default the system's clock.
    pub clock: Clock,
    /// Connections and handshakes.
    pub limits: NodeLimits,
    /// The WebTransport listener.
    pub webtransport: WebTransportConfig,
    /// A connection without streams is closed after this. Default 60 s.
    pub idle_timeout: Duration,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            certificates_dir: None,
            clock: Arc::new(SystemTime::now),
            limits: NodeLimits::default(),
            webtransport: WebTransportConfig::default(),
            idle_timeout: Duration::from_secs(60),
        }
    }
}

/// How many connections a node has at most.
#[derive(Clone, Debug)]
pub struct NodeLimits {
    /// Connections in all, inbound and outbound. Default 1024.
    pub connections: u32,
    /// Connections with one peer. Default 8.
    pub connections_per_peer: u32,
    /// Dials under way. Default 64.
    pub pending_dials: u32,
    /// Inbound TCP handshakes under way; one more ends the oldest. WebTransport has its own bound,
    /// [`WebTransportConfig::max_pending_handshakes`]. Default 256.
    pub pending_tcp_handshakes: usize,
    /// A dial or an inbound TCP handshake ends after this. Default 10 s.
    pub handshake_timeout: Duration,
    /// Streams in both directions of one TCP connection, each with at most 512 KiB received and not read;
    /// one more ends the connection. WebTransport has its own bound,
    /// [`WebTransportConfig::max_streams_per_connection`]. Default 128.
    pub streams_per_tcp_connection: usize,
}

impl Default for NodeLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_peer: 8,
            pending_dials: 64,
            pending_tcp_handshakes: 256,
            handshake_timeout: Duration::from_secs(10),
            streams_per_tcp_connection: 128,
        }
    }
}
