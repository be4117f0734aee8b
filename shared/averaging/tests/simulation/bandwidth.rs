//! Measures a peer's link by the bytes of a round.

use std::time::Duration;

use barnraise_averaging::{AveragingConfig, in_flight};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::average::CHUNK_VALUES;
use barnraise_swarm::Moment;
use barnraise_swarm::bandwidth::MeasuredBandwidth;

use crate::world::{AveragingSimulation, key};
use crate::{AT_ONCE, all_agree, group, values};

/// Speed of a simulated stream.
const STREAM_BYTES_PER_S: f64 = 1024.0 * 1024.0;

/// The measurement of the first of two members. Each reduces `n_chunks` chunks, and the second begins late.
fn measured(n_chunks: usize) -> MeasuredBandwidth {
    let n_reduced = n_chunks * CHUNK_VALUES;
    let group = group(&[(1, n_reduced), (3, n_reduced)], TensorCodec::F32);
    let mut world = AveragingSimulation::new(2);
    // A transfer takes longer than the default patience.
    let [patience, reducer_timeout, deadline] = [60, 80, 100].map(Duration::from_secs);
    let config = AveragingConfig { window_chunks: 4, patience, reducer_timeout, deadline };
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

/// Values go on one stream and means on the other, in both directions.
#[test]
fn a_round_measures_the_link() {
    let MeasuredBandwidth { sent, received } = measured(64);
    for speed in [sent, received] {
        let of_link = speed.unwrap() as f64 / (2.0 * STREAM_BYTES_PER_S);
        assert!((0.85..1.05).contains(&of_link), "{sent:?} sent, {received:?} received");
    }
}

#[test]
fn a_round_that_fits_into_buffers_does_not_measure_the_upload() {
    assert_eq!(measured(4).sent, None);
}
