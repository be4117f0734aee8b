//! Dishonest peers, in runs that reckon with them.

use std::sync::Arc;

use barnraise_protocol::run::ModelAverage;
use barnraise_swarm::sampled::SampledModel;

use super::node::Lie;
use super::*;

const N: usize = 30;
/// One in five.
const LIARS: [usize; 6] = [4, 9, 14, 19, 24, 29];
const ROBUST: SampledSettings = SampledSettings { average: ModelAverage::CenteredClip, ..SETTINGS };

fn a_million(_: &SampledModel) -> SampledModel {
    Arc::new([1e6])
}

/// A run in which these lie from the beginning.
fn run(seed: u64, settings: SampledSettings, lie: Lie, minutes: u32) -> World {
    let population = Population::new(settings, N);
    let mut world = world(seed, &population, N, |_| true);
    LIARS.iter().for_each(|at| world.nodes[*at].lie = Some(lie));
    world.run_until(minutes * MINUTE);
    world
}

/// The models that honest peers know, which are of late rounds.
fn known(world: &World) -> Vec<f32> {
    let honest = world.nodes.iter().enumerate().filter(|(at, _)| !LIARS.contains(at));
    honest.filter_map(|(_, node)| Some(node.peer.newest()?.1[0])).collect()
}

/// Honest peers teach it numbers around 14.
fn is_learned(model: f32) -> bool {
    (-15.0..45.0).contains(&model)
}

#[test]
fn one_in_five_that_lies_moves_no_model_far() {
    for (seed, forges) in seeds(0..3).flat_map(|seed| [(seed, false), (seed, true)]) {
        let lie = Lie { of: a_million, forges };
        let mut world = run(seed, ROBUST, lie, 10);
        let before = round(&mut world);
        let mut n_learned = 0;
        for _ in 0..20 {
            let now = world.now();
            world.run_until(now + MINUTE / 2);
            n_learned += known(&world).into_iter().filter(|model| is_learned(*model)).count();
        }
        let n = 20 * (N - LIARS.len());
        let after = round(&mut world);
        println!("seed {seed}, forged sketches {forges}: {n_learned} of {n}, rounds {before} to {after}");
        assert!(n_learned * 100 > n * 95, "seed {seed}: {n_learned} of {n} models are what was taught");
        assert!(after > before + 30, "seed {seed}: rounds {before} to {after}");
    }
}

/// What the others are measured by.
#[test]
fn where_nobody_reckons_with_them_they_are_believed() {
    let mut world = run(1, SETTINGS, Lie { of: a_million, forges: false }, 10);
    assert!(!is_learned(newest(&mut world)));
}

#[test]
fn without_dishonest_peers_comparing_costs_little() {
    for seed in seeds(0..2) {
        let times = [SETTINGS, ROBUST].map(|settings| {
            let population = Population::new(settings, 60);
            let mut world = world(seed, &population, 60, |_| true);
            world.run_until(10 * MINUTE);
            let model = newest(&mut world);
            assert!((model - 29.5).abs() < 15.0, "seed {seed}: {model}");
            (round_time(&world, 2..10), sent(&world).total() / round(&mut world))
        });
        let [(quick, bytes), (robust, robust_bytes)] = times;
        println!("seed {seed}: a round took {quick:?}, and {robust:?} where averages are compared");
        println!("seed {seed}: {bytes} bytes a round, and {robust_bytes}");
        assert!(robust < quick * 5 / 4, "seed {seed}: {quick:?} and {robust:?}");
        assert!(robust_bytes * 100 < bytes * 105, "seed {seed}: {bytes} and {robust_bytes}");
    }
}

/// Each costs the others its time once.
#[test]
fn one_in_five_that_sends_nothing_when_it_is_chosen_does_not_slow_the_run_down() {
    for seed in seeds(0..2) {
        let rounds = [false, true].map(|stalls| {
            let population = Population::new(ROBUST, N);
            let mut world = world(seed, &population, N, |_| true);
            LIARS.iter().for_each(|at| world.nodes[*at].stalls = stalls);
            world.run_until(10 * MINUTE);
            let before = round(&mut world);
            world.run_until(20 * MINUTE);
            round(&mut world) - before
        });
        let [quick, stalled] = rounds;
        println!("seed {seed}: {quick} rounds in ten minutes, {stalled} where one in five stalls");
        assert!(100 * stalled > 86 * quick, "seed {seed}: {quick} and {stalled}");
    }
}

#[test]
fn most_aggregators_may_crash_for_good() {
    for seed in seeds(0..2) {
        let settings = SampledSettings { sample_size: 5, n_aggregators: 3, success_fraction: 0.8, ..ROBUST };
        let population = Population::new(settings, 20);
        let mut world = world(seed, &population, 20, |at| at < 3);
        world.run_until(3 * MINUTE);
        let before = round(&mut world);
        [1, 2].iter().for_each(|at| world.leave(NodeId(*at)));
        world.run_until(13 * MINUTE);
        let after = round(&mut world);
        println!("seed {seed}: rounds {before} to {after}");
        assert!(after > before + 40, "seed {seed}: from round {before} to {after}");
    }
}
