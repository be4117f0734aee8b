//! The model of a run at a backbone: parameters, optimizer, history; checkpoint and replay.
//!
//! It makes one optimizer step at a time and never computes a gradient.

mod recovery;

use std::collections::BTreeMap;
use std::sync::Arc;

use barnraise_learning::{DataShape, ModelError, Optimizer, OptimizerError, ParameterLayout, ScheduleSpec};
use barnraise_protocol::access::AccessMode;
use barnraise_protocol::api::HistoryPoint;
use barnraise_protocol::dataset::Manifest;
use barnraise_protocol::matchmaking::ModelVersion;
use barnraise_protocol::run::ModelSpec;
use barnraise_protocol::{Sha256Hash, TensorCodec};
use barnraise_swarm::collection::CollectionConfig;
use barnraise_swarm::history::History;

use crate::computing::compute;
use crate::config::{RunConfig, SynchronousSection};
use crate::host::states::PublishedState;
use crate::host::weights::{SharedWeights, WeightsError};
use crate::storage::StorageError;
use crate::storage::checkpoint::{Checkpoint, CheckpointError, Included};
use crate::storage::journal::{CommitRecord, JournalError};

/// Why the run's model could not be made, stepped or stored.
#[derive(Debug, thiserror::Error)]
pub enum LearnerError {
    /// The configured model does not fit the data.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The configured optimizer cannot work.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// The weights, or those of a checkpoint.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Checkpoints.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
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

/// The model of a run: what is known of it at once, and its weights, which take time.
///
/// What takes time is a future that does not borrow the learner, which stays as it was until it takes the result.
#[derive(Debug)]
pub struct Learner {
    run_id: String,
    spec: ModelSpec,
    state_codec: TensorCodec,
    schedule: ScheduleSpec,
    /// The operator's factor on the schedule's rate. Replayed steps have their rate from the journal.
    rate_factor: f32,
    n_parameters: usize,
    weights: SharedWeights,
    /// Of parameters and optimizer state.
    hash: Sha256Hash,
    epoch: u64,
    n_samples_total: u64,
    history: History,
    /// The last step that each aggregator took part in, by the bytes of its peer id.
    included: BTreeMap<Vec<u8>, Included>,
    /// Its journal has later steps, which it cannot repeat and the other aggregators have.
    is_behind: bool,
}

/// What a learner knows of a checkpoint whose weights it has.
#[derive(Debug)]
pub struct Restored {
    hash: Sha256Hash,
    epoch: u64,
    n_samples_total: u64,
    history: Vec<HistoryPoint>,
    included: BTreeMap<Vec<u8>, Included>,
}

impl Learner {
    async fn fresh(
        (config, scheme): (&RunConfig, &SynchronousSection),
        layout: &ParameterLayout,
        first: Vec<f32>,
    ) -> Result<Self, LearnerError> {
        let spec = config.model_spec();
        let optimizer = Optimizer::new(scheme.optimizer, layout)?;
        let weights = SharedWeights::new(optimizer, first);
        Ok(Self {
            run_id: config.run.id.clone(),
            state_codec: scheme.state_codec,
            schedule: scheme.schedule,
            rate_factor: 1.0,
            n_parameters: layout.n_parameters(),
            hash: weights.clone().with(|weights| weights.hash()).await,
            weights,
            spec,
            epoch: 0,
            n_samples_total: 0,
            history: History::default(),
            included: BTreeMap::new(),
            is_behind: false,
        })
    }

    /// Takes the weights of a checkpoint, of this backbone or of another aggregator; then call [`Self::on_restored`].
    ///
    /// # Errors
    /// It does not fit the model; nothing has changed then.
    pub fn restoring(
        &self,
        checkpoint: Checkpoint,
    ) -> impl Future<Output = Result<Restored, LearnerError>> + Send + use<> {
        let Checkpoint { epoch, n_samples_total, parameters, optimizer_state, included, history, .. } =
            checkpoint;
        let replacing = self.weights.clone().with(move |weights| {
            weights.replace(parameters, &optimizer_state)?;
            Ok::<_, LearnerError>(weights.hash())
        });
        async move {
            let hash = replacing.await?;
            Ok(Restored { hash, epoch, n_samples_total, history, included })
        }
    }

    /// Goes on from the checkpoint whose weights were taken.
    pub fn on_restored(&mut self, restored: Restored) {
        let Restored { hash, epoch, n_samples_total, history, included } = restored;
        (self.hash, self.epoch, self.n_samples_total) = (hash, epoch, n_samples_total);
        (self.history, self.included) = (History::from(history), included);
    }

    /// Restores the parameters and the optimizer state of an earlier checkpoint as those of `epoch`, a later one than
    /// now. Epochs never go back, so gradients and models of the undone steps cannot be taken for later ones. The count
    /// of samples and the history continue. Then call [`Self::on_restored`].
    ///
    /// # Errors
    /// It does not fit the model; nothing has changed then.
    pub fn going_back(
        &self,
        to: Checkpoint,
        epoch: u64,
    ) -> impl Future<Output = Result<Restored, LearnerError>> + Send + use<> {
        let n_samples_total = self.n_samples_total;
        let mut history = self.history.clone();
        history.push(HistoryPoint { epoch, n_samples_total, train_loss: None, test_accuracy: None });
        let history = history.points().to_vec();
        let included = self.included.clone();
        self.restoring(Checkpoint { epoch, n_samples_total, history, included, ..to })
    }

    /// Learning rate of the next step: that of the schedule, times the operator's factor.
    pub fn learning_rate(&self) -> f32 {
        self.schedule.learning_rate(self.epoch) * self.rate_factor
    }

    /// Sets the factor on the schedule's rate, from the next step on.
    pub fn set_rate_factor(&mut self, factor: f32) {
        self.rate_factor = factor;
    }

    /// Makes an optimizer step by `mean`, `[n_parameters]`, in the weights, and computes their hash; then call
    /// [`Self::on_stepped`]. Aggregators with the same model before it have the same model after it. A step that would
    /// leave the finite numbers is skipped: the epoch passes with the parameters as they were, now and on every replay.
    pub fn stepping(
        &self,
        record: &CommitRecord,
        mean: Arc<Vec<f32>>,
    ) -> impl Future<Output = Sha256Hash> + Send + use<> {
        let (epoch, learning_rate) = (self.epoch, record.learning_rate);
        self.weights.clone().with(move |weights| {
            if let Err(error) = weights.step(&mean, learning_rate) {
                tracing::error!(epoch, %error, "the optimizer step was skipped");
            }
            weights.hash()
        })
    }

    /// The weights have made the step of `record`, and have this hash now.
    pub fn on_stepped(&mut self, record: &CommitRecord, hash: Sha256Hash) {
        for member in &record.members {
            self.included.insert(member.clone(), Included { epoch: self.epoch, nonce: record.nonce });
        }
        self.hash = hash;
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
        ModelVersion { n_samples_total: self.n_samples_total, epoch: self.epoch, hash: self.hash }
    }

    /// Decodes the mean of a step, from the journal or from a peer; `None` where it does not fit the model, or is not
    /// finite.
    pub fn decode_mean(&self, bytes: Vec<u8>) -> impl Future<Output = Option<Vec<f32>>> + Send + use<> {
        let n_parameters = self.n_parameters;
        compute(bytes.len(), move || TensorCodec::F32.decode(&bytes, n_parameters).ok())
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

    /// Length of the flat parameter vector.
    pub fn n_parameters(&self) -> usize {
        self.n_parameters
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

    /// The parameters as contributors pull them, as those of the epoch.
    pub fn publish(
        &self,
        epoch: u64,
    ) -> impl Future<Output = Result<PublishedState, LearnerError>> + Send + use<> {
        let codec = self.state_codec;
        let publishing = self.weights.clone().with(move |weights| weights.publish(epoch, codec));
        async move { Ok(publishing.await?) }
    }

    /// The state that a restart needs.
    pub fn checkpoint(&self) -> impl Future<Output = Result<Checkpoint, LearnerError>> + Send + use<> {
        let (run_id, model) = (self.run_id.clone(), self.spec.clone());
        let (epoch, n_samples_total) = (self.epoch, self.n_samples_total);
        let (history, included) = (self.history.points().to_vec(), self.included.clone());
        self.weights.clone().with(move |weights| {
            let (parameters, optimizer_state) = weights.copy()?;
            Ok(Checkpoint {
                run_id,
                model,
                epoch,
                n_samples_total,
                parameters,
                optimizer_state,
                included,
                history,
            })
        })
    }

    /// Its weights, for a test that holds them.
    #[cfg(test)]
    pub(super) fn weights(&self) -> SharedWeights {
        self.weights.clone()
    }
}

/// Most contributions that are received at a time, however small they are.
const IN_FLIGHT_MAX: u64 = 64;

/// Configuration of the run's collection round.
pub(super) fn round_config(
    (config, scheme): (&RunConfig, &SynchronousSection),
    n_parameters: usize,
) -> CollectionConfig {
    let n_bytes = scheme.gradient_codec.encoding().encoded_len(n_parameters).max(1) as u64;
    let fit = config.contributions.in_flight_bytes_max.as_u64() / n_bytes;
    CollectionConfig {
        target_batch_size: scheme.target_batch_size,
        n_parameters,
        codec: scheme.gradient_codec.encoding(),
        slow_codec: scheme.slow_links.map(|slow| slow.codec.encoding()),
        micro_batch_size: scheme.micro_batch_size,
        contribution_samples_max: scheme.largest_contribution(),
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
