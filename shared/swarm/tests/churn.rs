//! A run in virtual time in which 30 % of the peers are killed in every round, all clocks are off by minutes,
//! and the backbone itself is killed now and then: each round ends, nothing that was accepted is lost, and
//! nothing counts twice. The state machines are those of the tab, the native peer and the backbone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod world;

use world::{COLLECT_TIMEOUT_MS, CROWD, N_EPOCHS, Seen, Troubles, World};

/// The longest that any epoch takes. Whoever is killed while its samples are counted on costs the wait for it,
/// and the others then make up for its samples; who died in that second time, another one.
const EPOCH_MS_MAX: u64 = 4 * COLLECT_TIMEOUT_MS;

fn run(seed: u64, troubles: Troubles) -> Seen {
    println!("seed {seed}");
    let mut world = World::new(seed, CROWD, troubles);
    world.run();
    world.check_the_end();
    println!("seed {seed}: {:?}", world.seen);
    world.seen
}

fn add(all: &mut Seen, one: &Seen) {
    all.n_killed += one.n_killed;
    all.n_cut_transfers += one.n_cut_transfers;
    all.n_unheard_answers += one.n_unheard_answers;
    all.n_duplicates += one.n_duplicates;
    all.n_partitions += one.n_partitions;
    all.n_timeouts += one.n_timeouts;
    all.n_backbone_deaths += one.n_backbone_deaths;
    all.epoch_ms_max = all.epoch_ms_max.max(one.epoch_ms_max);
}

#[test]
fn three_in_ten_killed_in_every_round() {
    let mut all = Seen::default();
    for seed in 0..12 {
        let seen = run(seed, Troubles::default());
        assert!(seen.epoch_ms_max <= EPOCH_MS_MAX, "seed {seed}: {seen:?}");
        add(&mut all, &seen);
    }
    // Otherwise the runs above were too easy to show anything.
    assert!(all.n_killed > 12 * N_EPOCHS && all.n_timeouts > 20, "{all:?}");
    assert!(all.n_cut_transfers > 20 && all.n_unheard_answers > 5, "{all:?}");
}

#[test]
fn the_backbone_dies_as_well() {
    let mut all = Seen::default();
    for seed in 100..112 {
        add(&mut all, &run(seed, Troubles { backbone_dies: true, ..Troubles::default() }));
    }
    assert!(all.n_backbone_deaths > 20 && all.n_duplicates > 5, "{all:?}");
}

#[test]
fn partitions_heal() {
    let mut all = Seen::default();
    for seed in 200..212 {
        add(
            &mut all,
            &run(seed, Troubles { backbone_dies: seed % 2 == 0, partitions: true, ..Troubles::default() }),
        );
    }
    // Somebody whose answer was lost on the way offers again, and is told that it counted.
    assert!(all.n_partitions > 30 && all.n_duplicates > 5 && all.n_cut_transfers > 20, "{all:?}");
}

#[test]
fn a_run_that_trusts_nobody_goes_on_as_well() {
    let mut all = Seen::default();
    for seed in 300..312 {
        let seen = run(seed, Troubles { is_wary: true, ..Troubles::default() });
        assert!(seen.epoch_ms_max <= 2 * EPOCH_MS_MAX, "seed {seed}: {seen:?}");
        add(&mut all, &seen);
    }
    assert!(all.n_killed > 12 * N_EPOCHS && all.n_timeouts > 20, "{all:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let troubles = Troubles { backbone_dies: true, partitions: true, is_wary: true, stalls: false };
    assert_eq!(run(7, troubles), run(7, troubles));
}
