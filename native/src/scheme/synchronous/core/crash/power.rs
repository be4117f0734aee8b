//! Power losses at any write.

use barnraise_swarm::random::SplitMix64;

use super::*;
use crate::storage::simulated::SimulatedDisk;

/// Losses of power of each run.
const LOSSES: u64 = 20;
/// Operations of the disk between two of them, at most.
const OPERATIONS_MAX: usize = 150;

/// One run through many power losses: each acknowledged contribution is in the model once, and in the database once.
async fn live(seed: u64, store: &Store, folder: &Path) -> u64 {
    let of = format!("POWER_SEED={seed}");
    let world = CrashHarness::new(&format!("run-{seed}"));
    let store = store.of_run(&world.config.run.id);
    let mut random = SplitMix64::new(seed);
    let (mut disk, mut id, mut n_losses) = (SimulatedDisk::new(seed), 0, 0);
    loop {
        let is_last = n_losses == LOSSES;
        if !is_last {
            disk.dies_after(1 + random.below(OPERATIONS_MAX) as u64);
        }
        match world.start(Storage::on(Arc::new(disk.clone())), &store).await {
            Ok(mut alive) => {
                id = contribute_until(&world, &mut alive, &disk, &mut random, id, is_last).await;
                if is_last {
                    world.all_counted(&mut alive, folder, id, &of).await;
                    bounded(&disk, &of);
                    alive.stop().await;
                    return n_losses;
                }
                alive.crash().await;
            }
            Err(error) => assert!(disk.is_dead(), "{of}: it does not start: {error}"),
        }
        assert!(disk.is_dead(), "{of}");
        n_losses += 1;
        disk = disk.after_power_loss();
    }
}

/// Contributes one after the other; returns the first that is not acknowledged.
async fn contribute_until(
    world: &CrashHarness,
    alive: &mut Alive,
    disk: &SimulatedDisk,
    random: &mut SplitMix64,
    mut id: u64,
    is_last: bool,
) -> u64 {
    let until = is_last.then(|| (id + 3 * EVERY * PER_STEP).next_multiple_of(PER_STEP));
    while until != Some(id) && !disk.is_dead() {
        match alive.contribute(world, id).await {
            Some(Ok(_)) => id += 1,
            Some(Err(refusal)) => assert!(disk.is_dead(), "POWER_SEED: {refusal}"),
            None => assert!(disk.is_dead(), "the core has ended"),
        }
        if random.below(8) == 0 {
            // The journal is cut here.
            let _ = alive.recording.catch_up().await;
        }
    }
    if is_last {
        let epoch = id / PER_STEP;
        alive.reaches(epoch).await;
        // Epochs with open entries are earlier than the newest checkpoint.
        alive.contribute(world, id).await.unwrap().unwrap();
        for id in id + 1..id + PER_STEP {
            alive.contribute(world, id).await.unwrap().unwrap();
        }
        alive.reaches(epoch + 1).await;
        return id + PER_STEP;
    }
    id
}

/// Nothing grows with the number of steps.
fn bounded(disk: &SimulatedDisk, of: &str) {
    let folders = disk.folder_names();
    let n_steps = folders.iter().filter(|folder| folder.starts_with("journal")).count() as u64;
    assert!(n_steps <= (KEPT as u64 + 2) * EVERY + 2, "{of}: {folders:?}");
}

#[tokio::test]
async fn no_loss_of_power_costs_or_doubles_what_was_acknowledged_and_all_of_them_train_on() {
    let folder = folder();
    let store = CrashHarness::new("all").store(folder.path()).await;
    let (first, n) = (number("POWER_SEED", 20_261_122), number("POWER_RUNS", 60));
    println!("{n} runs of {LOSSES} losses of power from POWER_SEED={first} on");
    let mut n_losses = 0;
    for seed in first..first + n {
        n_losses += live(seed, &store, folder.path()).await;
    }
    println!("{n_losses} losses of power");
    assert_eq!(n_losses, n * LOSSES);
    store.close().await;
}
