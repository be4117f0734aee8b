//! Peers of a run without a server in one network, and what tests and benches see of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_protocol::run::{ModelAverage, ModelExchange};
use barnraise_protocol::sampled::Aggregates;
use barnraise_simulation::{Network, NodeId, NodeSimulation};
use barnraise_swarm::Moment;
use barnraise_swarm::sampled::SampledSettings;

use super::node::{Population, SentBytes, SimulatedPeer};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Of the experiments in §4.6 and §4.7.
pub(crate) const SETTINGS: SampledSettings = SampledSettings {
    sample_size: 10,
    n_aggregators: 5,
    success_fraction: 0.9,
    ping_timeout: Duration::from_secs(2),
    activity_window: 20,
    round_estimate: Duration::from_secs(10),
    average: ModelAverage::Mean,
    exchange: ModelExchange::Sample,
};

pub(crate) type World = NodeSimulation<SimulatedPeer>;

/// The first peers of the population, one for each machine of the network. All join at once through the first of them.
pub(crate) fn world_in(
    network: Network,
    seed: u64,
    population: &Population,
    aggregates: impl Fn(usize) -> bool,
) -> World {
    let kind = |at| if aggregates(at) { Aggregates::Dialled } else { Aggregates::Never };
    world_of(network, seed, population, kind)
}

/// The same, of peers of any kind.
pub(crate) fn world_of(
    network: Network,
    seed: u64,
    population: &Population,
    kind: impl Fn(usize) -> Aggregates,
) -> World {
    let n = network.n_nodes();
    let nodes = (0..n).map(|at| population.of_kind(at, kind(at), 0)).collect();
    let mut world = NodeSimulation::new(seed, network, nodes);
    join(&mut world, population, NodeId(0), &[]);
    (1..n).for_each(|at| join(&mut world, population, NodeId(at), &[0]));
    world
}

pub(crate) fn join(world: &mut World, population: &Population, node: NodeId, through: &[usize]) {
    let introduced = through.iter().map(|at| population.keys[*at]).collect();
    world.with(node, |node, now| node.peer.join(now, introduced));
}

pub(crate) fn live(world: &mut World) -> Vec<usize> {
    let n = world.nodes.len();
    (0..n).filter(|at| !world.network().is_down(NodeId(*at))).collect()
}

/// The round that the live peers are in.
pub(crate) fn round(world: &mut World) -> u64 {
    live(world).into_iter().map(|at| world.nodes[at].peer.own_round()).max().unwrap_or_default()
}

/// When each round was begun by its first trainer, and who trained it.
pub(crate) fn rounds(world: &World) -> BTreeMap<u64, (Moment, BTreeSet<usize>)> {
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

/// Bytes that all have sent.
pub(crate) fn sent(world: &World) -> SentBytes {
    let mut sum = SentBytes::default();
    for SentBytes { models, views, digests, pings, offers } in world.nodes.iter().map(|node| node.sent) {
        sum.models += models;
        sum.views += views;
        sum.digests += digests;
        sum.pings += pings;
        sum.offers += offers;
    }
    sum
}
