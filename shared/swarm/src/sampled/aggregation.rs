//! The task of an aggregator (MoDEST algorithm 4, `aggregate`).

use std::collections::BTreeSet;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::sampled::SampledTask;

use super::pull::{Pull, Pulls};
use super::sampling::Sampling;
use super::training::Pushes;
use super::{PushOutcome, SampledAction, SampledModel, SampledPeer, SampledSettings};
use crate::Moment;

/// `k_agg`, and what is done in that round.
#[derive(Debug, Default)]
pub(super) struct Aggregation {
    round: u64,
    step: AggregationStep,
    pulls: Pulls,
    /// The average of the round before that somebody may still take, where trainers wait for most aggregators.
    earlier: Option<Earlier>,
}

#[derive(Debug)]
struct Earlier {
    round: u64,
    average: SampledModel,
    pushes: Pushes,
}

#[derive(Debug, Default)]
enum AggregationStep {
    /// Nothing, or the round is over.
    #[default]
    Done,
    /// The trainers of `Θ`, which the driver has, and those who get the average, once they are looked for. Models that come meanwhile
    /// count.
    Collecting {
        since: Moment,
        trainers: BTreeSet<PublicKey>,
        sampling: Option<Sampling>,
    },
    Averaging {
        sample: Vec<PublicKey>,
    },
    /// The average is there, and who gets it is not.
    Sampling {
        average: SampledModel,
        sampling: Sampling,
    },
    Pushing {
        average: SampledModel,
        pushes: Pushes,
    },
}

impl Aggregation {
    /// Whether a sender's model is missing: of a later round, or one more of this round as long as they are collected.
    pub(super) fn is_open_to(&self, round: u64, from: PublicKey) -> bool {
        match &self.step {
            AggregationStep::Collecting { trainers, .. } if round == self.round => !trainers.contains(&from),
            _ => round > self.round,
        }
    }

    /// Whether a model is pulled: of a round twice a sample, as samples may differ, and twice that in all. Half a sample more are of
    /// senders that have not proven yet that they are in it, and keep out no other.
    pub(super) fn pull(&mut self, from: PublicKey, pull: Pull, settings: &SampledSettings) -> bool {
        let n_here = match &self.step {
            AggregationStep::Collecting { trainers, .. } if pull.round == self.round => trainers.len(),
            _ => 0,
        };
        let n_pulled = self.pulls.of(pull.round).filter(|other| other.is_expected).count();
        let n_max = 2 * settings.sample_size;
        n_here + n_pulled < n_max && self.pulls.take(from, pull, 2 * n_max, settings.sample_size.div_ceil(2))
    }

    pub(super) fn on_proven(&mut self, from: PublicKey) {
        self.pulls.on_proven(from);
    }

    pub(super) fn on_transfer_ended(&mut self, from: PublicKey, round: u64) {
        self.pulls.end(from, round);
    }

    /// Returns whether the pushes are lost, and the sample is to be drawn again.
    pub(super) fn on_pushed(&mut self, round: u64, to: PublicKey, ended: (Moment, PushOutcome)) -> bool {
        if let Some(earlier) = self.earlier.as_mut().filter(|earlier| earlier.round == round) {
            earlier.pushes.on_pushed(to, ended);
            self.earlier.take_if(|earlier| earlier.pushes.is_done());
            return false;
        }
        let AggregationStep::Pushing { pushes, .. } = &mut self.step else { return false };
        if round != self.round {
            return false;
        }
        let is_lost = pushes.on_pushed(to, ended);
        if pushes.are_over() {
            self.step = AggregationStep::Done;
        }
        is_lost
    }

    pub(super) fn sampling(&self) -> Option<&Sampling> {
        match &self.step {
            AggregationStep::Collecting { sampling, .. } => sampling.as_ref(),
            AggregationStep::Sampling { sampling, .. } => Some(sampling),
            _ => None,
        }
    }

    pub(super) fn sampling_mut(&mut self) -> Option<&mut Sampling> {
        match &mut self.step {
            AggregationStep::Collecting { sampling, .. } => sampling.as_mut(),
            AggregationStep::Sampling { sampling, .. } => Some(sampling),
            _ => None,
        }
    }

    /// Looks for the trainers, or once more.
    pub(super) fn sample_again(&mut self, sampling: Sampling) {
        self.step = match std::mem::take(&mut self.step) {
            AggregationStep::Collecting { since, trainers, .. } => {
                AggregationStep::Collecting { since, trainers, sampling: Some(sampling) }
            }
            AggregationStep::Sampling { average, .. } | AggregationStep::Pushing { average, .. } => {
                AggregationStep::Sampling { average, sampling }
            }
            other => other,
        };
    }

    /// Averages that are offered, with their rounds.
    pub(super) fn pushes_mut(&mut self) -> impl Iterator<Item = (u64, &SampledModel, &mut Pushes)> {
        let now = match &mut self.step {
            AggregationStep::Pushing { average, pushes } => Some((self.round, &*average, pushes)),
            _ => None,
        };
        let earlier = self.earlier.as_mut();
        now.into_iter().chain(earlier.map(|of| (of.round, &of.average, &mut of.pushes)))
    }

    /// When one of them is offered again.
    pub(super) fn next_push(&self) -> Option<Moment> {
        let now = match &self.step {
            AggregationStep::Pushing { pushes, .. } => pushes.next_deadline(),
            _ => None,
        };
        now.into_iter().chain(self.earlier.as_ref().and_then(|of| of.pushes.next_deadline())).min()
    }

    /// Begins with the models of a later round.
    fn begin(&mut self, now: Moment, round: u64, keeps_earlier: bool) {
        let collecting =
            AggregationStep::Collecting { since: now, trainers: BTreeSet::new(), sampling: None };
        if let AggregationStep::Pushing { average, pushes } = std::mem::replace(&mut self.step, collecting)
            && keeps_earlier
        {
            self.earlier = Some(Earlier { round: self.round, average, pushes });
        }
        self.round = round;
    }

    pub(super) fn round(&self) -> u64 {
        self.round
    }

    pub(super) fn is_working(&self) -> bool {
        !matches!(self.step, AggregationStep::Done)
    }

    /// How many models lie here that too few have followed, since when.
    pub(super) fn short(&self) -> Option<(usize, Moment)> {
        match &self.step {
            AggregationStep::Collecting { since, sampling: None, trainers } if !trainers.is_empty() => {
                Some((trainers.len(), *since))
            }
            _ => None,
        }
    }

    /// The models of a round are gone: it is another's.
    pub(super) fn on_collected_lost(&mut self, round: u64) {
        let has_them =
            matches!(self.step, AggregationStep::Collecting { .. } | AggregationStep::Averaging { .. });
        if has_them && round == self.round {
            self.end();
        }
    }

    pub(super) fn end(&mut self) {
        self.step = AggregationStep::Done;
        self.earlier = None;
    }
}

impl SampledPeer {
    /// `upon aggregate(k, θ, V)`, after the view: a later round begins anew, and drops what was collected for an earlier one.
    pub(super) fn on_aggregate(&mut self, now: Moment, from: PublicKey, round: u64, model: SampledModel) {
        if round < self.aggregation.round {
            return;
        }
        self.on_active(now, round);
        if round > self.aggregation.round {
            self.aggregation.begin(now, round, self.settings.is_robust());
        }
        let AggregationStep::Collecting { trainers, sampling, .. } = &mut self.aggregation.step else {
            return;
        };
        if !trainers.insert(from) {
            return;
        }
        let n_trainers = trainers.len();
        let is_looked_for = sampling.is_some();
        self.actions.push_back(SampledAction::Collect { round, model });
        if !is_looked_for && n_trainers >= self.settings.models_wanted() {
            self.sample_trainers(now);
        }
    }

    /// The average of a round is computed.
    pub fn on_averaged(&mut self, now: Moment, round: u64, average: &SampledModel) {
        if self.is_among_neighbors() {
            return self.on_averaged_with_neighbors(now, round, average);
        }
        if round != self.aggregation.round {
            return;
        }
        self.on_own_average(round, average);
        if let AggregationStep::Averaging { sample } = &mut self.aggregation.step {
            let sample = std::mem::take(sample);
            self.push_average(now, sample, average);
        }
        self.go_on(now);
    }

    /// Becomes an aggregator of a round with an average of earlier ones: at the beginning, and where a round was lost.
    pub(super) fn resume(&mut self, now: Moment, round: u64, average: SampledModel) {
        if self.is_among_neighbors() {
            return self.pass_on(now, round.saturating_sub(1), average);
        }
        self.aggregation.round = round;
        self.on_active(now, round);
        let sampling = self.trainers(now, round);
        self.aggregation.step = AggregationStep::Sampling { average, sampling };
        self.go_on(now);
    }

    /// When the models that came are enough, though they are fewer than wanted: half of those, of a round that many are near and the
    /// run has not left. One key alone leads nobody to a round of its own.
    pub(super) fn enough_at(&self) -> Option<Moment> {
        let (n_models, since) = self.aggregation.short()?;
        let round = self.aggregation.round();
        let is_next = round >= self.round() && !self.is_far(round);
        (is_next && self.is_half(n_models)).then(|| since.saturating_add(self.some_rounds()))
    }

    /// Of the models that are wanted.
    pub(super) fn is_half(&self, n_models: usize) -> bool {
        2 * n_models >= self.settings.models_wanted()
    }

    /// Averages those, once it is time.
    pub(super) fn go_on_with_few(&mut self, now: Moment) {
        if self.enough_at().is_some_and(|at| at <= now) {
            self.sample_trainers(now);
        }
    }

    /// `S^k <- SAMPLE(k, s)`, also once more.
    pub(super) fn sample_trainers(&mut self, now: Moment) {
        let sampling = self.trainers(now, self.aggregation.round);
        self.aggregation.sample_again(sampling);
    }

    /// Averages, or pushes the average, once the sample is found.
    pub(super) fn average(&mut self, now: Moment) {
        let Some(sample) = self.aggregation.sampling().and_then(Sampling::sample) else { return };
        match std::mem::take(&mut self.aggregation.step) {
            AggregationStep::Collecting { .. } => {
                let round = self.aggregation.round;
                self.aggregation.step = AggregationStep::Averaging { sample };
                self.actions.push_back(SampledAction::Average { round });
            }
            AggregationStep::Sampling { average, .. } => self.push_average(now, sample, &average),
            other => self.aggregation.step = other,
        }
    }

    fn push_average(&mut self, now: Moment, sample: Vec<PublicKey>, average: &SampledModel) {
        let task = SampledTask::Train { round: self.aggregation.round };
        self.aggregation.earlier = None;
        self.aggregation.step =
            AggregationStep::Pushing { average: average.clone(), pushes: Pushes::new(sample.len()) };
        self.push(now, sample, task, average);
    }

    /// Keeps the newest average.
    pub(super) fn on_average_seen(&mut self, round: u64, average: &SampledModel) {
        if self.newest.as_ref().is_none_or(|(newest, _)| *newest < round) {
            self.newest = Some((round, average.clone()));
        }
    }
}
