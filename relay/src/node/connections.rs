//! The established connections by peer, and the best one of each.

use std::collections::HashMap;

use libp2p::PeerId;
use libp2p::swarm::ConnectionId;

use super::path::Path;

/// The connections of the swarm, with their paths.
#[derive(Debug, Default)]
pub(super) struct Connections {
    of_peers: HashMap<PeerId, Vec<(ConnectionId, Path)>>,
}

impl Connections {
    /// A direct connection to a peer that is reached through a relay came of both sides dialling at once:
    /// whichever of their dials it was.
    pub(super) fn add(&mut self, peer: PeerId, id: ConnectionId, path: Path) {
        let connections = self.of_peers.entry(peer).or_default();
        let mut path = path;
        if let Path::Direct { is_hole_punched, .. } = &mut path {
            *is_hole_punched = connections.iter().any(|(_, path)| path.is_relayed());
        }
        connections.push((id, path));
    }

    pub(super) fn remove(&mut self, peer: &PeerId, id: ConnectionId) {
        if let Some(connections) = self.of_peers.get_mut(peer) {
            connections.retain(|(known, _)| *known != id);
            if connections.is_empty() {
                self.of_peers.remove(peer);
            }
        }
    }

    /// Direct before relayed, then the newest.
    pub(super) fn best(&self, peer: &PeerId) -> Option<(ConnectionId, &Path)> {
        let connections = self.of_peers.get(peer)?;
        let direct = connections.iter().rfind(|(_, path)| !path.is_relayed());
        direct.or_else(|| connections.last()).map(|(id, path)| (*id, path))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use libp2p::Multiaddr;

    use super::*;

    #[test]
    fn a_direct_connection_is_better_than_a_relayed_one() {
        let (peer, relay) = (PeerId::random(), PeerId::random());
        let [first, second, third] = [1, 2, 3].map(ConnectionId::new_unchecked);
        let direct: Multiaddr = "/ip4/10.0.0.1/tcp/1".parse().unwrap();
        let circuit: Multiaddr = format!("/ip4/10.0.0.2/tcp/1/p2p/{relay}/p2p-circuit").parse().unwrap();
        let mut connections = Connections::default();
        assert!(connections.best(&peer).is_none());
        connections.add(peer, first, Path::of(&circuit));
        assert_eq!(connections.best(&peer).unwrap().0, first);
        connections.add(peer, second, Path::of(&direct));
        connections.add(peer, third, Path::of(&circuit));
        assert_eq!(connections.best(&peer).unwrap().0, second);
        let punched = Path::Direct { address: direct, is_hole_punched: true };
        assert_eq!(connections.best(&peer).unwrap().1, &punched);
        connections.remove(&peer, second);
        assert_eq!(connections.best(&peer).unwrap().0, third);
        connections.remove(&peer, first);
        connections.remove(&peer, third);
        assert!(connections.best(&peer).is_none());
    }
}
