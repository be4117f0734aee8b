//! Figure 6: how long it takes to find a sample while most peers crash, and after that.

use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use barnraise_simulation::NodeId;
use barnraise_swarm::Moment;

use super::TRAINING;
use super::internet::network;
use super::node::Population;
use super::world::{MINUTE, SETTINGS, rounds, world_in};
use crate::papers::plot::{Labels, PlotLine, lines};
use crate::ratio::{short, table};

const N_PEERS: usize = 100;
const N_LEFT: usize = 20;
/// Peers that crash each minute, from this minute on, of as many minutes (§4.7).
const CRASHES_A_MINUTE: usize = 5;
const FIRST_CRASH: u32 = 5;
const MINUTES: u32 = 30;
/// Spans of the table. Nobody crashes after minute 20; the paper is as fast as before after minute 26. The first minute is that of
/// joining.
const SPANS: [(&str, Range<u32>); 4] = [
    ("before, 1 to 5", 1..5),
    ("while peers crash, 5 to 21", 5..21),
    ("21 to 26", 21..26),
    ("after, 26 to 30", 26..30),
];

/// When each sample and each round began, and how many seconds it took.
struct SampleTimeline {
    samples: Vec<(Moment, f64)>,
    rounds: Vec<(Moment, f64)>,
}

/// `n` peers, of which 5 crash each minute until so many are left.
fn simulate(seed: u64, n: usize, n_left: usize) -> SampleTimeline {
    let mut population = Population::of_seed(SETTINGS, n, seed);
    population.training_time = TRAINING;
    let mut world = world_in(network(n, n), seed, &population, |_| true);
    let mut order: Vec<usize> = (0..n).collect();
    world.random().shuffle(&mut order);
    world.run_until(FIRST_CRASH * MINUTE);
    for crashed in order[n_left..].chunks(CRASHES_A_MINUTE) {
        crashed.iter().for_each(|at| world.leave(NodeId(*at)));
        let now = world.now();
        world.run_until(now + MINUTE);
    }
    world.run_until(MINUTES * MINUTE);
    let samples = world.nodes.iter().flat_map(|node| &node.sample_times);
    let began: Vec<Moment> = rounds(&world).values().map(|(at, _)| *at).collect();
    SampleTimeline {
        samples: samples.map(|(at, took)| (*at, took.as_secs_f64())).collect(),
        rounds: began.windows(2).map(|at| (at[0], at[1].saturating_sub(at[0]).as_secs_f64())).collect(),
    }
}

/// Mean of what began in these minutes, in seconds; NaN where nothing did.
fn mean(timed: &[(Moment, f64)], minutes: &Range<u32>) -> f64 {
    let within = minutes.start * MINUTE..minutes.end * MINUTE;
    let seconds = || timed.iter().filter(|(at, _)| within.contains(at)).map(|(_, seconds)| *seconds);
    seconds().sum::<f64>() / seconds().count() as f64
}

/// The mean of each minute.
fn by_minute(timed: &[(Moment, f64)]) -> Vec<(f64, f64)> {
    let means = (0..MINUTES).map(|minute| (f64::from(minute) + 0.5, mean(timed, &(minute..minute + 1))));
    means.filter(|(_, mean)| mean.is_finite()).collect()
}

/// Prints and draws the figure.
pub(super) fn run(seed: u64, folder: &Path) -> Result<()> {
    let crashing = simulate(seed, N_PEERS, N_LEFT);
    let reliable = simulate(seed, N_LEFT, N_LEFT);
    let heading = ["minutes", "a sample, s", "a round, s", "of 20 reliable peers: a sample, s", "a round, s"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for (name, minutes) in SPANS {
        let of = |timed: &[(Moment, f64)]| short(mean(timed, &minutes));
        rows.push(vec![
            name.to_owned(),
            of(&crashing.samples),
            of(&crashing.rounds),
            of(&reliable.samples),
            of(&reliable.rounds),
        ]);
    }
    println!("{}", table(&rows));
    let drawn: Vec<PlotLine> = vec![
        ("80 of 100 crash: a sample".to_owned(), by_minute(&crashing.samples)),
        ("80 of 100 crash: a round".to_owned(), by_minute(&crashing.rounds)),
        ("20 reliable peers: a sample".to_owned(), by_minute(&reliable.samples)),
        ("20 reliable peers: a round".to_owned(), by_minute(&reliable.rounds)),
    ];
    let labels = Labels {
        title: "Figure 6: time of a sample and of a round while peers crash (minutes 5 to 20)",
        x: "minutes since the start",
        y: "seconds, mean of a minute",
    };
    lines(&folder.join("figure6.svg"), labels, &drawn)
}
