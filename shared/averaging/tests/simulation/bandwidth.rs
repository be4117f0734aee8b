//! What a round moves says how fast a peer's link is.

use std::time::Duration;

use barnraise_averaging::{Config, in_flight};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::average::CHUNK_VALUES;
use barnraise_swarm::Moment;
use barnraise_swarm::bandwidth::Measured;

use crate::world::{World, key};
use crate::{AT_ONCE, all_agree, group, values};

/// Of a stream in this world.
const STREAM_BYTES_PER_S: f64 = 1024.0 * 1024.0;

/// Two members average `n_chunks` chunks each, the other begins late; what the first one measures.
fn measured(n_chunks: usize) -> Measured {
    let n_reduced = n_chunks * CHUNK_VALUES;
    let group = group(&[(1, n_reduced), (3, n_reduced)], TensorCodec::F32);
    let mut world = World::new(2);
    // A transfer takes longer than members are waited for elsewhere.
    let [patience, reducer_timeout, deadline] = [60, 80, 100].map(Duration::from_secs);
    let config = Config { window_chunks: 4, patience, reducer_timeout, deadline };
    let in_flight = in_flight(&config, &group, &key(0));
    world.peers[0].bandwidth.lock().unwrap().on_begin(Moment::ZERO, in_flight);
    for (peer, delay) in [(0, AT_ONCE), (1, Duration::from_secs(4))] {
        world.average(peer, delay, &group, &config, values(peer, group.n_values()));
    }
    world.run();
    let averaged = all_agree(&world, &[0, 1]);
    assert_eq!(averaged.members(), [0, 1].into_iter().collect());
    let (at, _) = world.outcome(0);
    let mut bandwidth = world.peers[0].bandwidth.lock().unwrap();
    bandwidth.on_end(at, in_flight, true);
    bandwidth.measured(at)
}

/// Values go on one stream, means on the other, and as much comes back.
#[test]
fn a_round_says_how_fast_the_link_is() {
    let Measured { sent, received } = measured(64);
    for speed in [sent, received] {
        let of_link = speed.unwrap() as f64 / (2.0 * STREAM_BYTES_PER_S);
        assert!((0.85..1.05).contains(&of_link), "{sent:?} sent, {received:?} received");
    }
}

#[test]
fn a_round_that_fits_into_buffers_says_nothing_of_what_was_sent() {
    assert_eq!(measured(4).sent, None);
}
