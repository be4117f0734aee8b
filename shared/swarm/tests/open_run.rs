//! Sybil attacks on an open run in virtual time: three tabs and two native peers train, and one machine with 1, 64 and
//! 1,000 keys attacks them. The state machines are those of the peers and of the backbone: round, selection, ledger
//! and queue. The speed is the number of samples accepted in a fixed time, so it is exact.

use barnraise_simulation::seeds;

use crate::open_run_simulation::{AttackKind, AttackStatistics, IN_FLIGHT_MAX, OpenRunSimulation};

const KEYS: [u32; 3] = [1, 64, 1000];
/// Fraction of the samples that are accepted without the attacker.
const SPEED_MIN: f64 = 0.8;
/// Percent.
const ACCURACY_LESS_MAX: f64 = 1.0;
/// Most contributions that are journaled per step under any attack: they take disk, rows, and memory after a restart.
const ENTRIES_PER_STEP_MAX: f64 = 48.0;

/// Each seed for itself, but for the accuracy: between seeds it varies by a point without any attacker.
fn endures(attack: AttackKind) {
    let seeds: Vec<u64> = seeds(1..4).collect();
    let baselines: Vec<_> = seeds.iter().map(|&seed| OpenRunSimulation::new(seed, None).run()).collect();
    for n_keys in KEYS {
        let mut accuracy_less = 0.0;
        for (&seed, baseline) in seeds.iter().zip(&baselines) {
            let seen = OpenRunSimulation::new(seed, Some((attack, n_keys))).run();
            let speed = seen.n_honest as f64 / baseline.n_honest as f64;
            let what = format!(
                "{attack:?} with {n_keys} keys, seed {seed}: speed {speed:.2}, {seen:?}; baseline {baseline:?}"
            );
            println!("{what}");
            assert!(speed >= SPEED_MIN, "{what}");
            is_bounded(&seen);
            accuracy_less += (baseline.accuracy - seen.accuracy) / seeds.len() as f64;
        }
        assert!(accuracy_less <= ACCURACY_LESS_MAX, "{attack:?} with {n_keys} keys: {accuracy_less}");
    }
}

fn is_bounded(seen: &AttackStatistics) {
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
fn a_peer_alone_is_not_slowed_down() {
    for seed in seeds(1..2) {
        let seen = OpenRunSimulation::alone(seed).run();
        // Its own speed, but for the transfer of its gradients.
        assert!(seen.n_honest as f64 > 0.75 * seen.n_computed as f64, "{seen:?}");
    }
}

/// A peer whose contribution is recomputed, or that missed a step, misses no more of them than others do.
#[test]
fn honest_peers_do_not_hamper_each_other() {
    for seed in seeds(1..21) {
        let seen = OpenRunSimulation::new(seed, None).run();
        assert!(seen.n_honest as f64 >= 0.92 * seen.n_computed as f64, "seed {seed}: {seen:?}");
    }
}

#[test]
fn claims_without_a_gradient() {
    endures(AttackKind::Claim);
}

#[test]
fn honest_claims_that_come_too_late() {
    endures(AttackKind::Late);
}

#[test]
fn random_gradients_of_as_many_samples_as_there_are() {
    endures(AttackKind::Random);
}

#[test]
fn sign_flipped_gradients_after_some_honest_ones() {
    endures(AttackKind::Turned);
}

#[test]
fn scaled_gradients_after_some_honest_ones() {
    endures(AttackKind::Scaled);
}

#[test]
fn gradients_of_stale_parameters() {
    endures(AttackKind::Stale);
}

#[test]
fn transfers_that_trickle() {
    endures(AttackKind::Trickle);
}

#[test]
fn seats_that_are_only_taken() {
    endures(AttackKind::Seats);
}

#[test]
fn an_honest_gradient_again_and_again() {
    endures(AttackKind::Repeat);
}

#[test]
fn a_sample_at_a_time() {
    endures(AttackKind::Single);
}
