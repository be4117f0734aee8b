//! Steps and models that come from others.
//!
//! A contribution that was accepted here is in the model once: what is not in a model that came from elsewhere is
//! journaled again for the epoch that is open, before this peer goes on with that model.

use std::collections::HashSet;

use barnraise_protocol::matchmaking::ModelVersion;
use barnraise_protocol::model::StepHeader;
use barnraise_swarm::PeerKey;

use super::super::learner::LearnerError;
use super::{Core, name};
use crate::storage::checkpoint::{Checkpoint, Included};
use crate::storage::journal::{JournalEntry, Together as StepTogether};

impl Core {
    /// A step of another peer, on the model that this one has.
    pub(super) async fn take_step(
        &mut self,
        from: &PeerKey,
        header: StepHeader,
        mean: &[u8],
    ) -> Result<Result<ModelVersion, String>, LearnerError> {
        let Some(together) = &self.together else { return Ok(Err("nobody is followed here".into())) };
        let own = together.matchmaking.own().model;
        if header.before != own.hash || header.epoch != own.epoch {
            return Ok(Err(format!("a step of epoch {} is of another model", header.epoch)));
        }
        let Some(mean) = self.learner.decode_mean(mean) else {
            return Ok(Err("the step does not fit the model, or is not finite".into()));
        };
        let StepHeader { epoch, before, nonce, n_samples, loss, members, .. } = header;
        let step = StepTogether { before, nonce, loss, members };
        self.step_together(epoch, n_samples, Vec::new(), step, &mean).await?;
        self.metrics.on_followed("step");
        tracing::debug!(epoch = self.learner.epoch(), from = name(from), "took a step of another aggregator");
        Ok(Ok(self.model()))
    }

    /// Contributions that are in a step by now do not count in `epoch`, for which they were journaled before a crash.
    pub(super) async fn forget(
        &self,
        done: impl Iterator<Item = JournalEntry>,
        epoch: u64,
    ) -> Result<(), LearnerError> {
        let done: HashSet<(Vec<u8>, u64)> =
            done.map(|entry| (entry.peer, entry.offer.contribution_id)).collect();
        for (seq, entry) in self.storing.journal.entries(epoch).await?.entries {
            if done.contains(&(entry.peer, entry.offer.contribution_id)) {
                self.storing.journal.forget(epoch, seq).await?;
            }
        }
        Ok(())
    }

    /// Journals contributions once more, for `epoch`.
    pub(super) async fn carry(&self, entries: Vec<JournalEntry>, epoch: u64) -> Result<(), LearnerError> {
        if entries.is_empty() {
            return Ok(());
        }
        let there = self.storing.journal.entries(epoch).await?.entries;
        let mut known: HashSet<(Vec<u8>, u64)> =
            there.iter().map(|(_, entry)| (entry.peer.clone(), entry.offer.contribution_id)).collect();
        let mut seq = there.last().map_or(0, |(seq, _)| seq + 1);
        let mut n_carried = 0;
        for entry in entries {
            if known.insert((entry.peer.clone(), entry.offer.contribution_id)) {
                self.storing.journal.append(epoch, seq, &entry).await?;
                seq += 1;
                n_carried += 1;
            }
        }
        tracing::info!(epoch, n_carried, "contributions count for a later step, by their age");
        Ok(())
    }

    /// The model of another line, or of long after this peer's.
    pub(super) async fn take_checkpoint(
        &mut self,
        from: &PeerKey,
        checkpoint: Checkpoint,
    ) -> Result<Result<ModelVersion, String>, LearnerError> {
        let Some(together) = &self.together else { return Ok(Err("nobody is followed here".into())) };
        if let Some(trouble) = self.storing.room.trouble() {
            return Ok(Err(trouble.reason().to_owned()));
        }
        let run_id = &self.description.run_id;
        if checkpoint.run_id != *run_id || checkpoint.model != *self.learner.spec() {
            return Ok(Err(format!("it is of the run `{}`, this is `{run_id}`", checkpoint.run_id)));
        }
        let epoch = checkpoint.epoch;
        let reason = format!("another line of models is followed from epoch {epoch} on");
        let last = checkpoint.included.get(&together.me.0).copied();
        let left = self.not_in(epoch, last).await?;
        let points = self.learner.history().points();
        let history = points.iter().filter(|point| point.epoch <= epoch).copied().collect();
        if let Err(error) = self.learner.restore(Checkpoint { history, ..checkpoint }) {
            return Ok(Err(error.to_string()));
        }
        // An error in between ends the process: what is on the disk leads on, from the one line or the other.
        self.disk.is_moving = true;
        self.carry(left, epoch).await?;
        self.storing.journal.leave_line(epoch, &reason).await?;
        self.storing.checkpoints.take_back(epoch, &reason).await?;
        let oldest = self.storing.checkpoints.save(&self.learner.checkpoint()?).await?;
        self.crediting.forget_before(oldest.saturating_sub(1));
        self.disk.is_moving = false;
        self.outputs.state.send_replace(self.learner.publish()?);
        self.go_on(false).await?;
        self.metrics.on_followed("checkpoint");
        tracing::info!(epoch, from = name(from), "took the model of another aggregator");
        Ok(Ok(self.model()))
    }

    /// What was accepted here before `epoch` and is not in a model of others; `last` is the last step that this peer
    /// took part in there. What was accepted since then is looked at as their steps are taken.
    async fn not_in(&self, epoch: u64, last: Option<Included>) -> Result<Vec<JournalEntry>, LearnerError> {
        let mut left = Vec::new();
        let journal = &self.storing.journal;
        let epochs = journal.epochs().await?.into_iter().filter(|&of| of < epoch);
        for of in epochs.filter(|&of| last.is_none_or(|last| of >= last.epoch)) {
            let given = match last.filter(|last| last.epoch == of) {
                Some(last) => self.included_in(last).await?,
                None => Vec::new(),
            };
            let entries = journal.entries(of).await?.entries;
            left.extend(entries.into_iter().filter(|(seq, _)| !given.contains(seq)).map(|(_, entry)| entry));
        }
        Ok(left)
    }

    /// Which entries are in a step that this peer took part in, or made alone before others aggregated the run too.
    async fn included_in(&self, step: Included) -> Result<Vec<u32>, LearnerError> {
        let commit = self.storing.journal.commit_of(step.epoch).await?;
        match commit.filter(|commit| commit.together.is_none()) {
            Some(alone) => Ok(alone.seqs),
            None => Ok(self.storing.journal.given(step.epoch, step.nonce).await?),
        }
    }

    /// What was accepted in epochs that another line of models has not reached counts for the one that is open.
    pub(super) async fn carry_later_epochs(&mut self) -> Result<(), LearnerError> {
        let open = self.learner.epoch();
        let mut is_fresh = true;
        for epoch in self.storing.journal.epochs().await?.into_iter().filter(|epoch| *epoch > open) {
            let entries = self.storing.journal.entries(epoch).await?.entries;
            let of_open = |mut entry: JournalEntry| {
                entry.offer.epoch = entry.offer.epoch.min(open);
                entry
            };
            self.carry(entries.into_iter().map(|(_, entry)| of_open(entry)).collect(), open).await?;
            self.storing.journal.clear(epoch).await?;
            is_fresh = false;
        }
        if is_fresh { Ok(()) } else { self.go_on(false).await }
    }
}
