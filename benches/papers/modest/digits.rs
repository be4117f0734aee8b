//! A model that really learns in virtual time: MNIST, dealt to the peers, and one trainer that computes for each in turn.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use barnraise_contributor::trained_model;
use barnraise_learning::{ComputeDevice, DataShape, OptimizerSpec, ScheduleSpec, Trainer};
use barnraise_native::data::sets::{Dataset, FileSpecs, NamedSet};
use barnraise_protocol::dataset::LabelledImages;
use barnraise_protocol::run::{LocalSteps, Preset};
use barnraise_swarm::sampled::SampledModel;
use barnraise_tests::artifacts;
use futures::executor::block_on;

use super::node::Learning;
use crate::order::SampleOrder;

const BATCH: usize = 32;
const LEARNING_RATE: f32 = 0.02;
const N_CLASSES: usize = 10;

/// The pictures of each peer, and the trainer.
pub(super) struct Digits {
    /// One pass over a peer's pictures.
    n_batches: u32,
    trainer: Mutex<Trainer>,
    first: SampledModel,
    shards: Vec<LabelledImages>,
    test: LabelledImages,
    seed: u64,
}

impl Digits {
    /// So many pictures for each of so many peers.
    pub(super) fn load(seed: u64, n_peers: usize, pictures_each: usize) -> Result<Self> {
        let cache = artifacts::target_dir()?.join("test-cache");
        let data = Dataset::load(&NamedSet::Mnist.sources(&cache), &FileSpecs::mnist())?;
        let n_values = data.shape.n_values();
        let LabelledImages { images, labels } = data.train;
        let dealt = images.chunks(pictures_each * n_values).zip(labels.chunks(pictures_each));
        let shards: Vec<_> = dealt
            .take(n_peers)
            .map(|(images, labels)| LabelledImages { images: images.to_vec(), labels: labels.to_vec() })
            .collect();
        ensure!(shards.len() == n_peers, "too few pictures for {n_peers} peers");
        let model = Preset::Mlp { hidden: vec![32] }.model(seed);
        let n_batches = u32::try_from(pictures_each.div_ceil(BATCH))?;
        let steps = LocalSteps {
            steps: n_batches,
            optimizer: OptimizerSpec::sgd_momentum().into(),
            schedule: ScheduleSpec::constant(LEARNING_RATE).into(),
        };
        let shape = DataShape::Images { shape: data.shape, n_classes: N_CLASSES };
        let trainer = Trainer::new(&model, shape, ComputeDevice::cpu())?;
        let trainer = trainer.with_local_steps(&model, &steps)?.stateless();
        let first = trainer.layout().initial_parameters(seed).into();
        Ok(Self { n_batches, trainer: Mutex::new(trainer), first, shards, test: data.test, seed })
    }

    fn try_train(&self, peer: usize, round: u64, model: &SampledModel) -> Result<SampledModel> {
        let shard = self.shards.get(peer).context("a peer without pictures")?;
        let mut trainer = self.trainer.lock().unwrap_or_else(PoisonError::into_inner);
        trainer.load_parameters(model)?;
        trainer.on_epoch(round);
        let mut order = SampleOrder::new(shard.labels.len(), self.seed ^ round << 16 ^ peer as u64);
        for _ in 0..self.n_batches {
            block_on(trainer.accumulate(&order.batch(shard, BATCH)))?;
        }
        let moved = block_on(trainer.take_mean_gradient())?.context("nothing was trained")?;
        Ok(trained_model(model, &moved)?)
    }

    /// On held-out pictures, 0 to 1.
    pub(super) fn accuracy(&self, model: &SampledModel) -> Result<f64> {
        let mut trainer = self.trainer.lock().unwrap_or_else(PoisonError::into_inner);
        trainer.load_parameters(model)?;
        let evaluation = block_on(trainer.evaluate(&self.test.images, &self.test.labels))?;
        Ok(f64::from(evaluation.accuracy))
    }
}

impl Learning for Digits {
    fn first(&self) -> SampledModel {
        Arc::clone(&self.first)
    }

    /// A model that cannot be trained stays as it is.
    fn train(&self, peer: usize, round: u64, model: &SampledModel) -> SampledModel {
        self.try_train(peer, round, model).unwrap_or_else(|_| Arc::clone(model))
    }
}
