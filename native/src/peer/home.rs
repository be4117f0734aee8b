//! The backbone of a peer that takes part without contributing: the DHT peer that a host of experts asks, and who grants its leases;
//! who says which access was taken back. It is dialled again, or another one of the run is found, where the connection is gone.

use std::sync::{Arc, Mutex, PoisonError};

use barnraise_protocol::access::{
    self, AccessError, AccessMode, AccessToken, BackboneToContributor, ContributorToBackbone,
};
use barnraise_protocol::dht::{self, DhtError, Freshness, Record, RecordKey};
use barnraise_protocol::experts::leases::HOST_ADDRESSES_MAX;
use barnraise_relay::{Node, NodeError};
use barnraise_swarm::dht::StorageLimits;
use libp2p::{Multiaddr, PeerId, Stream};
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use super::address;
use super::args::{JoinAddress, RunName};
use super::find;
use super::platform::{ConnectError, reserve_at};
use super::tokens::{GateKeeper, LOOK_EVERY};
use crate::host::access::Gate;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct HomeBackbone {
    pub(super) node: Node,
    address: JoinAddress,
    run: Option<RunName>,
    /// The run has no server.
    is_sampled: bool,
    connected: Arc<Mutex<PeerId>>,
    /// One attempt at a time.
    dialling: Arc<tokio::sync::Mutex<()>>,
    /// Of this peer, in a run that is not open.
    token: Arc<Mutex<Option<AccessToken>>>,
    /// Notified when a backbone takes it no longer.
    access_lost: Arc<Notify>,
}

/// Why a token was shown in vain.
#[derive(Debug, thiserror::Error)]
pub(super) enum PresentError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("a token was answered with another message than an admission")]
    Unexpected,
}

impl HomeBackbone {
    /// A backbone that `node` is connected to.
    pub(super) fn new(node: Node, peer: PeerId, address: JoinAddress, run: Option<RunName>) -> Self {
        let (connected, dialling) = (Arc::new(Mutex::new(peer)), Arc::default());
        let (token, access_lost) = (Arc::default(), Arc::default());
        let is_sampled = false;
        Self { node, address, run, is_sampled, connected, dialling, token, access_lost }
    }

    /// Of a run without a server, where any participant will do.
    pub(super) fn of_any(self) -> Self {
        Self { is_sampled: true, ..self }
    }

    /// Sets the token that is shown from now on.
    pub(super) fn set_token(&self, token: Option<AccessToken>) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
    }

    /// Shows this peer's token on a stream that was opened for it; nothing, where there is none.
    pub(super) async fn present<F>(&self, opening: F) -> Result<(), PresentError>
    where
        F: Future<Output = Result<Stream, NodeError>>,
    {
        let Some(token) = self.own_token() else { return Ok(()) };
        let mut stream = opening.await?;
        match access::ask(&mut stream, &ContributorToBackbone::Present(Box::new(token))).await? {
            BackboneToContributor::Admitted(_) => Ok(()),
            _ => Err(PresentError::Unexpected),
        }
    }

    /// Shows this peer's token to the backbone.
    pub(super) async fn present_here(&self) -> Result<(), PresentError> {
        self.present(self.node.open(self.peer(), access::PROTOCOL)).await
    }

    fn own_token(&self) -> Option<AccessToken> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps a gate to this peer up to date: drops expired tokens, and those that the backbone says were revoked, its own among them.
    /// Does not end.
    pub(super) async fn keep(&self, gate: &Gate) {
        if gate.policy().mode == AccessMode::Open {
            return std::future::pending().await;
        }
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut keeper = GateKeeper::default();
        loop {
            ticks.tick().await;
            keeper.look(gate, self.open(access::PROTOCOL)).await;
            if self.own_token().is_some_and(|token| gate.has_revoked(&token)) {
                self.on_access_lost();
            }
        }
    }

    /// The backbone takes the token no longer: another one is wanted.
    pub(super) fn on_access_lost(&self) {
        self.access_lost.notify_one();
    }

    /// Completes when the token is taken no longer.
    pub(super) async fn access_lost(&self) {
        self.access_lost.notified().await;
    }

    /// The backbone that was connected last.
    pub(super) fn peer(&self) -> PeerId {
        *self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another peer is asked from now on, to which there is a connection.
    pub(super) fn move_to(&self, peer: PeerId) {
        *self.connected.lock().unwrap_or_else(PoisonError::into_inner) = peer;
    }

    /// A stream to the backbone, or to another one of the run where that one is gone.
    pub(super) async fn open(&self, protocol: &'static str) -> Result<Stream, ConnectError> {
        let before = self.peer();
        if let Ok(stream) = self.node.open(before, protocol).await {
            return Ok(stream);
        }
        let dialling = self.dialling.lock().await;
        // Another task may have been here meanwhile.
        if self.peer() == before || self.node.open(self.peer(), protocol).await.is_err() {
            let addresses = address::resolve(&self.address).await?;
            let mut peer = find::dial_any(&self.node, addresses).await?;
            if let Some(run) = &self.run {
                // One participant is as good as another.
                let before = Some(before).filter(|_| !self.is_sampled);
                peer = find::backbone(&self.node, peer, run, before).await?.0;
            }
            self.move_to(peer);
            // Browsers reach most hosts through their backbone alone, and this one knows nothing of the host yet.
            reserve_at(&self.node, peer).await;
            if let Err(error) = self.present_here().await {
                tracing::debug!(%error, "a backbone does not take the token of this peer");
                self.on_access_lost();
            }
        }
        drop(dialling);
        Ok(self.node.open(self.peer(), protocol).await?)
    }

    /// The newest records of a key of the DHT, whose signatures are valid.
    pub(super) async fn look_up(&self, key: RecordKey) -> Result<Vec<Record>, LookUpError> {
        let mut stream = self.open(dht::PROTOCOL).await?;
        let lifetime_max = StorageLimits::default().lifetime_max;
        let found = dht::get(&mut stream, vec![key], Freshness::Newest, find::now(), lifetime_max).await;
        Ok(found?.into_iter().flatten().collect())
    }

    /// Where others reach the backbone, as far as this peer knows: nothing, where it was found through another peer.
    pub(super) async fn addresses(&self) -> Vec<Vec<u8>> {
        let resolved = match &self.run {
            Some(_) => Vec::new(),
            None => address::resolve(&self.address).await.unwrap_or_default(),
        };
        resolved.iter().take(HOST_ADDRESSES_MAX).map(Multiaddr::to_vec).collect()
    }
}

/// Why the DHT gave no records.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookUpError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Dht(#[from] DhtError),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_relay::{NodeConfig, RelayLimits};
    use libp2p::identity::Keypair;
    use libp2p::multiaddr::Protocol;

    use super::*;

    fn listening() -> NodeConfig {
        NodeConfig { listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()], ..NodeConfig::default() }
    }

    async fn backbone() -> (Node, Multiaddr) {
        let config = NodeConfig { relay_service: Some(RelayLimits::default()), ..listening() };
        let node = Node::start(Keypair::generate_ed25519(), config).await.unwrap();
        let address = node.addresses().into_iter().next().unwrap();
        (node, address)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_host_that_moves_to_another_backbone_is_reached_through_it() {
        let ((first, address), (second, other)) = (backbone().await, backbone().await);
        let node = Node::start(Keypair::generate_ed25519(), listening()).await.unwrap();
        let mut events = node.events();
        let peer = node.dial(address).await.unwrap();
        let home = HomeBackbone::new(node.clone(), peer, JoinAddress::Peer(other), None);
        first.shutdown().await;
        // It speaks no protocol of a backbone: only that it is dialled counts here.
        home.open(dht::PROTOCOL).await.unwrap_err();
        assert_eq!(home.peer(), second.peer_id());
        let through = |address: &Multiaddr| {
            address.iter().any(|part| part == Protocol::P2pCircuit)
                && address.iter().any(|part| part == Protocol::P2p(second.peer_id()))
        };
        while !node.addresses().iter().any(through) {
            events.recv().await.unwrap();
        }
    }
}
