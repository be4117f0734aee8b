//! A libp2p transport that listens for WebTransport, so that browsers can dial a native node.
//!
//! Follows the libp2p WebTransport specification (libp2p/specs, `webtransport/README.md`): QUIC with a
//! short-lived certificate that addresses name by its hash, an HTTP/3 session on a well-known path, a Noise
//! handshake on its first stream that attests the hashes, and one substream per stream after that.
//! It never dials: natively there are better transports for that.

mod address;
mod config;
mod error;
mod handshake;
mod listener;
mod muxer;
mod runtime;
mod stream;
mod transport;

pub use self::config::WebTransportConfig;
pub use self::error::TransportError;
pub use self::handshake::{HandshakeError, WELL_KNOWN_PATH};
pub use self::muxer::{ConnectionError, WebTransportConnection};
pub use self::stream::WebTransportStream;
pub use self::transport::Transport;
