//! Whether an average goes on from what a trainer knows.
//!
//! Now and then most aggregators, or most trainers, of a round are dishonest by chance: with a fifth of all peers it is one round in
//! twenty, of five aggregators. What those agree on would be the model. So a trainer in a run that reckons with that measures how far
//! averages are from the last one that it believed. A round moves the model about as far as training moves it at one peer. Where an average
//! is several times as far, the peer goes on with the last one. Each time it believes twice as far, as others may have more data, and in
//! the end it gives in: it is more likely that the peer itself once believed what it should not have.

use std::collections::VecDeque;

use super::{SampledModel, SampledPeer};

/// Lengths of late that are remembered, of each kind.
const LENGTHS: usize = 5;
/// So many times as far as usual is too far.
const FAR: f64 = 4.0;
/// Averages in turn that are too far, at most.
const FAR_MAX: i32 = 3;

/// How far a round usually moves a model.
#[derive(Debug, Default)]
pub(super) struct Continuity {
    /// The training of this peer.
    trained: VecDeque<f64>,
    /// Averages that were believed, for each round that lay between.
    moved: VecDeque<f64>,
    /// Averages in turn that were too far.
    n_far: i32,
}

impl Continuity {
    /// Whether a move within some rounds is too far: at most in proportion to them. As long as this peer has not trained, none is.
    fn is_far(&self, distance: f64, n_rounds: u64) -> bool {
        let usual = median(&self.trained).max(median(&self.moved));
        let farthest = FAR * 2.0f64.powi(self.n_far) * usual * n_rounds.max(1) as f64;
        usual > 0.0 && distance > farthest
    }

    /// A move that was believed.
    fn on_moved(&mut self, distance: f64, n_rounds: u64) {
        remember(&mut self.moved, distance / n_rounds.max(1) as f64);
    }

    /// Whether the next round goes on with a move.
    fn believes(&mut self, distance: f64, n_rounds: u64) -> bool {
        if self.is_far(distance, n_rounds) && self.n_far < FAR_MAX {
            self.n_far += 1;
            return false;
        }
        self.n_far = 0;
        self.on_moved(distance, n_rounds);
        true
    }

    /// This peer has trained.
    pub(super) fn on_trained(&mut self, before: &SampledModel, after: &SampledModel) {
        remember(&mut self.trained, distance(before, after));
    }
}

fn remember(lengths: &mut VecDeque<f64>, length: f64) {
    if length > 0.0 {
        lengths.truncate(LENGTHS - 1);
        lengths.push_front(length);
    }
}

/// The upper one, of an even number; 0 of none.
fn median(lengths: &VecDeque<f64>) -> f64 {
    let mut sorted: Vec<f64> = lengths.iter().copied().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// The Euclidean distance of two models.
fn distance(one: &SampledModel, two: &SampledModel) -> f64 {
    let squares = one.iter().zip(two.iter()).map(|(one, two)| (f64::from(*one) - f64::from(*two)).powi(2));
    squares.sum::<f64>().sqrt()
}

impl SampledPeer {
    /// How far an average of a round is from the last one that this peer believed, and how many rounds lie between; `None` where that is
    /// not asked.
    fn moved(&self, round: u64, average: &SampledModel) -> Option<(f64, u64)> {
        let (last, known) =
            self.newest.as_ref().filter(|(last, _)| self.settings.is_robust() && *last < round)?;
        Some((distance(known, average), round - last))
    }

    /// What this peer trains after an average of a round: that, or the last one that it believed where it is too far from that.
    pub(super) fn continued(&mut self, round: u64, average: SampledModel) -> SampledModel {
        if let Some((distance, n_rounds)) = self.moved(round, &average)
            && !self.training.continuity.believes(distance, n_rounds)
            && let Some((_, known)) = &self.newest
        {
            return known.clone();
        }
        self.on_average_seen(round, &average);
        average
    }

    /// An average of this peer's own. Who is offered it decides for itself.
    pub(super) fn on_own_average(&mut self, round: u64, average: &SampledModel) {
        if let Some((distance, n_rounds)) = self.moved(round, average) {
            if self.training.continuity.is_far(distance, n_rounds) {
                return;
            }
            self.training.continuity.on_moved(distance, n_rounds);
        }
        self.on_average_seen(round, average);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn train(continuity: &mut Continuity, length: f32) {
        let [before, after]: [SampledModel; 2] = [Arc::new([1.0, 0.0]), Arc::new([1.0, length])];
        continuity.on_trained(&before, &after);
    }

    /// A peer whose training moves a model so far.
    fn trained(length: f32) -> Continuity {
        let mut continuity = Continuity::default();
        train(&mut continuity, length);
        continuity
    }

    #[test]
    fn what_is_several_times_as_far_as_training_moves_a_model_is_too_far() {
        assert!(Continuity::default().believes(1e9, 1), "nothing is known");
        assert!(trained(0.0).believes(1e9, 1), "it says nothing");
        assert!(trained(1.0).believes(4.0, 1) && !trained(1.0).believes(4.1, 1));
        assert!(trained(1.0).believes(64.0, 16) && !trained(1.0).believes(65.0, 16));
    }

    /// As where others have more data.
    #[test]
    fn each_time_twice_as_far_is_believed_and_then_it_is_usual() {
        let mut continuity = trained(1.0);
        assert_eq!([(); 4].map(|()| continuity.believes(20.0, 1)), [false, false, false, true]);
        assert!(
            continuity.believes(20.0, 1) && continuity.believes(79.0, 1) && !continuity.believes(100.0, 1)
        );
    }

    /// An aggregator that trains gets its own average at once.
    #[test]
    fn a_look_at_a_move_counts_no_refusal() {
        let mut continuity = trained(1.0);
        assert!(continuity.is_far(5.0, 1) && continuity.is_far(5.0, 1) && !continuity.believes(5.0, 1));
        assert!(!continuity.is_far(5.0, 1) && continuity.is_far(9.0, 1));
    }

    #[test]
    fn one_length_of_many_says_little() {
        let mut continuity = trained(1.0);
        [1e6, 1.0, 1.0].into_iter().for_each(|length| train(&mut continuity, length));
        assert_eq!([(); 4].map(|()| continuity.believes(1e30, 1)), [false, false, false, true]);
    }
}
