//! A model of another aggregator arrives while the disk fails.

use std::time::Duration;

use barnraise_protocol::access::Authority;
use barnraise_relay::dht::{Dht, DhtConfig};
use barnraise_relay::{Node, NodeConfig};
use barnraise_swarm::access::Policy;
use libp2p::PeerId;
use libp2p::identity::Keypair;

use super::*;
use crate::config::LinkSpeed;
use crate::host::access::Gate;
use crate::host::events::EventSender;
use crate::net::speed::SpeedMeter;
use crate::scheme::synchronous::aggregators::{AdoptError, AggregatorEvent, Reducers, ServedStorage};
use crate::storage::checkpoint::Checkpoint;
use crate::storage::simulated::SimulatedDisk;

/// The parts of a backbone that its connection to other aggregators needs.
pub(super) struct Here {
    pub(super) events: mpsc::Sender<CoreEvent>,
    pub(super) metrics: Metrics,
    pub(super) work: Arc<WorkMeter>,
    pub(super) journal: Journal,
    pub(super) checkpoints: Checkpoints,
}

/// For a run with one backbone.
pub(super) async fn nobody(_: Here) -> Option<Aggregators> {
    None
}

/// A backbone whose other aggregators are offline: the test sends their events.
async fn start(world: &CrashHarness, disk: &SimulatedDisk, store: &Store) -> Alive {
    let others = |here: Here| async move {
        let Here { events, metrics, work, journal, checkpoints } = here;
        let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
        let dht = Dht::start(node.clone(), DhtConfig::default()).unwrap();
        let authority = Authority { key: world.key.public(), run_id: world.config.run.id.clone() };
        let policy = Policy { mode: AccessMode::Open, authority, clock_tolerance: Duration::from_secs(30) };
        let gate = Gate::new(policy, world.key.public(), system_clock());
        let (reducers, accepting) = Reducers::start(&world.config, &node, gate, (work, metrics)).unwrap();
        tokio::spawn(accepting);
        let speed = SpeedMeter::new(LinkSpeed::Auto, LinkSpeed::Auto);
        let stored = ServedStorage { journal, checkpoints };
        let helpers = (reducers, speed);
        Aggregators::start(
            world.configured(),
            &world.description,
            (node, dht),
            helpers,
            &stored,
            EventSender::new(events),
        )
        .unwrap()
    };
    let storage = Storage::on(Arc::new(disk.clone()));
    world.start_among(storage, store, others).await.unwrap()
}

/// The model of another aggregator after `n_steps` steps.
async fn model_of_others(run_id: &str, n_steps: u64) -> Checkpoint {
    let key = KeyPair::from_seed(&[9; 32]);
    let world = CrashHarness { key, ..CrashHarness::new(run_id) };
    let (disk, folder) = (SimulatedDisk::new(0), folder());
    let store = world.store(folder.path()).await;
    let storage = Storage::on(Arc::new(disk.clone()));
    let mut alive = world.start(storage.clone(), &store).await.unwrap();
    for id in 0..n_steps * PER_STEP {
        alive.contribute(&world, id).await.unwrap().unwrap();
    }
    alive.reaches(n_steps).await;
    alive.stop().await;
    store.close().await;
    let loaded = Checkpoints::new(storage, KEPT).load_latest(run_id, &world.config.model_spec()).await;
    loaded.unwrap().checkpoint.unwrap()
}

/// Whether the model was taken, or why not yet.
async fn take(alive: &Alive, model: &Checkpoint) -> Result<(), AdoptError> {
    let (done, applied) = oneshot::channel();
    let heard = AggregatorEvent::Checkpoint(Box::new(model.clone()), done);
    let peer = PeerKey(vec![7]);
    alive.events.send(CoreEvent::Aggregator { peer, event: heard }).await.unwrap();
    applied.await.expect("the backbone has ended").map(drop)
}

#[tokio::test]
async fn a_disk_that_fails_while_a_model_of_others_is_taken_ends_nothing_and_loses_nothing_that_was_accepted()
{
    const RUN: &str = "followed";
    let model = model_of_others(RUN, 3).await;
    let mut world = CrashHarness::new(RUN);
    world.config.aggregators.peers =
        vec![format!("/ip4/127.0.0.1/tcp/1/p2p/{}", PeerId::random()).parse().unwrap()];
    let folder = folder();
    let store = world.store(folder.path()).await;
    let (mut n_cut, mut n_crashes) = (0, 0);
    for seed in 0..16 {
        let disk = SimulatedDisk::new(seed);
        let mut alive = start(&world, &disk, &store).await;
        for id in [100, 101] {
            alive.contribute(&world, id).await.unwrap().unwrap();
        }
        disk.fails_one_in(8);
        let taken = take(&alive, &model).await;
        n_cut += u32::from(taken.is_err());
        if taken.is_err() && seed % 2 == 0 {
            // In the middle of it, on one line or the other.
            n_crashes += 1;
            alive.crash().await;
            disk.fails_one_in(0);
            alive = start(&world, &disk, &store).await;
            if alive.state.borrow().header.epoch == 0 {
                take(&alive, &model).await.unwrap();
            }
        }
        disk.fails_one_in(0);
        alive.reaches(3).await;
        // What was accepted counts for the step that is open, by its age, and is enough with four more.
        let status = alive.status.wait_for(|status| {
            status.paused.is_none() && status.progress.epoch == 3 && status.progress.n_samples > 0
        });
        assert_eq!(status.await.unwrap().progress.n_samples, 2 * 64 / 4, "seed {seed}");
        for id in 102..106 {
            alive.contribute(&world, id).await.unwrap().unwrap();
        }
        alive.reaches(4).await;
        let counts = world.counts(&alive.state.borrow().parameters);
        let all = (2 * 16 + 4 * 64) as f32;
        for (id, want) in (0..12).map(|id| (id, 1.0)).chain((100..106).map(|id| {
            let n_samples = if id < 102 { 16.0 } else { 64.0 };
            (id, n_samples / all * PER_STEP as f32)
        })) {
            assert!((counts[id] - want).abs() < 0.01, "seed {seed}: {id} counts {}, not {want}", counts[id]);
        }
        alive.stop().await;
    }
    assert!(n_cut > 4 && n_crashes > 1, "{n_cut} were cut, {n_crashes} crashed");
    store.close().await;
}
