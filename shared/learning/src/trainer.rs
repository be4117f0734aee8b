//! Gradients of one model on one device: accumulate micro-batches, take the mean (DeDLOC §3.1).
//!
//! The gradient sum stays on the device until it is taken. A step uploads a micro-batch and queues
//! kernels; only the logits come back, and only when a later step is already queued, so that a
//! slow device never has more than [`IN_FLIGHT_MAX`] steps waiting. Nothing here updates
//! parameters: the aggregator's optimizer does.
//!
//! With [`LocalSteps`] each micro-batch is a step: its gradient is read back, the step is made on the host, in
//! the same plain loops on every device, and the parameters of the next one are uploaded.
//!
//! With hosted experts, up to [`EXPERTS_IN_FLIGHT_MAX`] micro-batches wait for their answers at once (Learning@home §3.3).
//!
//! In mixed precision a pass whose gradient overflows is made again with a smaller scale, and at last in single
//! precision: every sample counts once, and what is not finite is never added.

mod crops;
mod flight;
mod recommend;
mod rows;
mod text;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use barnraise_protocol::codec::{first_not_finite, joined};
use barnraise_protocol::dataset::{ImageShape, Samples};
use barnraise_protocol::run::model::graph::Loss;
use barnraise_protocol::run::{self, Augmentation, ModelSpec};
use barnraise_protocol::state::EncodedState;

use self::flight::QueuedPass;
use self::recommend::Newcomers;
use crate::augmentation::{self, augmented};
use crate::batch::{self, Batch};
use crate::data_shape::DataShape;
use crate::device::{ComputeDevice, DeviceChoice, DeviceError};
use crate::engine::{Engine, Input, PassRead};
use crate::error::ModelError;
use crate::experts::ExpertPort;
use crate::frozen::{self, FrozenWeights};
use crate::graph::ResolvedGraph;
use crate::local::LocalSteps;
use crate::parameters::{ParameterLayout, ParameterSource};
use crate::random;
use crate::replicas::{self, Replicas, StartReplicas};
use crate::scaling::LossScaler;
use crate::statistics::{self, Statistics};

/// Most micro-batches queued on the device at once.
pub const IN_FLIGHT_MAX: usize = 2;
/// Most micro-batches that wait for hosted experts at once: each keeps its activations.
pub const EXPERTS_IN_FLIGHT_MAX: usize = 16;
/// Most parameters of a model that makes local steps on several threads.
const LOCAL_PARAMETERS_MAX: usize = 1 << 18;
/// Samples of one forward pass of [`Trainer::evaluate`] and [`Trainer::predict`].
pub const EVALUATION_CHUNK: usize = 256;

/// Mean over samples, ready to be offered; its values in one place or, as `Vec<Vec<f32>>`, in parts.
#[derive(Debug, Clone, PartialEq)]
pub struct MeanGradient<V = Vec<f32>> {
    /// `[n_parameters]`, finite, in the order of [`ParameterLayout`]. With local steps the pseudo-gradient.
    pub values: V,
    /// Samples behind the mean: its weight.
    pub n_samples: u32,
    /// Mean cross-entropy of those samples, natural logarithm.
    pub loss: f32,
    /// Correct top-1 predictions: one for each picture (its class or, without labels, the prototype of another crop),
    /// or one for each masked token.
    pub n_correct: u32,
}

/// Quality of a model on some samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Mean cross-entropy, natural logarithm.
    pub loss: f32,
    /// Share of correct top-1 predictions, 0 to 1: of a picture's class, of the prototype of another crop, or of a
    /// masked token.
    pub accuracy: f32,
}

/// A model on a device, and the gradient that it accumulates.
pub struct Trainer {
    graph: Arc<ResolvedGraph>,
    data: DataShape,
    /// The run's seed: it selects masked tokens, crops, changes of pictures, and what dropout drops.
    seed: u64,
    device: ComputeDevice,
    engine: Engine,
    /// Other threads that compute on the same model.
    replicas: Option<Box<Replicas>>,
    /// Loss scale, in mixed precision only.
    scaler: Option<LossScaler>,
    local: Option<Box<LocalSteps>>,
    newcomers: Option<Box<Newcomers>>,
    augmentation: Option<Augmentation>,
    n_samples: u32,
    in_flight_max: usize,
    /// Whether experts that peers host are asked for nowhere yet.
    lacks_experts: bool,
    /// Behind a mutex only so that a shared trainer may evaluate on any thread; the lock is never contended.
    in_flight: Mutex<VecDeque<QueuedPass>>,
    finished: Statistics,
    last_loss: Option<f32>,
}

impl Trainer {
    /// A model with the initial parameters of its specification's seed.
    ///
    /// # Errors
    /// A specification that is out of bounds or does not fit the samples; a lost device.
    pub fn new(spec: &ModelSpec, data: DataShape, device: ComputeDevice) -> Result<Self, ModelError> {
        Self::with_frozen(spec, data, None, device)
    }

    /// The same with the weights that the model does not train, where it has such.
    ///
    /// # Errors
    /// As of [`Self::new`]; frozen weights that are not here, or of another model.
    pub fn with_frozen(
        spec: &ModelSpec,
        data: DataShape,
        frozen: Option<&FrozenWeights>,
        device: ComputeDevice,
    ) -> Result<Self, ModelError> {
        device.check()?;
        let graph = Arc::new(ResolvedGraph::of_model(spec, data)?);
        frozen::check(graph.frozen(), frozen)?;
        let flat = graph.layout().initial_parameters(spec.seed);
        let engine = Engine::new(&graph, &device, &flat, frozen);
        Ok(Self {
            graph,
            data,
            seed: spec.seed,
            scaler: device
                .precision()
                .half()
                .filter(|_| spec.hosted.is_none())
                .map(|_| LossScaler::default()),
            in_flight_max: if spec.hosted.is_some() { EXPERTS_IN_FLIGHT_MAX } else { IN_FLIGHT_MAX },
            lacks_experts: spec.hosted.is_some(),
            device,
            engine,
            replicas: None,
            local: None,
            newcomers: None,
            augmentation: None,
            n_samples: 0,
            in_flight: Mutex::new(VecDeque::with_capacity(IN_FLIGHT_MAX + 1)),
            finished: Statistics::default(),
            last_loss: None,
        })
    }

    /// From now on hosted experts are asked for through `port`. Without one, a model that has such computes nothing.
    #[must_use]
    pub fn with_experts(mut self, port: ExpertPort) -> Self {
        self.lacks_experts = false;
        self.engine.ask_experts(port);
        self
    }

    /// From now on each pass is divided among this thread and those that `start` gives, where it computes on the processor and
    /// the model allows it. They start with the first pass, and end with the trainer.
    #[must_use]
    pub fn with_replicas(mut self, spec: &ModelSpec, start: StartReplicas) -> Self {
        // Local steps send all parameters to each thread, and a gradient back, with each pass.
        let is_worth_it = self.local.is_none() || self.layout().n_parameters() <= LOCAL_PARAMETERS_MAX;
        let is_on_cpu = self.device.choice() == DeviceChoice::Cpu;
        if is_on_cpu && is_worth_it && replicas::is_divisible(spec, &self.graph) {
            self.replicas = Some(Box::new(Replicas::new(start, self.layout().n_parameters())));
        }
        self
    }

    /// Whether other threads take part in the next passes, where there are any. Where they do not, they end once they have no part of
    /// a gradient.
    pub fn divide(&mut self, is_divided: bool) {
        if let Some(replicas) = &mut self.replicas {
            replicas.take_part(is_divided);
        }
    }

    /// Ends the other threads until the next pass. What they have computed is computed once more where it is wanted.
    pub fn end_threads(&mut self) {
        if let Some(replicas) = &mut self.replicas {
            replicas.end();
        }
    }

    /// Whether experts on other peers belong to its model.
    pub fn asks_experts(&self) -> bool {
        !self.graph.hosted().is_empty()
    }

    /// From now on each micro-batch is a local step. Begins at the initial parameters.
    ///
    /// # Errors
    /// Local steps with a number out of its range.
    pub fn with_local_steps(mut self, spec: &ModelSpec, steps: &run::LocalSteps) -> Result<Self, ModelError> {
        let flat = self.layout().initial_parameters(spec.seed);
        self.local = Some(Box::new(LocalSteps::new(steps, self.layout(), &flat)?));
        Ok(self)
    }

    /// From now on pictures are changed at random before they are trained on. Those of predictions and evaluations are not.
    ///
    /// # Errors
    /// As [`augmentation::check`].
    pub fn with_augmentation(mut self, augmentation: Augmentation) -> Result<Self, ModelError> {
        augmentation::check(&augmentation, self.data, self.is_of_crops())?;
        self.augmentation = Some(augmentation);
        Ok(self)
    }

    /// With local steps: each pseudo-gradient depends on its own samples alone, so that a backbone can recompute it.
    #[must_use]
    pub fn stateless(mut self) -> Self {
        self.local = self.local.take().map(|local| Box::new(local.stateless()));
        self
    }

    /// Order of the flat vector.
    pub fn layout(&self) -> &ParameterLayout {
        self.graph.layout()
    }

    /// Where it computes.
    pub fn device(&self) -> &ComputeDevice {
        &self.device
    }

    /// Replaces the parameters and drops the accumulated gradient, which belonged to the old ones.
    pub fn load_parameters(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        self.load_from(ParameterSource::Flat(flat))
    }

    /// The same with parameters of a backbone, which are decoded on the way.
    ///
    /// # Errors
    /// As of [`Self::load_parameters`].
    pub fn load_epoch(&mut self, parameters: &EncodedState) -> Result<(), ModelError> {
        self.load_from(ParameterSource::Encoded(parameters))
    }

    fn load_from(&mut self, source: ParameterSource<'_>) -> Result<(), ModelError> {
        self.device.check()?;
        self.layout().check_length(source.n_values())?;
        load(&mut self.engine, self.replicas.as_deref_mut(), source);
        if let Some(local) = &mut self.local {
            local.begin(&source.flat());
        }
        if let Some(newcomers) = &mut self.newcomers {
            newcomers.on_loaded();
        }
        self.forget_samples();
        Ok(())
    }

    /// Sets the epoch whose learning rate local steps use.
    pub fn on_epoch(&mut self, epoch: u64) {
        if let Some(local) = &mut self.local {
            local.on_epoch(epoch);
        }
    }

    /// Drops what passes that only measured the speed left behind: local steps and SwAV's queue.
    pub fn discard_warmup(&mut self) {
        self.engine.clear_queue();
        if let Some(local) = &mut self.local {
            local.reset();
        }
    }

    /// Puts the parameters that were loaded back on the device, so that predictions and evaluations use them and not
    /// those of local steps.
    pub fn restore_loaded_parameters(&mut self) {
        let before_newcomers = self.newcomers.as_ref().and_then(|newcomers| newcomers.loaded());
        let of_epoch = self.local.as_ref().map(|local| local.epoch_parameters());
        if let Some(loaded) = before_newcomers.or(of_epoch) {
            load(&mut self.engine, self.replicas.as_deref_mut(), loaded.into());
        }
    }

    /// Reads the gradient sum of all threads, in parts.
    async fn take_sum(&mut self) -> Result<Vec<Vec<f32>>, DeviceError> {
        match &mut self.replicas {
            Some(replicas) => Ok(vec![replicas.take(&mut self.engine).await?]),
            None => self.engine.take_parts().await,
        }
    }

    /// Adds the gradient of a micro-batch of a run. `draw` is the epoch: with the samples and the run's seed it
    /// decides which tokens of a text are masked, how pictures are cropped or changed, and what dropout drops.
    ///
    /// # Errors
    /// As of [`Self::accumulate`].
    pub async fn accumulate_samples(&mut self, samples: &Samples, draw: u64) -> Result<(), ModelError> {
        match samples {
            Samples::Images(images) if self.is_of_crops() => {
                self.accumulate_crops(&images.images, draw).await
            }
            Samples::Images(images) => self.accumulate_images(&images.images, &images.labels, draw).await,
            Samples::Tokens(tokens) => self.accumulate_tokens(&tokens.ids, draw).await,
            Samples::Rows(rows) => self.accumulate_rows(rows, draw).await,
            Samples::Ratings(ratings) => self.accumulate_ratings(ratings, draw).await,
        }
    }

    /// Adds the gradient of a micro-batch of pictures, summed over its samples; with local steps, makes one.
    ///
    /// Returns when the step is queued and at most [`IN_FLIGHT_MAX`] are not yet computed; a local step is made then.
    ///
    /// # Errors
    /// A batch that does not fit the model (nothing is added); a device that failed.
    pub async fn accumulate(&mut self, batch: &Batch) -> Result<(), ModelError> {
        self.accumulate_images(&batch.images, &batch.labels, 0).await
    }

    async fn accumulate_images(&mut self, images: &[u8], labels: &[u8], draw: u64) -> Result<(), ModelError> {
        let (shape, n_classes) = self.images()?;
        batch::check_images(images, labels.len(), shape, self.layout().batch_samples_max())?;
        batch::check_labels(labels, n_classes)?;
        let n_samples = self.prepare(labels.len())?;
        let augmentation = self.augmentation.as_ref();
        let changed = augmentation.map(|how| augmented(images, shape, how, self.seed, draw));
        let images = changed.as_deref().unwrap_or(images);
        let seeds =
            self.seeds(images.chunks_exact(shape.n_values()).map(|image| image.iter().copied()), draw);
        self.step(Input::Images { images, labels }, seeds, n_samples).await
    }

    /// What the dropout of each sample follows from; empty where the graph has none.
    fn seeds<S: Iterator<Item = u8>>(&self, samples: impl Iterator<Item = S>, draw: u64) -> Vec<u64> {
        match self.graph.draws_numbers() {
            true => samples.map(|sample| random::state_of(sample, self.seed, draw)).collect(),
            false => Vec::new(),
        }
    }

    /// Prepares a step over `n_samples`: checks their count and the device, and loads the parameters that local steps
    /// reached.
    fn prepare(&mut self, n_samples: usize) -> Result<u32, ModelError> {
        let n_samples = u32::try_from(n_samples).ok().filter(|n| self.n_samples.checked_add(*n).is_some());
        let n_samples = n_samples.ok_or(ModelError::TooManySamples { max: u32::MAX })?;
        self.check_experts()?;
        self.device.check()?;
        if let Some(local) = &self.local {
            load(&mut self.engine, self.replicas.as_deref_mut(), local.parameters().into());
        }
        Ok(n_samples)
    }

    /// Makes a local step with the gradient of the only batch that was added.
    async fn step_locally(&mut self, n_samples: u32) -> Result<(), ModelError> {
        self.settle(0).await?;
        let sum = self.take_sum().await;
        let mut mean = joined(sum.map_err(|error| self.device.failed(error))?);
        self.device.check()?;
        self.layout().check_length(mean.len())?;
        // A value that is not finite is reported when the pseudo-gradient is taken.
        divide(&mut mean, self.layout().n_trained(), n_samples);
        if let Some(local) = &mut self.local {
            local.step(&mean, n_samples);
        }
        Ok(())
    }

    /// Returns when every pass that was queued is computed.
    ///
    /// # Errors
    /// A device that failed.
    pub async fn finish_passes(&mut self) -> Result<(), ModelError> {
        self.settle(0).await
    }

    /// Samples accumulated since the last take.
    pub fn n_samples(&self) -> u32 {
        self.n_samples
    }

    /// Mean loss of the newest micro-batch that is computed; up to [`IN_FLIGHT_MAX`] behind.
    pub fn last_loss(&self) -> Option<f32> {
        self.last_loss
    }

    /// The mean over all accumulated samples, read back once; `None` without samples. With local steps the mean
    /// pseudo-gradient, and the next step begins at the parameters that were loaded.
    ///
    /// # Errors
    /// A device that failed, a gradient that is not finite. The accumulated gradient is gone.
    pub async fn take_mean_gradient(&mut self) -> Result<Option<MeanGradient>, ModelError> {
        Ok(self.take_mean_in_parts().await?.map(|mean| MeanGradient {
            values: joined(mean.values),
            n_samples: mean.n_samples,
            loss: mean.loss,
            n_correct: mean.n_correct,
        }))
    }

    /// The same in parts, which together are the mean: a gradient as large as the memory that is left need not lie in one place.
    ///
    /// # Errors
    /// As of [`Self::take_mean_gradient`].
    pub async fn take_mean_in_parts(&mut self) -> Result<Option<MeanGradient<Vec<Vec<f32>>>>, ModelError> {
        let n_samples = self.n_samples;
        if n_samples == 0 {
            return Ok(None);
        }
        let settled = self.settle(0).await;
        let taken = match &mut self.local {
            Some(local) => {
                let taken = local.take().map_err(|index| ModelError::NotFinite { index });
                Ok(taken.map(|mean| mean.into_iter().collect()))
            }
            None => {
                let n_trained = self.layout().n_trained();
                self.take_sum().await.map(|sum| mean_values(sum, n_trained, n_samples))
            }
        };
        let finished = self.finished;
        self.drop_gradient();
        settled?;
        self.device.check()?;
        let mut values = taken.map_err(|error| self.device.failed(error))??;
        self.layout().check_length(values.iter().map(Vec::len).sum())?;
        if self.newcomers.is_some() {
            let mut flat = joined(values);
            self.forget_newcomers(&mut flat);
            values = vec![flat];
        }
        Ok(Some(MeanGradient {
            values,
            n_samples,
            loss: finished.mean_loss(),
            n_correct: u32::try_from(finished.n_correct).unwrap_or(n_samples),
        }))
    }

    /// Class probabilities.
    ///
    /// # Shapes
    /// - `images`: `[n_samples, height, width, channels]`
    /// - returns `[n_samples, n_classes]`, each row summing to 1
    pub async fn predict(&self, images: &[u8], n_samples: usize) -> Result<Vec<f32>, ModelError> {
        let (shape, n_classes) = self.images()?;
        let want = n_samples.saturating_mul(shape.n_values());
        if images.len() != want {
            return Err(ModelError::ImageBytes { n_samples, want, got: images.len() });
        }
        let mut probabilities = Vec::with_capacity(n_samples * n_classes);
        for images in images.chunks(self.chunk_samples() * shape.n_values()) {
            let n_samples = images.len() / shape.n_values();
            probabilities.extend(self.outputs(Input::Images { images, labels: &[] }, n_samples).await?);
        }
        statistics::softmax_rows(&mut probabilities, n_classes);
        Ok(probabilities)
    }

    /// Loss and accuracy on held-out samples of a run, in chunks. Of a text the same tokens are masked every time, and
    /// of pictures the crops are the same.
    ///
    /// # Errors
    /// Samples that do not fit the model; a device that failed.
    pub async fn evaluate_samples(&self, samples: &Samples) -> Result<Evaluation, ModelError> {
        match samples {
            Samples::Images(images) if self.is_of_crops() => self.evaluate_crops(&images.images).await,
            Samples::Images(images) => self.evaluate(&images.images, &images.labels).await,
            Samples::Tokens(tokens) => self.evaluate_tokens(&tokens.ids).await,
            Samples::Rows(rows) => self.evaluate_rows(rows).await,
            Samples::Ratings(ratings) => self.evaluate_ratings(ratings).await,
        }
    }

    /// Loss and accuracy on held-out pictures, in chunks.
    ///
    /// # Shapes
    /// - `images`: `[n_samples, height, width, channels]`
    /// - `labels`: `[n_samples]`
    pub async fn evaluate(&self, images: &[u8], labels: &[u8]) -> Result<Evaluation, ModelError> {
        let (shape, n_classes) = self.images()?;
        batch::check_images(images, labels.len(), shape, usize::MAX)?;
        batch::check_labels(labels, n_classes)?;
        let mut total = Statistics::default();
        let n_chunk = self.chunk_samples();
        for (images, labels) in images.chunks(n_chunk * shape.n_values()).zip(labels.chunks(n_chunk)) {
            total.add(self.losses(Input::Images { images, labels }).await?);
        }
        Ok(total.evaluation())
    }

    /// Shape and classes of labelled pictures.
    fn images(&self) -> Result<(ImageShape, usize), ModelError> {
        match self.data {
            DataShape::Images { .. } if self.is_of_crops() => Err(ModelError::WrongData { got: "labels" }),
            DataShape::Images { shape, n_classes } => Ok((shape, n_classes)),
            _ => Err(ModelError::WrongData { got: "pictures" }),
        }
    }

    /// Whether it learns from crops of pictures, and looks at no label.
    fn is_of_crops(&self) -> bool {
        matches!(self.graph.loss(), Loss::Swav(_))
    }

    fn chunk_samples(&self) -> usize {
        EVALUATION_CHUNK.min(self.layout().batch_samples_max()).min(self.engine.samples_max())
    }

    /// Drops the accumulated gradient. The parameters stay.
    pub fn drop_gradient(&mut self) {
        self.engine.reset();
        if let Some(replicas) = &mut self.replicas {
            replicas.reset();
        }
        self.forget_samples();
    }

    /// The gradient is gone already.
    fn forget_samples(&mut self) {
        self.n_samples = 0;
        self.in_flight().clear();
        self.finished = Statistics::default();
        self.last_loss = None;
    }

    async fn outputs(&self, input: Input<'_>, n_samples: usize) -> Result<Vec<f32>, ModelError> {
        self.computed(self.engine.outputs(input, n_samples).await).await
    }

    async fn losses(&self, input: Input<'_>) -> Result<Statistics, ModelError> {
        Ok(Statistics::of(&self.computed(self.engine.losses(input).await).await?))
    }

    fn check_experts(&self) -> Result<(), ModelError> {
        if self.lacks_experts { Err(ModelError::UnreachableExperts) } else { Ok(()) }
    }

    async fn computed(&self, pass: PassRead) -> Result<Vec<f32>, ModelError> {
        self.check_experts()?;
        self.device.check()?;
        let values = pass.await;
        self.device.check()?;
        Ok(values.map_err(|error| self.device.failed(error))?)
    }
}

/// Replaces the parameters in all threads.
fn load(engine: &mut Engine, replicas: Option<&mut Replicas>, source: ParameterSource<'_>) {
    engine.load(source);
    if let Some(replicas) = replicas {
        replicas.load(source);
    }
}

/// Divides the sum of a gradient by its samples. Statistics, which follow it, are a mean already.
fn divide(sum: &mut [f32], n_trained: usize, n_samples: u32) {
    sum.iter_mut().take(n_trained).for_each(|value| *value /= n_samples as f32);
}

fn mean_values(
    mut sum: Vec<Vec<f32>>,
    n_trained: usize,
    n_samples: u32,
) -> Result<Vec<Vec<f32>>, ModelError> {
    let mut first = 0;
    for part in &mut sum {
        divide(part, n_trained.saturating_sub(first), n_samples);
        if let Some(index) = first_not_finite(part) {
            return Err(ModelError::NotFinite { index: first + index });
        }
        first += part.len();
    }
    Ok(sum)
}

impl Statistics {
    fn evaluation(&self) -> Evaluation {
        let accuracy = self.n_correct as f64 / self.n_rows as f64;
        Evaluation { loss: self.mean_loss(), accuracy: accuracy as f32 }
    }
}

#[cfg(test)]
#[path = "trainer_tests.rs"]
mod tests;
