//! Connections with peers other than the backbone: hosts of experts, aggregators, and relays that lead to them. Pure.
//!
//! There is room for some of them; for another one the one goes that was used least lately. What nobody uses is closed by
//! the swarm.

use std::collections::HashMap;

use libp2p::PeerId;
use libp2p::swarm::ConnectionId;

/// Most connections. A backbone carries more circuits than that for one peer.
pub(super) const LINKS_MAX: usize = 24;

/// The connections that stand, one with each peer.
#[derive(Debug, Default)]
pub(super) struct PeerLinks {
    links: HashMap<PeerId, PeerLink>,
    n_uses: u64,
}

#[derive(Debug)]
struct PeerLink {
    connection: ConnectionId,
    /// The peer that carries it.
    relay: Option<PeerId>,
    /// Number of its last use.
    used: u64,
}

impl PeerLinks {
    /// Whether there is a connection with a peer.
    pub(super) fn contains(&self, peer: &PeerId) -> bool {
        self.links.contains_key(peer)
    }

    /// A connection is used, and the one that carries it. Returns whether it stands.
    pub(super) fn on_used(&mut self, peer: &PeerId) -> bool {
        self.n_uses += 1;
        let Some(link) = self.links.get_mut(peer) else { return false };
        link.used = self.n_uses;
        let relay = link.relay;
        if let Some(relay) = relay.and_then(|relay| self.links.get_mut(&relay)) {
            relay.used = self.n_uses;
        }
        true
    }

    /// A connection stands with a peer that has none. Returns the one to close for it.
    pub(super) fn on_connected(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        relay: Option<PeerId>,
    ) -> Option<ConnectionId> {
        let oldest = self.links.iter().min_by_key(|(_, link)| link.used).map(|(peer, _)| *peer);
        let evicted = oldest.filter(|_| self.links.len() >= LINKS_MAX).and_then(|peer| self.forget(&peer));
        self.links.insert(peer, PeerLink { connection, relay, used: 0 });
        self.on_used(&peer);
        evicted
    }

    /// A connection ended.
    pub(super) fn on_closed(&mut self, connection: ConnectionId) {
        self.links.retain(|_, link| link.connection != connection);
    }

    /// The connection with a peer is no longer one of these.
    pub(super) fn forget(&mut self, peer: &PeerId) -> Option<ConnectionId> {
        self.links.remove(peer).map(|link| link.connection)
    }
}

#[cfg(feature = "tests")]
mod tests {
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;

    fn connection(number: usize) -> ConnectionId {
        ConnectionId::new_unchecked(number)
    }

    #[wasm_bindgen_test]
    fn the_connection_that_was_used_least_lately_makes_way() {
        let mut links = PeerLinks::default();
        let peers: Vec<PeerId> = (0..=LINKS_MAX).map(|_| PeerId::random()).collect();
        for (number, peer) in peers.iter().enumerate().take(LINKS_MAX) {
            assert_eq!(links.on_connected(*peer, connection(number), None), None);
        }
        assert!(links.on_used(&peers[0]));
        let evicted = links.on_connected(peers[LINKS_MAX], connection(LINKS_MAX), None);
        assert_eq!(evicted, Some(connection(1)));
        assert!(links.contains(&peers[0]) && !links.contains(&peers[1]) && !links.on_used(&peers[1]));
        links.on_closed(connection(0));
        assert!(!links.contains(&peers[0]));
    }

    #[wasm_bindgen_test]
    fn a_relay_is_used_as_often_as_what_it_carries() {
        let mut links = PeerLinks::default();
        let peers: Vec<PeerId> = (0..=LINKS_MAX).map(|_| PeerId::random()).collect();
        links.on_connected(peers[0], connection(0), None);
        for (number, peer) in peers.iter().enumerate().take(LINKS_MAX).skip(1) {
            links.on_connected(*peer, connection(number), (number == 1).then_some(peers[0]));
        }
        links.on_used(&peers[1]);
        let evicted = links.on_connected(peers[LINKS_MAX], connection(LINKS_MAX), None);
        assert_eq!(evicted, Some(connection(2)), "neither the relay nor what it carries");
    }
}
