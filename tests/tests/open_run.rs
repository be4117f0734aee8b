//! A run as it is shipped, open to everybody, and one machine with many keys that does all that it can against it: three tabs
//! and two native peers train on and learn as well as without it, what it did not compute is not credited, and what the
//! backbone holds and keeps is bounded.
//!
//! How much of its speed each attack leaves a run is not measured here: a window is short, and begins with an address that
//! nobody knows, for which the others wait a little longer at first. The benchmark `strangers` measures it over longer ones,
//! and in virtual time `shared/swarm/tests/open_run.rs` holds it to 80 %.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use barnraise_tests::attack::Attack;
use barnraise_tests::open_run::{MeasurementWindow, OpenRun, RUN, baseline_accuracy};

const KEYS: usize = 64;
/// Of its time, what each contributor computes.
const PERCENT: u8 = 5;
const BASELINE: Duration = Duration::from_secs(4);
const UNDER_ATTACK: Duration = Duration::from_secs(5);
const ACCURACY_LESS_MAX: f32 = 0.01;
/// docs/open-runs.md: what one machine may have the backbone hold, and keep on its disk for each step.
const HELD_KIB_MAX: u64 = 256 * 1024;
const KEPT_BYTES_PER_STEP_MAX: i64 = 64 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_run_as_shipped_bears_one_machine_with_many_keys() {
    let mut open_run = OpenRun::start(RUN, PERCENT).await.unwrap();
    let rss_baseline = open_run.measure_baseline(BASELINE).await.unwrap().rss_max_kib;
    for attack in Attack::ALL {
        let (window, machine) = open_run.measure_attack(attack, KEYS, UNDER_ATTACK).await.unwrap();
        let counts = open_run.recover(machine).await;
        println!("{attack}: {window:.1?}, {counts:?}");
        assert!(window.n_steps > 0, "{attack} stops the run: {window:?}");
        is_bounded(&window, rss_baseline);
        assert!(counts.n_credited <= counts.n_worked, "{attack}: {counts:?}");
    }
    let (accuracy, n_steps) = open_run.leave().await.unwrap();
    let baseline = baseline_accuracy(RUN, n_steps).await.unwrap();
    println!("accuracy {accuracy} after {n_steps} steps, {baseline} without the attack");
    assert!(
        accuracy >= baseline - ACCURACY_LESS_MAX,
        "{accuracy} under attack, {baseline} without the attack"
    );
}

fn is_bounded(window: &MeasurementWindow, rss_baseline: u64) {
    let more_kib = window.rss_max_kib.saturating_sub(rss_baseline);
    assert!(more_kib <= HELD_KIB_MAX, "{more_kib} KiB more than in the baseline: {window:?}");
    let most = KEPT_BYTES_PER_STEP_MAX * (1 + window.n_steps as i64);
    assert!(window.grown_bytes <= most, "{window:?}");
}
