//! The core where other peers aggregate the same run: what was collected here is averaged with what they have, and
//! whoever fell behind takes their steps or their model.
//!
//! What comes from others, and what is carried over to it, is in `following`.

use std::collections::BTreeMap;
use std::sync::Arc;

use barnraise_averaging::{Averaged, Fault, GridError, NotWhole};
use barnraise_protocol::average::MemberSet;
use barnraise_protocol::contribute::{BackboneToContributor, ELSEWHERE_MAX};
use barnraise_protocol::matchmaking::{ModelVersion, Proposal, Ready, Standing};
use barnraise_swarm::matchmaking::{Action, FailureRate, Matchmaking, MatchmakingConfig, RETRY};
use barnraise_swarm::round::{Elsewhere, MeanOfRound};
use barnraise_swarm::{Moment, PeerKey};
use tokio::task::AbortHandle;

use super::super::aggregators::{
    Aggregators, AveragingError, Circumstances, Heard, Task, group_size, propose, sides, way,
};
use super::super::learner::{Learner, LearnerError};
use super::following::Carrying;
use super::{Core, name};
use crate::storage::journal::{CommitRecord, Together as StepTogether};

/// What contributors do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Crowd {
    pub(super) n_samples: u64,
    pub(super) n_contributors: u32,
    pub(super) samples_per_second: f32,
}

/// What is averaged now; given up when it is dropped.
struct Ongoing {
    nonce: u64,
    task: AbortHandle,
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// All about the peers that aggregate the same run.
pub struct Together {
    aggregators: Aggregators,
    pub(super) matchmaking: Matchmaking,
    pub(super) me: PeerKey,
    /// How often the others fail when they average.
    failures: FailureRate,
    /// What was collected here, until a step is made.
    collected: Option<MeanOfRound>,
    /// The averaging that is under way.
    ongoing: Option<Ongoing>,
    /// Where contributors can dial the others; of those that are away, where they were.
    addresses: BTreeMap<PeerKey, Vec<String>>,
}

impl Together {
    /// A peer that has the learner's model and has heard of no other yet.
    ///
    /// # Errors
    /// Does not happen.
    pub fn new(
        aggregators: Aggregators,
        learner: &Learner,
        me: PeerKey,
        target_batch_size: u32,
    ) -> Result<Self, LearnerError> {
        let config = MatchmakingConfig {
            target_batch_size: u64::from(target_batch_size),
            silence: aggregators.config().silence,
            gather: aggregators.config().gather_timeout,
            retry: RETRY,
        };
        let speeds = aggregators.speed().speeds();
        let own = Standing {
            model: learner.version()?,
            n_samples: 0,
            n_contributors: 0,
            samples_per_second: 0.0,
            is_closing: false,
            ready: None,
            is_busy: false,
            download_bytes_per_s: speeds.download as f32,
            upload_bytes_per_s: speeds.upload as f32,
            is_reachable: aggregators.is_reachable(),
        };
        let matchmaking = Matchmaking::new(config, me.clone(), own);
        let addresses = BTreeMap::new();
        let failures = FailureRate::default();
        let (collected, ongoing) = (None, None);
        Ok(Self { aggregators, matchmaking, me, failures, collected, ongoing, addresses })
    }

    /// Who of the others was expected in an averaging, and came with all that it had; how often others fail from then on.
    fn see_who_came(&mut self, proposal: &Proposal, averaged: &Result<Arc<Averaged>, AveragingError>) -> f64 {
        let members = proposal.members.iter().enumerate();
        let others = members.filter(|(_, member)| member.n_samples > 0 && member.peer != self.me.0);
        let others: MemberSet = others.map(|(position, _)| position).collect();
        let (expected, came) = match averaged {
            Ok(averaged) => (others, averaged.members_of_all()),
            Err(AveragingError::Grid(GridError::NotWhole(why))) => (why.expected, why.came),
            // It is not known who failed.
            Err(_) => (MemberSet::default(), MemberSet::default()),
        };
        self.failures.on_averaged(expected.intersection(others), came);
        self.failures.rate()
    }

    /// Nothing is averaged any longer.
    pub(super) fn give_up(&mut self) {
        self.ongoing = None;
    }

    /// Epochs that the one furthest ahead of the others is ahead of this peer.
    pub(super) fn n_epochs_behind(&self, now: Moment) -> u64 {
        let furthest = self.matchmaking.colleagues(now).map(|(_, standing)| standing.model.epoch).max();
        furthest.unwrap_or_default().saturating_sub(self.matchmaking.own().model.epoch)
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.matchmaking.next_deadline()
    }

    /// Contributors here and elsewhere.
    pub(super) fn all(&self, now: Moment, here: Crowd) -> Crowd {
        let mut all = here;
        all.n_samples = all.n_samples.saturating_add(self.matchmaking.n_samples_elsewhere(now));
        for (_, standing) in self.matchmaking.colleagues(now) {
            all.n_contributors = all.n_contributors.saturating_add(standing.n_contributors);
            all.samples_per_second += standing.samples_per_second;
        }
        all
    }
}

impl Core {
    /// Something came from a peer that aggregates the run too.
    pub(super) async fn on_heard(&mut self, peer: PeerKey, heard: Heard) -> Result<(), LearnerError> {
        let now = self.now();
        let moving = self.disk.moving.is_some();
        let Some(together) = &mut self.together else { return Ok(()) };
        match heard {
            // Until the disk has what is in memory, nothing is made on it.
            Heard::Averaged(..) | Heard::WantCheckpoint(_) if moving => {}
            Heard::Step(_, _, done) | Heard::Checkpoint(_, done) if moving => {
                let _ = done.send(Err("a model is being stored here".into()));
            }
            Heard::Followed(_) if moving => together.matchmaking.on_failed(now),
            Heard::Standing(standing) => together.matchmaking.on_standing(now, peer, standing),
            Heard::Addresses(addresses) => {
                let before = together.addresses.insert(peer, addresses.clone());
                if before.as_ref() != Some(&addresses)
                    && let Some(message) = self.elsewhere()
                {
                    self.tell_all(&message);
                }
            }
            Heard::Gone => together.matchmaking.on_gone(now, &peer),
            Heard::Proposal(proposal) => {
                if let Err(error) = together.matchmaking.on_proposal(now, proposal) {
                    tracing::debug!(peer = name(&peer), %error, "a proposal is not taken up");
                }
            }
            Heard::Averaged(proposal, averaged) => self.on_averaged(&proposal, averaged).await?,
            Heard::Step(header, mean, done) => {
                let applied = self.take_step(&peer, header, &mean).await;
                // Whoever fetched it may be gone.
                let _ = done.send(told(&applied));
                applied.map(drop)?;
            }
            Heard::Checkpoint(checkpoint, done) => {
                let applied = self.take_checkpoint(&peer, *checkpoint).await;
                let _ = done.send(told(&applied));
                applied.map(drop)?;
            }
            Heard::Followed(Ok(())) => {
                self.carry_later_epochs().await?;
                if let Some(together) = &mut self.together {
                    together.matchmaking.on_followed(now);
                }
            }
            Heard::Followed(Err(error)) => {
                tracing::warn!(%error, "this backbone stays behind the others for now");
                // It may be on another line already.
                self.carry_later_epochs().await?;
                if let Some(together) = &mut self.together {
                    together.matchmaking.on_failed(now);
                }
            }
            Heard::WantModel(answer) => {
                let _ = answer.send(together.matchmaking.own().model);
            }
            Heard::WantCheckpoint(done) => {
                self.save_checkpoint().await?;
                // Whoever asked looks for it now.
                drop(done);
            }
        }
        Ok(())
    }

    /// What contributors are told of the others: a share of the room for each.
    pub(super) fn elsewhere(&self) -> Option<BackboneToContributor> {
        let together = self.together.as_ref().filter(|together| !together.addresses.is_empty())?;
        let share = (ELSEWHERE_MAX / together.addresses.len()).max(1);
        let addresses = together.addresses.values().flat_map(|addresses| addresses.iter().take(share));
        Some(BackboneToContributor::Elsewhere(addresses.take(ELSEWHERE_MAX).cloned().collect()))
    }

    /// Does what matchmaking asks for; whether the round has something to do then.
    pub(super) async fn act_together(&mut self) -> Result<bool, LearnerError> {
        if self.disk.moving.is_some() {
            return Ok(false);
        }
        loop {
            let now = self.now();
            let (here, is_closing) = (self.here(), self.round.is_closing());
            let Some(together) = &mut self.together else { return Ok(false) };
            let Crowd { n_contributors, samples_per_second, .. } = here;
            let n_samples = self.round.n_samples_believed();
            let is_reachable = together.aggregators.is_reachable();
            let speeds = together.aggregators.speed().speeds();
            let before = *together.matchmaking.own();
            let own = Standing {
                n_samples,
                n_contributors,
                samples_per_second,
                is_closing,
                is_reachable,
                download_bytes_per_s: speeds.download as f32,
                upload_bytes_per_s: speeds.upload as f32,
                ..before
            };
            together.matchmaking.on_own(now, own);
            let Some(action) = together.matchmaking.poll_action() else { break };
            self.on_action(action).await?;
        }
        let now = self.now();
        let Some(together) = &self.together else { return Ok(false) };
        let elsewhere = Elsewhere {
            n_samples: together.matchmaking.n_samples_elsewhere(now),
            is_closing: together.matchmaking.is_closing_elsewhere(now),
        };
        together.aggregators.tell(together.matchmaking.own());
        self.round.on_elsewhere(now, elsewhere);
        Ok(self.round.has_actions())
    }

    /// What was reported here is collected.
    pub(super) fn on_collected(&mut self, mean: MeanOfRound) {
        let now = self.now();
        let Some(together) = &mut self.together else { return };
        let ready = Ready { n_samples: mean.n_samples, loss: mean.loss };
        together.collected = Some(mean);
        together.matchmaking.on_ready(now, ready);
    }

    async fn on_action(&mut self, action: Action) -> Result<(), LearnerError> {
        let now = self.now();
        let n_parameters = self.round.config().n_parameters;
        let target_batch_size = self.round.config().target_batch_size;
        let Some(together) = &mut self.together else { return Ok(()) };
        match action {
            Action::Propose { model, members } => {
                let codec = together.aggregators.config().codec;
                // What failed is tried again by all, without those that nobody trusts.
                let is_first_attempt = together.matchmaking.is_first_attempt();
                let peers: Vec<PeerKey> = members.iter().map(|(peer, _)| peer.clone()).collect();
                let helpers =
                    if is_first_attempt { together.aggregators.reducers(&peers) } else { Vec::new() };
                let of = Circumstances {
                    n_members: members.len(),
                    failure_rate: together.failures.rate(),
                    is_first_attempt,
                    is_helped: !helpers.is_empty(),
                };
                let group_size = group_size(together.aggregators.config(), of);
                let (nonce, check_seed) = (nonce(), random());
                let task =
                    Task { n_values: n_parameters, codec, target_batch_size, nonce, group_size, check_seed };
                match propose(model, &members, &helpers, task) {
                    Ok(proposal) => {
                        together.aggregators.propose(&proposal);
                        // Nothing has changed since it was asked for.
                        let _ = together.matchmaking.on_proposal(now, proposal);
                    }
                    Err(error) => {
                        tracing::error!(%error, "no group can be planned");
                        together.matchmaking.on_failed(now);
                    }
                }
            }
            Action::Average(proposal) => self.average(proposal).await?,
            Action::GiveUp => {
                tracing::warn!("nobody else takes part in this averaging: given up");
                self.metrics.on_averaged("deserted");
                together.ongoing = None;
            }
            Action::StepAlone => {
                let Some(mean) = together.collected.take() else { return Ok(()) };
                let nonce = nonce();
                let step = StepTogether {
                    before: together.matchmaking.own().model.hash,
                    nonce,
                    loss: mean.loss,
                    members: vec![together.me.0.clone()],
                };
                let (n_samples, seqs) = (mean.n_samples, mean.sequences.clone());
                self.see_who_is_far_off(mean.epoch, &mean.outcomes);
                self.storing.journal.write_given(mean.epoch, nonce, &seqs).await?;
                self.step_together(mean.epoch, n_samples, seqs, step, &mean.gradient).await?;
            }
            Action::Reopen => {
                together.collected = None;
                self.round.reopen(now);
            }
            Action::Follow(from) => {
                let model = together.matchmaking.own().model;
                let others: Vec<String> = from.iter().map(name).collect();
                if let Some(Ongoing { nonce, .. }) = &together.ongoing {
                    tracing::info!(
                        epoch = model.epoch,
                        nonce,
                        "others have ended this averaging: given up here"
                    );
                    self.metrics.on_averaged("overtaken");
                }
                together.ongoing = None;
                tracing::info!(epoch = model.epoch, ?others, "behind: follows");
                together.aggregators.follow(model, from, n_parameters);
            }
        }
        Ok(())
    }

    async fn average(&mut self, proposal: Proposal) -> Result<(), LearnerError> {
        let (now, n_parameters) = (self.now(), self.round.config().n_parameters);
        let Some(together) = &mut self.together else { return Ok(()) };
        // Of two proposals the one that all take up.
        together.ongoing = None;
        let codec = together.aggregators.config().codec;
        match (way(&proposal, &together.me, n_parameters, codec), &together.collected) {
            (Ok(way), Some(mean)) => {
                let (n_members, sides) = (proposal.members.len(), sides(&proposal));
                if sides.len() > 1 {
                    let (epoch, group_size) = (proposal.model.epoch, proposal.group_size);
                    tracing::info!(epoch, n_members, group_size, ?sides, "averages in a grid of groups");
                }
                self.storing.journal.write_given(mean.epoch, proposal.nonce, &mean.sequences).await?;
                let (me, values) = (together.me.clone(), mean.gradient.clone());
                let nonce = proposal.nonce;
                let task = together.aggregators.average(proposal, way, me, values);
                together.ongoing = Some(Ongoing { nonce, task });
            }
            (Err(error), _) => {
                tracing::warn!(%error, "a proposed group cannot average");
                together.matchmaking.on_failed(now);
            }
            (Ok(_), None) => together.matchmaking.on_failed(now),
        }
        Ok(())
    }

    async fn on_averaged(
        &mut self,
        proposal: &Proposal,
        averaged: Result<Arc<Averaged>, AveragingError>,
    ) -> Result<(), LearnerError> {
        let now = self.now();
        let Some(together) = &mut self.together else { return Ok(()) };
        self.metrics.on_link_measured(together.aggregators.speed().measured());
        if together.ongoing.as_ref().is_none_or(|ongoing| ongoing.nonce != proposal.nonce) {
            // It was given up when it had just ended.
            return Ok(());
        }
        together.ongoing = None;
        if proposal.model != together.matchmaking.own().model {
            return Ok(());
        }
        self.metrics.on_failure_rate(together.see_who_came(proposal, &averaged));
        for fault in faults(&averaged) {
            let (peer, why) = (name(&fault.peer), &fault.why);
            tracing::warn!(peer, part = fault.part, why, "this aggregator's values did not count");
        }
        let averaged = match averaged {
            Ok(averaged) if averaged.is_complete() => averaged,
            Ok(averaged) => {
                let why: Vec<&str> = averaged.not_averaged().collect();
                self.metrics.on_averaged("incomplete");
                tracing::warn!(epoch = proposal.model.epoch, ?why, "not all parts were averaged");
                together.matchmaking.on_failed(now);
                return Ok(());
            }
            Err(AveragingError::Grid(GridError::NotWhole(why))) => {
                let NotWhole { round, why, .. } = *why;
                self.metrics.on_averaged("incomplete");
                tracing::warn!(
                    epoch = proposal.model.epoch,
                    round,
                    why,
                    "others may have the mean of all groups"
                );
                let deadline = together.aggregators.config().deadline;
                together.matchmaking.on_not_whole(now, now + deadline);
                return Ok(());
            }
            Err(error) => {
                self.metrics.on_averaged("failed");
                tracing::warn!(epoch = proposal.model.epoch, %error, "nothing was averaged");
                together.matchmaking.on_failed(now);
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
        let step = StepTogether {
            before: proposal.model.hash,
            nonce: proposal.nonce,
            loss: proposal.loss,
            members: included.into_iter().map(|member| member.peer).collect(),
        };
        let mean = together.collected.take();
        let seqs = mean.as_ref().map(|mean| mean.sequences.clone()).unwrap_or_default();
        if let Some(mean) = &mean {
            self.see_who_is_far_off(mean.epoch, &mean.outcomes);
        }
        self.step_together(proposal.model.epoch, n_samples, seqs, step, &averaged.values).await
    }

    /// Makes a step, with what was accepted here and is not in it carried to the next epoch.
    pub(super) async fn step_together(
        &mut self,
        epoch: u64,
        n_samples: u64,
        seqs: Vec<u32>,
        step: StepTogether,
        mean: &[f32],
    ) -> Result<(), LearnerError> {
        let Some(together) = &self.together else { return Ok(()) };
        let is_included = step.members.contains(&together.me.0);
        // All that was collected is in a step that this peer took part in: the journal need not be read.
        let is_all = is_included && !seqs.is_empty();
        let given = match is_included {
            true if is_all => seqs.clone(),
            true => self.storing.journal.given(epoch, step.nonce).await?,
            false => Vec::new(),
        };
        let is_fresh = is_all && !self.storing.journal.has_entries(epoch + 1).await?;
        if !is_fresh {
            let mut carrying = Carrying::to(&self.storing.journal, epoch + 1).await?;
            carrying.carry(epoch, &given.into_iter().collect()).await?;
        }
        let aggregation = self.round.config().aggregation;
        let learning_rate = self.learner.learning_rate();
        let nonce = step.nonce;
        let record =
            CommitRecord { epoch, n_samples, seqs, aggregation, together: Some(step), learning_rate };
        self.storing.journal.write_mean(epoch, nonce, mean).await?;
        self.storing.journal.commit(&record).await?;
        let began = self.now();
        if let Some(step) = &record.together {
            self.learner.step_together(mean, n_samples, step, learning_rate);
        }
        self.crediting.worked(self.now().saturating_sub(began));
        self.on_new_model(&record)?;
        self.go_on(is_fresh).await?;
        self.checkpoint_if_due().await
    }

    /// The round goes on with the learner's model; `is_fresh` where nothing was carried to it.
    pub(super) async fn go_on(&mut self, is_fresh: bool) -> Result<(), LearnerError> {
        let now = self.now();
        self.round.on_moved(now, self.learner.epoch());
        if !is_fresh {
            self.learner.replay_open(&mut self.round, &self.storing.journal).await?;
            self.round.resume(now);
        }
        let model = self.learner.version()?;
        if let Some(together) = &mut self.together {
            together.collected = None;
            together.matchmaking.on_stepped(now, model);
        }
        Ok(())
    }

    pub(super) fn model(&self) -> ModelVersion {
        let none =
            ModelVersion { n_samples_total: 0, epoch: 0, hash: barnraise_protocol::Sha256Hash([0; 32]) };
        self.together.as_ref().map_or(none, |together| together.matchmaking.own().model)
    }
}

/// What the task that fetched a model hears of it.
fn told(applied: &Result<Result<ModelVersion, String>, LearnerError>) -> Result<ModelVersion, String> {
    applied.as_ref().map_or_else(|error| Err(error.to_string()), Clone::clone)
}

/// What members did that no honest one does, as far as an averaging got.
fn faults(averaged: &Result<Arc<Averaged>, AveragingError>) -> &[Fault] {
    match averaged {
        Ok(averaged) => &averaged.faults,
        Err(AveragingError::Grid(GridError::NotWhole(why))) => &why.faults,
        Err(_) => &[],
    }
}

/// Names an averaging. Without entropy it is its members that tell it from others.
fn nonce() -> u64 {
    random().unwrap_or_default()
}

/// A number that nobody can guess, where there is any.
fn random() -> Option<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).ok().map(|()| u64::from_le_bytes(bytes))
}
