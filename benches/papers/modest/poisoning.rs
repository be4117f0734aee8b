//! What dishonest peers cost a model that really learns: the network is simulated, digits are trained on.

use std::sync::Arc;

use anyhow::{Result, ensure};
use barnraise_protocol::run::ModelAverage;
use barnraise_swarm::sampled::{SampledModel, SampledSettings};
use clap::Args;

use super::digits::Digits;
use super::internet::network;
use super::node::{Lie, Population};
use super::world::{SETTINGS, round, world_in};
use super::{TRAINING, run_to, settle};
use crate::ratio::table;

const N_PEERS: usize = 30;
/// One in five is dishonest.
const DISHONEST_OF: usize = 5;
const PICTURES_EACH: usize = 2000;

#[derive(Debug, Clone, Args)]
pub(super) struct PoisoningArgs {
    /// Rounds before the models that honest peers know are looked at
    #[arg(long, default_value_t = 40)]
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
    let digits = Arc::new(Digits::load(seed, N_PEERS, PICTURES_EACH)?);
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
