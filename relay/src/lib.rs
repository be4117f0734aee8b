//! The network of Barnraise: libp2p transports, the WebTransport listener, streams between peers.
//!
//! A [`Node`] is a peer that listens, dials and opens streams. It carries bytes and knows nothing of what
//! they say: no message of the protocol, no model, no run is known here, and nothing of burn.

mod admission;
pub mod certificates;
mod config_file;
mod crypto;
pub mod dht;
mod environment;
mod files;
mod guard_metrics;
mod identity;
mod logging;
pub mod memory;
mod node;
mod open_files;
mod pending;
mod proxies;
pub mod server;
pub mod signals;
mod source;
mod streams;
pub mod tasks;
mod tls;
pub mod udp;
mod usage;
mod webrtc;
pub mod webtransport;

pub use libp2p;
pub use libp2p::metrics::Registry as MetricsRegistry;

pub use self::config_file::{ConfigFileError, Invalid, Located, TextSpan, parse_config, read_config};
pub use self::crypto::install_crypto_provider;
pub use self::environment::{Environment, EnvironmentError};
pub use self::files::{create_private_directory, create_private_file, write_private};
pub use self::guard_metrics::Violation;
pub use self::identity::{IdentityError, LockedKeypair, load_or_create_keypair, lock_keypair};
pub use self::logging::{LogFormat, log_layer};
pub use self::node::{
    Node, NodeConfig, NodeError, NodeEvent, NodeLimits, Path, Reachability, RelayLimits, Routing,
};
pub use self::open_files::warn_about_open_files;
pub use self::proxies::{IpNetwork, NetworkError, TrustedProxies};
pub use self::streams::{
    INCOMING_STREAMS_MAX, IncomingStreams, OUTGOING_STREAMS_MAX, OpenError, PaceHandle, Paced,
};
pub use self::webrtc::WebRtcCertificateError;
