//! Figure 4: what the size of a sample and the number of aggregators cost, in time and bytes.
//!
//! The paper has the time until an accuracy, which is rounds times the time of one. Here is the time of a round.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use barnraise_simulation::{NodeId, Random};
use barnraise_swarm::sampled::SampledSettings;
use clap::Args;

use super::internet::network;
use super::node::Population;
use super::world::{SETTINGS, round, rounds, sent, world_in};
use super::{TRANSFER_PATIENCE, activity_window, run_to, settle};
use crate::papers::plot::{Labels, PlotLine, lines};
use crate::ratio::{short, table};

/// Sizes of a sample, and numbers of aggregators up to that: a run has no more.
const SIZES: std::ops::RangeInclusive<usize> = 1..=7;
const AGGREGATORS_MAX: usize = 5;
/// FEMNIST's model (table 3), in bytes.
const MODEL_BYTES: u64 = 6_700_000;
/// Median of what a trainer computes in a round, and the standard deviation of its logarithm among peers: assumptions. The paper's
/// peers differ as well, by how much it does not say.
const TRAINING: Duration = Duration::from_secs(30);
const SPEED_SIGMA: f64 = 0.5;
/// Rounds that are measured, and those before them, after all have joined.
const N_ROUNDS: u64 = 50;
const N_BEFORE: u64 = 10;

#[derive(Debug, Clone, Args)]
pub(super) struct SampleArgs {
    /// Peers of the run
    #[arg(long, default_value_t = 355)]
    nodes: usize,
}

/// Means of the rounds.
struct RoundCost {
    seconds: f64,
    model_mb: f64,
    other_mb: f64,
}

fn measure(n: usize, seed: u64, (sample_size, n_aggregators): (usize, usize)) -> Result<RoundCost> {
    let settings = SampledSettings {
        sample_size,
        n_aggregators,
        success_fraction: 1.0,
        activity_window: activity_window(n, sample_size),
        round_estimate: 2 * TRAINING,
        ..SETTINGS
    };
    let mut population = Population::of_seed(settings, n, seed);
    (population.training_time, population.model_bytes) = (TRAINING, MODEL_BYTES);
    population.transfer_patience = TRANSFER_PATIENCE;
    let mut world = world_in(network(n, n), seed, &population, |_| true);
    let mut speeds = Random::new(seed);
    for at in 0..n {
        let slower = (SPEED_SIGMA * speeds.normal()).exp();
        world.network().throttle(NodeId(at), slower);
    }
    settle(&mut world)?;
    let first = round(&mut world) + N_BEFORE;
    run_to(&mut world, first)?;
    let (before, since) = (sent(&world), world.now());
    run_to(&mut world, first + N_ROUNDS)?;
    let (after, took) = (sent(&world), world.now().saturating_sub(since));
    // A run that was still goes on some rounds further.
    let n_rounds = rounds(&world).range(first..first + N_ROUNDS).count().max(1) as f64;
    let megabytes = |before: u64, after: u64| (after - before) as f64 / 1e6 / n_rounds;
    Ok(RoundCost {
        seconds: took.as_secs_f64() / n_rounds,
        model_mb: megabytes(before.models, after.models),
        other_mb: megabytes(before.overhead(), after.overhead()),
    })
}

/// Prints and draws the figure.
pub(super) fn run(args: &SampleArgs, seed: u64, folder: &Path) -> Result<()> {
    let heading = ["s", "a", "a round, s", "of a = 1", "models of a round, MB", "all else, MB"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let mut drawn: Vec<PlotLine> = (1..=AGGREGATORS_MAX).map(|a| (format!("a = {a}"), Vec::new())).collect();
    for sample_size in SIZES {
        let mut of_one = None;
        for (n_aggregators, (_, points)) in (1..=sample_size).zip(&mut drawn) {
            let cost = measure(args.nodes, seed, (sample_size, n_aggregators))?;
            let alone = *of_one.get_or_insert(cost.seconds);
            rows.push(vec![
                sample_size.to_string(),
                n_aggregators.to_string(),
                short(cost.seconds),
                format!("{:.0} %", 100.0 * cost.seconds / alone),
                short(cost.model_mb),
                short(cost.other_mb),
            ]);
            points.push((sample_size as f64, cost.seconds));
        }
    }
    println!("{}", table(&rows));
    let labels = Labels {
        title: "Figure 4: time of a round by the size of a sample, s, and its aggregators, a",
        x: "s",
        y: "seconds",
    };
    lines(&folder.join("figure4.svg"), labels, &drawn)
}
