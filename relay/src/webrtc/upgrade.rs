//! From a client's greeting, or a listener's address, to a peer: ICE, DTLS, SCTP, Noise.
//!
//! Neither side hears a description of the session from the other (libp2p/specs, `webrtc/webrtc-direct.md`): the
//! listener makes the client's up from its greeting, the client the listener's from its address. DTLS attests
//! nobody; the fingerprints of both certificates go into the Noise handshake.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libp2p::PeerId;
use libp2p::identity::Keypair;
use libp2p_webrtc_utils::{Fingerprint, noise, sdp};
use webrtc::api::APIBuilder;
use webrtc::api::setting_engine::SettingEngine;
use webrtc::data::data_channel::DataChannel;
use webrtc::data_channel::data_channel_init::RTCDataChannelInit;
use webrtc::dtls_transport::dtls_role::DTLSRole;
use webrtc::ice::network_type::NetworkType;
use webrtc::ice::udp_network::UDPNetwork;
use webrtc::peer_connection::RTCPeerConnection;
use webrtc::peer_connection::configuration::RTCConfiguration;
use webrtc::peer_connection::sdp::session_description::RTCSessionDescription;
use webrtc::util::Conn;

use super::certificate::Certificate;
use super::connection::{ConnectionError, ConnectionLimits, WebRtcConnection, opened};
use super::mux::{Greeted, SingleConn, bind};
use super::runtimes::Tasks;

/// The channel of the handshake, which both sides know of beforehand.
const HANDSHAKE_CHANNEL: u16 = 0;
/// What the listener takes for the client's description. Its fingerprint is not looked at.
const OFFER: &str = "v=0
o=- 0 0 IN {ip_version} {target_ip}
s=-
c=IN {ip_version} {target_ip}
t=0 0

m=application {target_port} UDP/DTLS/SCTP webrtc-datachannel
a=mid:0
a=ice-options:ice2
a=ice-ufrag:{ufrag}
a=ice-pwd:{pwd}
a=fingerprint:{fingerprint_algorithm} {fingerprint_value}
a=setup:actpass
a=sctp-port:5000
a=max-message-size:16384
";

/// Why a client or a listener did not become a peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpgradeError {
    /// ICE, DTLS or SCTP failed.
    #[error(transparent)]
    WebRtc(#[from] webrtc::Error),
    /// It was lost meanwhile.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The remote could not prove its peer id.
    #[error("Noise handshake: {0}")]
    Noise(#[from] noise::Error),
    /// No socket of the system.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// The connection went before the channel was there.
    #[error("the data channel of the handshake did not open")]
    NoChannel,
}

/// Key, certificate and limits for a handshake on either side.
pub(super) struct WebRtcUpgrade {
    pub(super) keypair: Keypair,
    pub(super) certificate: Certificate,
    pub(super) limits: ConnectionLimits,
    pub(super) tasks: Arc<Tasks>,
}

impl WebRtcUpgrade {
    /// The listener's side.
    pub(super) async fn inbound(self, client: Greeted) -> Result<(PeerId, WebRtcConnection), UpgradeError> {
        let Greeted { alias, ufrag, link } = client;
        let mut settings = settings(link, &ufrag, alias);
        settings.set_lite(true);
        settings.disable_certificate_fingerprint_verification(true);
        settings.set_answering_dtls_role(DTLSRole::Server)?;
        let peer = self.peer(settings).await?;
        let connection = WebRtcConnection::new(peer, self.limits, Arc::clone(&self.tasks));
        let peer = connection.peer()?;
        let offer = sdp::render_description(OFFER, alias, Fingerprint::FF, &ufrag);
        peer.set_remote_description(RTCSessionDescription::offer(offer)?).await?;
        let answer = peer.create_answer(None).await?;
        peer.set_local_description(answer).await?;
        let channel = handshake_channel(peer).await?;
        let theirs = peer.sctp().transport().get_remote_certificate().await;
        let theirs = Fingerprint::from_certificate(&theirs);
        let ours = self.certificate.fingerprint();
        let stream = connection.handshake(channel);
        Ok((noise::inbound(self.keypair, stream, theirs, ours).await?, connection))
    }

    /// The client's side.
    pub(super) async fn outbound(
        self,
        address: SocketAddr,
        server: Fingerprint,
    ) -> Result<(PeerId, WebRtcConnection), UpgradeError> {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => ([0; 4], 0).into(),
            SocketAddr::V6(_) => ([0; 16], 0).into(),
        };
        let socket = Arc::new(bind(any)?);
        let ufrag = sdp::random_ufrag();
        let peer = self.peer(settings(socket, &ufrag, address)).await?;
        let connection = WebRtcConnection::new(peer, self.limits, Arc::clone(&self.tasks));
        let peer = connection.peer()?;
        let offer = peer.create_offer(None).await?;
        peer.set_local_description(offer).await?;
        let answer = sdp::answer(address, server, &ufrag);
        peer.set_remote_description(RTCSessionDescription::answer(answer)?).await?;
        let channel = handshake_channel(peer).await?;
        let ours = self.certificate.fingerprint();
        let stream = connection.handshake(channel);
        Ok((noise::outbound(self.keypair, stream, server, ours).await?, connection))
    }

    async fn peer(&self, settings: SettingEngine) -> Result<RTCPeerConnection, UpgradeError> {
        let certificates = vec![self.certificate.of_webrtc()];
        let configuration = RTCConfiguration { certificates, ..RTCConfiguration::default() };
        let api = APIBuilder::new().with_setting_engine(settings).build();
        Ok(api.new_peer_connection(configuration).await?)
    }
}

fn settings(link: Arc<dyn Conn + Send + Sync>, ufrag: &str, other: SocketAddr) -> SettingEngine {
    let mut settings = SettingEngine::default();
    settings.set_ice_credentials(ufrag.to_owned(), ufrag.to_owned());
    settings.set_udp_network(UDPNetwork::Muxed(Arc::new(SingleConn(link))));
    settings.detach_data_channels();
    settings.set_network_types(vec![match other {
        SocketAddr::V4(_) => NetworkType::Udp4,
        SocketAddr::V6(_) => NetworkType::Udp6,
    }]);
    // One candidate is enough, since all would be the same socket.
    let is_first = AtomicBool::new(true);
    settings.set_ip_filter(Box::new(move |_| is_first.swap(false, Ordering::Relaxed)));
    settings
}

async fn handshake_channel(peer: &RTCPeerConnection) -> Result<Arc<DataChannel>, UpgradeError> {
    let init = RTCDataChannelInit { negotiated: Some(HANDSHAKE_CHANNEL), ..RTCDataChannelInit::default() };
    let channel = peer.create_data_channel("", Some(init)).await?;
    opened(&channel).await.ok_or(UpgradeError::NoChannel)
}
