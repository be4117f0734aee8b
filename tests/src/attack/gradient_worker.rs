//! Computes honest gradients for an attacking machine: one device, on a thread of its own.

use std::sync::Arc;

use anyhow::{Context, Result};
use barnraise_learning::{ComputeDevice, DataShape, Trainer};
use barnraise_protocol::commitment::SampleId;
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::ShardId;
use barnraise_swarm::random::SplitMix64;
use tokio::sync::{mpsc, oneshot};

use crate::client::{EpochParameters, TestClient};

/// Shards that it has, of the first of the data.
const SHARDS_MAX: usize = 16;
const REQUESTS_MAX: usize = 64;

/// An honest gradient.
#[derive(Debug, Clone)]
pub(super) struct ComputedGradient {
    /// The parameters that it was computed with.
    pub(super) state: Arc<EpochParameters>,
    pub(super) samples: Vec<SampleId>,
    pub(super) values: Vec<f32>,
}

struct GradientRequest {
    state: Arc<EpochParameters>,
    n_samples: u32,
    done: oneshot::Sender<Result<ComputedGradient>>,
}

/// Computes the requested gradients one after the other, until it is dropped.
pub(super) struct GradientWorker {
    requests: mpsc::Sender<GradientRequest>,
}

impl GradientWorker {
    pub(super) async fn open(client: &TestClient, run: Arc<RunDescription>) -> Result<Self> {
        let mut shards = Vec::new();
        for (index, entry) in run.data.manifest.shards.iter().enumerate().take(SHARDS_MAX) {
            let bytes = client.shard(&run, ShardId::Numbered(index as u32)).await?;
            shards.push(Samples::decode(&bytes, entry, &run.data.manifest)?);
        }
        let data = DataShape::of(&run.data.manifest.samples);
        let trainer = Trainer::new(&run.model, data, ComputeDevice::cpu())?;
        let (requests, inbox) = mpsc::channel(REQUESTS_MAX);
        let worker =
            WorkerState { run, shards, trainer, random: SplitMix64::new(1), drawn: (u64::MAX, Vec::new()) };
        // It has the priority of the thread that starts it.
        std::thread::Builder::new().name("gradient-worker".to_owned()).spawn(move || worker.work(inbox))?;
        Ok(Self { requests })
    }

    pub(super) async fn work(&self, state: Arc<EpochParameters>, n_samples: u32) -> Result<ComputedGradient> {
        let (done, work) = oneshot::channel();
        let request = GradientRequest { state, n_samples, done };
        self.requests.send(request).await.ok().context("the gradient worker has ended")?;
        work.await.context("the gradient worker has ended")?
    }
}

struct WorkerState {
    run: Arc<RunDescription>,
    shards: Vec<Samples>,
    trainer: Trainer,
    random: SplitMix64,
    /// An epoch, and what was not drawn in it yet.
    drawn: (u64, Vec<SampleId>),
}

impl WorkerState {
    fn work(mut self, mut inbox: mpsc::Receiver<GradientRequest>) {
        while let Some(GradientRequest { state, n_samples, done }) = inbox.blocking_recv() {
            let work = futures::executor::block_on(self.compute(state, n_samples));
            // The receiver may be gone.
            let _ = done.send(work);
        }
    }

    /// Each sample once in an epoch, for as long as there are any.
    fn draw(&mut self, epoch: u64, n_samples: u32) -> Vec<SampleId> {
        let n_samples = n_samples as usize;
        if self.drawn.0 != epoch || self.drawn.1.len() < n_samples {
            let of_shard = |(shard, samples): (usize, &Samples)| {
                let indices = 0..samples.n_samples() as u32;
                indices.map(move |index| SampleId { shard: shard as u32, index })
            };
            let mut all: Vec<SampleId> = self.shards.iter().enumerate().flat_map(of_shard).collect();
            self.random.shuffle(&mut all);
            self.drawn = (epoch, all);
        }
        let left = self.drawn.1.len().saturating_sub(n_samples);
        self.drawn.1.split_off(left)
    }

    async fn compute(&mut self, state: Arc<EpochParameters>, n_samples: u32) -> Result<ComputedGradient> {
        let samples = self.draw(state.epoch, n_samples);
        self.trainer.load_parameters(&state.parameters)?;
        for part in samples.chunks(self.run.scheme.micro_batch_size() as usize) {
            let mut batch = self.shards.first().context("no data")?.none_of();
            for sample in part {
                batch.push(&self.shards[sample.shard as usize], sample.index as usize);
            }
            self.trainer.accumulate_samples(&batch, state.epoch).await?;
        }
        let mean = self.trainer.take_mean_gradient().await?.context("no gradient")?;
        Ok(ComputedGradient { state, samples, values: mean.values })
    }
}
