//! The model of a run as the backbone keeps it: parameters, optimizer, history; checkpoint and replay.
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
use barnraise_protocol::matchmaking::ModelVersion;
use barnraise_protocol::run::ModelSpec;
use barnraise_protocol::state::StateHeader;
use barnraise_protocol::{Sha256Hash, TensorCodec};
use barnraise_swarm::history::History;
use barnraise_swarm::round::{AveragingRound, MeanOfRound, RoundConfig};
use barnraise_swarm::{Moment, PeerKey};
use sha2::{Digest, Sha256};

use crate::config::RunConfig;
use crate::storage::checkpoint::{Checkpoint, CheckpointError, Checkpoints, Included};
use crate::storage::journal::{CommitRecord, Journal, JournalEntry, JournalError, Together};
use crate::storage::{SetAside, StorageError};

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
    /// Checkpoints and journal are of different times, as of two backups.
    #[error(
        "checkpoints and journal lead to epoch {reached}, and the journal goes on with epoch {found}: the steps of epochs \
         {reached} to {} are missing, without which the later ones would make another model. Restore the folder from a \
         backup that has them, or put a checkpoint of epoch {found} or later into checkpoints/; or else move \
         journal/{found:012} and what follows it away, to go on from epoch {reached}, or where others have got to that \
         aggregate the run, without what was accepted since",
        found.saturating_sub(1)
    )]
    Gap {
        /// The model of which can be had.
        reached: u64,
        /// The first later one that has a commit.
        found: u64,
    },
}

impl LearnerError {
    /// What the disk or the store said, where it is that which failed.
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
    /// What they are.
    pub header: StateHeader,
    /// As they travel.
    pub bytes: Arc<[u8]>,
    /// As the backbone has them, `[n_parameters]`.
    pub parameters: Arc<[f32]>,
}

/// The model of a run.
#[derive(Debug)]
pub struct Learner {
    run_id: String,
    spec: ModelSpec,
    state_codec: TensorCodec,
    schedule: ScheduleSpec,
    /// The operator's, on top of the schedule. What is repeated after a restart has its rate from the journal.
    rate_factor: f32,
    optimizer: Optimizer,
    parameters: Vec<f32>,
    epoch: u64,
    n_samples_total: u64,
    history: History,
    /// Of peers that aggregate the run together: the last step that each was part of.
    included: BTreeMap<Vec<u8>, Included>,
    /// Its journal has later steps, which it cannot repeat and the others have.
    is_behind: bool,
}

/// By what a step of the optimizer is made.
#[derive(Debug, Clone, Copy)]
pub struct StepBy<'m> {
    /// `[n_parameters]`.
    pub gradient: &'m [f32],
    /// Samples behind it.
    pub n_samples: u64,
    /// Their mean loss.
    pub loss: f32,
}

impl<'m> From<&'m MeanOfRound> for StepBy<'m> {
    fn from(mean: &'m MeanOfRound) -> Self {
        Self { gradient: &mean.gradient, n_samples: mean.n_samples, loss: mean.loss }
    }
}

impl Learner {
    /// The newest checkpoint with the journal replayed over it, or a fresh model; and the open round. `has_others`: others
    /// aggregate the run too, and have the steps that cannot be repeated here.
    ///
    /// # Errors
    /// [`LearnerError::Gap`] where steps are missing in between.
    pub async fn recover(
        config: &RunConfig,
        round_config: RoundConfig,
        layout: &ParameterLayout,
        (checkpoints, journal): (&Checkpoints, &Journal),
        has_others: bool,
    ) -> Result<(Self, AveragingRound), LearnerError> {
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
                Ok(commit) => learner.replay_step(&mut round, journal, &commit).await?,
                Err(reason) => Some(reason),
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
            state_codec: config.run.state_codec,
            schedule: config.run.schedule,
            rate_factor: 1.0,
            optimizer: Optimizer::new(config.run.optimizer, layout)?,
            parameters: layout.initial_parameters(spec.seed),
            spec,
            epoch: 0,
            n_samples_total: 0,
            history: History::default(),
            included: BTreeMap::new(),
            is_behind: false,
        })
    }

    /// Goes on from a checkpoint, own or of a peer that aggregates the same run.
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

    /// Has the parameters and the optimizer state of an earlier checkpoint again, as those of `epoch`, which is a later
    /// one than now. Epochs never go back: what was made of the steps in between, by whomever, is of another epoch than
    /// what comes, and is told from it everywhere. Samples and curve go on.
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

    /// Makes a committed step again; or leaves it, and says what of it cannot be had.
    async fn replay_step(
        &mut self,
        round: &mut AveragingRound,
        journal: &Journal,
        commit: &CommitRecord,
    ) -> Result<Option<String>, LearnerError> {
        if let Some(together) = &commit.together {
            if together.before != self.version()?.hash {
                return Ok(Some("the step is of another line of models".to_owned()));
            }
            let mean = journal.mean(commit.epoch, together.nonce).await?;
            let Some(mean) = mean.and_then(|bytes| self.decode_mean(&bytes)) else {
                return Ok(Some("what the step was made by is missing or damaged".to_owned()));
            };
            self.step_together(&mean, commit.n_samples, together, commit.learning_rate);
            let config = round.config().clone();
            *round = round_at(&config, self.epoch, journal).await?;
            return Ok(None);
        }
        round.aggregate_by(commit.aggregation);
        for &sequence in &commit.seqs {
            let entry = journal.entry(commit.epoch, sequence).await?;
            let restored = entry.is_some_and(|entry| self.restore_entry(round, entry, sequence).is_ok());
            if !restored {
                return Ok(Some(format!("journal entry {sequence} of the step is missing or damaged")));
            }
        }
        self.step(StepBy::from(&round.mean()), commit.learning_rate);
        round.on_stepped(Moment::ZERO);
        while round.poll_action().is_some() {}
        Ok(None)
    }

    /// The step of this epoch cannot be repeated, and others have it: they lead this backbone on.
    ///
    /// Nothing of the journal is touched. It says still what of later epochs is in the steps that the others made, so each
    /// contribution counts once, in their steps or when its epoch comes again; and another start finds what this one found.
    fn wait_for_others(&mut self, reason: &str) {
        let epoch = self.epoch;
        tracing::error!(
            epoch,
            reason,
            "this backbone goes back to before this step, and follows the others from there"
        );
        self.is_behind = true;
    }

    /// The step of this epoch cannot be repeated: the run goes on from before it, as a later epoch than any that there
    /// was, so that nothing of the steps that are gone is taken for something of those that come. What was accepted since
    /// then and can be read counts in the step that is open now, by its age.
    ///
    /// A crash in between leads to the same: the checkpoint decides, and what it counts is in the journal before it.
    async fn go_on_without_step(
        &mut self,
        reason: &str,
        journal: &Journal,
        checkpoints: &Checkpoints,
    ) -> Result<(), LearnerError> {
        let lost = self.epoch;
        let newest = journal.epochs().await?.into_iter().max().unwrap_or(lost).max(lost);
        if newest == lost && !matches!(journal.commit_of(lost).await?, Some(Ok(_))) {
            // A crash tore the commit before anybody was shown its step: the epoch is open still.
            return Ok(journal.leave_line(lost, reason).await?);
        }
        // The epoch behind the newest step was announced, whether or not anything was accepted in it.
        let epoch = newest + 2;
        tracing::error!(
            lost,
            epoch,
            reason,
            "a step that was made cannot be repeated: the model is that of before it, what was accepted since counts again"
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
        checkpoints.begin_line(&self.checkpoint()?).await?;
        Ok(journal.leave_line(lost, reason).await?)
    }

    /// Counts an entry of the journal once more.
    pub(super) fn restore_entry(
        &self,
        round: &mut AveragingRound,
        entry: JournalEntry,
        sequence: u32,
    ) -> Result<(), String> {
        let values = entry.offer.codec.decode(&entry.payload, self.parameters.len());
        let values = values.map_err(|error| error.to_string())?;
        let restored = round.restore(PeerKey(entry.peer), entry.group, &entry.offer, &values, sequence);
        restored.map_err(|refusal| refusal.to_string())
    }

    /// Counts the contributions of the journal that are not in the model.
    pub(super) async fn replay_open(
        &self,
        round: &mut AveragingRound,
        journal: &Journal,
    ) -> Result<(), LearnerError> {
        let mut entries = journal.entries(self.epoch).await?;
        while let Some((sequence, entry)) = entries.next().await? {
            let restored = self.restore_entry(round, entry, sequence);
            if let Err(reason) = restored {
                tracing::warn!(epoch = self.epoch, sequence, reason, "journal entry is not counted");
            }
        }
        Ok(())
    }

    /// The rate of the next step: that of the schedule, times the operator's factor.
    pub fn learning_rate(&self) -> f32 {
        self.schedule.learning_rate(self.epoch) * self.rate_factor
    }

    /// The schedule's rate is multiplied by this from the next step on.
    pub fn set_rate_factor(&mut self, factor: f32) {
        self.rate_factor = factor;
    }

    /// Makes an optimizer step. A step that would leave the finite numbers is skipped: the epoch passes with the
    /// parameters as they were, now and on every replay.
    pub fn step(&mut self, by: StepBy<'_>, learning_rate: f32) {
        let before = self.optimizer.clone();
        if let Err(error) = self.optimizer.step(&mut self.parameters, by.gradient, learning_rate) {
            tracing::error!(epoch = self.epoch, %error, "the optimizer step was skipped");
            self.optimizer = before;
        }
        self.epoch = self.epoch.saturating_add(1);
        self.n_samples_total = self.n_samples_total.saturating_add(by.n_samples);
        self.history.push(HistoryPoint {
            epoch: self.epoch,
            n_samples_total: self.n_samples_total,
            train_loss: Some(by.loss),
            test_accuracy: None,
        });
    }

    /// Makes a step of peers that aggregate the run together; every one of them that had the same model has the same
    /// one after it.
    pub fn step_together(&mut self, mean: &[f32], n_samples: u64, together: &Together, learning_rate: f32) {
        for member in &together.members {
            self.included.insert(member.clone(), Included { epoch: self.epoch, nonce: together.nonce });
        }
        self.step(StepBy { gradient: mean, n_samples, loss: together.loss }, learning_rate);
    }

    /// This peer made the steps so far alone, before others aggregated the run too.
    pub fn was_alone(&mut self, peer: &[u8]) {
        if let (None, Some(epoch)) = (self.included.get(peer), self.epoch.checked_sub(1)) {
            self.included.insert(peer.to_vec(), Included { epoch, nonce: 0 });
        }
    }

    /// Which model this is: parameters and optimizer state, to the last bit.
    ///
    /// # Errors
    /// Does not happen.
    pub fn version(&self) -> Result<ModelVersion, LearnerError> {
        let mut hash = Sha256::new();
        for value in &self.parameters {
            hash.update(value.to_le_bytes());
        }
        hash.update(postcard::to_allocvec(self.optimizer.state())?);
        let hash = Sha256Hash(hash.finalize().into());
        Ok(ModelVersion { n_samples_total: self.n_samples_total, epoch: self.epoch, hash })
    }

    /// What a step was made by, from the journal or from a peer; `None` where it does not fit the model, or is not
    /// finite.
    pub fn decode_mean(&self, bytes: &[u8]) -> Option<Vec<f32>> {
        TensorCodec::F32.decode(bytes, self.parameters.len()).ok()
    }

    /// Whether its journal has later steps, which it could not repeat when it started and the others have.
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

    /// The held-out accuracy of the parameters of `epoch`, 0 to 1.
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

    /// All that a restart needs.
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

/// An empty round of `epoch` that knows what was counted in the epoch before.
async fn round_at(
    config: &RoundConfig,
    epoch: u64,
    journal: &Journal,
) -> Result<AveragingRound, JournalError> {
    let mut round = AveragingRound::new(config.clone(), epoch);
    if let Some(before) = epoch.checked_sub(1) {
        let mut entries = journal.entries(before).await?;
        while let Some((_, (peer, contribution_id))) = entries.next_name().await? {
            round.restore_counted_before(PeerKey(peer), contribution_id);
        }
    }
    Ok(round)
}

/// Names in the log what was damaged and moved out of the way.
fn warn_of(broken: &SetAside) {
    let SetAside { path, moved_to, reason } = broken;
    tracing::warn!(path, moved_to, reason, "set aside");
}

/// What the round of a run has to know.
pub(super) fn round_config(config: &RunConfig, n_parameters: usize) -> RoundConfig {
    let averaging = &config.averaging;
    let n_bytes = config.run.gradient_codec.encoded_len(n_parameters).max(1) as u64;
    let fit = averaging.in_flight_bytes_max.as_u64() / n_bytes;
    RoundConfig {
        target_batch_size: config.run.target_batch_size,
        n_parameters,
        codec: config.run.gradient_codec,
        slow_codec: config.run.slow_links.map(|slow| slow.codec),
        micro_batch_size: config.run.micro_batch_size,
        contribution_samples_max: config.contribution_samples_max(),
        samples_per_second_max: averaging.samples_per_second_max,
        collect_timeout: averaging.collect_timeout,
        in_flight_max: fit.clamp(1, u64::from(averaging.contributions_in_flight_max)) as usize,
        contributors_max: config.network.contributors_max as usize,
        is_open: config.access.mode == AccessMode::Open,
        aggregation: averaging.aggregation(n_parameters, config.access.mode),
        gradient_norm_max: averaging.gradient_norm_max,
    }
}

/// The layout of the run's model on the run's data.
pub(super) fn layout(config: &RunConfig, manifest: &Manifest) -> Result<ParameterLayout, ModelError> {
    ParameterLayout::of(&config.model_spec(), DataShape::of(&manifest.samples))
}

#[cfg(test)]
mod tests;
