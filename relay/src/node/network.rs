//! The node's transports and behaviours, put together.

use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::Boxed;
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::swarm::NetworkBehaviour;
use libp2p::{PeerId, Swarm, Transport as _, connection_limits, dns, identify, noise, ping, tcp, yamux};
use tokio_util::task::TaskTracker;

use super::{NodeConfig, NodeError};
use crate::admission::Admission;
use crate::certificates::Certificates;
use crate::streams::{self, Registry};
use crate::webtransport;

/// What identify tells of us; peers of another major version would not understand our streams.
const PROTOCOL_VERSION: &str = "/barnraise/1";

/// Bytes of one stream over TCP that are received and not read yet: 10 MB/s at a round trip of 50 ms.
const TCP_STREAM_WINDOW_BYTES: u32 = 512 * 1024;

#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    // First: what it denies should reach no other.
    limits: connection_limits::Behaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    pub(super) streams: streams::Behaviour,
}

pub(super) fn build(
    keypair: &Keypair,
    config: &NodeConfig,
    certificates: Option<Certificates>,
    registry: Registry,
) -> Result<(Swarm<Behaviour>, TaskTracker), NodeError> {
    let (transport, quic_tasks) = transport(keypair, config, certificates)?;
    let limits = connection_limits::ConnectionLimits::default()
        .with_max_established(Some(config.limits.connections))
        .with_max_established_per_peer(Some(config.limits.connections_per_peer))
        .with_max_pending_outgoing(Some(config.limits.pending_dials));
    let identify = identify::Config::new(PROTOCOL_VERSION.to_owned(), keypair.public())
        .with_agent_version(concat!("barnraise/", env!("CARGO_PKG_VERSION")).to_owned());
    let behaviour = Behaviour {
        limits: connection_limits::Behaviour::new(limits),
        identify: identify::Behaviour::new(identify),
        ping: ping::Behaviour::default(),
        streams: streams::Behaviour::new(registry),
    };
    let swarm_config =
        libp2p::swarm::Config::with_tokio_executor().with_idle_connection_timeout(config.idle_timeout);
    let swarm = Swarm::new(transport, behaviour, keypair.public().to_peer_id(), swarm_config);
    Ok((swarm, quic_tasks))
}

fn transport(
    keypair: &Keypair,
    config: &NodeConfig,
    certificates: Option<Certificates>,
) -> Result<(Boxed<(PeerId, StreamMuxerBox)>, TaskTracker), NodeError> {
    let tcp = tcp_transport(keypair, config)?;
    let Some(certificates) = certificates else { return Ok((tcp.boxed(), TaskTracker::new())) };
    let webtransport =
        webtransport::Transport::new(keypair.clone(), certificates, config.webtransport.clone());
    let tasks = webtransport.tasks();
    let webtransport = webtransport.map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)));
    Ok((webtransport.or_transport(tcp).map(|either, _| either.into_inner()).boxed(), tasks))
}

fn tcp_transport(
    keypair: &Keypair,
    config: &NodeConfig,
) -> Result<Admission<(PeerId, StreamMuxerBox)>, NodeError> {
    let tcp = || tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
    let resolved = match dns::tokio::Transport::system(tcp()) {
        Ok(resolved) => resolved,
        Err(error) => {
            tracing::warn!(%error, "no DNS configuration on this machine: only addresses can be dialled");
            dns::tokio::Transport::custom(tcp(), dns::ResolverConfig::new(), dns::ResolverOpts::default())
        }
    };
    let muxer = muxer(config.limits.streams_per_tcp_connection);
    let noise = noise::Config::new(keypair).map_err(|source| NodeError::Noise(source.to_string()))?;
    let secured = resolved
        .upgrade(Version::V1Lazy)
        .authenticate(noise)
        .multiplex(muxer)
        .map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)))
        .boxed();
    let limits = &config.limits;
    Ok(Admission::new(secured, limits.pending_tcp_handshakes, limits.handshake_timeout))
}

/// Fixed windows: without them one TCP connection may fill a gigabyte.
#[expect(deprecated, reason = "what libp2p advises instead bounds neither streams nor windows")]
fn muxer(n_streams_max: usize) -> yamux::Config {
    let mut muxer = yamux::Config::default();
    muxer.set_max_num_streams(n_streams_max).set_receive_window_size(TCP_STREAM_WINDOW_BYTES);
    muxer
}
