//! The core answers while a step is computed. The tests hold what it computes with.

use barnraise_protocol::contribute::Report;
use barnraise_protocol::matchmaking::ModelVersion;

use super::*;
use crate::host::sessions::SessionEvent;
use crate::scheme::synchronous::aggregators::AggregatorEvent;
use crate::storage::simulated::SimulatedDisk;

/// Hidden units of a model that is too large to be computed with at once.
const WIDTH: u32 = 4000;

/// Keeps the core from computing until it is dropped.
struct Held {
    _release: oneshot::Sender<()>,
}

impl Held {
    async fn of(alive: &Alive) -> Self {
        let (_release, released) = oneshot::channel::<()>();
        let (weights, (is_held, holds)) = (alive.weights.clone(), oneshot::channel());
        std::thread::spawn(move || {
            let held = weights.hold();
            is_held.send(()).unwrap();
            // Dropped.
            let _ = released.blocking_recv();
            drop(held);
        });
        holds.await.unwrap();
        Self { _release }
    }
}

/// What comes, or else the core hangs.
async fn soon<T>(coming: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, coming).await.expect("the core does not answer")
}

impl Alive {
    /// The core's answer to a contribution that it need not receive.
    pub(super) async fn refusal(&self, world: &CrashHarness, id: u64, epoch: u64) -> DeclinedOffer {
        let (peer, (offer, ..)) = (world.contributor(id).clone(), world.contribution(id, epoch));
        let (answer, answered) = oneshot::channel();
        self.events.send(CoreEvent::Offer { peer, offer, answer }).await.unwrap();
        soon(answered).await.unwrap().unwrap_err()
    }

    /// Whether a report is handled, by the answer to one that is too large.
    async fn report(&mut self, peer: &PeerKey) {
        self.join(peer, "answers").await;
        let report =
            Report { epoch: 0, contribution_id: u64::MAX, n_samples: u32::MAX, samples_per_second: 1.0 };
        let (handled, done) = oneshot::channel();
        self.events.send(SessionEvent::Report { peer: peer.clone(), report, handled }.into()).await.unwrap();
        // Dropped once it is.
        let _ = soon(done).await;
        let refused = BackboneToContributor::Refused(barnraise_protocol::Refusal::TooManySamples {
            max: CrashHarness::new("answers").configured().1.largest_contribution(),
            got: u32::MAX,
        });
        assert!(self.told().contains(&refused));
    }
}

/// A backbone in the middle of its first step: it is committed, and cannot be computed.
async fn in_a_step(world: &CrashHarness, disk: &SimulatedDisk, store: &Store) -> (Alive, Held) {
    let storage = Storage::on(Arc::new(disk.clone()));
    let journal = Journal::new(storage.clone());
    let mut alive = world.start(storage, store).await.unwrap();
    let held = Held::of(&alive).await;
    for id in 0..PER_STEP {
        soon(alive.contribute(world, id)).await.unwrap().unwrap();
    }
    while journal.commit_of(0).await.unwrap().is_none() {
        alive.report(&world.contributors[0]).await;
    }
    (alive, held)
}

#[tokio::test]
async fn joins_reports_and_offers_are_answered_while_a_step_is_computed_and_the_rest_waits() {
    let (disk, folder) = (SimulatedDisk::new(1), folder());
    let world = CrashHarness::of_width("answers", WIDTH);
    let store = world.store(folder.path()).await;
    let (mut alive, held) = in_a_step(&world, &disk, &store).await;
    let (answer, mut model) = oneshot::channel::<ModelVersion>();
    let event = AggregatorEvent::WantModel(answer);
    alive.events.send(CoreEvent::Aggregator { peer: PeerKey(vec![7]), event }).await.unwrap();
    for peer in &world.contributors {
        alive.report(peer).await;
    }
    let next = ContributionRefusal::Epoch { want: 1, got: 0 };
    assert_eq!(alive.refusal(&world, PER_STEP, 0).await, DeclinedOffer::Refused(next));
    // One that is in the step was counted, also before the step is made.
    assert!(matches!(alive.refusal(&world, 0, 0).await, DeclinedOffer::AlreadyCounted(_)));
    assert_eq!(alive.state.borrow().header.epoch, 0, "nothing is known of the step");
    assert!(model.try_recv().is_err());
    drop(held);
    assert_eq!(soon(model).await.unwrap().epoch, 1);
    for id in PER_STEP..2 * PER_STEP {
        soon(alive.contribute(&world, id)).await.unwrap().unwrap();
    }
    alive.reaches(2).await;
    world.all_counted(&mut alive, folder.path(), 2 * PER_STEP, "answers").await;
    alive.stop().await;
    store.close().await;
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_step_repeats_it() {
    let (disk, folder) = (SimulatedDisk::new(2), folder());
    let world = CrashHarness::of_width("answers", WIDTH);
    let store = world.store(folder.path()).await;
    let (alive, held) = in_a_step(&world, &disk, &store).await;
    assert_eq!(alive.state.borrow().header.epoch, 0);
    alive.crash().await;
    drop(held);
    let mut again = world.start(Storage::on(Arc::new(disk.clone())), &store).await.unwrap();
    world.all_counted(&mut again, folder.path(), PER_STEP, "answers").await;
    again.stop().await;
    store.close().await;
}
