//! Experts on other people's machines in virtual time: hosts and trainers, state machines of both sides, against each other.
//!
//! As in Learning@home §4.1 (Figure 4, top): each answer is delayed by an exponential time after it was computed, 64 trainers
//! ask, and the throughput of training batches is compared with that without a delay.

mod world;

use std::time::Duration;

use barnraise_simulation::seeds;
use world::{AnswerDelay, ExpertWorld, WorldOptions, WorldReport};

const DELAYS_MS: [u64; 3] = [50, 100, 200];

fn run(seed: u64, options: WorldOptions) -> WorldReport {
    let mut world = ExpertWorld::new(seed, options);
    world.run_until(Duration::from_secs(15));
    let before = world.report();
    world.run_until(Duration::from_secs(105));
    let report = world.report().since(&before);
    println!("{options:?}: {report:?}");
    report
}

fn delayed(options: WorldOptions, delay_ms: u64) -> WorldOptions {
    WorldOptions { delay: AnswerDelay::Exponential(Duration::from_millis(delay_ms)), ..options }
}

#[test]
fn throughput_does_not_fall_with_the_delay() {
    for seed in seeds(0..2) {
        let at_once = run(seed, WorldOptions::default());
        assert!(at_once.device_use > 0.95, "the devices are the bound: {at_once:?}");
        for delay_ms in DELAYS_MS {
            let report = run(seed, delayed(WorldOptions::default(), delay_ms));
            assert!(report.n_batches as f64 >= 0.95 * at_once.n_batches as f64, "{delay_ms} ms: {report:?}");
            assert!(report.answered > 0.999, "{report:?}");
        }
    }
}

/// The round trips of the paper's three regions.
#[test]
fn throughput_does_not_fall_between_regions() {
    let delay = AnswerDelay::Normal(Duration::from_millis(92), Duration::from_millis(32));
    let (at_once, report) =
        (run(5, WorldOptions::default()), run(5, WorldOptions { delay, ..WorldOptions::default() }));
    assert!(report.n_batches as f64 >= 0.95 * at_once.n_batches as f64, "{report:?}");
}

#[test]
fn throughput_does_not_fall_with_the_delay_where_requests_are_lost() {
    let options = WorldOptions { loss: 0.1, ..WorldOptions::default() };
    for seed in seeds(10..12) {
        let at_once = run(seed, options);
        let report = run(seed, delayed(options, 200));
        assert!(report.n_batches as f64 >= 0.95 * at_once.n_batches as f64, "{report:?}");
        assert!(report.answered > 0.97, "a replica answers instead: {report:?}");
    }
}

#[test]
fn one_batch_of_each_trainer_does_not_hide_the_delay() {
    // Without others in flight there is nothing to compute meanwhile: what the test above sees is not given by its numbers.
    let alone = WorldOptions { n_trainers: 8, n_in_flight: 1, ..WorldOptions::default() };
    let (at_once, report) = (run(20, alone), run(20, delayed(alone, 200)));
    assert!((report.n_batches as f64) < 0.7 * at_once.n_batches as f64, "{report:?}");
}

#[test]
fn a_host_that_is_lost_costs_its_own_part() {
    for seed in seeds(30..32) {
        let options = delayed(WorldOptions::default(), 100);
        let all = run(seed, options);
        let mut world = ExpertWorld::new(seed, options);
        world.run_until(Duration::from_secs(5));
        world.kill(0);
        world.run_until(Duration::from_secs(15));
        let before = world.report();
        world.run_until(Duration::from_secs(105));
        let report = world.report().since(&before);
        println!("one of four is lost: {report:?}");
        // Three of four devices are left, and the other half of the lost one's experts is at one of them.
        assert!(report.n_batches as f64 >= 0.6 * all.n_batches as f64, "{report:?}");
        assert!(report.answered > 0.97, "{report:?}");
        assert!(world.sent_to(0) < 3000, "it is left alone: {}", world.sent_to(0));
    }
}

#[test]
fn hosts_with_little_memory_are_busy_and_lose_no_throughput() {
    for seed in seeds(40..42) {
        let full = run(seed, delayed(WorldOptions::default(), 100));
        let options = WorldOptions { bytes_max: 3 << 20, ..WorldOptions::default() };
        let report = run(seed, delayed(options, 100));
        assert!(report.n_busy > 1000, "{report:?}");
        assert!(report.n_batches as f64 >= 0.9 * full.n_batches as f64, "{report:?}");
        assert!(report.answered > 0.95, "{report:?}");
    }
}
