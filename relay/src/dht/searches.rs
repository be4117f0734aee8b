//! Slots for searches on behalf of other peers: a search costs many requests, and one requester can have many peer ids.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use barnraise_swarm::guard::FairShares;
use libp2p::PeerId;

/// A peer has at most half as many as are left free: two peers of an address are not in each other's way.
const PART_OF_PEER: usize = 2;

/// Searches under way, by requesting peer and source address.
#[derive(Debug)]
pub(super) struct Searches(Mutex<RunningSearches>);

#[derive(Debug)]
struct RunningSearches {
    of_peers: FairShares<PeerId>,
    /// `None` stands for relayed peers.
    of_addresses: FairShares<Option<IpAddr>>,
}

/// A slot for one search; free again when it is dropped.
#[derive(Debug)]
pub(super) struct SearchSlot<'a> {
    searches: &'a Searches,
    peer: PeerId,
    address: Option<IpAddr>,
}

impl Searches {
    pub(super) fn new(n_max: usize) -> Self {
        Self(Mutex::new(RunningSearches {
            of_peers: FairShares::new(n_max),
            of_addresses: FairShares::new(n_max),
        }))
    }

    /// Takes a slot; `None` where this peer or this address has its share already.
    pub(super) fn take(&self, peer: PeerId, address: Option<IpAddr>) -> Option<SearchSlot<'_>> {
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let RunningSearches { of_peers, of_addresses } = &mut *under_way;
        if !of_peers.has_slot(&peer, PART_OF_PEER) || !of_addresses.take(&address) {
            return None;
        }
        of_peers.occupy(&peer);
        Some(SearchSlot { searches: self, peer, address })
    }
}

impl Drop for SearchSlot<'_> {
    fn drop(&mut self) {
        let mut under_way = self.searches.0.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.of_peers.give_back(&self.peer);
        under_way.of_addresses.give_back(&self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_peer_and_no_address_takes_all_searches() {
        let searches = Searches::new(32);
        let address = |last| Some(IpAddr::from([203, 0, 113, last]));
        let peer = PeerId::random();
        let of_peer: Vec<_> = std::iter::from_fn(|| searches.take(peer, address(1))).collect();
        assert_eq!(of_peer.len(), 11, "the twelfth is more than half of the 21 that are left");
        let of_address: Vec<_> =
            std::iter::from_fn(|| searches.take(PeerId::random(), address(1))).take(100).collect();
        assert_eq!(of_peer.len() + of_address.len(), 16, "half of all for one address");
        let other: Vec<_> = std::iter::from_fn(|| searches.take(PeerId::random(), address(2))).collect();
        assert_eq!(other.len(), 8, "half of what is left for another one");
        drop((of_peer, of_address, other));
        assert!(searches.take(peer, address(1)).is_some(), "what ends makes room");
    }
}
