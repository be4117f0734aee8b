//! Coordination with the other aggregators of the run: the gradients collected here are averaged with theirs, and an
//! aggregator that fell behind takes their steps or their model.
//!
//! Steps and models received from them are applied in `following`.

use std::collections::BTreeMap;
use std::sync::Arc;

use barnraise_averaging::{Averaged, Fault, GridError, PartialMean};
use barnraise_protocol::average::MemberSet;
use barnraise_protocol::contribute::{BackboneToContributor, OTHER_BACKBONES_MAX};
use barnraise_protocol::matchmaking::{AggregatorStatus, ModelVersion, Proposal, Ready};
use barnraise_relay::memory::give_back;
use barnraise_swarm::collection::{CollectedMean, OtherAggregators};
use barnraise_swarm::matchmaking::{
    FailureRate, GATHER, Matchmaking, MatchmakingAction, MatchmakingConfig, RETRY, SILENCE,
};
use barnraise_swarm::{Moment, PeerKey};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tracing::Instrument as _;

use super::super::aggregators::{
    AdoptError, AggregatorEvent, Aggregators, AveragingError, AveragingTask, GroupSizing, group_size,
    propose, sides, topology,
};
use super::super::learner::{Learner, LearnerError};
use super::following::CarryOver;
use super::{Core, name};
use crate::computing::frees_much;
use crate::net::speed::Speeds;
use crate::storage::journal::CommitRecord;

/// Samples, number and speed of contributors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ContributorStatistics {
    pub(super) n_samples: u64,
    pub(super) n_contributors: u32,
    pub(super) samples_per_second: f32,
}

/// The averaging in progress; dropping it aborts the task.
struct Ongoing {
    nonce: u64,
    task: AbortHandle,
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// State shared with the other aggregators of the run: matchmaking, the averaging in progress, addresses.
pub(super) struct Coordination {
    /// The other aggregators; `None` where this one is a group by itself.
    others: Option<Aggregators>,
    pub(super) matchmaking: Matchmaking,
    pub(super) me: PeerKey,
    /// How often another aggregator fails an averaging.
    failures: FailureRate,
    /// The mean collected here, until it is in a step.
    collected: Option<CollectedMean>,
    /// The averaging in progress.
    ongoing: Option<Ongoing>,
    /// Addresses at which contributors can dial the other aggregators; the last known ones of those that are offline.
    addresses: BTreeMap<PeerKey, Vec<String>>,
}

impl Coordination {
    /// The only aggregator of a run, at the learner's model.
    pub(super) fn new(learner: &Learner, me: PeerKey, target_batch_size: u32) -> Self {
        let config = MatchmakingConfig {
            target_batch_size: u64::from(target_batch_size),
            silence: SILENCE,
            gather: GATHER,
            retry: RETRY,
        };
        let matchmaking = Matchmaking::new(config, me.clone(), AggregatorStatus::new(learner.version()));
        let failures = FailureRate::default();
        let (others, collected, ongoing, addresses) = (None, None, None, BTreeMap::new());
        Self { others, matchmaking, me, failures, collected, ongoing, addresses }
    }

    /// One of several, before it has received anything from another one.
    pub(super) fn with_others(self, others: Aggregators) -> Self {
        let Self { matchmaking, me, .. } = self;
        let section = others.config();
        let config = MatchmakingConfig {
            silence: section.silence(),
            gather: section.gather_timeout(),
            ..*matchmaking.config()
        };
        let matchmaking = Matchmaking::new(config, me.clone(), *matchmaking.own());
        Self { others: Some(others), matchmaking, me, ..self }
    }

    /// Whether the run has other aggregators.
    pub(super) fn has_others(&self) -> bool {
        self.others.is_some()
    }

    /// Counts which of the expected members completed an averaging; returns the new failure rate, 0 to 1.
    fn update_failure_rate(
        &mut self,
        proposal: &Proposal,
        averaged: &Result<Arc<Averaged>, AveragingError>,
    ) -> f64 {
        let members = proposal.members.iter().enumerate();
        let others = members.filter(|(_, member)| member.n_samples > 0 && member.peer != self.me.0);
        let others: MemberSet = others.map(|(position, _)| position).collect();
        let (expected, came) = match averaged {
            Ok(averaged) => (others, averaged.members_of_all()),
            Err(AveragingError::Grid(GridError::PartialMean(why))) => (why.expected, why.came),
            // It is not known who failed.
            Err(_) => (MemberSet::default(), MemberSet::default()),
        };
        self.failures.update(expected.intersection(others), came);
        self.failures.rate()
    }

    /// Aborts the averaging in progress.
    pub(super) fn give_up(&mut self) {
        self.ongoing = None;
    }

    /// Epochs by which the most advanced of the other aggregators is ahead.
    pub(super) fn n_epochs_behind(&self, now: Moment) -> u64 {
        let furthest = self.matchmaking.known_peers(now).map(|(_, standing)| standing.model.epoch).max();
        furthest.unwrap_or_default().saturating_sub(self.matchmaking.own().model.epoch)
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.matchmaking.next_deadline()
    }

    /// Statistics of the contributors of all aggregators; `here` are those of this one.
    pub(super) fn all(&self, now: Moment, here: ContributorStatistics) -> ContributorStatistics {
        let mut all = here;
        all.n_samples = all.n_samples.saturating_add(self.matchmaking.n_samples_elsewhere(now));
        for (_, standing) in self.matchmaking.known_peers(now) {
            all.n_contributors = all.n_contributors.saturating_add(standing.n_contributors);
            all.samples_per_second += standing.samples_per_second;
        }
        all
    }
}

impl Core {
    /// Handles an event of another aggregator.
    pub(super) async fn on_aggregator_event(
        &mut self,
        peer: PeerKey,
        heard: AggregatorEvent,
    ) -> Result<(), LearnerError> {
        let now = self.now();
        let moving = self.disk.pending_model.is_some();
        let coordination = &mut self.coordination;
        match heard {
            // No step is made until the disk has the model that is in memory.
            AggregatorEvent::Averaged(..) | AggregatorEvent::WantCheckpoint(_) if moving => {}
            AggregatorEvent::Step(_, _, done) | AggregatorEvent::Checkpoint(_, done) if moving => {
                let _ = done.send(Err(AdoptError::Busy));
            }
            AggregatorEvent::Followed(_) if moving => coordination.matchmaking.on_failed(now),
            AggregatorEvent::Standing(standing) => coordination.matchmaking.on_status(now, peer, standing),
            AggregatorEvent::Addresses(addresses) => {
                let before = coordination.addresses.insert(peer, addresses.clone());
                if before.as_ref() != Some(&addresses)
                    && let Some(message) = self.elsewhere()
                {
                    self.broadcast(&message);
                }
            }
            AggregatorEvent::Gone => coordination.matchmaking.on_gone(now, &peer),
            AggregatorEvent::Proposal(proposal) => {
                if let Err(error) = coordination.matchmaking.on_proposal(now, proposal) {
                    tracing::debug!(peer = name(&peer), %error, "proposal not accepted");
                }
            }
            AggregatorEvent::Averaged(proposal, averaged) => self.on_averaged(&proposal, averaged).await?,
            AggregatorEvent::Step(header, mean, done) => {
                let applied = self.take_step(&peer, header, mean).await;
                tell_follower(done, applied)?;
            }
            AggregatorEvent::Checkpoint(checkpoint, done) => {
                let applied = self.take_checkpoint(&peer, *checkpoint).await;
                tell_follower(done, applied)?;
            }
            AggregatorEvent::Followed(Ok(())) => {
                self.carry_later_epochs().await?;
                self.coordination.matchmaking.on_followed(now);
            }
            AggregatorEvent::Followed(Err(error)) => {
                tracing::warn!(%error, "this backbone stays behind the other aggregators for now");
                // It may be on another branch already.
                self.carry_later_epochs().await?;
                self.coordination.matchmaking.on_failed(now);
            }
            AggregatorEvent::WantModel(answer) => {
                let _ = answer.send(coordination.matchmaking.own().model);
            }
            AggregatorEvent::WantCheckpoint(done) => {
                self.save_checkpoint().await?;
                // The aggregator that asked looks for it now.
                drop(done);
            }
        }
        Ok(())
    }

    /// Addresses of the other aggregators for contributors: an equal share of the message for each.
    pub(super) fn elsewhere(&self) -> Option<BackboneToContributor> {
        let addresses = &self.coordination.addresses;
        let share = (OTHER_BACKBONES_MAX / addresses.len().max(1)).max(1);
        let mut addresses = addresses.values().flat_map(|addresses| addresses.iter().take(share)).peekable();
        addresses.peek()?;
        Some(BackboneToContributor::OtherBackbones(addresses.take(OTHER_BACKBONES_MAX).cloned().collect()))
    }

    /// Does what matchmaking asks for; returns whether the round has actions then.
    pub(super) async fn coordinate(&mut self) -> Result<bool, LearnerError> {
        if self.disk.pending_model.is_some() {
            return Ok(false);
        }
        loop {
            let now = self.now();
            let (here, is_closing) = (self.here(), self.round.is_closing());
            let coordination = &mut self.coordination;
            let ContributorStatistics { n_contributors, samples_per_second, .. } = here;
            let n_samples = self.round.n_samples_believed();
            let others = coordination.others.as_ref();
            let is_reachable = others.is_none_or(Aggregators::is_reachable);
            // Nobody plans by the speeds of one that has no others.
            let speeds = others.map_or(Speeds::NONE, |others| others.speed().speeds());
            let before = *coordination.matchmaking.own();
            let own = AggregatorStatus {
                n_samples,
                n_contributors,
                samples_per_second,
                is_closing,
                is_reachable,
                download_bytes_per_s: speeds.download as f32,
                upload_bytes_per_s: speeds.upload as f32,
                ..before
            };
            coordination.matchmaking.on_own_status(now, own);
            let Some(action) = coordination.matchmaking.poll_action() else { break };
            self.on_action(action).await?;
        }
        let now = self.now();
        let coordination = &self.coordination;
        let elsewhere = OtherAggregators {
            n_samples: coordination.matchmaking.n_samples_elsewhere(now),
            is_closing: coordination.matchmaking.is_closing_elsewhere(now),
        };
        if let Some(others) = &coordination.others {
            others.publish_standing(coordination.matchmaking.own());
        }
        self.round.on_other_aggregators(now, elsewhere);
        Ok(self.round.has_actions())
    }

    /// All contributions reported here are collected: this aggregator is ready to average.
    pub(super) fn on_collected(&mut self, mean: CollectedMean) {
        let now = self.now();
        let coordination = &mut self.coordination;
        let ready = Ready { n_samples: mean.n_samples, loss: mean.loss };
        coordination.collected = Some(mean);
        coordination.matchmaking.on_ready(now, ready);
    }

    async fn on_action(&mut self, action: MatchmakingAction) -> Result<(), LearnerError> {
        let now = self.now();
        let n_parameters = self.round.config().n_parameters;
        let target_batch_size = self.round.config().target_batch_size;
        let coordination = &mut self.coordination;
        match action {
            MatchmakingAction::Propose { model, members } => {
                let Some(others) = &coordination.others else { return Ok(()) };
                let codec = others.average_codec();
                // After a failure all members try again, without helpers that nobody trusts.
                let is_first_attempt = coordination.matchmaking.is_first_attempt();
                let peers: Vec<PeerKey> = members.iter().map(|(peer, _)| peer.clone()).collect();
                let helpers = if is_first_attempt { others.reducers(&peers) } else { Vec::new() };
                let of = GroupSizing {
                    n_members: members.len(),
                    codec,
                    failure_rate: coordination.failures.rate(),
                    is_first_attempt,
                    is_helped: !helpers.is_empty(),
                };
                let group_size = group_size(others.config(), of);
                let (nonce, check_seed) = (nonce(), random());
                let task = AveragingTask {
                    n_values: n_parameters,
                    codec,
                    target_batch_size,
                    nonce,
                    group_size,
                    check_seed,
                };
                match propose(model, &members, &helpers, task) {
                    Ok(proposal) => {
                        others.propose(&proposal);
                        // Nothing has changed since it was asked for.
                        let _ = coordination.matchmaking.on_proposal(now, proposal);
                    }
                    Err(error) => {
                        tracing::error!(%error, "no group can be planned");
                        coordination.matchmaking.on_failed(now);
                    }
                }
            }
            MatchmakingAction::Average(proposal) => self.average(proposal).await?,
            MatchmakingAction::GiveUp => {
                tracing::warn!("no other aggregator takes part in this averaging: aborted");
                self.metrics.on_averaged("deserted");
                coordination.ongoing = None;
            }
            MatchmakingAction::StepAlone => {
                if let Some(mean) = coordination.collected.take() {
                    self.step_alone(mean).await?;
                }
            }
            MatchmakingAction::Reopen => {
                coordination.collected = None;
                self.round.reopen(now);
            }
            MatchmakingAction::Follow(from) => {
                let Some(others) = &coordination.others else { return Ok(()) };
                let model = coordination.matchmaking.own().model;
                let ahead: Vec<String> = from.iter().map(name).collect();
                if let Some(Ongoing { nonce, .. }) = &coordination.ongoing {
                    tracing::info!(
                        epoch = model.epoch,
                        nonce,
                        "other aggregators have ended this averaging: aborted here"
                    );
                    self.metrics.on_averaged("overtaken");
                }
                coordination.ongoing = None;
                tracing::info!(epoch = model.epoch, ?ahead, "behind: follows");
                others.follow(model, from, n_parameters);
            }
        }
        Ok(())
    }

    async fn average(&mut self, proposal: Proposal) -> Result<(), LearnerError> {
        let (now, n_parameters) = (self.now(), self.round.config().n_parameters);
        let coordination = &mut self.coordination;
        let Some(others) = &coordination.others else { return Ok(()) };
        // Of two proposals the one that all take up.
        coordination.ongoing = None;
        let codec = others.average_codec();
        match (topology(&proposal, &coordination.me, n_parameters, codec), &coordination.collected) {
            (Ok(topology), Some(mean)) => {
                let (n_members, sides) = (proposal.members.len(), sides(&proposal));
                if sides.len() > 1 {
                    let (epoch, group_size) = (proposal.model.epoch, proposal.group_size);
                    tracing::info!(epoch, n_members, group_size, ?sides, "averages in a grid of groups");
                }
                self.storage
                    .journal
                    .write_averaged_entries(mean.epoch, proposal.nonce, &mean.sequences)
                    .await?;
                let (me, values) = (coordination.me.clone(), mean.gradient.clone());
                let nonce = proposal.nonce;
                let task = others.average(proposal, topology, me, values);
                coordination.ongoing = Some(Ongoing { nonce, task });
            }
            (Err(error), _) => {
                tracing::warn!(%error, "a proposed group cannot average");
                coordination.matchmaking.on_failed(now);
            }
            (Ok(_), None) => coordination.matchmaking.on_failed(now),
        }
        Ok(())
    }

    async fn on_averaged(
        &mut self,
        proposal: &Proposal,
        averaged: Result<Arc<Averaged>, AveragingError>,
    ) -> Result<(), LearnerError> {
        let now = self.now();
        let coordination = &mut self.coordination;
        let Some(others) = &coordination.others else { return Ok(()) };
        let (measured, deadline) = (others.speed().measured(), others.config().deadline());
        self.metrics.on_link_measured(measured);
        if coordination.ongoing.as_ref().is_none_or(|ongoing| ongoing.nonce != proposal.nonce) {
            // It was given up when it had just ended.
            return Ok(());
        }
        coordination.ongoing = None;
        if proposal.model != coordination.matchmaking.own().model {
            return Ok(());
        }
        self.metrics.on_failure_rate(coordination.update_failure_rate(proposal, &averaged));
        for fault in faults(&averaged) {
            let (peer, error) = (name(&fault.peer), &fault.error);
            tracing::warn!(peer, part = fault.part, %error, "this aggregator's values did not count");
        }
        let averaged = match averaged {
            Ok(averaged) if averaged.is_complete() => averaged,
            Ok(averaged) => {
                let errors: Vec<String> = averaged.not_averaged().map(ToString::to_string).collect();
                self.metrics.on_averaged("incomplete");
                tracing::warn!(epoch = proposal.model.epoch, ?errors, "not all parts were averaged");
                coordination.matchmaking.on_failed(now);
                return Ok(());
            }
            Err(AveragingError::Grid(GridError::PartialMean(why))) => {
                let PartialMean { round, reason, .. } = *why;
                self.metrics.on_averaged("incomplete");
                tracing::warn!(
                    epoch = proposal.model.epoch,
                    round,
                    %reason,
                    "other aggregators may have the mean of all groups"
                );
                coordination.matchmaking.on_partial_mean(now, now + deadline);
                return Ok(());
            }
            Err(error) => {
                self.metrics.on_averaged("failed");
                tracing::warn!(epoch = proposal.model.epoch, %error, "nothing was averaged");
                coordination.matchmaking.on_failed(now);
                return Ok(());
            }
        };
        self.metrics.on_averaged("averaged");
        let n_rounds = sides(proposal).len();
        if n_rounds > 1 {
            self.metrics.on_groups(n_rounds);
        }
        self.metrics.on_averaging_bytes(averaged.n_bytes_sent, averaged.n_bytes_received);
        self.crediting.averaged(averaged.n_bytes_received);
        let set = averaged.members();
        let included = proposal.members.iter().enumerate().filter(|(position, _)| set.contains(*position));
        let included: Vec<_> = included.map(|(_, member)| member.clone()).collect();
        let n_samples = included.iter().fold(0, |sum: u64, member| sum.saturating_add(member.n_samples));
        let members: Vec<Vec<u8>> = included.into_iter().map(|member| member.peer).collect();
        let is_included = members.contains(&coordination.me.0);
        let mean = coordination.collected.take();
        if let Some(mean) = &mean {
            self.record_outliers(mean.epoch, &mean.outcomes);
        }
        let record = CommitRecord {
            epoch: proposal.model.epoch,
            before: proposal.model.hash,
            nonce: proposal.nonce,
            members,
            n_samples,
            loss: proposal.loss,
            seqs: mean.filter(|_| is_included).map(|mean| mean.sequences).unwrap_or_default(),
            aggregation: self.round.config().aggregation,
            learning_rate: self.learner.learning_rate(),
        };
        let values = Arc::unwrap_or_clone(averaged).values;
        self.commit(&record, Arc::new(values)).await
    }

    /// Makes a step of the contributions to this aggregator. Where it cannot be stored it is made once it can.
    pub(super) async fn step_alone(&mut self, mut mean: CollectedMean) -> Result<(), LearnerError> {
        self.round.hold();
        let gradient = Arc::new(std::mem::take(&mut mean.gradient));
        let record = CommitRecord {
            epoch: mean.epoch,
            before: self.coordination.matchmaking.own().model.hash,
            nonce: nonce(),
            members: vec![self.coordination.me.0.clone()],
            n_samples: mean.n_samples,
            loss: mean.loss,
            seqs: mean.sequences.clone(),
            aggregation: mean.aggregation,
            learning_rate: self.learner.learning_rate(),
        };
        let is_fresh = match self.store_step(&record, &gradient).await {
            Err(error) => {
                let Some(of_disk) = error.of_storage() else { return Err(error) };
                mean.gradient = Arc::unwrap_or_clone(gradient);
                self.put_off(mean, of_disk).await;
                return Ok(());
            }
            Ok(is_fresh) => is_fresh,
        };
        self.record_outliers(mean.epoch, &mean.outcomes);
        self.make_step(&record, gradient, is_fresh).await
    }

    /// Stores a step and makes it.
    pub(super) async fn commit(
        &mut self,
        record: &CommitRecord,
        mean: Arc<Vec<f32>>,
    ) -> Result<(), LearnerError> {
        self.round.hold();
        let is_fresh = self.store_step(record, &mean).await?;
        self.make_step(record, mean, is_fresh).await
    }

    /// Stores a step. Contributions accepted here that are not in it are carried to the next epoch; returns whether
    /// there are none.
    async fn store_step(
        &mut self,
        record: &CommitRecord,
        mean: &Arc<Vec<f32>>,
    ) -> Result<bool, LearnerError> {
        let (epoch, journal) = (record.epoch, self.storage.journal.clone());
        let has_others = self.coordination.has_others();
        // All collected contributions are in a step that this peer took part in: the journal need not be read.
        let is_all = !record.seqs.is_empty();
        let is_fresh = is_all && !(has_others && journal.has_entries(epoch + 1).await?);
        if !is_fresh {
            let is_included = record.members.contains(&self.coordination.me.0);
            let given = match is_included {
                true if is_all => record.seqs.clone(),
                true => journal.averaged_entries(epoch, record.nonce).await?,
                false => Vec::new(),
            };
            let mut carrying = CarryOver::to(&journal, epoch + 1).await?;
            carrying.carry(epoch, &given.into_iter().collect()).await?;
        }
        if has_others || !record.is_of_entries() {
            self.beside(journal.write_mean(epoch, record.nonce, mean)).await?;
        }
        self.beside(journal.commit(record)).await?;
        Ok(is_fresh)
    }

    /// Makes a step that is stored. Nothing is known of it until all of it is computed.
    async fn make_step(
        &mut self,
        record: &CommitRecord,
        mean: Arc<Vec<f32>>,
        is_fresh: bool,
    ) -> Result<(), LearnerError> {
        let CommitRecord { epoch, n_samples, .. } = *record;
        let span = tracing::debug_span!(parent: &self.collecting, "step", epoch, n_samples);
        let began = self.now();
        let (stepping, publishing) = (self.learner.stepping(record, mean), self.learner.publish(epoch + 1));
        let computing = async { (stepping.await, publishing.await) };
        let (hash, state) = self.beside(computing.instrument(span)).await;
        self.learner.on_stepped(record, hash);
        self.crediting.worked(self.now().saturating_sub(began));
        self.on_new_model(record, state?);
        self.go_on(is_fresh).await?;
        self.checkpoint_if_due().await?;
        if frees_much(self.learner.n_parameters()) {
            drop(tokio::task::spawn_blocking(give_back));
        }
        Ok(())
    }

    /// The round continues with the learner's model; `is_fresh` where no contribution was carried to it.
    pub(super) async fn go_on(&mut self, is_fresh: bool) -> Result<(), LearnerError> {
        let now = self.now();
        self.round.on_moved(now, self.learner.epoch());
        if !is_fresh {
            self.learner.replay_open(&mut self.round, &self.storage.journal).await?;
            self.round.resume(now);
        }
        self.disk.step = None;
        self.coordination.collected = None;
        self.coordination.matchmaking.on_stepped(now, self.learner.version());
        Ok(())
    }

    pub(super) fn model(&self) -> ModelVersion {
        self.coordination.matchmaking.own().model
    }
}

/// Tells the task that fetched a step or a model what became of it. Returns an error that ends this backbone.
fn tell_follower(
    done: oneshot::Sender<Result<ModelVersion, AdoptError>>,
    applied: Result<Result<ModelVersion, AdoptError>, LearnerError>,
) -> Result<(), LearnerError> {
    let (told, ended) = match applied {
        Ok(told) => (told, Ok(())),
        Err(error) => (Err(AdoptError::Failed), Err(error)),
    };
    // The task may have ended.
    let _ = done.send(told);
    ended
}

/// Protocol faults of members, as far as an averaging got.
fn faults(averaged: &Result<Arc<Averaged>, AveragingError>) -> &[Fault] {
    match averaged {
        Ok(averaged) => &averaged.faults,
        Err(AveragingError::Grid(GridError::PartialMean(why))) => &why.faults,
        Err(_) => &[],
    }
}

/// Names an averaging. Without entropy only its members tell it from others.
fn nonce() -> u64 {
    random().unwrap_or_default()
}

/// An unpredictable number; `None` without entropy.
fn random() -> Option<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).ok().map(|()| u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use barnraise_averaging::{AverageError, FaultError, PartialMeanReason};
    use barnraise_protocol::Sha256Hash;
    use barnraise_protocol::matchmaking::ProposedMember;
    use barnraise_swarm::averaging::ReductionError;

    use super::*;

    /// Of an aggregator with a model of this epoch.
    fn status(epoch: u64) -> AggregatorStatus {
        let model = ModelVersion { n_samples_total: 0, epoch, hash: Sha256Hash([0; 32]) };
        AggregatorStatus {
            n_samples: 20,
            n_contributors: 3,
            samples_per_second: 2.5,
            ..AggregatorStatus::new(model)
        }
    }

    /// Peer 1, at epoch 5.
    fn coordination() -> Coordination {
        let config =
            MatchmakingConfig { target_batch_size: 256, silence: SILENCE, gather: GATHER, retry: RETRY };
        let me = PeerKey(vec![1]);
        let matchmaking = Matchmaking::new(config, me.clone(), status(5));
        let failures = FailureRate::default();
        let (others, collected, ongoing, addresses) = (None, None, None, BTreeMap::new());
        Coordination { others, matchmaking, me, failures, collected, ongoing, addresses }
    }

    #[test]
    fn it_is_as_far_behind_as_the_most_advanced_is_ahead() {
        let mut coordination = coordination();
        assert_eq!(coordination.n_epochs_behind(Moment::ZERO), 0);
        for (peer, epoch, n_behind) in [(2, 3, 0), (3, 6, 1), (4, 9, 4), (5, 7, 4)] {
            coordination.matchmaking.on_status(Moment::ZERO, PeerKey(vec![peer]), status(epoch));
            assert_eq!(coordination.n_epochs_behind(Moment::ZERO), n_behind, "peer {peer}");
        }
        assert_eq!(coordination.n_epochs_behind(SILENCE), 0, "nothing was heard of them for long");
    }

    #[test]
    fn the_contributors_of_all_are_those_here_and_those_of_the_others() {
        let here = ContributorStatistics { n_samples: 10, n_contributors: 2, samples_per_second: 1.5 };
        let mut coordination = coordination();
        assert_eq!(coordination.all(Moment::ZERO, here), here);
        coordination.matchmaking.on_status(Moment::ZERO, PeerKey(vec![2]), status(5));
        let all = ContributorStatistics { n_samples: 30, n_contributors: 5, samples_per_second: 4.0 };
        assert_eq!(coordination.all(Moment::ZERO, here), all);
    }

    fn partial(reason: PartialMeanReason, expected: MemberSet, came: MemberSet) -> AveragingError {
        let faults = Vec::new();
        GridError::PartialMean(Box::new(PartialMean { round: 0, reason, expected, came, faults })).into()
    }

    #[test]
    fn a_failure_is_of_another_member_whose_gradient_was_expected() {
        // The second is this peer; the third only averages; the fourth is of another group.
        let members = [(2, 64), (1, 64), (3, 0), (4, 64), (5, 1)];
        let members =
            members.map(|(peer, n_samples)| ProposedMember { peer: vec![peer], n_samples, n_reduced: 1 });
        let proposal = Proposal {
            model: status(5).model,
            nonce: 7,
            group_size: 4,
            members: members.into(),
            reducers: Vec::new(),
            check_seed: 0,
            loss: 1.0,
        };
        let set = |positions: &[usize]| -> MemberSet { positions.iter().copied().collect() };
        let (expected, came) = (set(&[0, 1, 2, 4]), set(&[1, 2, 4]));
        let mut want = FailureRate::default();
        let prior = want.rate();
        let mut coordination = coordination();
        // Who failed is not known.
        let unknown = Err(AveragingError::Whole(AverageError::NotAMember));
        assert_eq!(coordination.update_failure_rate(&proposal, &unknown), prior);
        want.update(set(&[0, 4]), set(&[4]));
        let failed = Err(partial(PartialMeanReason::Deadline, expected, came));
        assert_eq!(coordination.update_failure_rate(&proposal, &failed), want.rate());
        assert!(want.rate() != prior);
    }

    #[test]
    fn faults_are_told_of_a_mean_and_of_a_partial_one() {
        let fault = || Fault {
            peer: PeerKey(vec![2]),
            part: 3,
            error: FaultError::Reduction(ReductionError::NotAwaited),
        };
        let (values, parts) = (Vec::new(), Vec::new());
        let whole = Averaged { values, parts, faults: vec![fault()], n_bytes_sent: 0, n_bytes_received: 0 };
        let none = MemberSet::default();
        let (round, reason, faults_so_far) = (0, PartialMeanReason::Deadline, vec![fault()]);
        let cut = PartialMean { round, reason, expected: none, came: none, faults: faults_so_far };
        let nothing = AveragingError::Whole(AverageError::NotAMember);
        let ends = [
            (Ok(Arc::new(whole)), 1),
            (Err(GridError::PartialMean(Box::new(cut)).into()), 1),
            (Err(nothing), 0),
        ];
        for (ended, n_faults) in ends {
            let told = faults(&ended);
            assert_eq!(told.len(), n_faults, "{ended:?}");
            assert!(told.iter().all(|fault| fault.peer.0 == [2] && fault.part == 3), "{told:?}");
        }
    }

    #[test]
    fn it_wakes_up_when_another_one_may_have_gone_silent() {
        let mut coordination = coordination();
        assert!(!coordination.has_others());
        assert_eq!(coordination.next_deadline(), None);
        let heard_at = Duration::from_secs(3);
        coordination.matchmaking.on_status(heard_at, PeerKey(vec![2]), status(5));
        assert_eq!(coordination.next_deadline(), Some(heard_at + SILENCE));
    }

    #[tokio::test]
    async fn an_averaging_that_is_given_up_ends() {
        let mut coordination = coordination();
        let task = tokio::spawn(std::future::pending::<()>());
        coordination.ongoing = Some(Ongoing { nonce: 1, task: task.abort_handle() });
        coordination.give_up();
        assert!(coordination.ongoing.is_none());
        let ended = tokio::time::timeout(Duration::from_secs(60), task).await;
        assert!(ended.is_ok_and(|ended| ended.is_err_and(|error| error.is_cancelled())));
    }

    #[test]
    fn each_averaging_has_a_number_of_its_own() {
        assert_ne!(nonce(), nonce());
    }
}
