//! Runs without a server in virtual time (MoDEST §4): peers join, train, average, crash and come back. The decisions are those
//! that ship; models are one number, which local training moves half the way to a number of each peer's own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_simulation::{Latency, NatKind, Network, NodeBandwidth, NodeId, NodeSimulation, seeds};
use barnraise_swarm::Moment;
use barnraise_swarm::sampled::SampledSettings;

use node::{Population, SentBytes, SimulatedPeer};

/// Hosts all over the world.
const LATENCY: Latency = Latency::LogNormal { median: Duration::from_millis(60), sigma: 0.5 };
const MINUTE: Duration = Duration::from_secs(60);

/// Of the experiments in §4.6 and §4.7.
const SETTINGS: SampledSettings = SampledSettings {
    sample_size: 10,
    n_aggregators: 5,
    success_fraction: 0.9,
    ping_timeout: Duration::from_secs(2),
    activity_window: 20,
    round_estimate: Duration::from_secs(10),
};

type World = NodeSimulation<SimulatedPeer>;

/// The first `n` peers of the population, all of which join at once through the first.
fn world(seed: u64, population: &Population, n: usize, aggregates: impl Fn(usize) -> bool) -> World {
    let nodes = (0..n).map(|at| population.node(at, aggregates(at))).collect();
    let mut network = Network::new(n, LATENCY).with_loss(0.001);
    for at in 0..n {
        network.set_bandwidth(NodeId(at), NodeBandwidth::new(2e6, 6e6));
    }
    let mut world = NodeSimulation::new(seed, network, nodes);
    join(&mut world, population, NodeId(0), &[]);
    (1..n).for_each(|at| join(&mut world, population, NodeId(at), &[0]));
    world
}

fn join(world: &mut World, population: &Population, node: NodeId, through: &[usize]) {
    let introduced = through.iter().map(|at| population.keys[*at]).collect();
    world.with(node, |node, now| node.peer.join(now, introduced));
}

fn live(world: &mut World) -> Vec<usize> {
    let n = world.nodes.len();
    (0..n).filter(|at| !world.network().is_down(NodeId(*at))).collect()
}

/// The round that the live peers are in.
fn round(world: &mut World) -> u64 {
    live(world).into_iter().map(|at| world.nodes[at].peer.own_round()).max().unwrap_or_default()
}

/// When each round was begun by its first trainer, and who trained it.
fn rounds(world: &World) -> BTreeMap<u64, (Moment, BTreeSet<usize>)> {
    let mut rounds: BTreeMap<u64, (Moment, BTreeSet<usize>)> = BTreeMap::new();
    for (at, node) in world.nodes.iter().enumerate() {
        for (round, when) in &node.trained {
            let of = rounds.entry(*round).or_insert((*when, BTreeSet::new()));
            of.0 = of.0.min(*when);
            of.1.insert(at);
        }
    }
    rounds
}

/// Mean time of the rounds that began in these minutes.
fn round_time(world: &World, minutes: std::ops::Range<u32>) -> Duration {
    let began: Vec<Moment> = rounds(world).values().map(|(at, _)| *at).collect();
    let within: Vec<Moment> =
        began.into_iter().filter(|at| (minutes.start * MINUTE..minutes.end * MINUTE).contains(at)).collect();
    let (first, last) = (within.first().unwrap(), within.last().unwrap());
    (*last - *first) / (within.len() as u32 - 1)
}

fn newest(world: &mut World) -> f32 {
    let live = live(world);
    let newest = live.iter().filter_map(|at| world.nodes[*at].peer.newest()).max_by_key(|(round, _)| *round);
    newest.unwrap().1[0]
}

#[test]
fn a_quiet_run_has_consistent_samples_and_learns_from_all() {
    for seed in seeds(0..3) {
        let population = Population::new(SETTINGS, 60);
        let mut world = world(seed, &population, 60, |_| true);
        world.run_until(15 * MINUTE);
        let rounds = rounds(&world);
        let settled: Vec<&BTreeSet<usize>> = rounds.range(10..).map(|(_, (_, trainers))| trainers).collect();
        assert!(settled.len() > 100, "seed {seed}: {} rounds", settled.len());
        let whole = settled.iter().filter(|trainers| trainers.len() == SETTINGS.sample_size).count();
        assert!(
            whole * 10 >= settled.len() * 8,
            "seed {seed}: {whole} of {} rounds had one sample",
            settled.len()
        );
        let trainers: BTreeSet<usize> = settled.iter().copied().flatten().copied().collect();
        assert_eq!(trainers.len(), 60, "seed {seed}: all train");
        let n_trained: Vec<usize> = world.nodes.iter().map(|node| node.trained.len()).collect();
        let (least, most) = (n_trained.iter().min().unwrap(), n_trained.iter().max().unwrap());
        assert!(most < &(least * 4), "seed {seed}: one trained {least} times, another one {most} times");
        // Peers know much the same: who is in a sample for its sender is in it for its receiver, nearly always.
        let n_refused: usize = world.nodes.iter().map(|node| node.n_refused).sum();
        // Each trainer pulls one, and each aggregator one of each trainer.
        let n_models = settled.len() * SETTINGS.sample_size * (1 + SETTINGS.n_aggregators);
        println!("seed {seed}: {n_refused} senders of {n_models} models were not believed");
        assert!(n_refused * 100 < n_models, "seed {seed}: {n_refused} of {n_models} were not believed");
        // Each round is the mean of a sample of numbers around 29.5.
        let model = newest(&mut world);
        assert!((model - 29.5).abs() < 15.0, "seed {seed}: {model}");
    }
}

#[test]
fn one_reliable_aggregator_is_enough() {
    for seed in seeds(0..3) {
        // Three peers aggregate. Two of them crash again and again, in the middle of what they do.
        let settings =
            SampledSettings { sample_size: 5, n_aggregators: 3, success_fraction: 0.8, ..SETTINGS };
        let population = Population::new(settings, 20);
        let mut world = world(seed, &population, 20, |at| at < 3);
        world.run_until(2 * MINUTE);
        let before = round(&mut world);
        for _ in 0..40 {
            for at in [1, 2] {
                let up_for = Duration::from_millis(500 + 200 * world.random().below(40) as u64);
                let now = world.now();
                world.run_until(now + up_for);
                world.leave(NodeId(at));
                let now = world.now();
                world.run_until(now + Duration::from_secs(5));
                let counter = world.nodes[at].peer.counter();
                world.restart(NodeId(at), population.restarted(at, true, counter));
                join(&mut world, &population, NodeId(at), &[0]);
            }
        }
        let after = round(&mut world);
        assert!(after > before + 40, "seed {seed}: from round {before} to {after}");
    }
}

#[test]
fn eighty_in_a_hundred_crash_and_the_run_goes_on_as_fast_as_before() {
    for seed in seeds(0..2) {
        let population = Population::new(SETTINGS, 100);
        let mut world = world(seed, &population, 100, |_| true);
        world.run_until(5 * MINUTE);
        // Five crash each minute, until twenty are left.
        for minute in 0..16 {
            (0..5).for_each(|nth| world.leave(NodeId(1 + 5 * minute + nth)));
            let now = world.now();
            world.run_until(now + MINUTE);
        }
        assert_eq!(live(&mut world).len(), 20);
        world.run_until(35 * MINUTE);
        let (before, during, after) =
            (round_time(&world, 2..5), round_time(&world, 6..21), round_time(&world, 26..35));
        println!("seed {seed}: rounds took {before:?}, while peers crashed {during:?}, then {after:?}");
        assert!(after < before * 3 / 2, "seed {seed}: {before:?} before, {after:?} after");
        // Those that are left taught the model: 0 and 81 to 99.
        let model = newest(&mut world);
        assert!((60.0..100.0).contains(&model), "seed {seed}: {model}");
    }
}

#[test]
fn a_round_that_died_with_all_who_had_it_is_not_the_last() {
    for seed in seeds(0..3) {
        let settings =
            SampledSettings { sample_size: 4, n_aggregators: 2, success_fraction: 0.75, ..SETTINGS };
        let population = Population::new(settings, 24);
        let mut world = world(seed, &population, 24, |_| true);
        world.run_until(3 * MINUTE);
        for _ in 0..2 {
            let before = round(&mut world);
            // All that train or aggregate the newest two rounds are gone at once.
            let active: Vec<usize> = live(&mut world)
                .into_iter()
                .filter(|at| world.nodes[*at].peer.own_round() + 1 >= before)
                .collect();
            active.iter().for_each(|at| world.leave(NodeId(*at)));
            assert!(live(&mut world).len() >= 6, "seed {seed}: {active:?}");
            let now = world.now();
            world.run_until(now + 15 * MINUTE);
            let after = round(&mut world);
            assert!(after > before + 20, "seed {seed}: from round {before} to {after}");
        }
    }
}

#[test]
fn a_join_is_known_to_all_within_the_rounds_of_the_paper() {
    for seed in seeds(0..2) {
        let population = Population::new(SETTINGS, 100);
        let mut world = world(seed, &population, 90, |_| true);
        world.run_until(3 * MINUTE);
        let mut n_rounds = Vec::new();
        for at in 90..95 {
            let node = world.join(NodeBandwidth::new(2e6, 6e6), NatKind::Public, population.node(at, true));
            join(&mut world, &population, node, &[at % 7]);
            let before = round(&mut world);
            let key = population.keys[at];
            let knows = |node: &SimulatedPeer| node.peer.registry().membership(&key).is_some();
            assert!(world.run_while(|world| !world.nodes.iter().all(knows)));
            n_rounds.push(round(&mut world) - before);
        }
        let mean = n_rounds.iter().sum::<u64>() / n_rounds.len() as u64;
        println!("seed {seed}: known to all after {n_rounds:?} rounds, {mean} on average");
        assert!(mean < 56, "seed {seed}: {n_rounds:?}");
    }
}

#[test]
fn a_partition_stops_the_smaller_side_and_the_run_is_one_again() {
    for seed in seeds(0..2) {
        let settings = SampledSettings { sample_size: 6, n_aggregators: 2, ..SETTINGS };
        let population = Population::new(settings, 30);
        let mut world = world(seed, &population, 30, |_| true);
        world.run_until(3 * MINUTE);
        world.network().partition((0..4).map(NodeId));
        world.run_until(10 * MINUTE);
        let apart = world.nodes[..4].iter().map(|node| node.peer.own_round()).max().unwrap();
        let together = round(&mut world);
        assert!(together > apart + 20, "seed {seed}: {apart} and {together}");
        world.network().heal();
        world.run_until(25 * MINUTE);
        let after = round(&mut world);
        assert!(after > together + 20, "seed {seed}: {together} and then {after}");
        for (at, node) in world.nodes.iter().enumerate() {
            let last = node.trained.last().unwrap().0;
            assert!(last + 60 > after, "seed {seed}: peer {at} was left at round {last} of {after}");
        }
    }
}

#[test]
fn a_peer_that_leaves_is_asked_no_more_and_one_that_comes_back_is() {
    let settings = SampledSettings { sample_size: 5, n_aggregators: 2, ..SETTINGS };
    let population = Population::new(settings, 15);
    let mut world = world(1, &population, 15, |_| true);
    world.run_until(3 * MINUTE);
    world.with(NodeId(7), |node, now| node.peer.leave(now));
    world.run_until(5 * MINUTE);
    let key = population.keys[7];
    let is_known = |world: &World| {
        world.nodes.iter().filter(|node| node.peer.registry().activity_of(&key).is_some()).count()
    };
    assert_eq!(is_known(&world), 0);
    let n_trained = world.nodes[7].trained.len();
    world.run_until(7 * MINUTE);
    assert_eq!(world.nodes[7].trained.len(), n_trained);
    join(&mut world, &population, NodeId(7), &[3]);
    world.run_until(10 * MINUTE);
    assert_eq!(is_known(&world), 15);
    assert!(world.nodes[7].trained.len() > n_trained);
}

/// MoDEST table 4, CelebA: 500 nodes and a model of 124 KB. There, views are 22.2 % of all bytes.
#[test]
fn of_500_peers_and_a_small_model_views_are_three_percent() {
    let settings =
        SampledSettings { n_aggregators: 4, activity_window: 150, success_fraction: 1.0, ..SETTINGS };
    let mut population = Population::new(settings, 500);
    population.model_bytes = 124_000;
    let mut world = world(1, &population, 500, |_| true);
    // All know each other.
    world.run_while(|world| world.nodes.iter().map(|node| node.peer.own_round()).max().unwrap() < 100);
    let sum = |world: &World| {
        let mut sum = SentBytes::default();
        for SentBytes { models, views, digests, pings, offers } in world.nodes.iter().map(|node| node.sent) {
            sum.models += models;
            sum.views += views;
            sum.digests += digests;
            sum.pings += pings;
            sum.offers += offers;
        }
        sum
    };
    let before = sum(&world);
    world.run_while(|world| world.nodes.iter().map(|node| node.peer.own_round()).max().unwrap() < 200);
    let after = sum(&world);
    let part = |of: fn(&SentBytes) -> u64| {
        let models = after.models - before.models;
        let overhead = after.overhead() - before.overhead();
        100.0 * (of(&after) - of(&before)) as f64 / (models + overhead) as f64
    };
    println!(
        "views {:.2} %, digests {:.2} %, pings {:.2} %, offers {:.2} %",
        part(|sent| sent.views),
        part(|sent| sent.digests),
        part(|sent| sent.pings),
        part(|sent| sent.offers),
    );
    assert!(part(SentBytes::overhead) <= 3.0, "{:.2} %", part(SentBytes::overhead));
}
