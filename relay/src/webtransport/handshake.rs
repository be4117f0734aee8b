//! From a QUIC packet to a peer: TLS, the HTTP/3 session, Noise.
//!
//! Authority and origin of the request are ignored: the network is public, and Noise authenticates the
//! peers.

use std::panic::AssertUnwindSafe;

use futures::{AsyncWriteExt as _, FutureExt as _};
use libp2p::PeerId;
use libp2p::core::upgrade::InboundConnectionUpgrade as _;
use libp2p::identity::Keypair;
use libp2p::noise;
use wtransport::endpoint::{IncomingSessionFuture, SessionRequest};
use wtransport::quinn;

use super::muxer::WebTransportConnection;
use super::stream::WebTransportStream;
use crate::certificates::Certificates;

/// The path that sessions are opened on; its query must have `type=noise`.
pub const WELL_KNOWN_PATH: &str = "/.well-known/libp2p-webtransport";
const QUERY: &str = "type=noise";
/// The name is not negotiated; libp2p's upgrade takes one all the same.
const NOISE: &str = "/noise";

/// Why a client did not become a peer.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// QUIC or TLS failed.
    #[error("QUIC handshake: {0}")]
    Quic(#[from] quinn::ConnectionError),
    /// HTTP/3 or the session failed.
    #[error("WebTransport session: {0}")]
    Session(#[from] wtransport::error::ConnectionError),
    /// The client asked for something else.
    #[error("want a session on {WELL_KNOWN_PATH}?{QUERY}, got {path:?}")]
    Path {
        /// What it asked for, cut where it is long.
        path: String,
    },
    /// The client could not prove its peer id.
    #[error("Noise handshake: {0}")]
    Noise(#[from] noise::Error),
    /// It took too long.
    #[error("no handshake within {0:?}")]
    Timeout(std::time::Duration),
    /// Too many handshakes were under way, this one the longest.
    #[error("gave way to a newer handshake")]
    Evicted,
    /// The HTTP/3 driver broke on something that the client sent.
    #[error("the HTTP/3 driver of the connection failed")]
    Driver,
}

/// Runs the whole handshake.
pub(super) async fn authenticate(
    incoming: quinn::Incoming,
    keypair: Keypair,
    certificates: Certificates,
) -> Result<(PeerId, WebTransportConnection), HandshakeError> {
    let connecting = incoming.accept()?;
    let session = async move {
        let request = IncomingSessionFuture::with_quic_connecting(connecting).await?;
        if !is_for_libp2p(request.path()) {
            return Err(refuse(request).await);
        }
        let session = request.accept().await?;
        let first = session.accept_bi().await?;
        Ok((session, WebTransportStream::new(first)))
    };
    // The driver's own assertions must cost its connection only.
    let (session, stream) =
        AssertUnwindSafe(session).catch_unwind().await.unwrap_or(Err(HandshakeError::Driver))?;
    // From here on an early return closes the connection.
    let mut connection = WebTransportConnection::new(session);
    let noise =
        noise::Config::new(&keypair)?.with_webtransport_certhashes(certificates.hashes_in_handshake());
    let (peer, mut secured) = noise.upgrade_inbound(stream, NOISE).await?;
    // The stream has served its purpose; the client may have left it already.
    let _ = secured.close().await;
    connection.keep(secured);
    Ok((peer, connection))
}

async fn refuse(request: SessionRequest) -> HandshakeError {
    let path = request.path().chars().take(100).collect();
    request.not_found().await;
    HandshakeError::Path { path }
}

fn is_for_libp2p(target: &str) -> bool {
    target.split_once('?').is_some_and(|(path, query)| {
        path == WELL_KNOWN_PATH && query.split('&').any(|parameter| parameter == QUERY)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_well_known_path_with_noise_is_served() {
        assert!(is_for_libp2p("/.well-known/libp2p-webtransport?type=noise"));
        assert!(is_for_libp2p("/.well-known/libp2p-webtransport?a=b&type=noise"));
        for other in [
            "/",
            "/.well-known/libp2p-webtransport",
            "/.well-known/libp2p-webtransport?type=tls",
            "/.well-known/libp2p-webtransport/?type=noise",
            "/x?/.well-known/libp2p-webtransport?type=noise",
        ] {
            assert!(!is_for_libp2p(other), "{other}");
        }
    }
}
