//! Runs in which all train and average with their neighbours, in virtual time: what MoDEST is compared with.

use std::sync::Arc;

use barnraise_protocol::run::{ModelAverage, ModelExchange};
use barnraise_swarm::sampled::SampledModel;

use super::node::Lie;
use super::*;

/// Of all kinds.
const EXCHANGES: [ModelExchange; 4] = [
    ModelExchange::Exponential,
    ModelExchange::Regular(4),
    ModelExchange::Epidemic(3),
    ModelExchange::Gossip,
];

fn settings(exchange: ModelExchange) -> SampledSettings {
    SampledSettings { exchange, ..SETTINGS }
}

/// The own models of those that are live.
fn models(world: &mut World) -> Vec<f32> {
    let live = live(world);
    let newest = |at: usize| world.nodes[at].peer.newest().map(|(_, model)| model[0]);
    live.into_iter().filter_map(newest).collect()
}

fn spread(values: &[f32]) -> f32 {
    let (least, most) =
        (values.iter().copied().fold(f32::MAX, f32::min), values.iter().copied().fold(f32::MIN, f32::max));
    most - least
}

/// Each half of the way to its own number, the mean of all numbers is what their models have in common.
#[test]
fn all_train_and_their_models_come_to_what_they_have_in_common() {
    for (exchange, seed) in EXCHANGES.into_iter().zip(seeds(0..4)) {
        let population = Population::new(settings(exchange), 24);
        let mut world = world(seed, &population, 24, |_| true);
        world.run_until(15 * MINUTE);
        let n_trained: Vec<usize> = world.nodes.iter().map(|node| node.trained.len()).collect();
        let (least, most) = (n_trained.iter().min().unwrap(), n_trained.iter().max().unwrap());
        let models = models(&mut world);
        let mean = models.iter().sum::<f32>() / models.len() as f32;
        println!("{exchange:?}: {least} to {most} rounds, models around {mean}, {} apart", spread(&models));
        assert!(*least > 60 && most - least < 40, "{exchange:?}: {n_trained:?}");
        assert_eq!(models.len(), 24, "{exchange:?}: each has a model");
        assert!((mean - 11.5).abs() < 3.0, "{exchange:?}: {mean}");
        // Alone, each would have its own number: 23 apart.
        assert!(spread(&models) < 21.0, "{exchange:?}: {models:?}");
    }
}

/// Rounds that those which are live began within a time, at least and at most.
fn n_begun(world: &mut World, within: std::ops::Range<Moment>) -> (usize, usize) {
    let live = live(world);
    let n_begun = live.iter().map(|at| {
        let trained = &world.nodes[*at].trained;
        trained.iter().filter(|(_, at)| within.contains(at)).count()
    });
    let n_begun: Vec<usize> = n_begun.collect();
    (*n_begun.iter().min().unwrap(), *n_begun.iter().max().unwrap())
}

#[test]
fn who_joins_late_gets_a_model_and_who_is_gone_is_waited_for_no_more() {
    for (exchange, seed) in EXCHANGES.into_iter().zip(seeds(0..4)) {
        let population = Population::new(settings(exchange), 24);
        let mut world = world(seed, &population, 24, |_| true);
        (16..24).for_each(|at| world.leave(NodeId(at)));
        world.run_until(5 * MINUTE);
        for at in 16..24 {
            world.restart(NodeId(at), population.restarted(at, true, 10));
            join(&mut world, &population, NodeId(at), &[1]);
        }
        world.run_until(10 * MINUTE);
        let (least, most) = n_begun(&mut world, 6 * MINUTE..10 * MINUTE);
        println!("{exchange:?}: {least} to {most} rounds with those that joined");
        assert!(least > 15, "{exchange:?}: {least} to {most} rounds with those that joined");
        // The first of them as well, with whom the run began.
        (0..8).for_each(|at| world.leave(NodeId(at)));
        world.run_until(15 * MINUTE);
        let (least, most) = n_begun(&mut world, 11 * MINUTE..15 * MINUTE);
        println!("{exchange:?}: {least} to {most} rounds without those that are gone");
        assert!(least > 15, "{exchange:?}: {least} to {most} rounds without those that are gone");
    }
}

/// What it trains counts where they are by then.
#[test]
fn one_slow_peer_does_not_stop_the_others_and_goes_on_where_they_are() {
    for (exchange, seed) in EXCHANGES.into_iter().zip(seeds(0..4)) {
        let population = Population::new(settings(exchange), 16);
        let mut slow = population.clone();
        slow.training_time = MINUTE;
        let mut world = world(seed, &population, 16, |_| true);
        world.leave(NodeId(5));
        world.restart(NodeId(5), slow.restarted(5, true, 1));
        join(&mut world, &population, NodeId(5), &[0]);
        world.run_until(15 * MINUTE);
        let own = |at: usize| world.nodes[at].peer.own_round();
        let fast = (0..16).filter(|at| *at != 5).map(own).min().unwrap();
        println!("{exchange:?}: round {} beside {fast}, {:?}", own(5), world.nodes[5].trained.len());
        assert!(fast > 60, "{exchange:?}: round {fast}");
        assert!(own(5) + 30 > fast, "{exchange:?}: round {} beside {fast}", own(5));
    }
}

/// Most of those that a peer averages with are honest.
#[test]
fn liars_move_what_their_neighbors_have_by_little_where_most_are_honest() {
    for (exchange, seed) in
        [ModelExchange::Regular(6), ModelExchange::Epidemic(6)].into_iter().zip(seeds(0..2))
    {
        let models = [ModelAverage::CenteredClip, ModelAverage::Mean].map(|average| {
            let population = Population::new(SampledSettings { average, ..settings(exchange) }, 24);
            let mut world = world(seed, &population, 24, |_| true);
            for liar in [3, 9, 15] {
                let of = |_: &SampledModel| -> SampledModel { Arc::new([-1e6]) };
                world.nodes[liar].lie = Some(Lie { of, forges: false });
            }
            world.run_until(10 * MINUTE);
            let honest = (0..24).filter(|at| ![3, 9, 15].contains(at));
            honest.map(|at| world.nodes[at].peer.newest().unwrap().1[0]).fold(f32::MAX, f32::min)
        });
        println!("{exchange:?}: least model {models:?}");
        assert!(models[0] > -25.0 && models[1] < -1e4, "{exchange:?}: {models:?}");
    }
}
