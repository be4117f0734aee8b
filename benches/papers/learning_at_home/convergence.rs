//! Figure 4 (bottom): how well layers of experts learn when each answer of an expert takes a while, or never comes (§4.2).
//!
//! MNIST, four layers. The dense model's layers are one expert each, which computes as much as four experts of the mixtures
//! together. As in the paper each trainer has one batch under way. Other than there, each answer of an expert is late by a
//! time of its own, and a layer waits for the latest; and the trunk moves by the run's scheme, by a batch of each trainer.

mod world;

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, ensure};
use barnraise_learning::Evaluation;
use barnraise_native::data::sets::{Dataset, FileSpecs, NamedSet};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::access::{AccessDescription, KeyPair};
use barnraise_protocol::dataset::{LabelledImages, Manifest, SampleKind, Samples};
use barnraise_protocol::run::model::{FirstWeights, Graph};
use barnraise_protocol::run::{
    DataSpec, GradientCodec, HostedExperts, ModelSpec, OptimizerDescription, RunDescription, RunIdentity,
    ScheduleDescription, Scheme, Synchronous,
};
use barnraise_tests::artifacts;
use clap::Args;

use self::world::{Conditions, Curve, Trained, Training, train};
use crate::papers::plot::{Labels, PlotLine, lines};
use crate::ratio::{mean_and_deviation, table};

const WIDTH: usize = 128;
/// Of an expert of a mixture; four of them are as wide as the dense model's block, as in the paper.
const HIDDEN: usize = 128;
const N_LAYERS: usize = 4;
/// Of the trunk, by Adam: its batches are as many times as large as there are trainers.
const LEARNING_RATE: f32 = 0.008;
/// Held-out pictures of an evaluation.
const N_TESTED: usize = 1000;
/// Evaluations of a curve.
const N_POINTS: usize = 20;

/// What is measured.
#[derive(Debug, Clone, Args)]
pub(super) struct ConvergenceArgs {
    /// Trainings of each model, each with a seed of its own
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Batches of each training
    #[arg(long, default_value_t = 5000)]
    batches: usize,
    /// Samples of a batch
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Learning rate of an expert's Adam, which it divides by the age of a gradient in steps
    #[arg(long, default_value_t = 0.001)]
    rate: f32,
    /// Only models with so many experts a layer
    #[arg(long)]
    experts: Vec<u32>,
    /// Only conditions with such a name
    #[arg(long)]
    only: Option<String>,
}

/// Side and dimensions of the grid, active experts, and width of an expert.
struct Mixture {
    name: &'static str,
    side: u32,
    dimensions: u32,
    active: u32,
    hidden: usize,
}

const MIXTURES: [Mixture; 4] = [
    Mixture { name: "dense", side: 1, dimensions: 1, active: 1, hidden: 4 * HIDDEN },
    Mixture { name: "4 of 16 experts", side: 4, dimensions: 2, active: 4, hidden: HIDDEN },
    Mixture { name: "4 of 64 experts", side: 8, dimensions: 2, active: 4, hidden: HIDDEN },
    Mixture { name: "4 of 256 experts", side: 16, dimensions: 2, active: 4, hidden: HIDDEN },
];

/// Conditions by name. The paper's delay of a batch is that of eight passes through a layer.
const CONDITIONS: [(&str, Conditions); 3] = [
    ("low", Conditions { n_trainers: 16, delay: Duration::from_micros(12_500), failure: 0.0, killed: 0.0 }),
    ("high", Conditions { n_trainers: 64, delay: Duration::from_millis(125), failure: 0.0, killed: 0.0 }),
    ("failures", Conditions { n_trainers: 64, delay: Duration::from_millis(125), failure: 0.1, killed: 0.0 }),
];

impl Mixture {
    fn n_experts(&self) -> u32 {
        self.side.pow(self.dimensions)
    }

    fn graph(&self) -> Result<Graph> {
        let Self { side, dimensions, active, hidden, .. } = self;
        let mut blocks = format!(
            "{{ name = \"flat\", op = \"flatten\" }},\n\
             {{ name = \"sum0\", op = {{ dense = {{ units = {WIDTH} }} }} }},\n"
        );
        for layer in 1..=N_LAYERS {
            let before = layer - 1;
            blocks += &format!(
                "{{ name = \"norm{layer}\", op = {{ layer-norm = {{}} }} }},\n\
                 {{ name = \"moe{layer}\", op = {{ experts = {{ part = \"expert\", side = {side}, \
                 dimensions = {dimensions}, active = {active} }} }} }},\n\
                 {{ name = \"sum{layer}\", op = \"add\", from = [\"moe{layer}\", \"sum{before}\"] }},\n"
            );
        }
        let text = format!(
            r#"
name = "mixture of experts"
loss = "classification"
parts = [{{ name = "expert", blocks = [
    {{ name = "up", op = {{ dense = {{ units = {hidden}, initial = "he" }} }} }},
    {{ name = "act1", op = "relu" }},
    {{ name = "mid", op = {{ dense = {{ units = {hidden}, initial = "he" }} }} }},
    {{ name = "act2", op = "relu" }},
    {{ name = "down", op = {{ dense = {{ units = {WIDTH} }} }} }},
] }}]
blocks = [
{blocks}{{ name = "fc", op = {{ dense = {{ units = "classes" }} }} }},
]
"#
        );
        Ok(toml::from_str(&text)?)
    }
}

/// The description of a run, and what it trains on.
fn run_of(mixture: &Mixture, data: &Dataset, args: &ConvergenceArgs, seed: u64) -> Result<RunDescription> {
    let schedule = ScheduleDescription::constant(LEARNING_RATE);
    let optimizer = OptimizerDescription::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
    let of_experts = ScheduleDescription::constant(args.rate);
    let hosted = HostedExperts { optimizer, schedule: of_experts, codec: TensorCodec::F32 };
    let samples =
        LabelledImages { images: data.train.images[..data.shape.n_values()].to_vec(), labels: vec![0] };
    let (_, entry) = Samples::Images(samples).encode()?;
    let class_names = (0..10).map(|class| class.to_string()).collect();
    let manifest = Manifest {
        name: "mnist".to_owned(),
        samples: SampleKind::Images { shape: data.shape, class_names },
        shards: vec![entry],
        gallery: entry,
        frozen: Vec::new(),
        preprocessing: None,
        stream: None,
    };
    let batch = u32::try_from(args.batch)?;
    Ok(RunDescription {
        identity: RunIdentity {
            run_id: "convergence".to_owned(),
            title: "Experts".to_owned(),
            purpose: "Figure 4 of Learning@home.".to_owned(),
        },
        model: ModelSpec {
            graph: mixture.graph()?,
            seed,
            weights: FirstWeights::Drawn,
            hosted: Some(hosted),
        },
        data: DataSpec { manifest, shuffle_buffer_samples: 300, augmentation: None },
        scheme: Scheme::Synchronous(Synchronous {
            target_batch_size: batch,
            micro_batch_size: batch,
            contribution_samples_max: batch,
            gradient_codec: GradientCodec::F16,
            slow_links: None,
            state_codec: TensorCodec::F32,
            delayed_updates: false,
            optimizer,
            schedule,
            local_steps: None,
            recomputed: false,
        }),
        access: AccessDescription::open(KeyPair::from_seed(&[99; 32]).public()),
    })
}

/// Mean and standard deviation of the curves of all seeds, point by point.
fn mean(curves: &[Curve]) -> Vec<(usize, f64, f64)> {
    let n_points = curves.iter().map(Vec::len).min().unwrap_or(0);
    let point = |at: usize| {
        let values: Vec<f64> = curves.iter().map(|curve| f64::from(curve[at].1.accuracy)).collect();
        let (mean, deviation) = mean_and_deviation(&values);
        (curves[0][at].0, mean, deviation)
    };
    (0..n_points).map(point).collect()
}

/// Where hosts stay, and where three of ten are killed in each ten minutes.
const LOSSES: [(&str, Conditions); 2] = [
    ("quiet", Conditions { n_trainers: 8, delay: Duration::from_millis(500), failure: 0.0, killed: 0.0 }),
    ("killed", Conditions { n_trainers: 8, delay: Duration::from_millis(500), failure: 0.0, killed: 0.3 }),
];

/// MNIST, with its first pictures held out.
struct Pictures {
    data: Dataset,
    train: Rc<LabelledImages>,
    test: Rc<Samples>,
}

impl Pictures {
    fn load() -> Result<Self> {
        let cache = artifacts::target_dir()?.join("test-cache");
        let data = Dataset::load(&NamedSet::Mnist.sources(&cache), &FileSpecs::mnist())?;
        let n_values = data.shape.n_values();
        let test = LabelledImages {
            images: data.test.images[..N_TESTED * n_values].to_vec(),
            labels: data.test.labels[..N_TESTED].to_vec(),
        };
        let (train, test) = (Rc::new(data.train.clone()), Rc::new(Samples::Images(test)));
        Ok(Self { data, train, test })
    }

    fn training(&self, mixture: &Mixture, args: &ConvergenceArgs, seed: u64) -> Result<Training> {
        Ok(Training {
            run: Rc::new(run_of(mixture, &self.data, args, seed)?),
            train: Rc::clone(&self.train),
            test: Rc::clone(&self.test),
            batch: args.batch,
            n_batches: args.batches,
            evaluate_every: args.batches / N_POINTS,
            learning_rate: LEARNING_RATE,
        })
    }
}

/// Prints what the loss of hosts does to the loss of the model: the means of the last quarter of its evaluations.
pub(super) fn killed(args: &ConvergenceArgs) -> Result<()> {
    ensure!(args.batches >= N_POINTS, "at least {N_POINTS} batches are wanted, not {}", args.batches);
    let pictures = Pictures::load()?;
    let head = ["hosts", "loss", "accuracy", "virtual minutes"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut of_all = Vec::new();
    for (name, conditions) in LOSSES {
        let (mut losses, mut accuracies, mut minutes) = (Vec::new(), Vec::new(), Vec::new());
        for seed in 0..args.seeds {
            let Trained { curve, time } =
                train(pictures.training(&MIXTURES[1], args, seed)?, conditions, seed)?;
            let last = &curve[curve.len() - curve.len().div_ceil(4)..];
            let mean = |value: fn(&Evaluation) -> f32| {
                last.iter().map(|(_, evaluation)| f64::from(value(evaluation))).sum::<f64>()
                    / last.len() as f64
            };
            losses.push(mean(|evaluation| evaluation.loss));
            accuracies.push(100.0 * mean(|evaluation| evaluation.accuracy));
            minutes.push(time.as_secs_f64() / 60.0);
        }
        let [loss, accuracy, minutes] =
            [&losses, &accuracies, &minutes].map(|values| mean_and_deviation(values));
        rows.push(vec![
            name.to_owned(),
            format!("{:.4} ± {:.4}", loss.0, loss.1),
            format!("{:.2} ± {:.2} %", accuracy.0, accuracy.1),
            format!("{:.1}", minutes.0),
        ]);
        of_all.push(losses);
    }
    println!("{}", table(&rows));
    if let [quiet, killed] = of_all.as_slice() {
        let ratios: Vec<f64> = quiet.iter().zip(killed).map(|(quiet, killed)| killed / quiet).collect();
        let (mean, deviation) = mean_and_deviation(&ratios);
        println!("killed / quiet, loss: {mean:.3} ± {deviation:.3}");
    }
    Ok(())
}

/// Prints and draws the figure.
pub(super) fn figure4_bottom(args: &ConvergenceArgs, folder: &Path) -> Result<()> {
    ensure!(args.batches >= N_POINTS, "at least {N_POINTS} batches are wanted, not {}", args.batches);
    let pictures = Pictures::load()?;
    let head = ["conditions", "model", "a quarter", "half", "all batches", "virtual minutes"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (name, conditions) in CONDITIONS {
        if args.only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let mut drawn: Vec<PlotLine> = Vec::new();
        for mixture in &MIXTURES {
            if !args.experts.is_empty() && !args.experts.contains(&mixture.n_experts()) {
                continue;
            }
            let (mut curves, mut minutes) = (Vec::new(), 0.0);
            for seed in 0..args.seeds {
                let training = pictures.training(mixture, args, seed)?;
                let Trained { curve, time } = train(training, conditions, seed)?;
                minutes += time.as_secs_f64() / 60.0 / args.seeds as f64;
                curves.push(curve);
            }
            let points = mean(&curves);
            let accuracy = |share: f64| {
                let at = ((points.len() as f64 * share) as usize).max(1) - 1;
                points.get(at).map_or(String::new(), |(_, mean, deviation)| {
                    format!("{:.1} ± {:.1} %", 100.0 * mean, 100.0 * deviation)
                })
            };
            rows.push(vec![
                name.to_owned(),
                mixture.name.to_owned(),
                accuracy(0.25),
                accuracy(0.5),
                accuracy(1.0),
                format!("{minutes:.1}"),
            ]);
            println!("{}", table(&rows));
            drawn.push((
                mixture.name.to_owned(),
                points.iter().map(|(n_batches, mean, _)| (*n_batches as f64, *mean)).collect(),
            ));
        }
        let title = format!("Figure 4, bottom: accuracy on MNIST, delays and failures: {name}");
        let labels = Labels { title: &title, x: "batches", y: "accuracy" };
        lines(&folder.join(format!("figure4_bottom_{name}.svg")), labels, &drawn)?;
    }
    Ok(())
}
