//! Churn in virtual time: 30 % of the peers are killed in every round, all clocks are off by minutes,
//! and the backbone itself is killed now and then. Each round ends, no accepted contribution is lost, and
//! none counts twice. The state machines are those of the tab, the native peer and the backbone.

use barnraise_simulation::seeds;

use crate::world::{COLLECT_TIMEOUT_MS, CROWD, ChurnSimulation, ChurnStatistics, InjectedFaults, N_EPOCHS};

/// The longest epoch. A peer that is killed after its report costs one collect timeout, and then the others make up for its
/// samples. A peer killed in that second collection costs another timeout.
const EPOCH_MS_MAX: u64 = 4 * COLLECT_TIMEOUT_MS;

fn run(seed: u64, faults: InjectedFaults) -> ChurnStatistics {
    let mut world = ChurnSimulation::new(seed, CROWD, faults);
    world.run();
    world.check_the_end();
    println!("seed {seed}: {:?}", world.seen);
    world.seen
}

fn add(all: &mut ChurnStatistics, one: &ChurnStatistics) {
    all.n_runs += one.n_runs;
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
    let mut all = ChurnStatistics::default();
    for seed in seeds(0..12) {
        let seen = run(seed, InjectedFaults::default());
        assert!(seen.epoch_ms_max <= EPOCH_MS_MAX, "seed {seed}: {seen:?}");
        add(&mut all, &seen);
    }
    // The runs above had faults enough, however many there were.
    assert!(all.n_killed > all.n_runs * N_EPOCHS && all.n_timeouts > 2 * all.n_runs, "{all:?}");
    assert!(all.n_cut_transfers > 2 * all.n_runs && 12 * all.n_unheard_answers > 5 * all.n_runs, "{all:?}");
}

#[test]
fn the_backbone_dies_as_well() {
    let mut all = ChurnStatistics::default();
    for seed in seeds(100..112) {
        add(&mut all, &run(seed, InjectedFaults { backbone_dies: true, ..InjectedFaults::default() }));
    }
    assert!(all.n_backbone_deaths > 2 * all.n_runs && 2 * all.n_duplicates > all.n_runs, "{all:?}");
}

#[test]
fn partitions_heal() {
    let mut all = ChurnStatistics::default();
    for seed in seeds(200..212) {
        add(
            &mut all,
            &run(
                seed,
                InjectedFaults {
                    backbone_dies: seed % 2 == 0,
                    partitions: true,
                    ..InjectedFaults::default()
                },
            ),
        );
    }
    // A peer whose answer was lost offers again, and is told that its contribution counted.
    assert!(2 * all.n_partitions > 5 * all.n_runs && all.n_cut_transfers > 2 * all.n_runs, "{all:?}");
    assert!(2 * all.n_duplicates > all.n_runs, "{all:?}");
}

#[test]
fn a_run_with_clipped_gradients_goes_on_as_well() {
    let mut all = ChurnStatistics::default();
    for seed in seeds(300..312) {
        let seen = run(seed, InjectedFaults { clips_gradients: true, ..InjectedFaults::default() });
        assert!(seen.epoch_ms_max <= 2 * EPOCH_MS_MAX, "seed {seed}: {seen:?}");
        add(&mut all, &seen);
    }
    assert!(all.n_killed > all.n_runs * N_EPOCHS && all.n_timeouts > 2 * all.n_runs, "{all:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let faults =
        InjectedFaults { backbone_dies: true, partitions: true, clips_gradients: true, stalls: false };
    assert_eq!(run(7, faults), run(7, faults));
}
