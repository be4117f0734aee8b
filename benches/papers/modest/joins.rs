//! Figure 5: how long it takes until all know of a peer that has joined.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use barnraise_protocol::access::PublicKey;
use barnraise_simulation::NatKind;
use barnraise_swarm::Moment;
use clap::Args;

use super::internet::{home_link, network};
use super::node::Population;
use super::world::{MINUTE, SETTINGS, World, join, round, world_in};
use super::{PATIENCE, TRAINING};
use crate::papers::plot::{Labels, PlotLine, lines};
use crate::ratio::{short, table};

/// Peers that join, one each minute.
const N_JOINS: usize = 10;
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Minutes and rounds until a join is known to all (§4.6).
const PAPER: [f64; 2] = [6.9, 56.0];

#[derive(Debug, Clone, Args)]
pub(super) struct WatchedJoinArgs {
    /// Peers before the others join
    #[arg(long, default_value_t = 90)]
    nodes: usize,
}

/// A peer that has joined, and what the first peers know of it.
struct WatchedJoin {
    key: PublicKey,
    at: Moment,
    round: u64,
    /// Minutes since the start, and how many do not know it.
    unknown: Vec<(f64, f64)>,
    /// When all knew it, and in which round.
    known: Option<(Moment, u64)>,
}

impl WatchedJoin {
    /// The peer at this place of the population joins through as many of the first as a sample has.
    fn begin(world: &mut World, population: &Population, (at, n_first): (usize, usize)) -> Self {
        let mut others: Vec<usize> = (0..n_first).collect();
        world.random().shuffle(&mut others);
        others.truncate(SETTINGS.sample_size);
        let node = world.join(home_link(), NatKind::Public, population.node(at, true));
        join(world, population, node, &others);
        let (key, now) = (population.keys[at], world.now());
        Self { key, at: now, round: round(world), unknown: Vec::new(), known: None }
    }

    fn look(&mut self, world: &mut World, n_first: usize) {
        if self.known.is_some() {
            return;
        }
        let first = world.nodes[..n_first].iter();
        let n_unknown = first.filter(|node| node.peer.registry().membership(&self.key).is_none()).count();
        let now = world.now();
        self.unknown.push((minutes(now), n_unknown as f64));
        if n_unknown == 0 {
            self.known = Some((now, round(world)));
        }
    }

    /// Minutes and rounds until all knew it.
    fn took(&self) -> Option<[f64; 2]> {
        let (at, round) = self.known?;
        Some([minutes(at.saturating_sub(self.at)), round.saturating_sub(self.round) as f64])
    }
}

fn minutes(time: Duration) -> f64 {
    time.as_secs_f64() / 60.0
}

/// Prints and draws the figure.
pub(super) fn run(args: &WatchedJoinArgs, seed: u64, folder: &Path) -> Result<()> {
    let n_first = args.nodes;
    let mut population = Population::of_seed(SETTINGS, n_first + N_JOINS, seed);
    population.training_time = TRAINING;
    let mut world = world_in(network(n_first, n_first + N_JOINS), seed, &population, |_| true);
    let mut joins: Vec<WatchedJoin> = Vec::new();
    while joins.len() < N_JOINS || joins.iter().any(|join| join.known.is_none()) {
        let now = world.now();
        ensure!(now < PATIENCE, "a peer that has joined is not known to all");
        if joins.len() < N_JOINS && now >= MINUTE * (joins.len() as u32 + 1) {
            joins.push(WatchedJoin::begin(&mut world, &population, (n_first + joins.len(), n_first)));
        }
        joins.iter_mut().for_each(|join| join.look(&mut world, n_first));
        world.run_until(now + LOOK_EVERY);
    }
    let took: Vec<[f64; 2]> = joins.iter().filter_map(WatchedJoin::took).collect();
    let mut rows = vec![["joined, min", "known to all after, min", "rounds"].map(str::to_owned).to_vec()];
    let row = |name: String, [minutes, rounds]: [f64; 2]| vec![name, short(minutes), short(rounds)];
    rows.extend(joins.iter().zip(&took).map(|(join, took)| row(short(minutes(join.at)), *took)));
    let mean = |at: usize| took.iter().map(|took| took[at]).sum::<f64>() / took.len().max(1) as f64;
    rows.push(row("mean".to_owned(), [mean(0), mean(1)]));
    rows.push(row("paper, mean".to_owned(), PAPER));
    println!("{}", table(&rows));
    let drawn: Vec<PlotLine> = joins
        .into_iter()
        .map(|join| (format!("joined at {} min", short(minutes(join.at))), join.unknown))
        .collect();
    let labels = Labels {
        title: "Figure 5: peers that do not know of one that has joined",
        x: "minutes since the start",
        y: "peers",
    };
    lines(&folder.join("figure5.svg"), labels, &drawn)
}
