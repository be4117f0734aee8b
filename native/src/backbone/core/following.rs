//! Steps and models that come from others.
//!
//! A contribution that was accepted here is in the model once: what is not in a model that came from elsewhere is
//! journaled again for the epoch that is open, before this peer goes on with that model.

use std::collections::{BTreeMap, BTreeSet};

use barnraise_protocol::matchmaking::ModelVersion;
use barnraise_protocol::model::StepHeader;
use barnraise_swarm::PeerKey;

use super::super::learner::LearnerError;
use super::{Core, name};
use crate::storage::checkpoint::{Checkpoint, Included};
use crate::storage::journal::{Journal, Name, Together as StepTogether};

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
        let moving = Moving { epoch, last: checkpoint.included.get(&together.me.0).copied() };
        let points = self.learner.history().points();
        let history = points.iter().filter(|point| point.epoch <= epoch).copied().collect();
        if let Err(error) = self.learner.restore(Checkpoint { history, ..checkpoint }) {
            return Ok(Err(error.to_string()));
        }
        if let Some(together) = &mut self.together {
            together.give_up();
        }
        self.disk.moving = Some(moving);
        self.finish_moving().await?;
        tracing::info!(epoch, from = name(from), "took the model of another aggregator");
        Ok(Ok(self.model()))
    }

    /// Stores the model that was taken, and what was accepted here and is not in it; then all goes on with it. Where the
    /// disk does not take it, it is done once more from the beginning as soon as it does; a crash in between leads on from
    /// the one line or the other.
    pub(super) async fn finish_moving(&mut self) -> Result<(), LearnerError> {
        let Some(Moving { epoch, last }) = self.disk.moving else { return Ok(()) };
        let reason = format!("another line of models is followed from epoch {epoch} on");
        let journal = &self.storing.journal;
        let mut carrying = Carrying::to(journal, epoch).await?;
        let epochs = journal.epochs().await?.into_iter().filter(|&of| of < epoch);
        // What was accepted since the last step that this peer took part in there, and is not in that one. What comes after
        // is looked at as their steps are taken.
        for of in epochs.filter(|&of| last.is_none_or(|last| of >= last.epoch)) {
            let given = match last.filter(|last| last.epoch == of) {
                Some(last) => self.included_in(last).await?,
                None => Vec::new(),
            };
            carrying.carry(of, &given.into_iter().collect()).await?;
        }
        journal.leave_line(epoch, &reason).await?;
        self.storing.checkpoints.take_back(epoch, &reason).await?;
        let oldest = self.storing.checkpoints.save(&self.learner.checkpoint()?).await?;
        self.crediting.forget_before(oldest.saturating_sub(1));
        self.disk.moving = None;
        self.outputs.state.send_replace(self.learner.publish()?);
        self.metrics.on_followed("checkpoint");
        self.go_on(false).await
    }

    /// Which entries are in a step that this peer took part in, or made alone before others aggregated the run too.
    async fn included_in(&self, step: Included) -> Result<Vec<u32>, LearnerError> {
        let commit = self.storing.journal.commit_of(step.epoch).await?.and_then(Result::ok);
        match commit.filter(|commit| commit.together.is_none()) {
            Some(alone) => Ok(alone.seqs),
            None => Ok(self.storing.journal.given(step.epoch, step.nonce).await?),
        }
    }

    /// What was accepted in epochs that another line of models has not reached counts for the one that is open. Where it is
    /// the same line, and this peer only cannot repeat its steps, it stays: much of it is in those steps.
    pub(super) async fn carry_later_epochs(&mut self) -> Result<(), LearnerError> {
        if self.learner.is_behind() {
            return Ok(());
        }
        let open = self.learner.epoch();
        let journal = &self.storing.journal;
        let later: Vec<u64> = journal.epochs().await?.into_iter().filter(|epoch| *epoch > open).collect();
        if later.is_empty() {
            return Ok(());
        }
        let mut carrying = Carrying::to(journal, open).await?;
        for epoch in later {
            carrying.carry(epoch, &BTreeSet::new()).await?;
            journal.clear(epoch).await?;
        }
        self.go_on(false).await
    }
}

/// A model of others that is in memory and not yet on the disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moving {
    /// Of the model.
    epoch: u64,
    /// The last step of it that this peer took part in.
    last: Option<Included>,
}

/// Contributions that are journaled once more, for a later step, by their age.
pub(super) struct Carrying<'j> {
    journal: &'j Journal,
    to: u64,
    /// What is there, by its sequence number.
    there: BTreeMap<Name, u32>,
    next: u32,
}

impl<'j> Carrying<'j> {
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

    /// Those of epoch `from` that are not `given`, which are in its step. Those that are do not count once more, even if they
    /// were carried before a crash.
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
