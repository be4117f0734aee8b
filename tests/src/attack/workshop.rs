//! Where a machine computes gradients as they should be: one device, on a thread of its own.

use std::sync::Arc;

use anyhow::{Context, Result};
use barnraise_learning::{ComputeDevice, DataShape, Trainer};
use barnraise_protocol::account::SampleId;
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::ShardId;
use barnraise_protocol::state::State;
use barnraise_swarm::random::SplitMix64;
use tokio::sync::{mpsc, oneshot};

use crate::client::Client;

/// Shards that it has, of the first of the data.
const SHARDS_MAX: usize = 16;
const ORDERS_MAX: usize = 64;

/// A gradient as it should be.
#[derive(Debug, Clone)]
pub(super) struct Work {
    /// By which it is.
    pub(super) state: Arc<State>,
    pub(super) samples: Vec<SampleId>,
    pub(super) values: Vec<f32>,
}

struct Order {
    state: Arc<State>,
    n_samples: u32,
    done: oneshot::Sender<Result<Work>>,
}

/// Computes what is asked for, one after the other, until it is dropped.
pub(super) struct Workshop {
    orders: mpsc::Sender<Order>,
}

impl Workshop {
    pub(super) async fn open(client: &Client, run: Arc<RunDescription>) -> Result<Self> {
        let mut shards = Vec::new();
        for (index, entry) in run.manifest.shards.iter().enumerate().take(SHARDS_MAX) {
            let bytes = client.shard(&run, ShardId::Train(index as u32)).await?;
            shards.push(Samples::decode(&bytes, entry, &run.manifest)?);
        }
        let data = DataShape::of(&run.manifest.samples);
        let trainer = Trainer::new(&run.model, data, ComputeDevice::cpu())?;
        let (orders, inbox) = mpsc::channel(ORDERS_MAX);
        let bench = Bench { run, shards, trainer, random: SplitMix64::new(1), drawn: (u64::MAX, Vec::new()) };
        // It has the priority of the thread that starts it.
        std::thread::Builder::new().name("workshop".to_owned()).spawn(move || bench.work(inbox))?;
        Ok(Self { orders })
    }

    pub(super) async fn work(&self, state: Arc<State>, n_samples: u32) -> Result<Work> {
        let (done, work) = oneshot::channel();
        let order = Order { state, n_samples, done };
        self.orders.send(order).await.ok().context("the workshop is closed")?;
        work.await.context("the workshop is closed")?
    }
}

struct Bench {
    run: Arc<RunDescription>,
    shards: Vec<Samples>,
    trainer: Trainer,
    random: SplitMix64,
    /// An epoch, and what was not drawn in it yet.
    drawn: (u64, Vec<SampleId>),
}

impl Bench {
    fn work(mut self, mut inbox: mpsc::Receiver<Order>) {
        while let Some(Order { state, n_samples, done }) = inbox.blocking_recv() {
            let work = futures::executor::block_on(self.compute(state, n_samples));
            // Who ordered it may be gone.
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

    async fn compute(&mut self, state: Arc<State>, n_samples: u32) -> Result<Work> {
        let samples = self.draw(state.epoch, n_samples);
        self.trainer.load_parameters(&state.parameters)?;
        for part in samples.chunks(self.run.micro_batch_size as usize) {
            let mut batch = self.shards.first().context("no data")?.none_of();
            for sample in part {
                batch.push(&self.shards[sample.shard as usize], sample.index as usize);
            }
            self.trainer.accumulate_samples(&batch, state.epoch).await?;
        }
        let mean = self.trainer.take_mean_gradient().await?.context("no gradient")?;
        Ok(Work { state, samples, values: mean.values })
    }
}
