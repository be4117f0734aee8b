//! Places for streams: bounded in all and for each peer, given back when they are dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libp2p::PeerId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for streams, in all and for each peer.
pub(super) struct Places {
    all: Arc<Semaphore>,
    per_peer: usize,
    of_peers: Mutex<HashMap<PeerId, usize>>,
}

/// One place, given back when it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    peer: PeerId,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(all: usize, per_peer: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), per_peer, of_peers: Mutex::default() }
    }

    pub(super) fn take(places: &Arc<Self>, peer: PeerId) -> Option<Place> {
        let permit = places.all.clone().try_acquire_owned().ok()?;
        let mut of_peers = places.lock();
        let taken = of_peers.get(&peer).copied().unwrap_or_default();
        if taken >= places.per_peer {
            return None;
        }
        of_peers.insert(peer, taken + 1);
        Some(Place { places: places.clone(), peer, _permit: permit })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PeerId, usize>> {
        self.of_peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut of_peers = self.places.lock();
        let left = of_peers.get(&self.peer).copied().unwrap_or_default().saturating_sub(1);
        match left {
            0 => drop(of_peers.remove(&self.peer)),
            left => drop(of_peers.insert(self.peer, left)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const PER_PEER: usize = 5;

    #[test]
    fn one_peer_does_not_take_the_places_of_the_others() {
        let places = Arc::new(Places::new(PER_PEER + 2, PER_PEER));
        let (greedy, other) = (PeerId::random(), PeerId::random());
        let mut taken: Vec<_> = (0..PER_PEER).map(|_| Places::take(&places, greedy).unwrap()).collect();
        assert!(Places::take(&places, greedy).is_none());
        let others: Vec<_> = (0..2).map(|_| Places::take(&places, other).unwrap()).collect();
        assert!(Places::take(&places, other).is_none(), "there are no more in all");
        drop(others);
        taken.pop();
        let again = Places::take(&places, greedy);
        assert!(again.is_some());
        drop((taken, again));
        assert!(places.lock().is_empty(), "nothing is remembered of a peer that left");
    }
}
