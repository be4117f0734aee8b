//! The task of a trainer (MoDEST algorithm 4, `train`).

use std::collections::BTreeMap;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::sampled::SampledTask;

use super::sampling::Sampling;
use super::{PushOutcome, SampledAction, SampledModel, SampledPeer};
use crate::Moment;

/// Models of different rounds that are pulled at a time: a sender that stalls does not keep out those of later rounds.
const PULLS_MAX: usize = 3;

/// `k_train`, and what is done in that round.
#[derive(Debug, Default)]
pub(super) struct Training {
    round: u64,
    step: TrainingStep,
    /// Models that are pulled now, by their senders: one of each round.
    pulling: BTreeMap<PublicKey, u64>,
}

#[derive(Debug, Default)]
enum TrainingStep {
    /// Nothing, or the round is over.
    #[default]
    Done,
    Computing,
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
    pub(super) n_open: usize,
    pub(super) has_arrived: bool,
}

impl Pushes {
    pub(super) fn new(n_open: usize) -> Self {
        Self { n_open, has_arrived: false }
    }

    /// Returns whether all are over and none was answered.
    pub(super) fn on_pushed(&mut self, outcome: PushOutcome) -> bool {
        self.n_open = self.n_open.saturating_sub(1);
        self.has_arrived |= outcome != PushOutcome::Failed;
        self.n_open == 0 && !self.has_arrived
    }

    pub(super) fn are_over(&self) -> bool {
        self.n_open == 0 && self.has_arrived
    }
}

impl Training {
    /// Whether the model of a round is to be pulled: the first of a later round, or of one that is not pulled yet.
    pub(super) fn wants(&mut self, round: u64, from: PublicKey) -> bool {
        let is_pulled =
            self.pulling.contains_key(&from) || self.pulling.values().any(|pulled| *pulled == round);
        if round <= self.round || is_pulled || self.pulling.len() >= PULLS_MAX {
            return false;
        }
        self.pulling.insert(from, round);
        true
    }

    pub(super) fn on_transfer_ended(&mut self, from: PublicKey) {
        self.pulling.remove(&from);
    }

    /// Returns whether the pushes are lost, and the sample is to be drawn again.
    pub(super) fn on_pushed(&mut self, round: u64, outcome: PushOutcome) -> bool {
        let TrainingStep::Pushing { pushes, .. } = &mut self.step else { return false };
        if round != self.round + 1 {
            return false;
        }
        let is_lost = pushes.on_pushed(outcome);
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

    pub(super) fn round(&self) -> u64 {
        self.round
    }

    pub(super) fn is_computing(&self) -> bool {
        matches!(self.step, TrainingStep::Computing)
    }

    /// Ends the round without a result.
    pub(super) fn end(&mut self) -> bool {
        matches!(std::mem::take(&mut self.step), TrainingStep::Computing)
    }
}

impl SampledPeer {
    /// `upon train(k, θ, V)`, after the view: a later round cancels what is in progress. No round is trained twice.
    pub(super) fn on_train(&mut self, now: Moment, round: u64, model: SampledModel) {
        self.on_average_seen(round, &model);
        self.on_active(now, round);
        if round <= self.training.round {
            return;
        }
        if self.training.end() {
            self.actions.push_back(SampledAction::CancelTraining);
        }
        self.training.round = round;
        self.training.step = TrainingStep::Computing;
        self.actions.push_back(SampledAction::Train { round, model });
    }

    /// The model of a round is trained.
    pub fn on_trained(&mut self, now: Moment, round: u64, result: SampledModel) {
        if round == self.training.round && self.training.is_computing() {
            let sampling = self.aggregators(now, round + 1);
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
        let (task, result) = (SampledTask::Aggregate { round: sampling.round }, result.clone());
        self.training.step =
            TrainingStep::Pushing { result: result.clone(), pushes: Pushes::new(sample.len()) };
        self.push(now, sample, task, &result);
    }
}
