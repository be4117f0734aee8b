//! Models that were trained here, until another participant has taken them.

use std::collections::BTreeMap;

use barnraise_swarm::activity::SampleCounts;

/// Models that are remembered: one is often taken when the next is being trained already.
const WAITING_MAX: usize = 3;

/// Samples of trained models that nobody has taken yet, by the round that they were trained in.
#[derive(Debug, Default)]
pub(super) struct HandedIn {
    waiting: BTreeMap<u64, u64>,
}

impl HandedIn {
    /// A model is trained.
    pub(super) fn add(&mut self, round: u64, n_samples: u64, counts: &mut SampleCounts) {
        self.waiting.insert(round, n_samples);
        while self.waiting.len() > WAITING_MAX {
            counts.n_samples_late += self.waiting.pop_first().map_or(0, |(_, n_samples)| n_samples);
        }
    }

    /// Somebody took the model that is averaged in this round: the latest that was trained before it, as a slow peer hands in what it
    /// trained with a later round. Those before that came too late for all who average them.
    pub(super) fn on_taken(&mut self, averaged: u64, counts: &mut SampleCounts) {
        let later = self.waiting.split_off(&averaged);
        let mut before = std::mem::replace(&mut self.waiting, later);
        if let Some((_, n_samples)) = before.pop_last() {
            counts.n_accepted += 1;
            counts.n_samples_accepted += n_samples;
        }
        counts.n_samples_late += before.values().sum::<u64>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Models accepted, their samples, and samples that were late.
    fn counted(counts: &SampleCounts) -> (u64, u64, u64) {
        (counts.n_accepted, counts.n_samples_accepted, counts.n_samples_late)
    }

    #[test]
    fn each_model_counts_once_also_when_it_is_taken_late() {
        let (mut handed_in, mut counts) = (HandedIn::default(), SampleCounts::default());
        handed_in.add(4, 40, &mut counts);
        handed_in.add(5, 50, &mut counts);
        handed_in.on_taken(5, &mut counts);
        assert_eq!(counted(&counts), (1, 40, 0), "the next one is trained already");
        handed_in.on_taken(9, &mut counts);
        assert_eq!(counted(&counts), (2, 90, 0), "with the round that the others have come to");
        handed_in.on_taken(9, &mut counts);
        assert_eq!(counted(&counts), (2, 90, 0), "a second receiver");
        handed_in.add(9, 1000, &mut counts);
        handed_in.on_taken(9, &mut counts);
        assert_eq!(counted(&counts), (2, 90, 0), "what was trained in a round is averaged in a later one");
        handed_in.on_taken(10, &mut counts);
        assert_eq!(counted(&counts), (3, 1090, 0));
    }

    #[test]
    fn what_nobody_takes_is_late_at_last() {
        let (mut handed_in, mut counts) = (HandedIn::default(), SampleCounts::default());
        for round in 1..=5 {
            handed_in.add(round, round * 10, &mut counts);
        }
        assert_eq!(counted(&counts), (0, 0, 10 + 20));
        // The second of the two who take it says nothing of those before.
        handed_in.on_taken(5, &mut counts);
        handed_in.on_taken(5, &mut counts);
        assert_eq!(counted(&counts), (1, 40, 10 + 20 + 30));
    }
}
