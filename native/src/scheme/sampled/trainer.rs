//! Local training on a thread of its own: some passes over this participant's data, from the model of a round.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, anyhow};
use barnraise_contributor::description::local_steps;
use barnraise_learning::{ComputeDevice, DataShape, ModelError, Trainer};
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::{LocalSteps, RunDescription, Sampled};
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::sampled::SampledModel;
use futures::executor::block_on;
use tokio::sync::{mpsc, oneshot};

/// No round: nothing is trained.
const NONE: u64 = 0;

/// What a participant trains on: it stays where it is.
pub(crate) struct LocalData {
    pub(crate) samples: Samples,
    /// Of the order of the samples.
    pub(crate) seed: u64,
}

struct TrainingOrder {
    round: u64,
    model: SampledModel,
    result: oneshot::Sender<Option<SampledModel>>,
}

/// Trains one round at a time. It ends with the last of its clones.
#[derive(Clone)]
pub(crate) struct LocalTrainer {
    orders: mpsc::Sender<TrainingOrder>,
    /// The round that is wanted: what is trained for another one ends.
    wanted: Arc<AtomicU64>,
}

impl LocalTrainer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The model does not fit the device.
    pub(crate) fn start(
        run: &RunDescription,
        scheme: Sampled,
        data: LocalData,
        device: ComputeDevice,
    ) -> anyhow::Result<Self> {
        let n_batches = data.samples.n_samples().div_ceil(scheme.micro_batch_size.max(1) as usize);
        let steps = u32::try_from(n_batches).unwrap_or(u32::MAX).saturating_mul(scheme.local_passes).max(1);
        // One trajectory for all passes over the data that is here.
        let steps = LocalSteps { steps, ..local_steps(&scheme, run) };
        let shape = DataShape::of(&run.data.manifest.samples);
        let mut trainer =
            Trainer::new(&run.model, shape, device)?.with_local_steps(&run.model, &steps)?.stateless();
        if let Some(augmentation) = run.data.augmentation {
            trainer = trainer.with_augmentation(augmentation)?;
        }
        let (orders, ordered) = mpsc::channel(2);
        let wanted = Arc::new(AtomicU64::new(NONE));
        let thread = TrainingThread { trainer, scheme, data, wanted: Arc::clone(&wanted) };
        let work = move || thread.run(ordered);
        std::thread::Builder::new().name("training".to_owned()).spawn(work)?;
        Ok(Self { orders, wanted })
    }

    /// Trains the model of a round. `None` where that was overtaken or failed.
    pub(crate) async fn train(&self, round: u64, model: SampledModel) -> Option<SampledModel> {
        self.wanted.fetch_max(round, Ordering::Relaxed);
        let (result, trained) = oneshot::channel();
        self.orders.send(TrainingOrder { round, model, result }).await.ok()?;
        trained.await.ok().flatten()
    }

    /// Ends what is trained.
    pub(crate) fn cancel(&self) {
        self.wanted.store(NONE, Ordering::Relaxed);
    }
}

struct TrainingThread {
    trainer: Trainer,
    scheme: Sampled,
    data: LocalData,
    wanted: Arc<AtomicU64>,
}

impl TrainingThread {
    fn run(mut self, mut ordered: mpsc::Receiver<TrainingOrder>) {
        while let Some(TrainingOrder { round, model, result }) = ordered.blocking_recv() {
            let trained = block_on(self.train(round, &model));
            let trained = trained.unwrap_or_else(|error| {
                tracing::error!(round, error = format!("{error:#}"), "a round could not be trained");
                None
            });
            // The receiver is gone where the run ends.
            let _ = result.send(trained);
        }
    }

    async fn train(&mut self, round: u64, model: &SampledModel) -> anyhow::Result<Option<SampledModel>> {
        self.trainer.load_parameters(model)?;
        self.trainer.on_epoch(round);
        let n_samples = self.data.samples.n_samples();
        let mut order: Vec<usize> = (0..n_samples).collect();
        let mut random = SplitMix64::new(self.data.seed ^ round);
        for _ in 0..self.scheme.local_passes {
            random.shuffle(&mut order);
            for batch in order.chunks(self.scheme.micro_batch_size as usize) {
                if self.wanted.load(Ordering::Relaxed) != round {
                    return Ok(None);
                }
                let mut samples = self.data.samples.none_of();
                batch.iter().for_each(|index| samples.push(&self.data.samples, *index));
                self.trainer.accumulate_samples(&samples, round).await?;
            }
        }
        let moved = self.trainer.take_mean_gradient().await?.context("there is no local data")?;
        tracing::info!(round, loss = moved.loss, n_samples = moved.n_samples, "trained");
        // What was moved is the model before minus the one after.
        let trained: SampledModel =
            model.iter().zip(&moved.values).map(|(before, moved)| before - moved).collect();
        match trained.iter().position(|value| !value.is_finite()) {
            Some(index) => Err(anyhow!(ModelError::NotFinite { index })),
            None => Ok(Some(trained)),
        }
    }
}
