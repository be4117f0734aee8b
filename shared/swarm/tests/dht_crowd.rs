//! Ten thousand peers of one DHT, all at once in virtual time: within minutes each of them stores a record and looks up that
//! of another one, while two in ten leave and one message in a hundred is lost. Lookup, placement and storage are the production
//! code.

use std::time::{Duration, Instant};

use barnraise_protocol::dht::{Record, RecordName};
use barnraise_simulation::{Latency, Moment, Network, NodeId, seeds};
use barnraise_swarm::dht::Goal;

use crate::dht_network::{DhtNetwork, DhtResult, SimulatedDhtPeer};

const N_PEERS: usize = 10_000;
const N_GONE: usize = N_PEERS / 5;
/// All store at random moments of the first minute, and look up at random moments of the third.
const MINUTE: Duration = Duration::from_secs(60);
/// Hosts all over the world.
const LATENCY: Latency = Latency::LogNormal { median: Duration::from_millis(60), sigma: 0.5 };
const LOSS: f64 = 0.01;
const VALUE: &[u8] = b"who trains what";

fn label(at: usize) -> String {
    format!("record of peer {at}")
}

/// Lets each of these peers begin something at a random moment of a minute, and lets two minutes pass.
fn all_begin(
    network: &mut DhtNetwork,
    peers: &[usize],
    begin: impl Fn(&mut SimulatedDhtPeer, Moment, usize),
) {
    let start = network.simulation.now();
    let random = network.simulation.random();
    let mut moments: Vec<(Moment, usize)> =
        peers.iter().map(|&peer| (random.duration(start..start + MINUTE), peer)).collect();
    moments.sort_unstable();
    for (at, peer) in moments {
        network.simulation.run_until(at);
        network.simulation.with(NodeId(peer), |node, now| begin(node, now, peer));
    }
    network.simulation.run_until(start + 2 * MINUTE);
}

fn live(seed: u64) {
    let began = Instant::now();
    let mut network = DhtNetwork::within(seed, Network::new(N_PEERS, LATENCY).with_loss(LOSS), 0);
    let expires_at = network.wall().after(60 * MINUTE);
    let mut order: Vec<usize> = (0..N_PEERS).collect();
    all_begin(&mut network, &order, |peer, now, at| {
        peer.put(
            now,
            vec![Record::new(RecordName::value(label(at).as_bytes()), None, VALUE.to_vec(), expires_at)],
        );
    });
    let (mut n_stored, mut n_replicas) = (0, 0);
    for peer in &mut network.simulation.nodes {
        let Some((_, DhtResult::Placed(placed))) = peer.result.take() else { panic!("it is not done") };
        n_stored += usize::from(placed.verdicts[0].is_ok());
        n_replicas += placed.verdicts[0].as_ref().map_or(0, |n_replicas| *n_replicas);
    }
    network.simulation.random().shuffle(&mut order);
    let (gone, present) = order.split_at(N_GONE);
    gone.iter().for_each(|&peer| network.simulation.network().take_down(NodeId(peer)));
    all_begin(&mut network, present, |peer, now, at| {
        // Of a peer that may be gone.
        let wanted = RecordName::value(label((at + N_PEERS / 2) % N_PEERS).as_bytes());
        peer.look_up(now, &[wanted.key()], Goal::First);
    });
    let (mut n_found, mut n_requests) = (0, 0);
    for &peer in present {
        let Some((_, DhtResult::Found(found))) = network.simulation.nodes[peer].result.take() else {
            panic!("it is not done")
        };
        n_requests += found[0].n_requests;
        n_found += usize::from(found[0].records.iter().any(|record| record.value == VALUE));
    }
    println!(
        "seed {seed}: {n_stored} stored, at {:.2} peers each; {n_found} of {} found, by {:.1} requests each; {} events in \
         {:.1} s",
        n_replicas as f64 / n_stored as f64,
        present.len(),
        n_requests as f64 / present.len() as f64,
        network.simulation.n_events(),
        began.elapsed().as_secs_f64(),
    );
    assert_eq!(n_stored, N_PEERS);
    assert!(n_replicas as f64 > 4.5 * n_stored as f64, "{n_replicas}");
    // All five replicas are gone with a probability of 0.2^5 = 0.03 %; a lookup may miss some for lost messages.
    assert!(n_found > present.len() * 99 / 100, "{n_found} of {}", present.len());
    assert!(n_requests < 40 * present.len(), "{n_requests}");
}

#[test]
fn ten_thousand_peers_store_and_find_records_at_once() {
    seeds(1..2).for_each(live);
}
