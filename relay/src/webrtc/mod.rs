//! WebRTC-direct: the transport for browsers where WebTransport does not get through.
//!
//! libp2p's specification on the `webrtc` crate, with a certificate that survives a restart and bounds on streams.
//! Connections end when the remote has closed them or is silent for too long, and failed handshakes leave no tasks
//! behind. A front before its socket lets it understand what today's browsers say first. Dialling is for
//! tests and measurements: natively there are better ways.

mod certificate;
mod connection;
mod front;
mod greeting;
mod listener;
mod mux;
mod runtimes;
mod stream;
mod transport;
mod upgrade;

use std::path::Path;
use std::time::Duration;

use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::Boxed;
use libp2p::identity::Keypair;
use libp2p::{PeerId, Transport as _};

pub(crate) use self::certificate::Certificate;
pub use self::certificate::WebRtcCertificateError;
use self::connection::ConnectionLimits;
use self::transport::WebRtcTransport;

/// A connection ends after this long without a byte on any of its streams. Both sides ping every 15 s; a tab
/// answers between two batches.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// What a listener is known by.
pub(crate) fn certificate(directory: &Path) -> Result<Certificate, WebRtcCertificateError> {
    certificate::load_or_create(directory)
}

/// The transport on `/ip4|ip6/…/udp/…/webrtc-direct`, with at most `n_streams_max` streams at once.
///
/// Of what a connection receives and nobody reads, SCTP keeps 1 MiB over all its streams; of what is written
/// and not sent yet, 128 KiB.
pub(crate) fn transport(
    keypair: &Keypair,
    certificate: Certificate,
    n_streams_max: usize,
) -> Boxed<(PeerId, StreamMuxerBox)> {
    let limits = ConnectionLimits { n_streams_max, silence_max: SILENCE_MAX };
    WebRtcTransport::new(keypair.clone(), certificate, limits)
        .map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)))
        .boxed()
}
