//! Steps and models that come from other aggregators.
//!
//! A contribution that was accepted here is in the model once: those that are not in a received model are journaled
//! again for the open epoch, before this peer continues with that model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use barnraise_protocol::api::HistoryPoint;
use barnraise_protocol::matchmaking::ModelVersion;
use barnraise_protocol::model::StepHeader;
use barnraise_swarm::PeerKey;

use super::super::aggregators::AdoptError;
use super::super::learner::LearnerError;
use super::{Core, name};
use crate::storage::checkpoint::{Checkpoint, Included};
use crate::storage::journal::{CommitRecord, ContributionName, Journal};

impl Core {
    /// Applies a step of another aggregator to the model that both have.
    pub(super) async fn take_step(
        &mut self,
        from: &PeerKey,
        header: StepHeader,
        mean: Vec<u8>,
    ) -> Result<Result<ModelVersion, AdoptError>, LearnerError> {
        let coordination = &self.coordination;
        let own = coordination.matchmaking.own().model;
        if header.before != own.hash || header.epoch != own.epoch {
            return Ok(Err(AdoptError::OtherModel { epoch: header.epoch }));
        }
        self.round.hold();
        let Some(mean) = self.beside(self.learner.decode_mean(mean)).await else {
            self.round.release(self.now());
            return Ok(Err(AdoptError::Mean));
        };
        let StepHeader { epoch, before, nonce, n_samples, loss, members, .. } = header;
        let (aggregation, learning_rate) = (self.round.config().aggregation, self.learner.learning_rate());
        let seqs = Vec::new();
        let record =
            CommitRecord { epoch, before, nonce, members, n_samples, loss, seqs, aggregation, learning_rate };
        self.commit(&record, Arc::new(mean)).await?;
        self.metrics.on_followed("step");
        tracing::debug!(epoch = self.learner.epoch(), from = name(from), "took a step of another aggregator");
        Ok(Ok(self.model()))
    }

    /// Takes the checkpoint of an aggregator on another branch, or far ahead.
    pub(super) async fn take_checkpoint(
        &mut self,
        from: &PeerKey,
        checkpoint: Checkpoint,
    ) -> Result<Result<ModelVersion, AdoptError>, LearnerError> {
        let coordination = &self.coordination;
        if let Some(trouble) = self.storage.disk_space.trouble() {
            return Ok(Err(AdoptError::Disk(trouble)));
        }
        let run_id = &self.description.identity.run_id;
        if checkpoint.run_id != *run_id || checkpoint.model != *self.learner.spec() {
            return Ok(Err(AdoptError::OtherRun { here: run_id.clone(), got: checkpoint.run_id }));
        }
        let epoch = checkpoint.epoch;
        let moving = PendingModel { epoch, last: checkpoint.included.get(&coordination.me.0).copied() };
        let history = self.history_before(epoch, checkpoint.n_samples_total);
        self.round.hold();
        match self.beside(self.learner.restoring(Checkpoint { history, ..checkpoint })).await {
            Ok(restored) => self.learner.on_restored(restored),
            Err(error) => {
                self.round.release(self.now());
                return Ok(Err(AdoptError::Checkpoint(error)));
            }
        }
        self.coordination.give_up();
        self.disk.pending_model = Some(moving);
        self.finish_moving().await?;
        tracing::info!(epoch, from = name(from), "took the model of another aggregator");
        Ok(Ok(self.model()))
    }

    /// What this peer has seen until a model of another aggregator, which says what is in it: this peer may have made that step, or those
    /// before it, on a branch that nobody follows.
    fn history_before(&self, epoch: u64, n_samples_total: u64) -> Vec<HistoryPoint> {
        let points = self.learner.history().points().iter();
        let before = points.filter(|point| point.epoch < epoch && point.n_samples_total <= n_samples_total);
        let taken = HistoryPoint { epoch, n_samples_total, train_loss: None, test_accuracy: None };
        before.copied().chain([taken]).collect()
    }

    /// Stores the received model and the contributions accepted here that are not in it, then continues from it. If the
    /// disk fails, all of it is repeated later; a crash in between continues on the one branch or the other.
    pub(super) async fn finish_moving(&mut self) -> Result<(), LearnerError> {
        let Some(PendingModel { epoch, last }) = self.disk.pending_model else { return Ok(()) };
        self.round.hold();
        let reason = format!("another branch of the model is followed from epoch {epoch} on");
        let journal = &self.storage.journal;
        let mut carrying = CarryOver::to(journal, epoch).await?;
        let epochs = journal.epochs().await?.into_iter().filter(|&of| of < epoch);
        // Contributions accepted since this peer's last step on that branch, and not in that step. Later ones are
        // carried when the steps of their epochs are taken.
        for of in epochs.filter(|&of| last.is_none_or(|last| of >= last.epoch)) {
            let given = match last.filter(|last| last.epoch == of) {
                Some(last) => self.included_in(last).await?,
                None => Vec::new(),
            };
            carrying.carry(of, &given.into_iter().collect()).await?;
        }
        journal.abandon_branch(epoch, &reason).await?;
        self.storage.checkpoints.abandon_branch(epoch, &reason).await?;
        let (checkpoint, checkpoints) = (self.learner.checkpoint(), self.storage.checkpoints.clone());
        let storing = async move { Ok::<_, LearnerError>(checkpoints.save(checkpoint.await?).await?) };
        let oldest = self.beside(storing).await?;
        self.crediting.forget_before(oldest.saturating_sub(1));
        let state = self.beside(self.learner.publish(epoch)).await?;
        self.disk.pending_model = None;
        self.outputs.state.send_replace(state);
        self.outputs.status.on_new_history();
        self.metrics.on_followed("checkpoint");
        self.go_on(false).await
    }

    /// The journal entries in a step that this peer took part in.
    async fn included_in(&self, step: Included) -> Result<Vec<u32>, LearnerError> {
        let commit = self.storage.journal.commit_of(step.epoch).await?.and_then(Result::ok);
        match commit.filter(|commit| commit.nonce == step.nonce && !commit.seqs.is_empty()) {
            Some(commit) => Ok(commit.seqs),
            None => Ok(self.storage.journal.averaged_entries(step.epoch, step.nonce).await?),
        }
    }

    /// Contributions of epochs that the followed branch has not reached count for the open epoch. Where it is the same
    /// branch, and this peer only cannot repeat its steps, they stay: many are in those steps.
    pub(super) async fn carry_later_epochs(&mut self) -> Result<(), LearnerError> {
        if self.learner.is_behind() {
            return Ok(());
        }
        let open = self.learner.epoch();
        let journal = &self.storage.journal;
        let later: Vec<u64> = journal.epochs().await?.into_iter().filter(|epoch| *epoch > open).collect();
        if later.is_empty() {
            return Ok(());
        }
        let mut carrying = CarryOver::to(journal, open).await?;
        for epoch in later {
            carrying.carry(epoch, &BTreeSet::new()).await?;
            journal.clear(epoch).await?;
        }
        self.go_on(false).await
    }
}

/// A model of another aggregator that is in memory and not yet on the disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingModel {
    /// Of the model.
    epoch: u64,
    /// The last step of it that this peer took part in.
    last: Option<Included>,
}

/// Journals contributions again for a later step, where they count by their age.
pub(super) struct CarryOver<'j> {
    journal: &'j Journal,
    to: u64,
    /// Sequence numbers of the entries there.
    there: BTreeMap<ContributionName, u32>,
    next: u32,
}

impl<'j> CarryOver<'j> {
    /// To the step of epoch `to`.
    pub(super) async fn to(journal: &'j Journal, to: u64) -> Result<Self, LearnerError> {
        let (mut there, mut next) = (BTreeMap::new(), 0);
        let mut entries = journal.entries(to).await?;
        while let Some((sequence, name)) = entries.next_name().await? {
            there.insert(name, sequence);
            next = sequence + 1;
        }
        Ok(Self { journal, to, there, next })
    }

    /// Carries the entries of epoch `from` that are not `given`, which are in its step. Entries of `given` that were
    /// carried before a crash are removed again.
    pub(super) async fn carry(&mut self, from: u64, given: &BTreeSet<u32>) -> Result<(), LearnerError> {
        let to = self.to;
        let mut n_carried = 0;
        let mut entries = self.journal.entries(from).await?;
        while let Some((sequence, mut entry)) = entries.next().await? {
            match (given.contains(&sequence), self.there.get(&entry.name())) {
                (true, Some(&there)) => {
                    self.journal.forget(to, there).await?;
                    self.there.remove(&entry.name());
                }
                (false, None) => {
                    entry.offer.epoch = entry.offer.epoch.min(to);
                    self.journal.append(to, self.next, &entry).await?;
                    self.there.insert(entry.name(), self.next);
                    self.next += 1;
                    n_carried += 1;
                }
                (true, None) | (false, Some(_)) => {}
            }
        }
        if n_carried > 0 {
            tracing::info!(from, to, n_carried, "contributions count for a later step, by their age");
        }
        Ok(())
    }
}
