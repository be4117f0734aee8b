//! A disk that is full, fails or hangs.

use barnraise_protocol::Refusal;

use super::*;
use crate::scheme::synchronous::aggregators::AggregatorEvent;
use crate::storage::disk_space::DiskProblem;
use crate::storage::simulated::SimulatedDisk;

/// A backbone on a disk.
async fn world(disk: &SimulatedDisk, run_id: &str) -> (CrashHarness, Store, tempfile::TempDir, Alive) {
    let (world, folder) = (CrashHarness::new(run_id), folder());
    let store = world.store(folder.path()).await;
    let alive = world.start(Storage::on(Arc::new(disk.clone())), &store).await.unwrap();
    (world, store, folder, alive)
}

async fn paused(alive: &mut Alive) -> String {
    let status = alive.status.wait_for(|status| status.paused.is_some()).await.unwrap();
    status.paused.clone().unwrap()
}

async fn goes_on(alive: &mut Alive) {
    let room = alive.room.clone();
    alive.status.wait_for(|status| status.paused.is_none() && room.trouble().is_none()).await.unwrap();
}

async fn contribute(world: &CrashHarness, alive: &mut Alive, ids: std::ops::Range<u64>) {
    for id in ids {
        alive.contribute(world, id).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_full_disk_pauses_says_so_makes_room_and_heals() {
    let disk = SimulatedDisk::new(1);
    let (world, store, folder, mut alive) = world(&disk, "full").await;
    // Three checkpoints, of which two are kept, and something that was set aside.
    contribute(&world, &mut alive, 0..9 * PER_STEP).await;
    alive.reaches(9).await;
    // Answered once the step's checkpoint is stored.
    let (answer, model) = oneshot::channel();
    let event = AggregatorEvent::WantModel(answer);
    alive.events.send(CoreEvent::Aggregator { peer: PeerKey(vec![7]), event }).await.unwrap();
    assert_eq!(model.await.unwrap().epoch, 9);
    alive.recording.catch_up().await.unwrap();
    let set_aside = object_store::path::Path::from("checkpoints/corrupt/000000000001.ckpt");
    let storage = Storage::on(Arc::new(disk.clone()));
    storage.put(&set_aside, vec![0; 500]).await.unwrap();
    let n_used = disk.n_bytes_used();
    // Not even what is there fits.
    disk.holds(n_used / 2);
    assert_eq!(paused(&mut alive).await, DiskProblem::Full.reason());
    assert_eq!(alive.room.trouble(), Some(DiskProblem::Full));
    let told = alive.told();
    let is_notice = |told: &BackboneToContributor| matches!(told, BackboneToContributor::Refused(Refusal::Paused { reason }) if reason.as_str() == DiskProblem::Full.reason());
    assert!(told.iter().any(is_notice), "{told:?}");
    // An offer is refused before a byte of it is pulled, and a contributor that joins reads why.
    let refused = DeclinedOffer::Refused(ContributionRefusal::Storage);
    assert_eq!(alive.refusal(&world, 9 * PER_STEP, 9).await, refused);
    alive.join(&world.contributors[0], &world.config.run.id).await;
    assert!(alive.told().iter().any(is_notice));
    // What may go is gone, and the newest checkpoint is not.
    let names = disk.names();
    let checkpoints: Vec<_> = names.iter().filter(|name| name.starts_with("checkpoints")).collect();
    assert_eq!(checkpoints, [Path::new("checkpoints/000000000009.ckpt")]);
    // Not for as long as there is little room; then by itself.
    for _ in 0..20 {
        alive.status.changed().await.unwrap();
    }
    assert!(alive.room.trouble().is_some());
    disk.holds(u64::MAX);
    goes_on(&mut alive).await;
    contribute(&world, &mut alive, 9 * PER_STEP..13 * PER_STEP).await;
    alive.reaches(13).await;
    world.all_counted(&mut alive, folder.path(), 13 * PER_STEP, "full").await;
    alive.stop().await;
    store.close().await;
}

#[tokio::test]
async fn a_disk_that_fails_now_and_then_costs_time_and_nothing_else() {
    for seed in 0..10 {
        let disk = SimulatedDisk::new(seed);
        let of = format!("seed {seed}");
        let (world, store, folder, mut alive) = world(&disk, &format!("failing-{seed}")).await;
        let (mut id, mut n_refused) = (0, 0);
        disk.fails_one_in(12);
        let n = 10 * PER_STEP;
        while id < n {
            match alive.contribute(&world, id).await {
                Some(Ok(_)) => id += 1,
                Some(Err(ContributionRefusal::Storage)) => {
                    n_refused += 1;
                    goes_on(&mut alive).await;
                }
                other => panic!("{of}: {other:?}"),
            }
        }
        disk.fails_one_in(0);
        assert!(n_refused > 0, "{of}");
        goes_on(&mut alive).await;
        alive.reaches(n / PER_STEP).await;
        world.all_counted(&mut alive, folder.path(), n, &of).await;
        // Also after a restart.
        alive.crash().await;
        let mut again = world.start(Storage::on(Arc::new(disk.clone())), &store).await.unwrap();
        world.all_counted(&mut again, folder.path(), n, &of).await;
        again.stop().await;
        store.close().await;
    }
}

#[tokio::test]
async fn nothing_is_acknowledged_while_a_disk_stands_still() {
    let disk = SimulatedDisk::new(5);
    let (world, store, folder, mut alive) = world(&disk, "still").await;
    contribute(&world, &mut alive, 0..PER_STEP).await;
    disk.stall(true);
    {
        let contributing = contribute(&world, &mut alive, PER_STEP..2 * PER_STEP);
        tokio::pin!(contributing);
        for _ in 0..1000 {
            let waits = futures::poll!(&mut contributing);
            assert!(waits.is_pending());
            tokio::task::yield_now().await;
        }
        disk.stall(false);
        contributing.await;
    }
    alive.reaches(2).await;
    world.all_counted(&mut alive, folder.path(), 2 * PER_STEP, "still").await;
    alive.stop().await;
    store.close().await;
}

/// The checkpoints on the disk.
fn checkpoints(disk: &SimulatedDisk) -> Vec<std::path::PathBuf> {
    disk.names().into_iter().filter(|name| name.starts_with("checkpoints")).collect()
}

#[tokio::test]
async fn a_checkpoint_that_could_not_be_stored_pauses_the_run_and_is_stored_once_the_disk_heals() {
    let disk = SimulatedDisk::new(1);
    let (world, store, _folder, mut alive) = world(&disk, "put-off").await;
    contribute(&world, &mut alive, 0..PER_STEP).await;
    alive.reaches(1).await;
    alive.recording.catch_up().await.unwrap();
    let before = checkpoints(&disk);
    disk.fails_one_in(1);
    let (done, stored) = oneshot::channel();
    let event = AggregatorEvent::WantCheckpoint(done);
    alive.events.send(CoreEvent::Aggregator { peer: PeerKey(vec![7]), event }).await.unwrap();
    // It is dropped once that was tried.
    let _ = stored.await;
    assert_eq!(alive.room.trouble(), Some(DiskProblem::Failing));
    assert_eq!(paused(&mut alive).await, DiskProblem::Failing.reason());
    assert_eq!(checkpoints(&disk), before);
    disk.fails_one_in(0);
    goes_on(&mut alive).await;
    // Its status is published while that is written.
    let stored = Path::new("checkpoints/000000000001.ckpt");
    let storing = async {
        while !checkpoints(&disk).iter().any(|name| name == stored) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(HANG, storing).await.unwrap();
    alive.stop().await;
    store.close().await;
}

#[tokio::test]
async fn a_failing_disk_with_room_pauses_until_it_takes_writes_and_stores_no_checkpoint_before_its_time() {
    let disk = SimulatedDisk::new(1);
    let (world, store, _folder, mut alive) = world(&disk, "with-room").await;
    contribute(&world, &mut alive, 0..PER_STEP).await;
    alive.reaches(1).await;
    alive.recording.catch_up().await.unwrap();
    let before = checkpoints(&disk);
    disk.fails_one_in(1);
    let refused = alive.contribute(&world, PER_STEP).await;
    assert!(matches!(refused, Some(Err(ContributionRefusal::Storage))), "{refused:?}");
    paused(&mut alive).await;
    // In that time the disk is looked at several times.
    for _ in 0..2 {
        alive.status.changed().await.unwrap();
        assert!(alive.status.borrow().paused.is_some() && alive.room.trouble().is_some());
    }
    disk.fails_one_in(0);
    goes_on(&mut alive).await;
    assert_eq!(checkpoints(&disk), before);
    contribute(&world, &mut alive, PER_STEP..2 * PER_STEP).await;
    alive.reaches(2).await;
    alive.stop().await;
    store.close().await;
}
