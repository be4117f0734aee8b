//! MoDEST: its experiments, with the peers of runs without a server in virtual time, and one with real processes and tabs.
//!
//! In virtual time nothing is learned, but in `accuracy` and `poisoning`: training takes time, and a model is a number of bytes. What is measured is
//! the network's and the sampling's.

mod accuracy;
mod cities;
mod crashes;
mod digits;
mod internet;
mod joins;
#[path = "../../../shared/swarm/tests/sampled/node.rs"]
#[allow(clippy::unwrap_used, dead_code, reason = "the simulation of the tests")]
mod node;
mod poisoning;
mod samples;
mod survivors;
mod traffic;
#[path = "../../../shared/swarm/tests/sampled/world.rs"]
#[allow(dead_code, reason = "the simulation of the tests")]
mod world;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use barnraise_protocol::sampled::ACTIVITY_ROUNDS_MAX;
use barnraise_simulation::{NodeBandwidth, NodeId};
use clap::{Args, Subcommand};
use tokio::runtime::Runtime;

use self::internet::network;
use self::node::Population;
use self::world::{World, world_in};

/// What a trainer computes in a round, where all take the same time. The paper does not say; a round takes about 7 s there (6.9
/// minutes are 56 rounds, §4.6).
const TRAINING: Duration = Duration::from_secs(5);
/// Of a transfer, beyond the patience of a request: without crashes a slow one is no failure.
const TRANSFER_PATIENCE: Duration = Duration::from_secs(60);
/// Virtual time after which a run stands still.
const PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Debug, Clone, Args)]
pub(crate) struct ModestArgs {
    /// Which of the paper's experiments
    #[command(subcommand)]
    experiment: ModestExperiment,
    /// Where its picture goes
    #[arg(long, global = true, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/papers/modest"))]
    pictures: PathBuf,
    /// Of all that is drawn
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Subcommand)]
enum ModestExperiment {
    /// Accuracy over time, and bytes, by how models are exchanged: digits in place of the paper's pictures
    Figure3(accuracy::AccuracyArgs),
    /// Time and bytes of a round by the size of a sample and its aggregators
    Figure4(samples::SampleArgs),
    /// How many peers do not know yet of one that has joined
    Figure5(joins::WatchedJoinArgs),
    /// How long it takes to find a sample while 80 of 100 peers crash
    Figure6,
    /// Bytes of four learning tasks, beside those of other algorithms
    Table4(traffic::TrafficArgs),
    /// What a fifth of dishonest peers cost the accuracy of a model
    Poisoning(poisoning::PoisoningArgs),
    /// Processes and tabs of which most are killed: what the others come to
    Survivors(survivors::SurvivorArgs),
}

/// Prints an experiment as a table in Markdown, and draws its picture.
pub(crate) fn run(args: &ModestArgs, runtime: &Runtime) -> Result<()> {
    let (seed, folder) = (args.seed, &args.pictures);
    match &args.experiment {
        ModestExperiment::Figure3(options) => accuracy::run(options, seed, folder),
        ModestExperiment::Figure4(options) => samples::run(options, seed, folder),
        ModestExperiment::Figure5(options) => joins::run(options, seed, folder),
        ModestExperiment::Figure6 => crashes::run(seed, folder),
        ModestExperiment::Table4(options) => traffic::run(options, seed, folder),
        ModestExperiment::Poisoning(options) => poisoning::run(options, seed),
        ModestExperiment::Survivors(options) => runtime.block_on(survivors::run(options)),
    }
}

/// Rounds in which a peer is in three samples on average, `3 n / s`: without crashes few are taken for inactive.
fn activity_window(n: usize, sample_size: usize) -> u64 {
    (3 * n.div_ceil(sample_size) as u64).clamp(2, ACTIVITY_ROUNDS_MAX)
}

/// All peers of a population, at homes in cities. Where the aggregator is fixed, the first one alone aggregates: it is connected best, with
/// a link that is wide enough for all (§4.3).
fn world_of_all(population: &Population, seed: u64, is_fixed: bool) -> World {
    let n = population.keys.len();
    let mut machines = network(n, n);
    if is_fixed {
        machines.set_bandwidth(NodeId(0), NodeBandwidth::UNLIMITED);
    }
    world_in(machines, seed, population, |at| !is_fixed || at == 0)
}

/// Bytes that each peer has sent and got.
fn carried(world: &World) -> Vec<u64> {
    world.nodes.iter().map(|node| node.sent.total() + node.received).collect()
}

/// Runs until each peer knows 98 of 100 others on average: joining is over.
fn settle(world: &mut World) -> Result<()> {
    let n = world.nodes.len();
    loop {
        let n_known: usize = world.nodes.iter().map(|node| node.peer.registry().members().count()).sum();
        if n_known * 100 >= 98 * n * n {
            return Ok(());
        }
        let now = world.now();
        ensure!(now < PATIENCE, "peers know {} of {n} others, and no more come", n_known / n);
        world.run_until(now + Duration::from_secs(1));
    }
}

/// Runs until a peer is in this round.
fn run_to(world: &mut World, round: u64) -> Result<()> {
    let end = world.now() + PATIENCE;
    while world.nodes.iter().all(|node| node.peer.own_round() < round) {
        ensure!(world.step(end), "the run stands still before round {round}");
    }
    Ok(())
}
