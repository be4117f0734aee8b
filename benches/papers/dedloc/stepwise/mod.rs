//! Figure 10: collaborative training and one machine, step by step, on Fashion-MNIST.
//!
//! Eight peers of different speeds train in virtual time with the state machines, the trainer and the optimizer of a
//! run; some come late, some leave. Beside them one machine makes steps of exactly the target batch size from batches
//! of its own. A third curve is that machine with the samples of the collaboration: what it is off by is rounding.

mod collaboration;
mod machine;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use barnraise_native::data::sets::{Dataset, FileSpecs, NamedSet};
use barnraise_protocol::dataset::{LabelledImages, Samples};
use barnraise_protocol::shard::ShardId;
use barnraise_swarm::samples::SampleStream;
use clap::Args;

use self::collaboration::Collaboration;
use self::machine::SimulatedTrainer;
use crate::papers::plot::{Labels, PlotLine, lines};
use crate::ratio::table;

/// Samples of a step.
const TARGET: u32 = 1024;
/// Samples of a forward and backward pass.
const MICRO_BATCH: usize = 8;
/// `S` of section 3.3.
const BUFFER: usize = 10_000;
const SHARD_SAMPLES: usize = 2000;
/// Steps whose mean loss is one point of a curve.
const WINDOW: usize = 10;
/// Seeds of data order: the collaboration, one machine, and the same machine again.
const SEEDS: [u64; 3] = [1, 1001, 2001];

#[derive(Debug, Clone, Args)]
pub(super) struct StepwiseArgs {
    /// Optimizer steps
    #[arg(long, default_value_t = 300)]
    steps: u64,
}

/// Of a run.
#[derive(Debug, Clone, Default)]
struct Curve {
    /// Mean loss of each step's samples.
    losses: Vec<f64>,
    n_samples: u64,
}

impl Curve {
    fn add(&mut self, loss: f64, n_samples: u64) {
        self.losses.push(loss);
        self.n_samples += n_samples;
    }

    fn smooth(&self) -> Vec<f64> {
        self.losses.windows(WINDOW).map(|window| window.iter().sum::<f64>() / WINDOW as f64).collect()
    }

    /// The largest distance from another curve, of losses that were made smooth.
    fn distance(&self, other: &Self) -> f64 {
        let pairs = self.smooth().into_iter().zip(other.smooth());
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    }
}

/// Prints and draws the figure.
pub(super) async fn run(args: &StepwiseArgs, folder: &Path) -> Result<()> {
    let n_steps = args.steps;
    let cache = crate::paths::target_dir()?.join("data");
    let dataset = Dataset::load(&NamedSet::FashionMnist.sources(&cache), &FileSpecs::fashion_mnist())?;
    let shards = cut(&dataset);

    let mut collaboration = Collaboration::new(&shards, dataset.shape, n_steps)?;
    let mut same = SimulatedTrainer::new(dataset.shape, n_steps)?;
    let (mut together, mut repeated) = (Curve::default(), Curve::default());
    for _ in 0..n_steps {
        let step = collaboration.step().await?;
        together.add(step.loss, step.n_samples);
        for samples in &step.samples {
            same.accumulate(samples).await?;
        }
        let (loss, n_samples) = same.step().await?;
        repeated.add(loss, n_samples);
    }
    let mut alone = Vec::new();
    for seed in &SEEDS[1..] {
        let mut machine = SimulatedTrainer::new(dataset.shape, n_steps)?;
        let mut feed = Feed::new(&shards, *seed);
        let mut curve = Curve::default();
        for _ in 0..n_steps {
            for _ in 0..TARGET as usize / MICRO_BATCH {
                machine.accumulate(&feed.take()?).await?;
            }
            let (loss, n_samples) = machine.step().await?;
            curve.add(loss, n_samples);
        }
        alone.push((curve, machine.accuracy(&dataset.test).await?));
    }
    let accuracies =
        [collaboration.machine().accuracy(&dataset.test).await?, same.accuracy(&dataset.test).await?];
    let curves = [
        ("collaboration", &together, accuracies[0]),
        ("one machine, the same samples", &repeated, accuracies[1]),
        ("one machine", &alone[0].0, alone[0].1),
        ("one machine, in another order", &alone[1].0, alone[1].1),
    ];
    print(&curves, n_steps);
    println!("{}", collaboration.summary());
    let labels =
        Labels { title: "Figure 10: stepwise, on Fashion-MNIST", x: "optimizer steps", y: "training loss" };
    // The last one is there for the table: it shows what chance alone does.
    let drawn: Vec<PlotLine> =
        curves.iter().take(3).map(|(name, curve, _)| ((*name).to_owned(), points(curve))).collect();
    lines(&folder.join("figure10.svg"), labels, &drawn)
}

fn print(curves: &[(&str, &Curve, f64); 4], n_steps: u64) {
    let heading = [
        "",
        "samples a step",
        "last training loss",
        "test accuracy, %",
        "largest distance from the collaboration",
        "from one machine",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for (name, curve, accuracy) in curves {
        let distance = |other: usize| format!("{:.1e}", curve.distance(curves[other].1));
        rows.push(vec![
            (*name).to_owned(),
            format!("{:.1}", curve.n_samples as f64 / n_steps as f64),
            format!("{:.4}", curve.smooth().last().copied().unwrap_or(f64::NAN)),
            format!("{:.2}", 100.0 * accuracy),
            distance(0),
            distance(2),
        ]);
    }
    println!("{n_steps} steps; losses are means of {WINDOW} steps\n\n{}", table(&rows));
}

fn points(curve: &Curve) -> Vec<(f64, f64)> {
    curve.smooth().into_iter().enumerate().map(|(step, loss)| ((step + WINDOW) as f64, loss)).collect()
}

/// Shards of equal size, in the order of the data set, which is random.
fn cut(dataset: &Dataset) -> Arc<Vec<Arc<Samples>>> {
    let n_values = dataset.shape.n_values();
    let images = dataset.train.images.chunks(SHARD_SAMPLES * n_values);
    let shards = images.zip(dataset.train.labels.chunks(SHARD_SAMPLES));
    let shard = |(images, labels): (&[u8], &[u8])| {
        Samples::Images(LabelledImages { images: images.to_vec(), labels: labels.to_vec() })
    };
    Arc::new(shards.map(|pair| Arc::new(shard(pair))).collect())
}

/// Micro-batches for one peer, in an order of its own (section 3.3).
struct Feed {
    shards: Arc<Vec<Arc<Samples>>>,
    stream: SampleStream,
}

impl Feed {
    fn new(shards: &Arc<Vec<Arc<Samples>>>, seed: u64) -> Self {
        let stream = SampleStream::new(shards.len() as u32, BUFFER, seed);
        Self { shards: Arc::clone(shards), stream }
    }

    fn take(&mut self) -> Result<Samples> {
        while let Some(id) = self.stream.next_fetch() {
            let ShardId::Numbered(index) = id else { bail!("{id:?} is not for training") };
            self.stream.on_shard(&self.shards[index as usize]);
        }
        match self.stream.take(MICRO_BATCH) {
            Some(drawn) => Ok(drawn.samples),
            None => bail!("the data set has fewer than {MICRO_BATCH} samples"),
        }
    }
}

const _: () =
    assert!((TARGET as usize).is_multiple_of(MICRO_BATCH), "one machine makes steps of exactly the target");
