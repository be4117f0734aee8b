//! Connections with peers other than the backbone: hosts of experts, aggregators, and relays that lead to them; and those that others
//! made with the tab. Pure.
//!
//! There is room for some of them; for another one the one goes that was used least lately. What nobody uses is closed by
//! the swarm.

use std::collections::{HashMap, VecDeque};

use libp2p::PeerId;
use libp2p::swarm::ConnectionId;

/// Most connections. A backbone carries more circuits than that for one peer.
pub(super) const LINKS_MAX: usize = 24;

/// Connections that others made with the tab: the oldest makes way.
const INBOUND_MAX: usize = 64;
/// Of one peer.
const INBOUND_PER_PEER: usize = 2;

/// The connections that stand, one with each peer that the tab dialled.
#[derive(Debug, Default)]
pub(super) struct PeerLinks {
    links: HashMap<PeerId, PeerLink>,
    /// Those that others made, the oldest first.
    inbound: VecDeque<(PeerId, ConnectionId)>,
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

    /// Whether there is a connection with a peer that either side made.
    pub(super) fn reaches(&self, peer: &PeerId) -> bool {
        self.contains(peer) || self.inbound.iter().any(|(known, _)| known == peer)
    }

    /// A connection is used, and the one that carries it. Returns whether it stands, or one that the other side made.
    pub(super) fn on_used(&mut self, peer: &PeerId) -> bool {
        self.n_uses += 1;
        let Some(link) = self.links.get_mut(peer) else { return self.reaches(peer) };
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
        self.inbound.retain(|(_, known)| *known != connection);
    }

    /// Another peer has made a connection. Returns those to close for it.
    pub(super) fn on_inbound(&mut self, peer: PeerId, connection: ConnectionId) -> Vec<ConnectionId> {
        let of_peer: Vec<usize> = (0..self.inbound.len()).filter(|at| self.inbound[*at].0 == peer).collect();
        let own_oldest = of_peer.first().filter(|_| of_peer.len() >= INBOUND_PER_PEER);
        let mut evicted: Vec<ConnectionId> = own_oldest
            .and_then(|at| self.inbound.remove(*at))
            .map(|(_, oldest)| oldest)
            .into_iter()
            .collect();
        self.inbound.push_back((peer, connection));
        if self.inbound.len() > INBOUND_MAX {
            evicted.extend(self.inbound.pop_front().map(|(_, oldest)| oldest));
        }
        evicted
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
    fn who_made_a_connection_is_reached_on_it_and_the_oldest_makes_way() {
        let mut links = PeerLinks::default();
        let peers: Vec<PeerId> = (0..=INBOUND_MAX).map(|_| PeerId::random()).collect();
        for (number, peer) in peers.iter().enumerate().take(INBOUND_MAX) {
            assert_eq!(links.on_inbound(*peer, connection(number)), []);
        }
        assert!(links.on_used(&peers[3]) && links.reaches(&peers[3]) && !links.contains(&peers[3]));
        assert_eq!(links.on_inbound(peers[INBOUND_MAX], connection(INBOUND_MAX)), [connection(0)]);
        assert!(!links.on_used(&peers[0]));
        // One peer takes no more than its part.
        let more: Vec<ConnectionId> = (100..100 + INBOUND_PER_PEER).map(connection).collect();
        assert_eq!(links.on_inbound(peers[3], more[0]), [connection(1)]);
        assert_eq!(links.on_inbound(peers[3], more[1]), [connection(3)]);
        links.on_closed(more[0]);
        assert!(links.reaches(&peers[3]));
        links.on_closed(more[1]);
        assert!(!links.reaches(&peers[3]));
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
