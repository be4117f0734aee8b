//! Typical norm and size of verified contributions. An untypical one is recomputed before it counts, from every peer:
//! so a contribution that is not recomputed has no larger norm and no more samples than honest work.
//!
//! Otherwise a key that was honest for a while could send one gradient of a thousand times the norm. An optimizer that
//! divides by the root of squares, such as Adam, then hardly moves for a thousand steps.

use std::collections::{HashMap, VecDeque};

use crate::PeerKey;

/// Gradients whose norms are remembered.
const LENGTHS_MAX: usize = 64;
/// Largest typical norm, in medians of those; the mean of few samples has a larger norm than that of many.
const TIMES_AS_LONG: f64 = 4.0;
/// Largest typical number of samples, as a multiple of the key's largest verified contribution.
const TIMES_AS_LARGE: u32 = 4;
/// Most keys that are remembered; a forgotten one begins anew.
const KEYS_MAX: usize = 50_000;

/// Norms and sizes of verified contributions.
#[derive(Debug, Default)]
pub struct TypicalContributions {
    lengths: VecDeque<f64>,
    largest: HashMap<PeerKey, u32>,
    keys: VecDeque<PeerKey>,
}

impl TypicalContributions {
    /// Whether a contribution of `n_samples` with this Euclidean norm is like verified ones.
    pub fn is_typical(&self, peer: &PeerKey, n_samples: u32, length: f64) -> bool {
        let mut lengths: Vec<f64> = self.lengths.iter().copied().collect();
        lengths.sort_by(f64::total_cmp);
        let is_long = lengths.get(lengths.len() / 2).is_some_and(|median| length > TIMES_AS_LONG * median);
        !is_long && n_samples <= self.largest(peer).saturating_mul(TIMES_AS_LARGE)
    }

    /// A contribution was verified.
    pub fn on_verified(&mut self, peer: &PeerKey, n_samples: u32, length: f64) {
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
        let mut usual = TypicalContributions::default();
        assert!(!usual.is_typical(&peer(1), 1, 1.0), "nothing of it was right yet");
        (0..5).for_each(|at| usual.on_verified(&peer(1), 64, 1.0 + f64::from(at) / 10.0));
        assert!(usual.is_typical(&peer(1), 256, 4.7));
        assert!(!usual.is_typical(&peer(1), 257, 1.0));
        assert!(!usual.is_typical(&peer(1), 64, 5.0));
        assert!(!usual.is_typical(&peer(1), 64, f64::INFINITY) && !usual.is_typical(&peer(2), 64, 1.0));
        // Verified contributions become typical.
        (0..64).for_each(|_| usual.on_verified(&peer(1), 1024, 5.0));
        assert!(usual.is_typical(&peer(1), 4096, 20.0));
    }

    #[test]
    fn four_times_the_usual_is_the_most() {
        let mut usual = TypicalContributions::default();
        [1.0, 2.0, 9.0].into_iter().for_each(|length| usual.on_verified(&peer(1), 10, length));
        assert!(usual.is_typical(&peer(1), 40, 8.0));
        assert!(!usual.is_typical(&peer(1), 40, 8.001) && !usual.is_typical(&peer(1), 41, 8.0));
        // A smaller one that was right takes nothing back.
        usual.on_verified(&peer(1), 1, 2.0);
        assert!(usual.is_typical(&peer(1), 40, 8.0));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut usual = TypicalContributions::default();
        (0..KEYS_MAX as u32 + 9).for_each(|name| usual.on_verified(&peer(name), 64, 1.0));
        assert_eq!((usual.lengths.len(), usual.largest.len()), (LENGTHS_MAX, KEYS_MAX));
        assert!(!usual.is_typical(&peer(0), 64, 1.0) && usual.is_typical(&peer(9), 64, 1.0));
    }
}
