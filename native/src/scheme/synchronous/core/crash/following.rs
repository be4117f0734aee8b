//! A model of another aggregator arrives while the disk fails.

use std::time::Duration;

use barnraise_protocol::access::Authority;
use barnraise_protocol::matchmaking::AggregatorStatus;
use barnraise_protocol::model::StepHeader;
use barnraise_protocol::{Sha256Hash, contribute};
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

/// A run with another aggregator, which is offline.
fn among_others(run_id: &str) -> CrashHarness {
    let mut world = CrashHarness::new(run_id);
    world.config.aggregators.peers =
        vec![format!("/ip4/127.0.0.1/tcp/1/p2p/{}", PeerId::random()).parse().unwrap()];
    world
}

/// An event of the aggregator with this number.
async fn tell(alive: &Alive, number: u8, event: AggregatorEvent) {
    let peer = PeerKey(vec![number]);
    alive.events.send(CoreEvent::Aggregator { peer, event }).await.unwrap();
}

/// The answer to an event that has one.
async fn ask<T>(alive: &Alive, event: impl FnOnce(oneshot::Sender<T>) -> AggregatorEvent) -> T {
    let (done, answered) = oneshot::channel();
    tell(alive, 7, event(done)).await;
    answered.await.expect("the backbone has ended")
}

/// Whether the model was taken, or why not yet.
async fn take(alive: &Alive, model: &Checkpoint) -> Result<(), AdoptError> {
    ask(alive, |done| AggregatorEvent::Checkpoint(Box::new(model.clone()), done)).await.map(drop)
}

#[tokio::test]
async fn a_disk_that_fails_while_a_model_of_others_is_taken_ends_nothing_and_loses_nothing_that_was_accepted()
{
    const RUN: &str = "followed";
    let model = model_of_others(RUN, 3).await;
    let world = among_others(RUN);
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

#[tokio::test]
async fn a_step_of_others_is_taken_on_the_model_that_it_was_made_of_and_loses_nothing_that_was_accepted() {
    let (world, folder, disk) = (among_others("step"), folder(), SimulatedDisk::new(1));
    let store = world.store(folder.path()).await;
    let mut alive = start(&world, &disk, &store).await;
    for id in [100, 101] {
        alive.contribute(&world, id).await.unwrap().unwrap();
    }
    let model = ask(&alive, AggregatorEvent::WantModel).await;
    let step = |epoch: u64, before: Sha256Hash, n_values: usize| {
        let mean = TensorCodec::F32.encode(&vec![0.25; n_values]).unwrap();
        let (transfer, members) = (Transfer::of(&mean), vec![vec![7]]);
        let header = StepHeader { epoch, before, nonce: 5, n_samples: 256, loss: 1.0, members, transfer };
        move |done| AggregatorEvent::Step(header, mean, done)
    };
    let n_parameters = world.layout.n_parameters();
    for (epoch, before) in [(0, Sha256Hash::of(b"another model")), (1, model.hash)] {
        let told = ask(&alive, step(epoch, before, n_parameters)).await;
        assert!(matches!(told, Err(AdoptError::OtherModel { epoch: of }) if of == epoch), "{told:?}");
    }
    let told = ask(&alive, step(0, model.hash, n_parameters + 1)).await;
    assert!(matches!(told, Err(AdoptError::Mean)), "{told:?}");
    let taken = ask(&alive, step(0, model.hash, n_parameters)).await.unwrap();
    assert_eq!((taken.epoch, taken.n_samples_total), (1, 256));
    assert_eq!(ask(&alive, AggregatorEvent::WantModel).await, taken);
    let status = alive.status.wait_for(|status| status.progress.epoch == 1 && status.progress.n_samples > 0);
    // Two of them, each by half for its age.
    assert_eq!(status.await.unwrap().progress.n_samples, u64::from(SAMPLES));
    alive.crash().await;
    let again = start(&world, &disk, &store).await;
    assert_eq!(ask(&again, AggregatorEvent::WantModel).await, taken);
    again.stop().await;
    store.close().await;
}

/// As where a backbone that restarted made a step alone that the others made together.
#[tokio::test]
async fn what_is_in_a_model_of_others_is_shown_and_not_what_was_in_the_own_one() {
    const RUN: &str = "branches";
    let model = model_of_others(RUN, 1).await;
    let (world, folder, disk) = (among_others(RUN), folder(), SimulatedDisk::new(1));
    let store = world.store(folder.path()).await;
    let mut alive = start(&world, &disk, &store).await;
    let before = ask(&alive, AggregatorEvent::WantModel).await.hash;
    let mean = TensorCodec::F32.encode(&vec![0.25; world.layout.n_parameters()]).unwrap();
    let (transfer, members, n_samples) = (Transfer::of(&mean), vec![vec![7]], model.n_samples_total + 1);
    let header = StepHeader { epoch: 0, before, nonce: 5, n_samples, loss: 1.0, members, transfer };
    ask(&alive, |done| AggregatorEvent::Step(header, mean, done)).await.unwrap();
    take(&alive, &model).await.unwrap();
    let wanted = Some((1, model.n_samples_total, None));
    let is_shown = |status: &RunStatus| {
        status.history.last().map(|point| (point.epoch, point.n_samples_total, point.train_loss)) == wanted
    };
    tokio::time::timeout(HANG, alive.status.wait_for(is_shown)).await.unwrap().unwrap();
    alive.stop().await;
    store.close().await;
}

#[tokio::test]
async fn a_model_of_another_run_or_of_another_kind_is_not_taken() {
    const RUN: &str = "kinds";
    let model = model_of_others(RUN, 1).await;
    let (world, folder, disk) = (among_others(RUN), folder(), SimulatedDisk::new(1));
    let store = world.store(folder.path()).await;
    let mut alive = start(&world, &disk, &store).await;
    let of_another_run = Checkpoint { run_id: "another".to_owned(), ..model.clone() };
    let of_another_kind = Checkpoint { model: Preset::Mlp { hidden: vec![3] }.model(7), ..model.clone() };
    for wrong in [of_another_run, of_another_kind] {
        let told = take(&alive, &wrong).await;
        assert!(matches!(told, Err(AdoptError::OtherRun { .. })), "{told:?}");
    }
    assert_eq!(alive.state.borrow().header.epoch, 0);
    take(&alive, &model).await.unwrap();
    alive.reaches(1).await;
    alive.stop().await;
    store.close().await;
}

#[tokio::test]
async fn contributors_are_told_what_all_have_and_where_the_others_are() {
    let (world, folder, disk) = (among_others("elsewhere"), folder(), SimulatedDisk::new(1));
    let store = world.store(folder.path()).await;
    let mut alive = start(&world, &disk, &store).await;
    let model = ask(&alive, AggregatorEvent::WantModel).await;
    let standing = AggregatorStatus {
        n_samples: 10,
        n_contributors: 3,
        samples_per_second: 5.0,
        ..AggregatorStatus::new(model)
    };
    tell(&alive, 7, AggregatorEvent::Standing(standing)).await;
    let n_contributors = world.contributors.len() as u32 + 3;
    let status = alive.status.wait_for(|status| status.progress.n_contributors == n_contributors);
    let progress = status.await.unwrap().progress;
    assert_eq!((progress.n_samples, progress.samples_per_second), (10, 5.0));

    let addresses = |number: u8| -> Vec<String> {
        (0..20).map(|idx| format!("/ip4/192.0.{number}.{idx}/tcp/1")).collect()
    };
    let n_told = |alive: &mut Alive| -> Vec<usize> {
        let lists = alive.told().into_iter().filter_map(|told| match told {
            BackboneToContributor::OtherBackbones(list) => Some(list.len()),
            _ => None,
        });
        lists.collect()
    };
    const MAX: usize = contribute::OTHER_BACKBONES_MAX;
    // Each has an equal share.
    for (number, n_listed) in [(7, MAX), (8, MAX), (9, MAX / 3 * 3)] {
        for is_news in [true, false] {
            n_told(&mut alive);
            tell(&alive, number, AggregatorEvent::Addresses(addresses(number))).await;
            // Answered after it.
            ask(&alive, AggregatorEvent::WantModel).await;
            let want = if is_news { vec![n_listed; world.contributors.len()] } else { Vec::new() };
            assert_eq!(n_told(&mut alive), want, "of {number}");
        }
    }
    alive.stop().await;
    store.close().await;
}
