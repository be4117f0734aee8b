//! Models that were trained here, until another participant has taken them.

use std::collections::BTreeMap;

/// Models that are remembered: one is often taken when the next is being trained already.
const WAITING_MAX: usize = 3;

/// Samples of trained models that nobody has taken yet, by the round that they were trained in.
#[derive(Debug, Default)]
pub(super) struct HandedIn {
    waiting: BTreeMap<u64, u64>,
}

impl HandedIn {
    /// A model is trained. Returns the samples of those that came too late for all who average them.
    pub(super) fn add(&mut self, round: u64, n_samples: u64) -> u64 {
        self.waiting.insert(round, n_samples);
        let mut n_late = 0;
        while self.waiting.len() > WAITING_MAX {
            n_late += self.waiting.pop_first().map_or(0, |(_, n_samples)| n_samples);
        }
        n_late
    }

    /// Somebody took the model that is averaged in this round: the latest that was trained before it, as a slow peer hands in what it
    /// trained with a later round. Returns its samples the first time.
    pub(super) fn take(&mut self, averaged: u64) -> Option<u64> {
        let (trained, _) = self.waiting.range(..averaged).next_back()?;
        let trained = *trained;
        self.waiting.remove(&trained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_counts_once_also_when_it_is_taken_late() {
        let mut handed_in = HandedIn::default();
        assert_eq!(handed_in.add(4, 40), 0);
        assert_eq!(handed_in.add(5, 50), 0);
        assert_eq!(handed_in.take(5), Some(40), "the next one is trained already");
        assert_eq!(handed_in.take(9), Some(50), "with the round that the others have come to");
        assert_eq!(handed_in.take(9), None, "a second receiver");
        assert_eq!(handed_in.add(9, 90), 0);
        assert_eq!(handed_in.take(9), None, "what was trained in a round is averaged in a later one");
        assert_eq!(handed_in.take(10), Some(90));
    }

    #[test]
    fn what_nobody_takes_is_late_at_last() {
        let mut handed_in = HandedIn::default();
        let n_late: Vec<u64> = (1..=5).map(|round| handed_in.add(round, round * 10)).collect();
        assert_eq!(n_late, [0, 0, 0, 10, 20]);
    }
}
