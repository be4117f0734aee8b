//! Bytes that native peers reduced for the backbones, as verified by this backbone.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use libp2p::PeerId;

/// Peers that are counted.
const REDUCERS_MAX: usize = 256;

/// Bytes that each native peer reduced since the start: encoded values that it was sent.
#[derive(Debug, Default)]
pub struct ReducerMeter {
    n_bytes: Mutex<BTreeMap<PeerId, u64>>,
}

impl ReducerMeter {
    /// A part of `n_bytes` bytes, summed over all members, was reduced by `peer` and verified.
    pub fn averaged(&self, peer: PeerId, n_bytes: u64) {
        let mut of_peers = self.n_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if of_peers.len() < REDUCERS_MAX || of_peers.contains_key(&peer) {
            let sum = of_peers.entry(peer).or_default();
            *sum = sum.saturating_add(n_bytes);
        }
    }

    /// The totals.
    #[must_use]
    pub fn read(&self) -> BTreeMap<PeerId, u64> {
        self.n_bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_is_counted_by_itself_and_no_more_than_there_are_places() {
        let meter = ReducerMeter::default();
        let one = PeerId::random();
        meter.averaged(one, 10);
        (0..2 * REDUCERS_MAX).for_each(|_| meter.averaged(PeerId::random(), 1));
        meter.averaged(one, 5);
        let all = meter.read();
        assert_eq!((all[&one], all.len()), (15, REDUCERS_MAX));
    }
}
