//! Slots for streams: bounded in total and for each peer, released on drop.
//!
//! When all are taken, the peer with the most slots loses its oldest to a peer that has fewer. So no peer locks the
//! others out by holding streams.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{AbortHandle, AbortRegistration};
use libp2p::PeerId;

/// Slots for streams, bounded in total and for each peer.
pub(crate) struct TransferSlots {
    all: usize,
    per_peer: usize,
    taken: Mutex<SlotTable>,
}

#[derive(Default)]
struct SlotTable {
    n_taken: usize,
    next: u64,
    of_peers: HashMap<PeerId, BTreeMap<u64, AbortHandle>>,
}

/// One slot, released on drop.
pub(crate) struct TransferSlot {
    slots: Arc<TransferSlots>,
    peer: PeerId,
    number: u64,
}

impl TransferSlots {
    pub(crate) fn new(all: usize, per_peer: usize) -> Self {
        Self { all, per_peer, taken: Mutex::default() }
    }

    /// A slot for a stream of `peer`, whose task must be an [`Abortable`](futures::future::Abortable) with the
    /// registration; `None` where the peer has as many as it may.
    pub(crate) fn take(places: &Arc<Self>, peer: PeerId) -> Option<(TransferSlot, AbortRegistration)> {
        let mut taken = places.lock();
        let n_own = taken.of_peers.get(&peer).map_or(0, BTreeMap::len);
        if n_own >= places.per_peer || (taken.n_taken >= places.all && !taken.end_one(n_own)) {
            return None;
        }
        let (handle, registration) = AbortHandle::new_pair();
        let number = taken.next;
        taken.next += 1;
        taken.n_taken += 1;
        taken.of_peers.entry(peer).or_default().insert(number, handle);
        drop(taken);
        Some((TransferSlot { slots: places.clone(), peer, number }, registration))
    }

    fn lock(&self) -> MutexGuard<'_, SlotTable> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotTable {
    /// Aborts the oldest stream of the peer with the most, if that is more than a peer with `n_own` would have then.
    fn end_one(&mut self, n_own: usize) -> bool {
        let most = self.of_peers.iter().max_by_key(|(_, of_peer)| of_peer.len());
        let Some((peer, of_peer)) = most.filter(|(_, of_peer)| of_peer.len() > n_own + 1) else {
            return false;
        };
        let (peer, oldest) = (*peer, of_peer.keys().next().copied());
        oldest.and_then(|number| self.remove(peer, number)).is_some_and(|handle| {
            handle.abort();
            true
        })
    }

    fn remove(&mut self, peer: PeerId, number: u64) -> Option<AbortHandle> {
        let of_peer = self.of_peers.get_mut(&peer)?;
        let handle = of_peer.remove(&number)?;
        if of_peer.is_empty() {
            self.of_peers.remove(&peer);
        }
        self.n_taken -= 1;
        Some(handle)
    }
}

impl Drop for TransferSlot {
    fn drop(&mut self) {
        // None where it was aborted.
        let _ = self.slots.lock().remove(self.peer, self.number);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures::FutureExt as _;
    use futures::future::{Abortable, pending};

    use super::*;

    const PER_PEER: usize = 5;

    #[test]
    fn one_peer_does_not_take_the_slots_of_the_others() {
        let places = Arc::new(TransferSlots::new(PER_PEER + 2, PER_PEER));
        let (greedy, other) = (PeerId::random(), PeerId::random());
        let mut taken: Vec<_> =
            (0..PER_PEER).map(|_| TransferSlots::take(&places, greedy).unwrap()).collect();
        assert!(TransferSlots::take(&places, greedy).is_none());
        let others: Vec<_> = (0..2).map(|_| TransferSlots::take(&places, other).unwrap()).collect();
        drop(others);
        taken.pop();
        let again = TransferSlots::take(&places, greedy);
        assert!(again.is_some());
        drop((taken, again));
        let taken = places.lock();
        assert!(taken.of_peers.is_empty() && taken.n_taken == 0, "nothing is remembered of a peer that left");
    }

    #[test]
    fn the_peer_with_the_most_slots_makes_way_for_one_that_has_fewer() {
        let places = Arc::new(TransferSlots::new(8, 8));
        let (greedy, honest) = (PeerId::random(), PeerId::random());
        let held: Vec<_> = (0..8).map(|_| TransferSlots::take(&places, greedy).unwrap()).collect();
        let own: Vec<_> = (0..4).map(|_| TransferSlots::take(&places, honest).unwrap()).collect();
        assert!(TransferSlots::take(&places, honest).is_none(), "both have the same by now");
        assert!(TransferSlots::take(&places, greedy).is_none());
        let is_running = |(place, registration): (TransferSlot, AbortRegistration)| {
            let running = Abortable::new(pending::<()>(), registration).now_or_never().is_none();
            (running, place)
        };
        let (running, _places): (Vec<bool>, Vec<TransferSlot>) = held.into_iter().map(is_running).unzip();
        assert_eq!(running, [false, false, false, false, true, true, true, true], "its oldest");
        assert!(own.into_iter().map(is_running).all(|(running, _)| running));
        assert_eq!(places.lock().n_taken, 4);
    }
}
