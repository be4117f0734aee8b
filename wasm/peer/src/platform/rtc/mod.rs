//! WebRTC-direct in the worker: the page owns the connection, the worker owns its streams.
//!
//! Dials as the libp2p WebRTC specification says, whose framing and handshake are `libp2p-webrtc-utils`. It
//! never listens, and never sees an `RTCPeerConnection`: bytes come and go on a `MessagePort`, as
//! [`barnraise_messages::rtc`] says.

mod channel;
mod link;
mod muxer;
mod transport;

use barnraise_messages::rtc::RtcFailure;
pub(super) use transport::RtcTransport;

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum RtcError {
    /// The page could not open it, or lost it.
    #[error(transparent)]
    Connection(#[from] RtcFailure),
    /// The page does not answer, or this is no worker.
    #[error("the page cannot be asked for a WebRTC connection: {0}")]
    Page(String),
    /// A channel could not be opened.
    #[error("no further stream: {0}")]
    Channel(#[source] RtcFailure),
    /// The remote could not prove who it is.
    #[error("Noise handshake: {0}")]
    Noise(String),
    /// The page sent a certificate fingerprint of the wrong length.
    #[error("want the 32 bytes of a fingerprint from the page, got {0}")]
    Fingerprint(usize),
    /// It took too long.
    #[error("no answer")]
    Timeout,
}
