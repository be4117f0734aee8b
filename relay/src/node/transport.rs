//! The transports, one on top of the other: the first that knows an address takes it.

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::Boxed;
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::{PeerId, Transport as _, dns, noise, quic, relay, websocket};
use tokio_util::task::TaskTracker;

use super::buffered::Buffered;
use super::forwarded::Forwarded;
use super::muxer::Muxing;
use super::tcp_port::AnyPort;
use super::{NodeCertificates, NodeConfig, NodeError};
use crate::admission::Admission;
use crate::guard_metrics::GuardMetrics;
use crate::proxies::TrustedProxies;
use crate::tls::Security;
use crate::{webrtc, webtransport};

/// Bytes that are received and not read yet of one stream of QUIC: 10 MB/s at a round trip of 50 ms.
const STREAM_WINDOW_BYTES: u32 = 512 * 1024;
/// Bytes that are received and not read yet of one QUIC connection.
const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;

/// Largest message of a WebSocket: it is read whole before the peer is authenticated. Noise puts some 200 KB into one.
const WEBSOCKET_BYTES_MAX: usize = 1024 * 1024;

type Connected = (PeerId, StreamMuxerBox);
type Resolving = dns::tokio::Transport<Forwarded<AnyPort>>;

/// All transports but the one of the metrics, and the tasks that end with the WebTransport listener.
pub(super) fn build(
    keypair: &Keypair,
    config: &NodeConfig,
    certificates: Option<NodeCertificates>,
    circuits: relay::client::Transport,
    metrics: &GuardMetrics,
) -> Result<(Boxed<Connected>, TaskTracker), NodeError> {
    let noise = noise::Config::new(keypair).map_err(|source| NodeError::Noise(source.to_string()))?;
    let tcp = Security::tls_or_noise(keypair, noise.clone())
        .map_err(|source| NodeError::Tls(source.to_string()))?;
    let noise = Security::noise(noise);
    let muxing = Muxing::new(config.limits.streams_per_connection, metrics.clone());
    let circuits = secure(circuits, &noise, &muxing);
    let websocket = websocket(config, metrics);
    let websocket = secure(websocket, &noise, &muxing);
    let direct = admitted(direct(keypair, websocket, &tcp, &muxing, config), config, metrics);
    let transport = circuits.or_transport(direct).map(|either, _| either.into_inner()).boxed();
    let Some(certificates) = certificates else { return Ok((transport, TaskTracker::new())) };
    let transport = match certificates.webrtc {
        Some(certificate) => {
            let webrtc = webrtc::transport(keypair, certificate, config.limits.streams_per_connection);
            // Its own bound: a flood of WebRTC handshakes takes no slot of the other transports.
            admitted(webrtc, config, metrics)
                .or_transport(transport)
                .map(|either, _| either.into_inner())
                .boxed()
        }
        None => transport,
    };
    let webtransport =
        webtransport::Transport::new(keypair.clone(), certificates.webtransport, config.webtransport.clone())
            .counted_by(metrics.clone());
    let tasks = webtransport.tasks();
    let webtransport = webtransport.map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)));
    Ok((webtransport.or_transport(transport).map(|either, _| either.into_inner()).boxed(), tasks))
}

fn admitted(
    transport: Boxed<Connected>,
    config: &NodeConfig,
    metrics: &GuardMetrics,
) -> Admission<Connected> {
    let limits = &config.limits;
    Admission::new(transport, limits.pending_handshakes, limits.handshake_timeout, metrics.clone())
}

/// WebSocket, QUIC and TCP, by address or by name.
fn direct(
    keypair: &Keypair,
    websocket: Boxed<Connected>,
    tcp: &Security,
    muxing: &Muxing,
    config: &NodeConfig,
) -> Boxed<Connected> {
    let by_address = || {
        let quic = quic::tokio::Transport::new(quic_config(keypair, config))
            .map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)));
        let tcp = secure(AnyPort::new().map(|socket, _| Buffered::new(socket)), tcp, muxing);
        quic.or_transport(tcp).map(|either, _| either.into_inner()).boxed()
    };
    // A name may lead to anything, so what resolves names comes last.
    websocket.or_transport(resolving(by_address)).map(|either, _| either.into_inner()).boxed()
}

/// WebSockets, each under the address of its visitor, where a proxy that is trusted passes it on.
fn websocket(config: &NodeConfig, metrics: &GuardMetrics) -> websocket::Config<Resolving> {
    let (proxies, timeout) = (&config.trusted_proxies, config.limits.handshake_timeout);
    let socket = || Forwarded::new(AnyPort::new(), TrustedProxies::new(proxies), timeout, metrics.clone());
    let mut websocket = websocket::Config::new(resolving(socket));
    websocket.set_max_data_size(WEBSOCKET_BYTES_MAX);
    websocket
}

fn quic_config(keypair: &Keypair, config: &NodeConfig) -> quic::Config {
    let mut quic = quic::Config::new(keypair);
    quic.handshake_timeout = config.limits.handshake_timeout;
    quic.max_concurrent_stream_limit =
        u32::try_from(config.limits.streams_per_connection).unwrap_or(u32::MAX);
    quic.max_stream_data = STREAM_WINDOW_BYTES;
    quic.max_connection_data = CONNECTION_WINDOW_BYTES;
    quic
}

/// Looks names up as this machine does.
fn resolving<T>(make: impl Fn() -> T) -> dns::tokio::Transport<T> {
    match dns::tokio::Transport::system(make()) {
        Ok(resolving) => resolving,
        Err(error) => {
            tracing::warn!(%error, "no DNS configuration on this machine: only addresses can be dialled");
            dns::tokio::Transport::custom(make(), dns::ResolverConfig::new(), dns::ResolverOpts::default())
        }
    }
}

/// Encryption and Yamux on a transport that has neither.
fn secure<T, C>(socket: T, security: &Security, muxing: &Muxing) -> Boxed<Connected>
where
    T: libp2p::Transport<Output = C> + Send + Unpin + 'static,
    T::Error: Send + Sync + 'static,
    T::Dial: Send,
    T::ListenerUpgrade: Send,
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    socket
        .upgrade(Version::V1Lazy)
        .authenticate(security.clone())
        .multiplex(muxing.clone())
        .map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)))
        .boxed()
}
