//! The model of a run at a backbone: parameters, optimizer, history; checkpoint and replay.
//!
//! It makes one optimizer step at a time and never computes a gradient.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use barnraise_learning::{
    DataShape, ModelError, Optimizer, OptimizerError, OptimizerState, ParameterLayout, ScheduleSpec,
};
use barnraise_protocol::access::AccessMode;
use barnraise_protocol::api::HistoryPoint;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::CodecError;
use barnraise_protocol::dataset::Manifest;
use barnraise_protocol::gradient::ContributionRefusal;
use barnraise_protocol::matchmaking::ModelVersion;
use barnraise_protocol::run::ModelSpec;
use barnraise_protocol::state::StateHeader;
use barnraise_protocol::{Sha256Hash, TensorCodec};
use barnraise_swarm::PeerKey;
use barnraise_swarm::collection::{CollectionConfig, CollectionRound};
use barnraise_swarm::history::History;
use sha2::{Digest, Sha256};

use crate::config::RunConfig;
use crate::storage::checkpoint::{Checkpoint, CheckpointError, Checkpoints, Included};
use crate::storage::journal::{CommitRecord, Journal, JournalEntry, JournalError};
use crate::storage::{Damage, SetAside, StorageError};

/// Values that are hashed at a time: a call for each would cost more than the hash.
const HASHED_VALUES: usize = 1024;

/// Why the run's model could not be made, stepped or stored.
#[derive(Debug, thiserror::Error)]
pub enum LearnerError {
    /// The configured model does not fit the data.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The configured optimizer cannot work.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// Checkpoints.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Parameters that cannot travel.
    #[error("parameters: {0}")]
    Codec(#[from] CodecError),
    /// A checkpoint whose optimizer state cannot be read.
    #[error("optimizer state of the checkpoint: {0}")]
    OptimizerState(#[from] postcard::Error),
    /// A checkpoint that does not fit the model.
    #[error("the checkpoint has {got} parameters, the model has {want}")]
    Parameters {
        /// Of the model.
        want: usize,
        /// Of the checkpoint.
        got: usize,
    },
    /// Steps are missing between checkpoints and journal, as after restoring them from different backups.
    #[error(
        "checkpoints and journal lead to epoch {reached}, and the journal goes on with epoch {found}: the steps of epochs \
         {reached} to {} are missing, without which the later ones would make another model. Restore the folder from a \
         backup that has them, or put a checkpoint of epoch {found} or later into checkpoints/; or else move \
         journal/{found:012} and what follows it away, to go on from epoch {reached}, or from the model of the run's \
         other backbones, without what was accepted since",
        found.saturating_sub(1)
    )]
    Gap {
        /// The newest epoch whose model can be restored.
        reached: u64,
        /// The first later epoch that has a commit.
        found: u64,
    },
}

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
pub(super) enum EntryError {
    /// Its values do not decode.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The round refuses it.
    #[error(transparent)]
    Refused(#[from] ContributionRefusal),
}

impl LearnerError {
    /// The error of the disk or the store; `None` for other errors.
    pub fn of_storage(&self) -> Option<&StorageError> {
        match self {
            Self::Checkpoint(CheckpointError::Storage(error))
            | Self::Journal(JournalError::Storage(error)) => Some(error),
            _ => None,
        }
    }
}

/// Parameters that contributors can pull.
#[derive(Debug, Clone)]
pub struct PublishedState {
    /// Epoch, codec, length and hash.
    pub header: StateHeader,
    /// Encoded for the wire.
    pub bytes: Arc<[u8]>,
    /// `[n_parameters]`.
    pub parameters: Arc<[f32]>,
}

/// The model of a run.
#[derive(Debug)]
pub struct Learner {
    run_id: String,
    spec: ModelSpec,
    state_codec: TensorCodec,
    schedule: ScheduleSpec,
    /// The operator's factor on the schedule's rate. Replayed steps have their rate from the journal.
    rate_factor: f32,
    optimizer: Optimizer,
    parameters: Vec<f32>,
    epoch: u64,
    n_samples_total: u64,
    history: History,
    /// The last step that each aggregator took part in, by the bytes of its peer id.
    included: BTreeMap<Vec<u8>, Included>,
    /// Its journal has later steps, which it cannot repeat and the other aggregators have.
    is_behind: bool,
}

impl Learner {
    /// The newest checkpoint with the journal replayed over it, or a fresh model; and the open round.
    ///
    /// `has_others`: the run has other aggregators, which have the steps that cannot be repeated here.
    ///
    /// # Errors
    /// [`LearnerError::Gap`] where steps are missing in between.
    pub async fn recover(
        config: &RunConfig,
        round_config: CollectionConfig,
        layout: &ParameterLayout,
        (checkpoints, journal): (&Checkpoints, &Journal),
        has_others: bool,
    ) -> Result<(Self, CollectionRound), LearnerError> {
        let mut learner = Self::fresh(config, layout)?;
        let loaded = checkpoints.load_latest(&config.run.id, &learner.spec).await?;
        loaded.set_aside.iter().for_each(warn_of);
        if let Some(checkpoint) = loaded.checkpoint {
            learner.restore(checkpoint)?;
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

    fn fresh(config: &RunConfig, layout: &ParameterLayout) -> Result<Self, LearnerError> {
        let spec = config.model_spec();
        Ok(Self {
            run_id: config.run.id.clone(),
            state_codec: config.synchronous().state_codec,
            schedule: config.synchronous().schedule,
            rate_factor: 1.0,
            optimizer: Optimizer::new(config.synchronous().optimizer, layout)?,
            parameters: layout.initial_parameters(spec.seed),
            spec,
            epoch: 0,
            n_samples_total: 0,
            history: History::default(),
            included: BTreeMap::new(),
            is_behind: false,
        })
    }

    /// Continues from a checkpoint, of this backbone or of another aggregator.
    ///
    /// # Errors
    /// It does not fit the model; nothing has changed then.
    pub fn restore(&mut self, checkpoint: Checkpoint) -> Result<(), LearnerError> {
        let (want, got) = (self.parameters.len(), checkpoint.parameters.len());
        if want != got {
            return Err(LearnerError::Parameters { want, got });
        }
        let state: OptimizerState = postcard::from_bytes(&checkpoint.optimizer_state)?;
        self.optimizer.restore(state)?;
        self.parameters = checkpoint.parameters;
        self.epoch = checkpoint.epoch;
        self.n_samples_total = checkpoint.n_samples_total;
        self.history = History::from(checkpoint.history);
        self.included = checkpoint.included;
        Ok(())
    }

    /// Restores the parameters and the optimizer state of an earlier checkpoint as those of `epoch`, a later one than
    /// now. Epochs never go back, so gradients and models of the undone steps cannot be taken for later ones. The count
    /// of samples and the history continue.
    ///
    /// # Errors
    /// It does not fit the model; nothing has changed then.
    pub fn go_back(&mut self, to: Checkpoint, epoch: u64) -> Result<(), LearnerError> {
        let n_samples_total = self.n_samples_total;
        let mut history = self.history.clone();
        history.push(HistoryPoint { epoch, n_samples_total, train_loss: None, test_accuracy: None });
        let history = history.points().to_vec();
        let included = self.included.clone();
        self.restore(Checkpoint { epoch, n_samples_total, history, included, ..to })
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
        let mean = match stored.and_then(|bytes| self.decode_mean(&bytes)) {
            Some(mean) => mean,
            None if commit.is_of_entries() => match self.mean_of_entries(round, journal, commit).await? {
                Ok(mean) => mean,
                Err(error) => return Ok(Err(error)),
            },
            None => return Ok(Err(ReplayError::Mean)),
        };
        self.step(commit, &mean);
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
            let entry = journal.entry(commit.epoch, sequence).await?;
            let restored = entry.is_some_and(|entry| self.restore_entry(round, entry, sequence).is_ok());
            if !restored {
                return Ok(Err(ReplayError::Entry { sequence }));
            }
        }
        Ok(Ok(round.mean().gradient))
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
        self.go_back(self.checkpoint()?, epoch)?;
        checkpoints.begin_branch(&self.checkpoint()?).await?;
        Ok(journal.abandon_branch(lost, &reason.to_string()).await?)
    }

    /// Adds an entry of the journal to the round.
    pub(super) fn restore_entry(
        &self,
        round: &mut CollectionRound,
        entry: JournalEntry,
        sequence: u32,
    ) -> Result<(), EntryError> {
        let values = entry.offer.codec.decode(&entry.payload, self.parameters.len())?;
        Ok(round.restore(PeerKey(entry.peer), entry.group, &entry.offer, &values, sequence)?)
    }

    /// Adds the journal's contributions of the open epoch to the round.
    pub(super) async fn replay_open(
        &self,
        round: &mut CollectionRound,
        journal: &Journal,
    ) -> Result<(), LearnerError> {
        let mut entries = journal.entries(self.epoch).await?;
        while let Some((sequence, entry)) = entries.next().await? {
            let restored = self.restore_entry(round, entry, sequence);
            if let Err(error) = restored {
                tracing::warn!(epoch = self.epoch, sequence, %error, "journal entry is not counted");
            }
        }
        Ok(())
    }

    /// Learning rate of the next step: that of the schedule, times the operator's factor.
    pub fn learning_rate(&self) -> f32 {
        self.schedule.learning_rate(self.epoch) * self.rate_factor
    }

    /// Sets the factor on the schedule's rate, from the next step on.
    pub fn set_rate_factor(&mut self, factor: f32) {
        self.rate_factor = factor;
    }

    /// Makes an optimizer step by `mean`, `[n_parameters]`: aggregators with the same model before it have the same model
    /// after it. A step that would leave the finite numbers is skipped: the epoch passes with the parameters as they
    /// were, now and on every replay.
    pub fn step(&mut self, record: &CommitRecord, mean: &[f32]) {
        for member in &record.members {
            self.included.insert(member.clone(), Included { epoch: self.epoch, nonce: record.nonce });
        }
        let before = self.optimizer.clone();
        if let Err(error) = self.optimizer.step(&mut self.parameters, mean, record.learning_rate) {
            tracing::error!(epoch = self.epoch, %error, "the optimizer step was skipped");
            self.optimizer = before;
        }
        self.epoch = self.epoch.saturating_add(1);
        self.n_samples_total = self.n_samples_total.saturating_add(record.n_samples);
        self.history.push(HistoryPoint {
            epoch: self.epoch,
            n_samples_total: self.n_samples_total,
            train_loss: Some(record.loss),
            test_accuracy: None,
        });
    }

    /// Version of the model: samples, epoch, and a hash of parameters and optimizer state.
    pub fn version(&self) -> ModelVersion {
        let mut hash = Sha256::new();
        hash_values(&mut hash, &self.parameters);
        let OptimizerState { n_steps, beta_products, moments } = self.optimizer.state();
        hash.update(n_steps.to_le_bytes());
        beta_products.iter().for_each(|product| hash.update(product.to_le_bytes()));
        moments.iter().for_each(|moments| hash_values(&mut hash, moments));
        let hash = Sha256Hash(hash.finalize().into());
        ModelVersion { n_samples_total: self.n_samples_total, epoch: self.epoch, hash }
    }

    /// Decodes the mean of a step, from the journal or from a peer; `None` where it does not fit the model, or is not
    /// finite.
    pub fn decode_mean(&self, bytes: &[u8]) -> Option<Vec<f32>> {
        TensorCodec::F32.decode(bytes, self.parameters.len()).ok()
    }

    /// Whether its journal has later steps, which it could not repeat at start-up and the other aggregators have.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Samples behind all steps.
    pub fn n_samples_total(&self) -> u64 {
        self.n_samples_total
    }

    /// Network and seed.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Optimizer steps made.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Loss and accuracy so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Records the held-out accuracy of the parameters of `epoch`, 0 to 1.
    pub fn on_evaluated(&mut self, epoch: u64, test_accuracy: f32) {
        self.history.set_accuracy(epoch, test_accuracy);
    }

    /// The parameters as contributors pull them.
    pub fn publish(&self) -> Result<PublishedState, LearnerError> {
        let bytes: Arc<[u8]> = self.state_codec.encode(&self.parameters)?.into();
        let header = StateHeader {
            epoch: self.epoch,
            n_values: self.parameters.len() as u64,
            codec: self.state_codec,
            transfer: Transfer::of(&bytes),
        };
        Ok(PublishedState { header, bytes, parameters: self.parameters.as_slice().into() })
    }

    /// The state that a restart needs.
    pub fn checkpoint(&self) -> Result<Checkpoint, LearnerError> {
        Ok(Checkpoint {
            run_id: self.run_id.clone(),
            model: self.spec.clone(),
            epoch: self.epoch,
            n_samples_total: self.n_samples_total,
            parameters: self.parameters.clone(),
            optimizer_state: postcard::to_allocvec(self.optimizer.state())?,
            history: self.history.points().to_vec(),
            included: self.included.clone(),
        })
    }
}

/// Adds the number of values, and each as little-endian bytes.
fn hash_values(hash: &mut Sha256, values: &[f32]) {
    hash.update((values.len() as u64).to_le_bytes());
    let mut bytes = [0; 4 * HASHED_VALUES];
    for chunk in values.chunks(HASHED_VALUES) {
        for (bytes, value) in bytes.chunks_exact_mut(4).zip(chunk) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        hash.update(&bytes[..4 * chunk.len()]);
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

/// Most contributions that are received at a time, however small they are.
const IN_FLIGHT_MAX: u64 = 64;

/// Configuration of the run's collection round.
pub(super) fn round_config(config: &RunConfig, n_parameters: usize) -> CollectionConfig {
    let scheme = config.synchronous();
    let n_bytes = scheme.gradient_codec.encoding().encoded_len(n_parameters).max(1) as u64;
    let fit = config.contributions.in_flight_bytes_max.as_u64() / n_bytes;
    CollectionConfig {
        target_batch_size: scheme.target_batch_size,
        n_parameters,
        codec: scheme.gradient_codec.encoding(),
        slow_codec: scheme.slow_links.map(|slow| slow.codec.encoding()),
        micro_batch_size: scheme.micro_batch_size,
        contribution_samples_max: config.contribution_samples_max(),
        samples_per_second_max: scheme.samples_per_second_max,
        collect_timeout: scheme.collect_timeout,
        in_flight_max: fit.clamp(1, IN_FLIGHT_MAX) as usize,
        contributors_max: config.network.contributors_max as usize,
        is_open: config.access.mode == AccessMode::Open,
        aggregation: config.contributions.aggregation(scheme.aggregation, n_parameters, config.access.mode),
        gradient_norm_max: scheme.gradient_norm_max,
    }
}

/// The layout of the run's model on the run's data.
pub(super) fn layout(config: &RunConfig, manifest: &Manifest) -> Result<ParameterLayout, ModelError> {
    ParameterLayout::of(&config.model_spec(), DataShape::of(&manifest.samples))
}

#[cfg(test)]
mod tests;
