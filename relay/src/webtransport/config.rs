//! The limits of the WebTransport listener, and how they reach QUIC.

use std::sync::Arc;
use std::time::Duration;

use wtransport::quinn;
use wtransport::quinn::crypto::rustls::QuicServerConfig;

use super::error::TransportError;
use crate::certificates::Certificates;

/// Streams that only one side writes on: control, two of QPACK, and what browsers grease with.
const MAX_UNI_STREAMS: u32 = 8;
/// The session's own stream counts among a connection's streams.
const SESSION_STREAMS: u32 = 1;
/// Datagrams are announced since browsers ask for them, and never read.
const DATAGRAM_BUFFER_BYTES: usize = 16 * 1024;

/// Limits of the WebTransport listener. The memory of one connection is at most
/// `connection_receive_window + send_window`.
#[derive(Clone, Debug)]
pub struct WebTransportConfig {
    /// From the first packet to the end of the Noise handshake. Default 10 s.
    pub handshake_timeout: Duration,
    /// Handshakes under way at once, over all addresses; one more ends the oldest. Default 256.
    pub max_pending_handshakes: usize,
    /// Substreams that the remote may have open at once; further ones wait. Default 256.
    pub max_streams_per_connection: u32,
    /// Bytes of one stream that are received and not read yet. Default 1 MiB.
    pub stream_receive_window: u32,
    /// Bytes of all streams that are received and not read yet. Default 4 MiB.
    pub connection_receive_window: u32,
    /// Bytes written and not acknowledged yet, over all streams. Default 4 MiB.
    pub send_window: u64,
    /// A connection ends after this long without a packet. Default 30 s.
    pub idle_timeout: Duration,
    /// A packet is sent after this long without one. Default 10 s.
    pub keep_alive_interval: Duration,
}

impl Default for WebTransportConfig {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            max_pending_handshakes: 256,
            max_streams_per_connection: 256,
            stream_receive_window: 1024 * 1024,
            connection_receive_window: 4 * 1024 * 1024,
            send_window: 4 * 1024 * 1024,
            idle_timeout: Duration::from_secs(30),
            keep_alive_interval: Duration::from_secs(10),
        }
    }
}

impl WebTransportConfig {
    /// QUIC with these limits, serving whichever certificate is current when a connection begins.
    ///
    /// # Errors
    /// Limits or a TLS that QUIC does not take.
    pub fn quic_server(&self, certificates: &Certificates) -> Result<quinn::ServerConfig, TransportError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(certificates.resolver());
        tls.alpn_protocols = vec![wtransport::tls::WEBTRANSPORT_ALPN.to_vec()];
        // A resumed session would skip the certificate, and with it what the hash attests.
        tls.send_tls13_tickets = 0;
        let crypto = QuicServerConfig::try_from(tls).map_err(|_| TransportError::NoInitialCipherSuite)?;
        let mut server = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        server.transport_config(Arc::new(self.quic_transport()?));
        server.max_incoming(self.max_pending_handshakes);
        Ok(server)
    }

    fn quic_transport(&self) -> Result<quinn::TransportConfig, TransportError> {
        let idle_timeout = quinn::IdleTimeout::try_from(self.idle_timeout)
            .map_err(|_| TransportError::IdleTimeout(self.idle_timeout))?;
        let n_streams = self.max_streams_per_connection.saturating_add(SESSION_STREAMS);
        let mut transport = quinn::TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(n_streams.into())
            .max_concurrent_uni_streams(MAX_UNI_STREAMS.into())
            .stream_receive_window(self.stream_receive_window.into())
            .receive_window(self.connection_receive_window.into())
            .send_window(self.send_window)
            .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
            .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES)
            .max_idle_timeout(Some(idle_timeout))
            .keep_alive_interval(Some(self.keep_alive_interval));
        Ok(transport)
    }
}
