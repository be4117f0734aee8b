//! Clock and network of an averaging, over a libp2p node.

use std::sync::Arc;
use std::time::Instant;

use barnraise_averaging::{OpenError, Platform};
use barnraise_protocol::average::PROTOCOL;
use barnraise_relay::Node;
use barnraise_swarm::bandwidth::Bytes;
use barnraise_swarm::{Moment, PeerKey};
use libp2p::{Multiaddr, PeerId, Stream};

use super::speed::SpeedMeter;

/// Where a peer listens, if it may have to be dialled; or why it is not opened a stream to.
pub(crate) type PeerAddresses = Arc<dyn Fn(PeerId) -> Result<Option<Vec<Vec<u8>>>, OpenError> + Send + Sync>;

/// Clock and network of an averaging over a libp2p node.
#[derive(Clone)]
pub struct NodePlatform {
    node: Node,
    origin: Instant,
    /// Peers that may have to be dialled first.
    addresses: Option<PeerAddresses>,
    speed: Option<SpeedMeter>,
}

impl NodePlatform {
    /// A platform whose clock starts now.
    #[must_use]
    pub fn new(node: Node) -> Self {
        Self { node, origin: Instant::now(), addresses: None, speed: None }
    }

    /// The same, with peers that may have to be dialled first.
    pub(crate) fn with_addresses(self, addresses: PeerAddresses) -> Self {
        Self { addresses: Some(addresses), ..self }
    }

    /// The same, which measures the bytes sent and received.
    pub(crate) fn measured_by(self, speed: SpeedMeter) -> Self {
        Self { speed: Some(speed), ..self }
    }

    /// Connects to such a peer; not over a relay, which would carry its traffic.
    async fn dial(&self, peer: PeerId, addresses: Vec<Multiaddr>) -> Result<(), OpenError> {
        self.node.dial_peer(peer, addresses).await.map_err(OpenError::network)?;
        let path = self.node.path(peer).await.map_err(OpenError::network)?;
        match path.is_some_and(|path| path.is_relayed()) {
            true => Err(OpenError::Relayed),
            false => Ok(()),
        }
    }

    async fn stream(&self, peer: PeerId) -> Result<Stream, OpenError> {
        let known = self.addresses.as_ref().map(|addresses| addresses(peer));
        if let Some(named) = known.transpose()?.flatten() {
            let addresses = self.node.within_reach(&named).await.into_iter();
            self.dial(peer, addresses.filter_map(|address| address.with_p2p(peer).ok()).collect()).await?;
        }
        self.node.open(peer, PROTOCOL).await.map_err(OpenError::network)
    }
}

impl Platform for NodePlatform {
    type Stream = Stream;

    fn now(&self) -> Moment {
        self.origin.elapsed()
    }

    async fn sleep_until(&self, at: Moment) {
        match self.origin.checked_add(at) {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }

    async fn open(&self, peer: &PeerKey) -> Result<Stream, OpenError> {
        let peer = PeerId::from_bytes(&peer.0).map_err(OpenError::network)?;
        self.stream(peer).await
    }

    fn on_moved(&self, bytes: Bytes) {
        if let Some(speed) = &self.speed {
            speed.on_moved(bytes);
        }
    }
}
