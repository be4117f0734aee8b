//! Table 4: what a run sends in all, and what its peers do with the least and the most to carry, beside other algorithms.
//!
//! Runs without a server, and those with one aggregator for all rounds, are simulated. For the other algorithms the models that each
//! peer sends and gets are counted.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use barnraise_protocol::codec::TensorCodec;
use barnraise_simulation::Random;
use barnraise_swarm::sampled::SampledSettings;
use clap::Args;

use super::node::Population;
use super::world::{SETTINGS, round, rounds, sent};
use super::{TRAINING, TRANSFER_PATIENCE, activity_window, carried, run_to, settle, world_of_all};
use crate::papers::plot::{AxisScale, Bars, Labels, bars};
use crate::ratio::{short, table};

/// `s`, and `a` of a run without a server. The paper does not say which it took for its table; MoDEST sends four to five times what
/// FedAvg does there, so that there were about as many aggregators.
const SAMPLE_SIZE: usize = 10;
const N_AGGREGATORS: usize = 4;

#[derive(Debug, Clone, Args)]
pub(super) struct TrafficArgs {
    /// Rounds of each task, instead of those that the paper's D-SGD made
    #[arg(long)]
    rounds: Option<u64>,
}

/// A task of table 3, with what table 4 says of it: bytes in total, and of the peers with the least and the most.
struct LearningTask {
    name: &'static str,
    n_nodes: usize,
    model_bytes: u64,
    d_sgd: [f64; 3],
    fed_avg: [f64; 3],
    modest: [f64; 3],
}

const TASKS: [LearningTask; 4] = [
    LearningTask {
        name: "CIFAR-10",
        n_nodes: 100,
        model_bytes: 346_000,
        d_sgd: [16.9e9, 169.0e6, 169.2e6],
        fed_avg: [1.3e9, 2.8e6, 656.5e6],
        modest: [5.7e9, 30.4e6, 95.5e6],
    },
    LearningTask {
        name: "CelebA",
        n_nodes: 500,
        model_bytes: 124_000,
        d_sgd: [67.8e9, 135.4e6, 135.6e6],
        fed_avg: [1.1e9, 0.2e6, 562.2e6],
        modest: [5.0e9, 1.7e6, 17.2e6],
    },
    LearningTask {
        name: "FEMNIST",
        n_nodes: 355,
        model_bytes: 6_700_000,
        d_sgd: [1004.1e9, 2.8e9, 2.8e9],
        fed_avg: [14.1e9, 7.6e6, 7.1e9],
        modest: [68.1e9, 53.6e6, 413.6e6],
    },
    LearningTask {
        name: "MovieLens",
        n_nodes: 610,
        model_bytes: 827_000,
        d_sgd: [1305.6e9, 2.1e9, 2.1e9],
        fed_avg: [25.3e9, 8.9e6, 12.6e9],
        modest: [113.5e9, 22.8e6, 292.3e6],
    },
];

impl LearningTask {
    /// Of the paper's D-SGD: each peer sends one model and gets one in a round.
    fn n_rounds(&self) -> u64 {
        (self.d_sgd[0] / (2.0 * self.n_nodes as f64 * self.model_bytes as f64)).round() as u64
    }

    /// As the codec encodes it; the model's values are `f32`.
    fn encoded_bytes(&self, codec: TensorCodec) -> Result<u64> {
        Ok(codec.encoded_len(usize::try_from(self.model_bytes / 4)?) as u64)
    }
}

/// Bytes that each peer sent and got, together.
struct RunTraffic {
    of_nodes: Vec<u64>,
    /// Share of all that is not models.
    overhead: f64,
    /// What is not models and was sent and got before, while all joined.
    joining: u64,
    /// Fewer than wanted where a run was still, and went on some rounds further.
    n_rounds: u64,
}

impl RunTraffic {
    fn total(&self) -> f64 {
        self.of_nodes.iter().sum::<u64>() as f64
    }

    /// In total, of the peer with the least, and of that with the most.
    fn summary(&self) -> [f64; 3] {
        let of_node = |bytes: Option<&u64>| bytes.copied().unwrap_or_default() as f64;
        [self.total(), of_node(self.of_nodes.iter().min()), of_node(self.of_nodes.iter().max())]
    }
}

/// Who aggregates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AggregatorChoice {
    /// Those of the sample.
    Sampled,
    /// The first peer, which is connected best, with a link that is wide enough for all (§4.3).
    Fixed,
}

fn simulate(
    task: &LearningTask,
    aggregators: AggregatorChoice,
    seed: u64,
    (n_rounds, model_bytes): (u64, u64),
) -> Result<RunTraffic> {
    let n = task.n_nodes;
    let is_fixed = aggregators == AggregatorChoice::Fixed;
    let settings = SampledSettings {
        sample_size: SAMPLE_SIZE,
        n_aggregators: if is_fixed { 1 } else { N_AGGREGATORS },
        success_fraction: 1.0,
        activity_window: activity_window(n, SAMPLE_SIZE),
        ..SETTINGS
    };
    let mut population = Population::of_seed(settings, n, seed);
    (population.training_time, population.model_bytes) = (TRAINING, model_bytes);
    population.transfer_patience = TRANSFER_PATIENCE;
    let mut world = world_of_all(&population, seed, is_fixed);
    settle(&mut world)?;
    let first = round(&mut world).max(1);
    run_to(&mut world, first + 1)?;
    let (nodes_before, before) = (carried(&world), sent(&world));
    run_to(&mut world, first + 1 + n_rounds)?;
    let after = sent(&world);
    let of_nodes = carried(&world).into_iter().zip(&nodes_before).map(|(after, before)| after - before);
    Ok(RunTraffic {
        of_nodes: of_nodes.collect(),
        overhead: (after.overhead() - before.overhead()) as f64 / (after.total() - before.total()) as f64,
        joining: 2 * before.overhead(),
        n_rounds: rounds(&world).range(first + 1..first + 1 + n_rounds).count() as u64,
    })
}

/// Counts the models of an algorithm in which each peer sends its model to these others in each round.
fn count(
    task: &LearningTask,
    n_rounds: u64,
    mut receivers: impl FnMut(usize, u64) -> BTreeSet<usize>,
) -> RunTraffic {
    let mut of_nodes = vec![0; task.n_nodes];
    for round in 0..n_rounds {
        for from in 0..task.n_nodes {
            for to in receivers(from, round) {
                of_nodes[from] += task.model_bytes;
                of_nodes[to] += task.model_bytes;
            }
        }
    }
    RunTraffic { of_nodes, overhead: 0.0, joining: 0, n_rounds }
}

/// Dimension of the exponential graph of `n` peers, and the peers that each sends to in Epidemic Learning: `ceil(log2(n))`.
fn log2(n: usize) -> u32 {
    n.next_power_of_two().ilog2()
}

/// The peer that `from` sends to: the neighbours of the exponential graph take turns (Ying et al. 2021, one-peer).
fn one_peer(n: usize, from: usize, round: u64) -> usize {
    let hop = 1_usize << (round % u64::from(log2(n).max(1)));
    (from + hop) % n
}

/// So many others, all with the same probability.
fn others(random: &mut Random, (n, from): (usize, usize), n_wanted: usize) -> BTreeSet<usize> {
    let mut others = BTreeSet::new();
    while others.len() < n_wanted.min(n.saturating_sub(1)) {
        let other = random.below(n);
        if other != from {
            others.insert(other);
        }
    }
    others
}

/// An algorithm's traffic, how it was found, and what the paper has.
struct TrafficRow {
    method: &'static str,
    found: &'static str,
    traffic: RunTraffic,
    paper: Option<[f64; 3]>,
}

fn compare(task: &LearningTask, n_rounds: u64, seed: u64) -> Result<Vec<TrafficRow>> {
    let (n, mut random) = (task.n_nodes, Random::new(seed));
    let whole = (n_rounds, task.encoded_bytes(TensorCodec::F32)?);
    let coarse = (n_rounds, task.encoded_bytes(TensorCodec::Int8)?);
    let row = |method, found, traffic, paper| TrafficRow { method, found, traffic, paper };
    let ours = |bytes| simulate(task, AggregatorChoice::Sampled, seed, bytes);
    let fixed = simulate(task, AggregatorChoice::Fixed, seed, whole)?;
    let d_sgd = count(task, n_rounds, |from, round| BTreeSet::from([one_peer(n, from, round)]));
    let gossip = count(task, n_rounds, |from, _| others(&mut random, (n, from), 1));
    let n_receivers = log2(n) as usize;
    let epidemic = count(task, n_rounds, |from, _| others(&mut random, (n, from), n_receivers));
    Ok(vec![
        row("ours", "simulated", ours(whole)?, Some(task.modest)),
        row("ours, models in int8", "simulated", ours(coarse)?, None),
        row("ours with one aggregator (FedAvg)", "simulated", fixed, Some(task.fed_avg)),
        row("D-SGD, one-peer exponential graph", "counted", d_sgd, Some(task.d_sgd)),
        row("Gossip Learning", "counted", gossip, None),
        row("Epidemic Learning", "counted", epidemic, None),
    ])
}

/// In GB, and in MB of the peer with the least and of that with the most.
fn shown([total, least, most]: [f64; 3]) -> [String; 3] {
    [short(total / 1e9), short(least / 1e6), short(most / 1e6)]
}

fn cells(task: &LearningTask, row: &TrafficRow) -> Vec<String> {
    let [total, least, most] = shown(row.traffic.summary());
    let paper = row.paper.map_or_else(String::new, |paper| shown(paper).join(", "));
    let is_simulated = row.traffic.joining > 0;
    let percent = format!("{:.1} %", 100.0 * row.traffic.overhead);
    vec![
        format!("{}, {} rounds", task.name, row.traffic.n_rounds),
        row.method.to_owned(),
        row.found.to_owned(),
        total,
        least,
        most,
        if is_simulated { percent } else { String::new() },
        if is_simulated { short(row.traffic.joining as f64 / 1e9) } else { String::new() },
        paper,
    ]
}

/// Prints and draws the table.
pub(super) fn run(args: &TrafficArgs, seed: u64, folder: &Path) -> Result<()> {
    let heading = [
        "task",
        "algorithm",
        "how",
        "total, GB",
        "least of a peer, MB",
        "most, MB",
        "not models",
        "joining before, GB",
        "paper: GB, MB, MB",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let mut drawn: Vec<Bars> = Vec::new();
    for task in &TASKS {
        let n_rounds = args.rounds.unwrap_or_else(|| task.n_rounds());
        let compared =
            compare(task, n_rounds, seed).with_context(|| format!("the peers of {}", task.name))?;
        for (at, row) in compared.iter().enumerate() {
            rows.push(cells(task, row));
            if drawn.len() <= at {
                drawn.push((row.method.to_owned(), Vec::new()));
            }
            drawn[at].1.push(row.traffic.total() / 1e6);
        }
    }
    println!("{}", table(&rows));
    let labels = Labels { title: "Table 4: bytes in total, at the same number of rounds", x: "", y: "MB" };
    let groups = TASKS.map(|task| task.name.to_owned());
    bars(&folder.join("table4.svg"), labels, &groups, &drawn, AxisScale::Logarithmic)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_peer_of_the_exponential_graph_sends_one_model_and_gets_one() {
        let [task, ..] = &TASKS;
        let traffic = count(task, 21, |from, round| BTreeSet::from([one_peer(100, from, round)]));
        assert!(traffic.of_nodes.iter().all(|bytes| *bytes == 2 * 21 * task.model_bytes));
        let hops: Vec<usize> = (0..8).map(|round| one_peer(100, 0, round)).collect();
        assert_eq!(hops, [1, 2, 4, 8, 16, 32, 64, 1]);
    }

    #[test]
    fn others_are_as_many_as_wanted_and_not_the_sender() {
        let mut random = Random::new(1);
        for from in 0..9 {
            let others = others(&mut random, (9, from), log2(9) as usize);
            assert!(others.len() == 4 && !others.contains(&from), "{others:?}");
        }
        assert_eq!(others(&mut random, (2, 0), 7), BTreeSet::from([1]));
    }

    /// Each trainer pulls one model, and each aggregator one of each trainer, but for what a peer hands to itself.
    #[test]
    fn the_models_of_a_round_are_those_of_a_sample() {
        let task = LearningTask {
            name: "small",
            n_nodes: 30,
            model_bytes: 346_000,
            d_sgd: [0.0; 3],
            fed_avg: [0.0; 3],
            modest: [0.0; 3],
        };
        let simulated = |aggregators| simulate(&task, aggregators, 1, (20, task.model_bytes)).unwrap();
        let models_a_round = |traffic: &RunTraffic| {
            let n_models = (1.0 - traffic.overhead) * traffic.total() / (2.0 * task.model_bytes as f64);
            n_models / traffic.n_rounds as f64
        };
        let ours = simulated(AggregatorChoice::Sampled);
        let n_models = (SAMPLE_SIZE * (1 + N_AGGREGATORS)) as f64;
        let measured = models_a_round(&ours);
        assert!((0.75..1.15).contains(&(measured / n_models)), "{measured} of {n_models}");
        let fixed = simulated(AggregatorChoice::Fixed);
        let (n_models, measured) = ((2 * SAMPLE_SIZE) as f64, models_a_round(&fixed));
        assert!((0.85..1.15).contains(&(measured / n_models)), "{measured} of {n_models}");
        assert_eq!(
            fixed.of_nodes.iter().max(),
            fixed.of_nodes.first(),
            "the aggregator has the most to carry"
        );
    }

    /// The paper's bytes are those of these rounds, to what it rounds them to.
    #[test]
    fn the_rounds_of_the_papers_d_sgd_give_its_bytes() {
        for task in &TASKS {
            let bytes = (2 * task.n_rounds() * task.n_nodes as u64 * task.model_bytes) as f64;
            assert!((bytes / task.d_sgd[0] - 1.0).abs() < 0.002, "{}: {bytes}", task.name);
        }
    }
}
