//! A run as it is shipped, open to everybody, and one machine with many keys that does all that it can against it: three tabs
//! and two native peers train on and learn as well as without it, what it did not compute is not credited, and what the
//! backbone holds and keeps is bounded.
//!
//! How much of its speed each attack leaves a run is printed, and no more: a window is short, and begins with an address that
//! nobody knows, for which the others wait a little longer at first. The benchmark `strangers` measures it over longer ones,
//! and in virtual time `shared/swarm/tests/open_run.rs` holds it to 80 %.

use std::time::Duration;

use barnraise_tests::attack::Attack;
use barnraise_tests::village::{RUN, Village, Window, accuracy_in_peace};

use super::siege::alone;

const KEYS: usize = 64;
/// Of its time, what each contributor computes.
const PERCENT: u8 = 5;
const IN_PEACE: Duration = Duration::from_secs(4);
const UNDER_ATTACK: Duration = Duration::from_secs(8);
const ACCURACY_LESS_MAX: f32 = 0.01;
/// docs/open-runs.md: what one machine may have the backbone hold, and keep on its disk for each step.
const HELD_KIB_MAX: u64 = 256 * 1024;
const KEPT_BYTES_PER_STEP_MAX: i64 = 64 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_run_as_shipped_bears_one_machine_with_many_keys() {
    let _alone = alone().await;
    let mut village = Village::gather(RUN, PERCENT).await.unwrap();
    let rss_in_peace = village.in_peace(IN_PEACE).await.unwrap().rss_max_kib;
    for attack in Attack::ALL {
        let (window, machine) = village.under_attack(attack, KEYS, UNDER_ATTACK).await.unwrap();
        let deeds = village.recover(machine).await;
        village.in_peace(IN_PEACE).await.unwrap();
        let ratio = village.turns().ratio(attack as usize);
        println!("{attack}: {ratio:.2} of the speed, {window:.1?}, {deeds:?}");
        assert!(window.n_steps > 0, "{attack} stops the run: {window:?}");
        is_bounded(&window, rss_in_peace);
        assert!(deeds.n_credited <= deeds.n_worked, "{attack}: {deeds:?}");
    }
    let (accuracy, n_steps) = village.leave().await.unwrap();
    let in_peace = accuracy_in_peace(RUN, n_steps).await.unwrap();
    println!("accuracy {accuracy} after {n_steps} steps, {in_peace} in peace");
    assert!(accuracy >= in_peace - ACCURACY_LESS_MAX, "{accuracy} under attack, {in_peace} in peace");
}

fn is_bounded(window: &Window, rss_in_peace: u64) {
    let held = window.rss_max_kib.saturating_sub(rss_in_peace);
    assert!(held <= HELD_KIB_MAX, "{held} KiB more than in peace: {window:?}");
    let most = KEPT_BYTES_PER_STEP_MAX * (1 + window.n_steps as i64);
    assert!(window.grown_bytes <= most, "{window:?}");
}
