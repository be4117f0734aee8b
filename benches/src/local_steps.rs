//! What contributors on local steps learn and send: `cargo xtask bench local-steps`.
//!
//! Peers and an aggregator in one process, with the code that they use in a run and no network between them. A seed
//! decides everything, first weights and order of the samples, so several of them show the noise. Every setup
//! sees as many samples. Bytes are those of the gradients as they are encoded.

use anyhow::{Context, Result};
use barnraise_learning::{
    ComputeDevice, DataShape, Decay, Optimizer, OptimizerSpec, ScheduleSpec, Trainer, local,
};
use barnraise_native::config::RunConfig;
use barnraise_native::data::sets::{Dataset, FileSpecs, GARMENTS};
use barnraise_protocol::codec::Density;
use barnraise_protocol::dataset::LabelledImages;
use barnraise_protocol::run::{GradientCodec, LocalSteps, ModelSpec, Preset, TopK};
use barnraise_swarm::compression::{Compressor, ContributionOutcome};
use clap::Args;

use crate::order::SampleOrder;
use crate::ratio::{self, Spread};

/// Of micro-batches: an f32 gradient of each is the yardstick.
const MICRO_BATCH: usize = 64;
/// Steps of 1024 samples during which the learning rate of runs without local steps rises.
const WARMUP_SAMPLES: u64 = 10 * 1024;
/// Bytes a second of a slow uplink: 5 Mbit/s.
const UPLINK: f64 = 625_000.0;

#[derive(Debug, Args)]
pub(crate) struct LocalStepsArgs {
    /// Samples of each run
    #[arg(long, default_value_t = 400 * 1024, value_parser = clap::value_parser!(u64).range(8192..))]
    samples: u64,
    /// First weights and order of the samples
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// Only these ways, named as in the table
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Configuration of a run.
#[derive(Debug, Clone)]
struct LocalStepsSetup {
    name: &'static str,
    /// Share of the values that is sent, as top-k; `None` for f32.
    density: Option<f64>,
    /// Samples of an optimizer step, the outer one where there are local steps.
    target: u64,
    /// Local steps in a trajectory; 0 sends gradients.
    steps: u32,
    /// Of the local steps, or of the only optimizer. Momentum is 0.9.
    peak: f32,
    /// Of the outer optimizer, Nesterov's.
    outer_momentum: f32,
    outer_rate: f32,
    /// How fast each peer is beside the others.
    speeds: &'static [u64],
}

const EVEN: &[u64] = &[1, 1];

/// The setups; the others are compared with the first.
fn setups() -> Vec<LocalStepsSetup> {
    let each = LocalStepsSetup {
        name: "f32 of each batch",
        density: None,
        target: 128,
        steps: 0,
        peak: 0.05,
        outer_momentum: 0.0,
        outer_rate: 1.0,
        speeds: EVEN,
    };
    let local = LocalStepsSetup { name: "f32 of 8 local steps", target: 1024, steps: 8, ..each.clone() };
    let sparse = LocalStepsSetup { name: "top 1 % of 8 local steps", density: Some(0.01), ..local.clone() };
    vec![
        each.clone(),
        LocalStepsSetup { name: "f32 of each 1024", target: 1024, ..each },
        local,
        sparse.clone(),
        LocalStepsSetup { name: "top 1 % of 4 local steps", target: 512, steps: 4, ..sparse.clone() },
        LocalStepsSetup { name: "top 1 % of 2 local steps", target: 256, steps: 2, ..sparse.clone() },
        LocalStepsSetup { name: "top 0.3 % of 8 local steps", density: Some(0.003), ..sparse.clone() },
        LocalStepsSetup { name: "top 1 % of 8 with peers 3 : 1", speeds: &[3, 1], ..sparse.clone() },
        LocalStepsSetup {
            name: "top 1 % of 16 local steps with 4 peers",
            steps: 16,
            target: 4096,
            speeds: &[1, 1, 1, 1],
            ..sparse.clone()
        },
        LocalStepsSetup {
            name: "top 1 % of 8 with outer momentum 0.9",
            outer_momentum: 0.9,
            outer_rate: 0.7,
            ..sparse
        },
    ]
}

struct LocalStepsOutcome {
    /// On held-out samples, 0 to 1.
    accuracy: f64,
    bytes_per_sample: f64,
    n_parameters: usize,
}

/// Prints the table.
pub(crate) async fn compare(args: &LocalStepsArgs) -> Result<()> {
    let data = Dataset::load(&RunConfig::default().data_sources(), &FileSpecs::fashion_mnist())?;
    let heading = [
        "way",
        "accuracy, %, of each seed",
        "above the first",
        "bytes up a sample",
        "f32 of each batch takes, times that",
        "samples/s at 5 Mbit/s",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let mut first = Vec::new();
    let is_wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|wanted| wanted == name);
    for setup in setups().iter().filter(|setup| is_wanted(setup.name)) {
        let mut outcomes = Vec::new();
        for &seed in &args.seeds {
            outcomes.push(train(setup, seed, args.samples, &data).await.context(setup.name)?);
        }
        let percent: Vec<f64> = outcomes.iter().map(|outcome| 100.0 * outcome.accuracy).collect();
        if first.is_empty() {
            first.clone_from(&percent);
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let Some(LocalStepsOutcome { bytes_per_sample: bytes, n_parameters, .. }) = outcomes.first() else {
            continue;
        };
        let raw = 4.0 * *n_parameters as f64 / MICRO_BATCH as f64;
        let Spread { min, max, .. } = Spread::of(&percent);
        rows.push(vec![
            setup.name.to_owned(),
            format!("{:.2} [{min:.2} to {max:.2}]", mean(&percent)),
            format!("{:+.2}", mean(&percent) - mean(&first)),
            ratio::short(*bytes),
            ratio::short(raw / bytes),
            ratio::short(UPLINK / bytes),
        ]);
    }
    let LocalStepsArgs { samples, seeds, .. } = args;
    println!("MLP 784-256-10, {samples} samples, seeds {seeds:?}\n\n{}", ratio::table(&rows));
    Ok(())
}

/// A contributor.
struct LocalStepsPeer {
    trainer: Trainer,
    compressor: Compressor,
    order: SampleOrder,
    /// Samples that it has still to compute, times the speed of all peers.
    n_due: u64,
}

fn shape(data: &Dataset) -> DataShape {
    DataShape::Images { shape: data.shape, n_classes: GARMENTS.len() }
}

async fn train(
    setup: &LocalStepsSetup,
    seed: u64,
    n_samples: u64,
    data: &Dataset,
) -> Result<LocalStepsOutcome> {
    let model = Preset::Mlp { hidden: vec![256] }.model(seed);
    let epochs = n_samples / setup.target;
    let mut plain = Trainer::new(&model, shape(data), ComputeDevice::cpu())?;
    let (outer, schedule, steps) = optimizers(setup, epochs)?;
    let codec = match setup.density {
        Some(share) => {
            let density = Density::from_share(share).context("a density")?;
            GradientCodec::TopK(TopK::plain(density, 0))
        }
        None => GradientCodec::F32,
    };
    let layout = plain.layout().clone();
    let n_parameters = layout.n_parameters();
    let peer = |index| {
        let trainer = Trainer::new(&model, shape(data), ComputeDevice::cpu())?;
        let compressor = Compressor::new(codec, n_parameters, setup.target as u32);
        let order = SampleOrder::new(data.train.labels.len(), 1000 * seed + index);
        LocalStepsPeer { trainer, compressor, order, n_due: 0 }.with(&model, steps.as_ref())
    };
    let mut peers = (0..setup.speeds.len() as u64).map(peer).collect::<Result<Vec<_>>>()?;
    let mut parameters = layout.initial_parameters(seed);
    let mut optimizer = Optimizer::new(outer, &layout)?;
    let speed: u64 = setup.speeds.iter().sum();
    let mut n_bytes = 0;
    for epoch in 0..epochs {
        let (mut sum, mut weight) = (vec![0.0; n_parameters], 0.0);
        for (peer, speed_of_it) in peers.iter_mut().zip(setup.speeds) {
            peer.n_due += setup.target * speed_of_it;
            let n_batches = peer.n_due / (speed * MICRO_BATCH as u64);
            peer.n_due -= n_batches * speed * MICRO_BATCH as u64;
            let Some((bytes, n)) = peer.contribute(&parameters, epoch, n_batches, &data.train).await? else {
                continue;
            };
            n_bytes += bytes.len();
            let values = codec.encoding().decode(&bytes, n_parameters)?;
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += n * value);
            weight += n;
        }
        sum.iter_mut().for_each(|sum| *sum /= weight);
        optimizer.step(&mut parameters, &sum, schedule.learning_rate(epoch))?;
    }
    plain.load_parameters(&parameters)?;
    let evaluation = plain.evaluate(&data.test.images, &data.test.labels).await?;
    let bytes_per_sample = n_bytes as f64 / n_samples as f64;
    Ok(LocalStepsOutcome { accuracy: f64::from(evaluation.accuracy), bytes_per_sample, n_parameters })
}

/// The run's optimizer and its learning rate, and the local steps.
fn optimizers(
    setup: &LocalStepsSetup,
    epochs: u64,
) -> Result<(OptimizerSpec, ScheduleSpec, Option<LocalSteps>)> {
    let falling = ScheduleSpec {
        peak: setup.peak,
        warmup_steps: 0,
        decay: Decay::Cosine { steps: epochs, floor: 0.0 },
    };
    if setup.steps == 0 {
        let schedule = ScheduleSpec { warmup_steps: WARMUP_SAMPLES / setup.target, ..falling };
        return Ok((OptimizerSpec::sgd_momentum(), schedule, None));
    }
    let outer =
        OptimizerSpec::SgdMomentum { momentum: setup.outer_momentum, nesterov: true, weight_decay: 0.0 };
    let optimizer = OptimizerSpec::sgd_momentum().into();
    let steps = LocalSteps { steps: setup.steps, optimizer, schedule: falling.into() };
    local::check(&steps)?;
    Ok((outer, ScheduleSpec::constant(setup.outer_rate), Some(steps)))
}

impl LocalStepsPeer {
    fn with(mut self, model: &ModelSpec, steps: Option<&LocalSteps>) -> Result<Self> {
        if let Some(steps) = steps {
            self.compressor.keep_always();
            self.trainer = self.trainer.with_local_steps(model, steps)?;
        }
        Ok(self)
    }

    /// What is sent of `n_batches`, and how many samples they are; `None` of none.
    async fn contribute(
        &mut self,
        parameters: &[f32],
        epoch: u64,
        n_batches: u64,
        samples: &LabelledImages,
    ) -> Result<Option<(Vec<u8>, f32)>> {
        self.trainer.load_parameters(parameters)?;
        self.trainer.on_epoch(epoch);
        for _ in 0..n_batches {
            self.trainer.accumulate(&self.order.batch(samples, MICRO_BATCH)).await?;
        }
        let Some(mean) = self.trainer.take_mean_gradient().await? else { return Ok(None) };
        let bytes = self.compressor.compress(mean.values, mean.n_samples, epoch)?;
        self.compressor.settle(ContributionOutcome::Counted);
        Ok(Some((bytes, mean.n_samples as f32)))
    }
}
