//! What a simulated network does to messages and transfers.

use std::time::Duration;

use barnraise_simulation::{
    Dial, Latency, Moment, NatKind, Network, NodeBandwidth, NodeId, Random, Simulation, seeds,
};

const ONE: NodeId = NodeId(0);
const OTHER: NodeId = NodeId(1);
const THIRD: NodeId = NodeId(2);

fn ms(millis: u64) -> Moment {
    Duration::from_millis(millis)
}

fn simulation(n_nodes: usize) -> Simulation<&'static str> {
    Simulation::new(1, Network::new(n_nodes, Latency::Constant(ms(40))))
}

/// Events with the milliseconds at which they happen.
fn all(simulation: &mut Simulation<&'static str>) -> Vec<(&'static str, u64)> {
    let mut seen = Vec::new();
    while let Some(event) = simulation.next() {
        seen.push((event, simulation.now().as_millis() as u64));
    }
    seen
}

#[test]
fn events_of_a_moment_keep_their_order_even_after_a_pause() {
    let mut simulation = simulation(2);
    simulation.network.pause(ONE, ms(70));
    simulation.after_at(ONE, ms(10), "first");
    simulation.after_at(ONE, ms(20), "second");
    simulation.after_at_both([OTHER, ONE], ms(15), "both");
    simulation.after(ms(70), "at the same moment");
    simulation.after_at(OTHER, ms(20), "elsewhere");
    let seen = all(&mut simulation);
    let want = [("elsewhere", 20), ("first", 70), ("second", 70), ("both", 70), ("at the same moment", 70)];
    assert_eq!(seen, want);
}

#[test]
fn a_partition_loses_messages_that_arrive_in_it() {
    let mut simulation = simulation(3);
    simulation.send(ONE, OTHER, "lost");
    simulation.send(OTHER, THIRD, "on one side");
    simulation.network.partition([ONE]);
    assert_eq!(simulation.next_until(ms(50)), Some("on one side"));
    assert_eq!(simulation.next_until(ms(50)), None);
    simulation.network.heal();
    simulation.send(ONE, OTHER, "again");
    assert_eq!(all(&mut simulation), [("again", 90)]);
}

#[test]
fn a_node_that_is_down_hears_nothing() {
    let mut simulation = simulation(2);
    simulation.network.take_down(OTHER);
    simulation.send(ONE, OTHER, "lost");
    assert_eq!(simulation.next(), None);
    simulation.network.bring_up(OTHER);
    simulation.send(ONE, OTHER, "heard");
    assert_eq!(simulation.next(), Some("heard"));
}

#[test]
fn messages_in_order_wait_for_those_before() {
    for seed in seeds(0..50) {
        let network = Network::new(2, Latency::Uniform(ms(1), ms(500)));
        let mut simulation = Simulation::new(seed, network);
        (0..10).for_each(|number| simulation.send_in_order(ONE, OTHER, number));
        let order: Vec<i32> = std::iter::from_fn(|| simulation.next()).collect();
        assert!(order.into_iter().eq(0..10), "seed {seed}");
    }
}

#[test]
fn a_transfer_takes_its_bytes_and_the_latency_and_stops_in_a_pause_and_a_partition() {
    let mut simulation = simulation(3);
    simulation.network.set_bandwidth(ONE, NodeBandwidth::new(1000.0, 1000.0));
    simulation.transfer(ONE, OTHER, (100.0, 1.0), "paused");
    simulation.transfer(ONE, THIRD, (100.0, 1.0), "cut");
    // Half of both.
    assert_eq!(simulation.next_until(ms(100)), None);
    simulation.network.pause(OTHER, ms(300));
    simulation.network.cut(ONE, THIRD);
    assert_eq!(simulation.next_until(ms(400)), Some("paused"));
    assert_eq!(simulation.now(), ms(390));
    simulation.after(ms(110), "healed");
    assert_eq!(simulation.next(), Some("healed"));
    simulation.network.heal();
    assert_eq!(all(&mut simulation), [("cut", 590)]);
}

#[test]
fn a_throttled_node_computes_for_longer() {
    let mut simulation = simulation(1);
    simulation.network.throttle(ONE, 2.5);
    simulation.compute(ONE, ms(100), "done");
    assert_eq!(all(&mut simulation), [("done", 250)]);
}

#[test]
fn lost_messages_are_as_many_as_was_said() {
    for seed in seeds(0..3) {
        let network = Network::new(2, Latency::Constant(ms(1))).with_loss(0.25);
        let mut simulation = Simulation::new(seed, network);
        (0..4000).for_each(|number| simulation.send(ONE, OTHER, number));
        let n_heard = std::iter::from_fn(|| simulation.next()).count();
        assert!((2850..3150).contains(&n_heard), "seed {seed}: {n_heard} of 4000");
    }
}

/// Ford, Srisuresh and Kegel (2005), section 5: hole punching fails where one side is symmetric and the other filters by port.
#[test]
fn address_translators_decide_who_can_be_dialled() {
    use NatKind::{FullCone, Public, Restricted, Symmetric};
    let all = [Public, FullCone, Restricted, Symmetric];
    for from in all {
        for to in all {
            let want = match (from, to) {
                (_, Public | FullCone) => Dial::Direct,
                (Restricted | Symmetric, Symmetric) | (Symmetric, Restricted) => Dial::Relay,
                _ => Dial::HolePunch,
            };
            assert_eq!(from.dial(to), want, "{from:?} to {to:?}");
        }
    }
}

#[test]
fn peers_behind_address_translators_need_a_relay_and_pay_for_it() {
    let mut network = Network::new(1, Latency::Constant(ms(40)));
    let [restricted, symmetric] = [NatKind::Restricted, NatKind::Symmetric]
        .map(|nat| network.join(NodeBandwidth::new(100.0, 1e6), nat));
    assert!(network.is_connected(restricted, ONE), "it dials the public one");
    assert!(network.is_connected(ONE, restricted), "on the connection that the other opened");
    assert!(!network.is_connected(restricted, symmetric));
    network.set_relay(ONE);
    network.set_bandwidth(ONE, NodeBandwidth::new(50.0, 1e6));
    assert!(network.is_connected(restricted, symmetric));
    let mut simulation = Simulation::new(1, network);
    simulation.send(symmetric, restricted, "message");
    simulation.transfer(restricted, symmetric, (100.0, 1.0), "bytes");
    // At the relay's upload, and over two hops.
    assert_eq!(all(&mut simulation), [("message", 80), ("bytes", 2080)]);
    simulation.network.take_down(ONE);
    assert!(!simulation.network.is_connected(restricted, symmetric));
}

#[test]
fn latencies_follow_their_distribution() {
    let mut random = Random::new(3);
    let sampled = Latency::LogNormal { median: ms(80), sigma: 0.5 }.sampled(60, &mut random);
    let Latency::Matrix(rows) = sampled else { panic!("a matrix") };
    let mut pairs: Vec<Moment> = Vec::new();
    for (from, row) in rows.iter().enumerate() {
        for (to, latency) in row.iter().enumerate() {
            assert_eq!(*latency, rows[to][from]);
            let Latency::Constant(latency) = latency else { panic!("{latency:?}") };
            assert_eq!(latency.is_zero(), from == to);
            pairs.extend((from < to).then_some(*latency));
        }
    }
    pairs.sort();
    assert!((ms(74)..ms(86)).contains(&pairs[pairs.len() / 2]), "{:?}", pairs[pairs.len() / 2]);
    // One deviation is a factor of e^0.5 = 1.65.
    let upper = pairs[pairs.len() * 84 / 100];
    assert!((ms(120)..ms(145)).contains(&upper), "{upper:?}");
}
