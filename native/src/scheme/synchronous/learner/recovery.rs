//! How a backbone comes to its model when it starts: the newest checkpoint, and the journal's steps repeated over it.

use std::collections::BTreeSet;
use std::sync::Arc;

use barnraise_learning::ParameterLayout;
use barnraise_protocol::codec::CodecError;
use barnraise_protocol::gradient::ContributionRefusal;
use barnraise_swarm::PeerKey;
use barnraise_swarm::collection::{CollectionConfig, CollectionRound};

use super::{Learner, LearnerError};
use crate::computing::compute;
use crate::config::{RunConfig, SynchronousSection};
use crate::storage::checkpoint::Checkpoints;
use crate::storage::journal::{CommitRecord, Journal, JournalEntry, JournalError};
use crate::storage::{Damage, SetAside};

/// Why a step of the journal cannot be repeated.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum ReplayError {
    /// Made on another model.
    #[error("the step is of another branch of the model")]
    OtherBranch,
    /// Without its mean.
    #[error("the mean of the step is missing or damaged")]
    Mean,
    /// Without one of its entries.
    #[error("journal entry {sequence} of the step is missing or damaged")]
    Entry {
        /// Of the entry.
        sequence: u32,
    },
    /// Its commit cannot be read.
    #[error(transparent)]
    Commit(#[from] Damage),
}

/// Why an entry of the journal is not counted.
#[derive(Debug, thiserror::Error)]
enum EntryError {
    /// Its values do not decode.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The round refuses it.
    #[error(transparent)]
    Refused(#[from] ContributionRefusal),
}

impl Learner {
    /// The newest checkpoint with the journal replayed over it, or a fresh model; and the open round.
    ///
    /// `first` are the parameters of a fresh model. `has_others`: the run has other aggregators, which have the steps that cannot be repeated here.
    ///
    /// # Errors
    /// [`LearnerError::Gap`] where steps are missing in between.
    pub async fn recover(
        (config, scheme): (&RunConfig, &SynchronousSection),
        round_config: CollectionConfig,
        (layout, first): (&ParameterLayout, Vec<f32>),
        (checkpoints, journal): (&Checkpoints, &Journal),
        has_others: bool,
    ) -> Result<(Self, CollectionRound), LearnerError> {
        let mut learner = Self::fresh((config, scheme), layout, first).await?;
        let loaded = checkpoints.load_latest(&config.run.id, &learner.spec).await?;
        loaded.set_aside.iter().for_each(warn_of);
        if let Some(checkpoint) = loaded.checkpoint {
            let restored = learner.restoring(checkpoint).await?;
            learner.on_restored(restored);
        }
        let from_checkpoint = learner.epoch;
        let mut round = round_at(&round_config, learner.epoch, journal).await?;
        let mut lost = None;
        while lost.is_none()
            && let Some(commit) = journal.commit_of(learner.epoch).await?
        {
            lost = match commit {
                Ok(commit) => learner.replay_step(&mut round, journal, &commit).await?.err(),
                Err(damage) => Some(damage.into()),
            };
        }
        if let Some(reason) = lost {
            match has_others {
                true => learner.wait_for_others(&reason),
                false => learner.go_on_without_step(&reason, journal, checkpoints).await?,
            }
            round = round_at(&round_config, learner.epoch, journal).await?;
        }
        if !learner.is_behind
            && let Some(found) = journal.first_commit_after(learner.epoch).await?
        {
            return Err(LearnerError::Gap { reached: learner.epoch, found });
        }
        round.aggregate_by(round_config.aggregation);
        learner.replay_open(&mut round, journal).await?;
        let n_replayed = learner.epoch - from_checkpoint;
        tracing::info!(
            epoch = learner.epoch,
            from_checkpoint,
            n_replayed,
            n_open = round.n_samples(),
            "ready"
        );
        Ok((learner, round))
    }

    /// Repeats a committed step. The inner error says why it cannot be repeated.
    async fn replay_step(
        &mut self,
        round: &mut CollectionRound,
        journal: &Journal,
        commit: &CommitRecord,
    ) -> Result<Result<(), ReplayError>, LearnerError> {
        if commit.before != self.version().hash {
            return Ok(Err(ReplayError::OtherBranch));
        }
        let stored = journal.mean(commit.epoch, commit.nonce).await?;
        let stored = match stored {
            Some(bytes) => self.decode_mean(bytes).await,
            None => None,
        };
        let mean = match stored {
            Some(mean) => mean,
            None if commit.is_of_entries() => match self.mean_of_entries(round, journal, commit).await? {
                Ok(mean) => mean,
                Err(error) => return Ok(Err(error)),
            },
            None => return Ok(Err(ReplayError::Mean)),
        };
        let hash = self.stepping(commit, Arc::new(mean)).await;
        self.on_stepped(commit, hash);
        let config = round.config().clone();
        *round = round_at(&config, self.epoch, journal).await?;
        Ok(Ok(()))
    }

    /// The mean of the entries of a step, or the reason why it cannot be had.
    async fn mean_of_entries(
        &self,
        round: &mut CollectionRound,
        journal: &Journal,
        commit: &CommitRecord,
    ) -> Result<Result<Vec<f32>, ReplayError>, LearnerError> {
        round.aggregate_by(commit.aggregation);
        for &sequence in &commit.seqs {
            let restored = match journal.entry(commit.epoch, sequence).await? {
                Some(entry) => self.restore_entry(round, entry, sequence).await.is_ok(),
                None => false,
            };
            if !restored {
                return Ok(Err(ReplayError::Entry { sequence }));
            }
        }
        let collected = round.collected();
        Ok(Ok(compute(4 * self.n_parameters, move || collected.mean()).await.gradient))
    }

    /// Goes back to before a step that cannot be repeated, to take it from the other aggregators.
    ///
    /// The journal stays as it is. It lists the entries of later epochs that are in their steps, so each contribution
    /// counts once: in their steps, or when its epoch comes again. Another start finds the same.
    fn wait_for_others(&mut self, reason: &ReplayError) {
        let epoch = self.epoch;
        tracing::error!(
            epoch,
            %reason,
            "this backbone goes back to before this step, and follows the other aggregators from there"
        );
        self.is_behind = true;
    }

    /// Continues from before a step that cannot be repeated, as a later epoch than any before, so that nothing of the
    /// lost steps is taken for later work. Contributions accepted since then that can be read count in the open step, by
    /// their age.
    ///
    /// A crash in between leads to the same: the checkpoint decides, and the entries that it needs are journaled first.
    async fn go_on_without_step(
        &mut self,
        reason: &ReplayError,
        journal: &Journal,
        checkpoints: &Checkpoints,
    ) -> Result<(), LearnerError> {
        let lost = self.epoch;
        let newest = journal.epochs().await?.into_iter().max().unwrap_or(lost).max(lost);
        if newest == lost && !matches!(journal.commit_of(lost).await?, Some(Ok(_))) {
            // A crash tore the commit before its step was published: the epoch is still open.
            return Ok(journal.abandon_branch(lost, &reason.to_string()).await?);
        }
        // The epoch after the newest step was announced, whether or not it has entries.
        let epoch = newest + 2;
        tracing::error!(
            lost,
            epoch,
            %reason,
            "a step cannot be repeated: the model goes back to before it, contributions accepted since count again"
        );
        let mut known = BTreeSet::new();
        for of in journal.epochs().await?.into_iter().filter(|of| *of >= lost) {
            let mut entries = journal.entries(of).await?;
            while let Some((_, entry)) = entries.next().await? {
                let sequence = known.len() as u32;
                if known.insert(entry.name()) {
                    journal.append(epoch, sequence, &entry).await?;
                }
            }
        }
        let gone_back = self.going_back(self.checkpoint().await?, epoch).await?;
        self.on_restored(gone_back);
        checkpoints.begin_branch(self.checkpoint().await?).await?;
        Ok(journal.abandon_branch(lost, &reason.to_string()).await?)
    }

    /// Adds an entry of the journal to the round.
    async fn restore_entry(
        &self,
        round: &mut CollectionRound,
        entry: JournalEntry,
        sequence: u32,
    ) -> Result<(), EntryError> {
        let (codec, payload, n_values) = (entry.offer.codec, entry.payload.clone(), self.n_parameters);
        let values = compute(4 * n_values, move || codec.decode(&payload, n_values)).await?;
        Ok(round.restore(PeerKey(entry.peer), entry.group, &entry.offer, &values, sequence)?)
    }

    /// Adds the journal's contributions of the open epoch to the round.
    pub(in super::super) async fn replay_open(
        &self,
        round: &mut CollectionRound,
        journal: &Journal,
    ) -> Result<(), LearnerError> {
        let mut entries = journal.entries(self.epoch).await?;
        while let Some((sequence, entry)) = entries.next().await? {
            let restored = self.restore_entry(round, entry, sequence).await;
            if let Err(error) = restored {
                tracing::warn!(epoch = self.epoch, sequence, %error, "journal entry is not counted");
            }
        }
        Ok(())
    }
}

/// An empty round of `epoch` that knows what was counted in the epoch before.
async fn round_at(
    config: &CollectionConfig,
    epoch: u64,
    journal: &Journal,
) -> Result<CollectionRound, JournalError> {
    let mut round = CollectionRound::new(config.clone(), epoch);
    if let Some(before) = epoch.checked_sub(1) {
        let mut entries = journal.entries(before).await?;
        while let Some((_, (peer, contribution_id))) = entries.next_name().await? {
            round.restore_counted_before(PeerKey(peer), contribution_id);
        }
    }
    Ok(round)
}

/// Logs a damaged object that was set aside.
fn warn_of(broken: &SetAside) {
    let SetAside { path, moved_to, reason } = broken;
    tracing::warn!(path, moved_to, reason, "set aside");
}
