//! The task of a trainer (MoDEST algorithm 4, `train`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::sampled::SampledTask;

use super::comparison::Comparison;
use super::continuity::Continuity;
use super::limit::shortest_round;
use super::pull::{Pull, Pulls};
use super::sampling::Sampling;
use super::{PushOutcome, SampledAction, SampledModel, SampledPeer};
use crate::Moment;

/// Models that are pulled at a time: a sender that stalls does not keep out those of later rounds.
const PULLS_MAX: usize = 3;
/// Models of one round that are pulled at a time: the second one where the first does not come.
const PULLS_OF_ROUND_MAX: usize = 2;
/// Models beside those, of senders that have not proven yet that they are in the sample.
const UNPROVEN_MAX: usize = 1;
/// Offers of one model that are repeated to one peer that was busy or not reached.
pub(super) const REPEATS_MAX: u32 = 256;

/// `k_train`, and what is done in that round.
#[derive(Debug, Default)]
pub(super) struct Training {
    round: u64,
    step: TrainingStep,
    /// How long the last training took.
    took: Duration,
    pulls: Pulls,
    pub(super) comparison: Comparison,
    pub(super) continuity: Continuity,
}

#[derive(Debug, Default)]
enum TrainingStep {
    /// Nothing, or the round is over.
    #[default]
    Done,
    Computing {
        since: Moment,
        model: SampledModel,
    },
    Sampling {
        result: SampledModel,
        sampling: Sampling,
    },
    Pushing {
        result: SampledModel,
        pushes: Pushes,
    },
}

/// Pushes of one model to a sample.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    n_open: usize,
    has_arrived: bool,
    /// Those that were busy or not reached, with the time of the next offer.
    again: BTreeMap<PublicKey, Moment>,
    /// Those that were not reached once: a connection may break.
    failed: BTreeSet<PublicKey>,
    /// Offers that were repeated: one that is busy for ever takes none from the others.
    n_repeated: BTreeMap<PublicKey, u32>,
}

impl Pushes {
    pub(super) fn new(n_open: usize) -> Self {
        Self { n_open, ..Self::default() }
    }

    /// Those to whom it is offered again.
    pub(super) fn take_due(&mut self, now: Moment) -> Vec<PublicKey> {
        let due: Vec<PublicKey> =
            self.again.iter().filter(|(_, at)| **at <= now).map(|(to, _)| *to).collect();
        due.iter().for_each(|to| {
            self.again.remove(to);
        });
        due
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.again.values().min().copied()
    }

    /// Returns whether all are over and none was answered. One that is busy is offered the model `again`, and one that was not
    /// reached once more.
    pub(super) fn on_pushed(&mut self, to: PublicKey, (again, outcome): (Moment, PushOutcome)) -> bool {
        let is_repeated = match outcome {
            PushOutcome::Busy => true,
            PushOutcome::Failed => self.failed.insert(to),
            PushOutcome::Delivered | PushOutcome::Declined => false,
        };
        let n_repeated = self.n_repeated.entry(to).or_default();
        if is_repeated && *n_repeated < REPEATS_MAX {
            *n_repeated += 1;
            self.again.insert(to, again);
            return false;
        }
        self.n_open = self.n_open.saturating_sub(1);
        self.has_arrived |= outcome != PushOutcome::Failed;
        self.is_done() && !self.has_arrived
    }

    /// Whether no offer is under way, nor to be repeated.
    pub(super) fn is_done(&self) -> bool {
        self.n_open == 0
    }

    pub(super) fn are_over(&self) -> bool {
        self.is_done() && self.has_arrived
    }
}

impl Training {
    /// Whether a model is pulled: the first of its round, or one more where that has not come within `patience`. One whose sender
    /// may have nothing keeps out no other. Where averages are compared, so many of a round are.
    pub(super) fn pull(
        &mut self,
        from: PublicKey,
        pull: Pull,
        (patience, n_compared): (Duration, Option<usize>),
    ) -> bool {
        if let Some(n_compared) = n_compared {
            return self.comparison.is_open_to(pull.since, &from, pull.round, patience)
                && self.pulls.of(pull.round).count() < n_compared + UNPROVEN_MAX
                && self.pulls.take(from, pull, n_compared + PULLS_MAX, UNPROVEN_MAX);
        }
        let others = || self.pulls.of(pull.round).filter(|other| other.is_expected || !pull.is_expected);
        if others().count() >= PULLS_OF_ROUND_MAX || others().any(|other| other.since + patience > pull.since)
        {
            return false;
        }
        self.pulls.take(from, pull, PULLS_MAX, UNPROVEN_MAX)
    }

    pub(super) fn on_proven(&mut self, from: PublicKey) {
        self.pulls.on_proven(from);
    }

    pub(super) fn on_transfer_ended(&mut self, from: PublicKey, round: u64) {
        self.pulls.end(from, round);
        self.comparison.end(from, round);
    }

    /// Returns whether the pushes are lost, and the sample is to be drawn again.
    pub(super) fn on_pushed(&mut self, round: u64, to: PublicKey, ended: (Moment, PushOutcome)) -> bool {
        let TrainingStep::Pushing { pushes, .. } = &mut self.step else { return false };
        if round != self.round + 1 {
            return false;
        }
        let is_lost = pushes.on_pushed(to, ended);
        if pushes.are_over() {
            self.step = TrainingStep::Done;
        }
        is_lost
    }

    pub(super) fn sampling(&self) -> Option<&Sampling> {
        match &self.step {
            TrainingStep::Sampling { sampling, .. } => Some(sampling),
            _ => None,
        }
    }

    pub(super) fn sampling_mut(&mut self) -> Option<&mut Sampling> {
        match &mut self.step {
            TrainingStep::Sampling { sampling, .. } => Some(sampling),
            _ => None,
        }
    }

    /// Looks for the aggregators once more.
    pub(super) fn sample_again(&mut self, sampling: Sampling) {
        self.step = match std::mem::take(&mut self.step) {
            TrainingStep::Sampling { result, .. } | TrainingStep::Pushing { result, .. } => {
                TrainingStep::Sampling { result, sampling }
            }
            other => other,
        };
    }

    pub(super) fn pushes(&self) -> Option<(&SampledModel, &Pushes)> {
        match &self.step {
            TrainingStep::Pushing { result, pushes } => Some((result, pushes)),
            _ => None,
        }
    }

    pub(super) fn pushes_mut(&mut self) -> Option<(&SampledModel, &mut Pushes)> {
        match &mut self.step {
            TrainingStep::Pushing { result, pushes } => Some((result, pushes)),
            _ => None,
        }
    }

    pub(super) fn round(&self) -> u64 {
        self.round
    }

    /// A round begins with this model.
    pub(super) fn compute(&mut self, now: Moment, round: u64, model: SampledModel) {
        self.round = round;
        self.step = TrainingStep::Computing { since: now, model };
    }

    pub(super) fn took(&self) -> Duration {
        self.took
    }

    pub(super) fn is_computing(&self) -> bool {
        matches!(self.step, TrainingStep::Computing { .. })
    }

    /// Whether it computes a model, or holds one until it is handed on.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.step, TrainingStep::Computing { .. } | TrainingStep::Sampling { .. })
    }

    /// Ends the round without a result.
    pub(super) fn end(&mut self) -> bool {
        matches!(std::mem::take(&mut self.step), TrainingStep::Computing { .. })
    }
}

impl SampledPeer {
    /// `upon train(k, θ, V)`, after the view: a later round cancels what is in progress. No round is trained twice.
    pub(super) fn on_train(&mut self, now: Moment, round: u64, model: SampledModel) {
        let model = self.continued(round, model);
        self.on_active(now, round);
        if round <= self.training.round {
            return;
        }
        if self.training.end() {
            self.actions.push_back(SampledAction::CancelTraining);
        }
        self.training.compute(now, round, model.clone());
        self.actions.push_back(SampledAction::Train { round, model });
    }

    /// The model of a round is trained. Where that took less time than a round takes, it is handed on when that is over.
    pub fn on_trained(&mut self, now: Moment, round: u64, result: SampledModel) {
        if let TrainingStep::Computing { since, model } = &self.training.step
            && round == self.training.round
        {
            if self.settings.is_robust() {
                self.training.continuity.on_trained(model, &result);
            }
            self.training.took = now.saturating_sub(*since);
            let until = *since + shortest_round(self.settings.round_estimate);
            let next = round + 1;
            let sampling = match now < until {
                true => Sampling::later(now, next, until - now),
                false => self.aggregators(now, next),
            };
            self.training.step = TrainingStep::Sampling { result, sampling };
        }
        self.go_on(now);
    }

    /// The model of a round could not be trained here.
    pub fn on_training_failed(&mut self, round: u64) {
        if round == self.training.round && self.training.is_computing() {
            self.training.step = TrainingStep::Done;
        }
    }

    /// `A^{k+1} <- SAMPLE(k + 1, a)`, once more.
    pub(super) fn sample_aggregators(&mut self, now: Moment) {
        let sampling = self.aggregators(now, self.training.round + 1);
        self.training.sample_again(sampling);
    }

    /// Pushes the result to the aggregators of the next round, once they are found.
    pub(super) fn push_trained(&mut self, now: Moment) {
        let TrainingStep::Sampling { result, sampling } = &self.training.step else { return };
        let Some(sample) = sampling.sample() else { return };
        if self.is_among_neighbors() {
            let (round, result) = (sampling.round, result.clone());
            return self.send_trained(now, (round, sample), result);
        }
        let (task, result) = (SampledTask::Aggregate { round: sampling.round }, result.clone());
        self.training.step =
            TrainingStep::Pushing { result: result.clone(), pushes: Pushes::new(sample.len()) };
        self.push(now, sample, task, &result);
    }
}
