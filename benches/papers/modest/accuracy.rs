//! Figure 3 and its bytes, with a substitute for its data: how well the models of peers classify over time, by how models are exchanged.
//! The network is simulated, digits are trained on.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::run::ModelExchange;
use barnraise_swarm::sampled::SampledSettings;
use clap::Args;

use super::digits::Digits;
use super::node::{Learning, Population};
use super::world::{SETTINGS, World, sent};
use super::{TRAINING, activity_window, carried, world_of_all};
use crate::papers::plot::{Labels, PlotLine, lines};
use crate::ratio::table;

const PICTURES_EACH: usize = 600;
const SAMPLE_SIZE: usize = 10;
/// Time between two looks at the models.
const EVERY: Duration = Duration::from_secs(60);
/// Peers whose own models are looked at, where each has its own.
const N_LOOKED_AT: usize = 10;
/// The accuracy that the time and the bytes to reach are told of, in percent.
const REACHED: f64 = 90.0;

#[derive(Debug, Clone, Args)]
pub(super) struct AccuracyArgs {
    /// Peers, of 600 pictures each
    #[arg(long, default_value_t = 100)]
    nodes: usize,
    /// Virtual minutes of each run
    #[arg(long, default_value_t = 20)]
    minutes: u32,
}

/// How models are exchanged, and how many aggregate.
const METHODS: [(&str, ModelExchange, usize); 6] = [
    ("MoDEST, a = 5", ModelExchange::Sample, 5),
    ("one fixed aggregator (FedAvg)", ModelExchange::Sample, 1),
    ("D-SGD, one-peer exponential graph", ModelExchange::Exponential, 1),
    ("D-SGD, 4-regular graph", ModelExchange::Regular(4), 1),
    ("Epidemic Learning, s = 7", ModelExchange::Epidemic(7), 1),
    ("gossip learning", ModelExchange::Gossip, 1),
];

/// Accuracies by the minute, with the bytes that all have sent until then, and in the end those of each peer, sent and received.
struct Course {
    by_minute: Vec<(f64, u64)>,
    of_nodes: Vec<u64>,
    n_rounds: u64,
}

fn run_one(
    digits: &Arc<Digits>,
    (exchange, n_aggregators): (ModelExchange, usize),
    args: &AccuracyArgs,
    seed: u64,
) -> Result<Course> {
    let n = args.nodes;
    let is_fixed = exchange == ModelExchange::Sample && n_aggregators == 1;
    let settings = SampledSettings {
        exchange,
        n_aggregators,
        sample_size: SAMPLE_SIZE,
        activity_window: activity_window(n, SAMPLE_SIZE),
        ..SETTINGS
    };
    let mut population = Population::of_seed(settings, n, seed);
    population.training_time = TRAINING;
    population.model_bytes = TensorCodec::F32.encoded_len(digits.first().len()) as u64;
    population.learning = Arc::<Digits>::clone(digits);
    let mut world = world_of_all(&population, seed, is_fixed);
    let mut by_minute = Vec::new();
    for minute in 1..=args.minutes {
        world.run_until(EVERY * minute);
        by_minute.push((100.0 * accuracy(digits, &world, exchange)?, sent(&world).total()));
    }
    Ok(Course {
        by_minute,
        of_nodes: carried(&world),
        n_rounds: world.nodes.iter().map(|node| node.peer.own_round()).max().unwrap_or_default(),
    })
}

/// Of the newest model; at the mean of some peers, where each has its own.
fn accuracy(digits: &Digits, world: &World, exchange: ModelExchange) -> Result<f64> {
    let mut newest: Vec<_> = world.nodes.iter().filter_map(|node| node.peer.newest()).collect();
    if exchange.is_among_neighbors() {
        let every = newest.len().div_ceil(N_LOOKED_AT).max(1);
        newest = newest.into_iter().step_by(every).collect();
    } else {
        newest = newest.into_iter().max_by_key(|(round, _)| *round).into_iter().collect();
    }
    ensure!(!newest.is_empty(), "nobody has a model");
    let n = newest.len() as f64;
    let sum = newest.into_iter().map(|(_, model)| digits.accuracy(model)).sum::<Result<f64>>()?;
    Ok(sum / n)
}

/// Prints and draws the figure.
pub(super) fn run(args: &AccuracyArgs, seed: u64, folder: &Path) -> Result<()> {
    let digits = Arc::new(Digits::load(seed, args.nodes, PICTURES_EACH)?);
    let reached = format!("{REACHED:.0} % after, min");
    let sent = "sent until then, MB";
    let heading =
        ["models go by", &reached, sent, "in the end, %", "rounds", "sent, MB", "least of a peer", "most"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let mut drawn: Vec<PlotLine> = Vec::new();
    let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
    for (name, exchange, n_aggregators) in METHODS {
        let course = run_one(&digits, (exchange, n_aggregators), args, seed)?;
        let (last, total) = *course.by_minute.last().context("at least a minute is wanted")?;
        let at = course.by_minute.iter().position(|(accuracy, _)| *accuracy >= REACHED);
        let until = at.map_or("–".to_owned(), |at| megabytes(course.by_minute[at].1));
        let [least, most] = [course.of_nodes.iter().min(), course.of_nodes.iter().max()];
        rows.push(vec![
            name.to_owned(),
            at.map_or("–".to_owned(), |at| (at + 1).to_string()),
            until,
            format!("{last:.2}"),
            course.n_rounds.to_string(),
            megabytes(total),
            least.map_or(String::new(), |least| megabytes(*least)),
            most.map_or(String::new(), |most| megabytes(*most)),
        ]);
        let points =
            course.by_minute.iter().zip(1..).map(|((accuracy, _), minute)| (f64::from(minute), *accuracy));
        drawn.push((name.to_owned(), points.collect()));
    }
    println!(
        "{} peers of {PICTURES_EACH} pictures, {} minutes\n\n{}",
        args.nodes,
        args.minutes,
        table(&rows)
    );
    let labels =
        Labels { title: "Accuracy over time, by how models are exchanged", x: "minutes", y: "accuracy, %" };
    lines(&folder.join("figure3.svg"), labels, &drawn)
}
