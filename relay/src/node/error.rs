//! Errors of a node.

use libp2p::{Multiaddr, PeerId};

use crate::certificates::CertificateError;
use crate::streams::OpenError;
use crate::webrtc::WebRtcCertificateError;

/// Why a node could not do something.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// The address of the configuration.
        address: Multiaddr,
        /// What the transport said.
        reason: String,
    },
    /// The certificates cannot be read or made.
    #[error(transparent)]
    Certificates(#[from] CertificateError),
    /// The certificate of WebRTC cannot be read or made.
    #[error(transparent)]
    WebRtc(#[from] WebRtcCertificateError),
    /// The key pair cannot be used for Noise.
    #[error("the key pair cannot be used for Noise: {0}")]
    Noise(String),
    /// The key pair cannot be used for TLS.
    #[error("the key pair cannot be used for TLS: {0}")]
    Tls(String),
    /// An address to dial without a peer id.
    #[error("want an address that ends with /p2p/<peer id>, got {address}")]
    NoPeerId {
        /// The address.
        address: Multiaddr,
    },
    /// The peer cannot be reached.
    #[error("cannot dial {address}: {reason}")]
    Dial {
        /// The address.
        address: Multiaddr,
        /// What the transport said.
        reason: String,
    },
    /// A stream cannot be opened.
    #[error("cannot open a stream of {protocol} to {peer}: {source}")]
    Open {
        /// The remote peer.
        peer: PeerId,
        /// The protocol.
        protocol: &'static str,
        /// Why.
        source: OpenError,
    },
    /// Protocol names begin with a slash.
    #[error("want a protocol name that begins with '/', got {name:?}")]
    ProtocolName {
        /// The name.
        name: &'static str,
    },
    /// Two want to accept the same protocol.
    #[error("streams of {protocol} are being accepted already")]
    AlreadyAccepted {
        /// The protocol.
        protocol: &'static str,
    },
    /// The node was shut down.
    #[error("the node has stopped")]
    Stopped,
}
