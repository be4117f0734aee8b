//! An open run in virtual time: three tabs and two native peers train, and one machine with 1, 64 and 1,000 keys does all
//! that it can against them. The state machines are those of the peers and of the backbone: round, selection, ledger
//! and queue. Speed is what is accepted over the same time, so it is exact.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod village;

use village::{Attack, IN_FLIGHT_MAX, Seen, Village};

const KEYS: [u32; 3] = [1, 64, 1000];
/// Of the samples that are accepted without the attacker.
const SPEED_MIN: f64 = 0.8;
/// Percent.
const ACCURACY_LESS_MAX: f64 = 1.0;
/// Contributions that are written for a step, whatever is done: disk, rows, and memory after a restart.
const ENTRIES_PER_STEP_MAX: f64 = 48.0;

fn endures(attack: Attack) {
    let peace = Village::new(1, None).run();
    for n_keys in KEYS {
        let seen = Village::new(1, Some((attack, n_keys))).run();
        let speed = seen.n_honest as f64 / peace.n_honest as f64;
        println!("{attack:?} with {n_keys} keys: speed {speed:.2}, {seen:?}; in peace {peace:?}");
        assert!(
            speed >= SPEED_MIN,
            "{attack:?} with {n_keys} keys: {speed:.2}, {seen:?}, in peace {peace:?}"
        );
        assert!(
            seen.accuracy >= peace.accuracy - ACCURACY_LESS_MAX,
            "{attack:?}, {n_keys}: {seen:?}, {peace:?}"
        );
        is_bounded(&seen);
    }
}

fn is_bounded(seen: &Seen) {
    assert!(
        seen.n_credited <= seen.n_worked,
        "credit for {}, of work for {}",
        seen.n_credited,
        seen.n_worked
    );
    assert!(seen.in_flight_max <= IN_FLIGHT_MAX, "{seen:?}");
    let entries = seen.n_entries as f64 / seen.n_steps.max(1) as f64;
    assert!(entries <= ENTRIES_PER_STEP_MAX, "{entries} entries a step: {seen:?}");
    assert_eq!(seen.n_honest_evicted, 0, "{seen:?}");
}

#[test]
fn one_that_is_alone_is_slowed_by_nobody() {
    let seen = Village::alone(1).run();
    // Its speed, but for the way of its gradients.
    assert!(seen.n_honest as f64 > 0.75 * seen.n_computed as f64, "{seen:?}");
}

#[test]
fn claims_that_come_to_nothing() {
    endures(Attack::Claim);
}

#[test]
fn honest_claims_that_come_too_late() {
    endures(Attack::Late);
}

#[test]
fn random_gradients_of_as_many_samples_as_there_are() {
    endures(Attack::Random);
}

#[test]
fn gradients_that_are_turned_after_some_that_were_honest() {
    endures(Attack::Turned);
}

#[test]
fn scaled_gradients_after_some_that_were_honest() {
    endures(Attack::Scaled);
}

#[test]
fn gradients_of_parameters_of_long_ago() {
    endures(Attack::Stale);
}

#[test]
fn transfers_that_trickle() {
    endures(Attack::Trickle);
}

#[test]
fn seats_that_are_only_taken() {
    endures(Attack::Seats);
}

#[test]
fn an_honest_gradient_again_and_again() {
    endures(Attack::Repeat);
}

#[test]
fn a_sample_at_a_time() {
    endures(Attack::Single);
}
