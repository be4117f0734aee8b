//! One machine: a model, its gradient and an optimizer, as a run has them.

use anyhow::{Context, Result};
use barnraise_learning::{
    ComputeDevice, DataShape, Decay, MeanGradient, Optimizer, OptimizerSpec, ParameterLayout, ScheduleSpec,
    Trainer,
};
use barnraise_protocol::dataset::{ImageShape, LabelledImages, Samples};
use barnraise_protocol::run::{ModelSpec, Preset};

const N_CLASSES: usize = 10;
const SEED: u64 = 1;
/// LAMB, as in the paper.
const OPTIMIZER: OptimizerSpec =
    OptimizerSpec::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 };
const LEARNING_RATE: f32 = 0.01;
const WARMUP_STEPS: u64 = 20;

fn data(shape: ImageShape) -> DataShape {
    DataShape::Images { shape, n_classes: N_CLASSES }
}

/// A trainer of the model that all of them train.
pub(super) fn trainer(shape: ImageShape) -> Result<Trainer> {
    Ok(Trainer::new(&model(), data(shape), ComputeDevice::cpu())?)
}

fn model() -> ModelSpec {
    Preset::Mlp { hidden: vec![256, 256] }.model(SEED)
}

/// Parameters, with the trainer and the optimizer that step them.
pub(super) struct SimulatedTrainer {
    trainer: Trainer,
    optimizer: Optimizer,
    schedule: ScheduleSpec,
    parameters: Vec<f32>,
    n_steps: u64,
}

impl SimulatedTrainer {
    pub(super) fn new(shape: ImageShape, n_steps: u64) -> Result<Self> {
        let layout = ParameterLayout::of(&model(), data(shape))?;
        let steps = n_steps.saturating_sub(WARMUP_STEPS).max(1);
        let decay = Decay::Linear { steps, floor: 0.0 };
        Ok(Self {
            trainer: trainer(shape)?,
            optimizer: Optimizer::new(OPTIMIZER, &layout)?,
            schedule: ScheduleSpec { peak: LEARNING_RATE, warmup_steps: WARMUP_STEPS, decay },
            parameters: layout.initial_parameters(SEED),
            n_steps: 0,
        })
    }

    pub(super) fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    pub(super) async fn accumulate(&mut self, samples: &Samples) -> Result<()> {
        Ok(self.trainer.accumulate_samples(samples, 0).await?)
    }

    /// A step with all that was accumulated; returns the mean loss and the number of its samples.
    pub(super) async fn step(&mut self) -> Result<(f64, u64)> {
        let gradient = self.trainer.take_mean_gradient().await?.context("a step without samples")?;
        let MeanGradient { values, n_samples, loss, .. } = gradient;
        self.apply(&values)?;
        Ok((f64::from(loss), u64::from(n_samples)))
    }

    /// A step with a gradient that others computed.
    pub(super) fn apply(&mut self, gradient: &[f32]) -> Result<()> {
        let learning_rate = self.schedule.learning_rate(self.n_steps);
        self.optimizer.step(&mut self.parameters, gradient, learning_rate)?;
        self.n_steps += 1;
        Ok(self.trainer.load_parameters(&self.parameters)?)
    }

    /// On held-out samples, 0 to 1.
    pub(super) async fn accuracy(&self, test: &LabelledImages) -> Result<f64> {
        Ok(f64::from(self.trainer.evaluate(&test.images, &test.labels).await?.accuracy))
    }
}
