//! Why a listener or a handshake failed.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::handshake::HandshakeError;

/// Why a listener or a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The UDP socket cannot be opened.
    #[error("cannot listen on UDP {address}: {source}")]
    Bind {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The interfaces of the machine cannot be watched.
    #[error("cannot watch the network interfaces: {0}")]
    Interfaces(io::Error),
    /// The endpoint's task ended: the socket failed.
    #[error("the UDP socket of the listener failed")]
    EndpointLost,
    /// TLS refuses its configuration.
    #[error("TLS configuration: {0}")]
    Tls(#[from] rustls::Error),
    /// TLS lacks the cipher suite that QUIC begins with.
    #[error("TLS lacks TLS13_AES_128_GCM_SHA256, which QUIC begins with")]
    NoInitialCipherSuite,
    /// The idle timeout does not fit QUIC's 62 bits of milliseconds.
    #[error("an idle timeout of {0:?} does not fit QUIC")]
    IdleTimeout(Duration),
    /// A client did not become a peer.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}
