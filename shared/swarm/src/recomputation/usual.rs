//! What contributions that were found right are like. One that is unlike them is recomputed before it counts, whoever
//! sends it: what may slip through unlooked-at is neither longer nor larger than honest work is.
//!
//! Without it a key that was honest for a while could send one gradient a thousand times as long: an optimizer that
//! divides by the root of squares, such as Adam, hardly moves for a thousand steps then.

use std::collections::{HashMap, VecDeque};

use crate::PeerKey;

/// Gradients whose lengths are remembered.
const LENGTHS_MAX: usize = 64;
/// How many times as long as the median of those one may be; the mean of few samples is longer than that of many.
const TIMES_AS_LONG: f64 = 4.0;
/// How many times as many samples as its largest that was right a contribution of a key may have.
const TIMES_AS_LARGE: u32 = 4;
/// Keys that are remembered; one that was forgotten begins anew.
const KEYS_MAX: usize = 50_000;

/// What is usual.
#[derive(Debug, Default)]
pub struct Usual {
    lengths: VecDeque<f64>,
    largest: HashMap<PeerKey, u32>,
    keys: VecDeque<PeerKey>,
}

impl Usual {
    /// Whether a contribution of `n_samples`, and of this Euclidean length, is like those that were right.
    pub fn is_usual(&self, peer: &PeerKey, n_samples: u32, length: f64) -> bool {
        let mut lengths: Vec<f64> = self.lengths.iter().copied().collect();
        lengths.sort_by(f64::total_cmp);
        let is_long = lengths.get(lengths.len() / 2).is_some_and(|median| length > TIMES_AS_LONG * median);
        !is_long && n_samples <= self.largest(peer).saturating_mul(TIMES_AS_LARGE)
    }

    /// One was found right.
    pub fn on_right(&mut self, peer: &PeerKey, n_samples: u32, length: f64) {
        self.restore_length(length);
        self.restore_largest(peer, n_samples.max(self.largest(peer)));
    }

    pub(super) fn largest(&self, peer: &PeerKey) -> u32 {
        self.largest.get(peer).copied().unwrap_or_default()
    }

    pub(super) fn lengths(&self) -> impl Iterator<Item = f64> {
        self.lengths.iter().copied()
    }

    pub(super) fn restore_length(&mut self, length: f64) {
        self.lengths.push_back(length);
        if self.lengths.len() > LENGTHS_MAX {
            self.lengths.pop_front();
        }
    }

    pub(super) fn restore_largest(&mut self, peer: &PeerKey, largest: u32) {
        if !self.largest.contains_key(peer) {
            self.keys.push_back(peer.clone());
            if self.keys.len() > KEYS_MAX
                && let Some(gone) = self.keys.pop_front()
            {
                self.largest.remove(&gone);
            }
        }
        self.largest.insert(peer.clone(), largest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: u32) -> PeerKey {
        PeerKey(name.to_le_bytes().to_vec())
    }

    #[test]
    fn what_is_much_longer_or_larger_than_what_was_right_is_unusual() {
        let mut usual = Usual::default();
        assert!(!usual.is_usual(&peer(1), 1, 1.0), "nothing of it was right yet");
        (0..5).for_each(|at| usual.on_right(&peer(1), 64, 1.0 + f64::from(at) / 10.0));
        assert!(usual.is_usual(&peer(1), 256, 4.7));
        assert!(!usual.is_usual(&peer(1), 257, 1.0));
        assert!(!usual.is_usual(&peer(1), 64, 5.0));
        assert!(!usual.is_usual(&peer(1), 64, f64::INFINITY) && !usual.is_usual(&peer(2), 64, 1.0));
        // What is right makes it usual.
        (0..64).for_each(|_| usual.on_right(&peer(1), 1024, 5.0));
        assert!(usual.is_usual(&peer(1), 4096, 20.0));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut usual = Usual::default();
        (0..KEYS_MAX as u32 + 9).for_each(|name| usual.on_right(&peer(name), 64, 1.0));
        assert_eq!((usual.lengths.len(), usual.largest.len()), (LENGTHS_MAX, KEYS_MAX));
        assert!(!usual.is_usual(&peer(0), 64, 1.0) && usual.is_usual(&peer(9), 64, 1.0));
    }
}
