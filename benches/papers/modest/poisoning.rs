//! What dishonest peers cost a model that really learns: the network is simulated, digits are trained on.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use barnraise_contributor::trained_model;
use barnraise_learning::{ComputeDevice, DataShape, OptimizerSpec, ParameterLayout, ScheduleSpec, Trainer};
use barnraise_native::data::sets::{Dataset, FileSpecs, NamedSet};
use barnraise_protocol::dataset::LabelledImages;
use barnraise_protocol::run::{LocalSteps, ModelAverage, Preset};
use barnraise_swarm::sampled::{SampledModel, SampledSettings};
use barnraise_tests::artifacts;
use clap::Args;
use futures::executor::block_on;

use super::internet::network;
use super::node::{Learning, Lie, Population};
use super::world::{SETTINGS, round, world_in};
use super::{TRAINING, run_to, settle};
use crate::order::SampleOrder;
use crate::ratio::table;

const N_PEERS: usize = 30;
/// One in five is dishonest.
const DISHONEST_OF: usize = 5;
const PICTURES_EACH: usize = 2000;
const BATCH: usize = 32;
/// One pass over a peer's pictures.
const N_BATCHES: u32 = PICTURES_EACH.div_ceil(BATCH) as u32;
const LEARNING_RATE: f32 = 0.02;
const N_CLASSES: usize = 10;

#[derive(Debug, Clone, Args)]
pub(super) struct PoisoningArgs {
    /// Rounds before the models that honest peers know are looked at
    #[arg(long, default_value_t = 60)]
    rounds: u64,
}

/// What the dishonest ones make of each model that they train or average.
const ATTACKS: [(&str, Option<Lie>); 4] = [
    ("none", None),
    ("each value with its sign turned", Some(Lie { of: negated, forges: false })),
    ("each value three times as large", Some(Lie { of: tripled, forges: false })),
    ("its sign turned, and the sketch of an honest average", Some(Lie { of: negated, forges: true })),
];
const AVERAGES: [(&str, ModelAverage); 2] =
    [("mean", ModelAverage::Mean), ("centered-clip", ModelAverage::CenteredClip)];

fn negated(model: &SampledModel) -> SampledModel {
    model.iter().map(|value| -value).collect()
}

fn tripled(model: &SampledModel) -> SampledModel {
    model.iter().map(|value| 3.0 * value).collect()
}

/// MNIST, dealt to the peers, and one trainer that computes for each in turn.
struct Digits {
    trainer: Mutex<Trainer>,
    first: SampledModel,
    shards: Vec<LabelledImages>,
    test: LabelledImages,
    seed: u64,
}

impl Digits {
    fn load(seed: u64) -> Result<Self> {
        let cache = artifacts::target_dir()?.join("test-cache");
        let data = Dataset::load(&NamedSet::Mnist.sources(&cache), &FileSpecs::mnist())?;
        let n_values = data.shape.n_values();
        let LabelledImages { images, labels } = data.train;
        let dealt = images.chunks(PICTURES_EACH * n_values).zip(labels.chunks(PICTURES_EACH));
        let shards: Vec<_> = dealt
            .take(N_PEERS)
            .map(|(images, labels)| LabelledImages { images: images.to_vec(), labels: labels.to_vec() })
            .collect();
        ensure!(shards.len() == N_PEERS, "too few pictures for {N_PEERS} peers");
        let model = Preset::Mlp { hidden: vec![32] }.model(seed);
        let steps = LocalSteps {
            steps: N_BATCHES,
            optimizer: OptimizerSpec::sgd_momentum().into(),
            schedule: ScheduleSpec::constant(LEARNING_RATE).into(),
        };
        let shape = DataShape::Images { shape: data.shape, n_classes: N_CLASSES };
        let trainer = Trainer::new(&model, shape, ComputeDevice::cpu())?;
        let trainer = trainer.with_local_steps(&model, &steps)?.stateless();
        let layout: &ParameterLayout = trainer.layout();
        let first = layout.initial_parameters(seed).into();
        Ok(Self { trainer: Mutex::new(trainer), first, shards, test: data.test, seed })
    }

    fn try_train(&self, peer: usize, round: u64, model: &SampledModel) -> Result<SampledModel> {
        let shard = self.shards.get(peer).context("a peer without pictures")?;
        let mut trainer = self.trainer.lock().unwrap_or_else(PoisonError::into_inner);
        trainer.load_parameters(model)?;
        trainer.on_epoch(round);
        let mut order = SampleOrder::new(shard.labels.len(), self.seed ^ round << 16 ^ peer as u64);
        for _ in 0..N_BATCHES {
            block_on(trainer.accumulate(&order.batch(shard, BATCH)))?;
        }
        let moved = block_on(trainer.take_mean_gradient())?.context("nothing was trained")?;
        Ok(trained_model(model, &moved)?)
    }

    /// On held-out pictures, 0 to 1.
    fn accuracy(&self, model: &SampledModel) -> Result<f64> {
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

/// Accuracies of the models that honest peers know after so many rounds, the lowest first, in percent.
fn accuracies(
    digits: &Arc<Digits>,
    (average, lie): (ModelAverage, Option<Lie>),
    n_rounds: u64,
    seed: u64,
) -> Result<Vec<f64>> {
    let settings = SampledSettings { average, ..SETTINGS };
    let mut population = Population::of_seed(settings, N_PEERS, seed);
    population.training_time = TRAINING;
    population.learning = Arc::<Digits>::clone(digits);
    let mut world = world_in(network(N_PEERS, N_PEERS), seed, &population, |_| true);
    let is_dishonest = |at: usize| at % DISHONEST_OF == DISHONEST_OF - 1;
    world
        .nodes
        .iter_mut()
        .enumerate()
        .filter(|(at, _)| is_dishonest(*at))
        .for_each(|(_, node)| node.lie = lie);
    settle(&mut world)?;
    let last = round(&mut world) + n_rounds;
    run_to(&mut world, last)?;
    let honest = world.nodes.iter().enumerate().filter(|(at, _)| !is_dishonest(*at));
    let known = honest.filter_map(|(_, node)| node.peer.newest());
    let mut found =
        known.map(|(_, model)| Ok(100.0 * digits.accuracy(model)?)).collect::<Result<Vec<_>>>()?;
    found.sort_unstable_by(f64::total_cmp);
    ensure!(!found.is_empty(), "no honest peer knows a model");
    Ok(found)
}

/// Prints the table.
pub(super) fn run(args: &PoisoningArgs, seed: u64) -> Result<()> {
    let digits = Arc::new(Digits::load(seed)?);
    let heading = ["what a fifth say", "average", "accuracy, %: median", "lowest", "below none, points"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for (name, average) in AVERAGES {
        let mut of_none = None;
        for (attack, lie) in ATTACKS {
            let found = accuracies(&digits, (average, lie), args.rounds, seed)?;
            let median = found[found.len() / 2];
            let none = *of_none.get_or_insert(median);
            rows.push(vec![
                attack.to_owned(),
                name.to_owned(),
                format!("{median:.2}"),
                format!("{:.2}", found[0]),
                format!("{:.2}", none - median),
            ]);
        }
    }
    let n_dishonest = N_PEERS / DISHONEST_OF;
    println!("{N_PEERS} peers, {n_dishonest} of them dishonest, {} rounds\n\n{}", args.rounds, table(&rows));
    Ok(())
}
