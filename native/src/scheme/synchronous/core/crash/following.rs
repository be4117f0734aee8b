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
use crate::storage::checkpoint::{Checkpoint, Included};
use crate::storage::journal::CommitRecord;
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

/// The connection to other aggregators, of which none is online.
pub(super) async fn connect(world: &CrashHarness, here: Here, speed: SpeedMeter) -> Option<Aggregators> {
    let Here { events, metrics, work, journal, checkpoints } = here;
    let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
    let dht = Dht::start(node.clone(), DhtConfig::default()).unwrap();
    let authority = Authority { key: world.key.public(), run_id: world.config.run.id.clone() };
    let policy = Policy { mode: AccessMode::Open, authority, clock_tolerance: Duration::from_secs(30) };
    let gate = Gate::new(policy, world.key.public(), system_clock());
    let (reducers, accepting) = Reducers::start(&world.config, &node, gate, (work, metrics)).unwrap();
    tokio::spawn(accepting);
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
}

/// A backbone whose other aggregators are offline: the test sends their events.
async fn start(world: &CrashHarness, disk: &SimulatedDisk, store: &Store) -> Alive {
    let others = |here: Here| async move {
        connect(world, here, SpeedMeter::new(LinkSpeed::Auto, LinkSpeed::Auto)).await
    };
    let storage = Storage::on(Arc::new(disk.clone()));
    world.start_among(storage, store, others).await.unwrap()
}

/// The model of another aggregator after `n_steps` steps.
pub(super) async fn model_of_others(run_id: &str, n_steps: u64) -> Checkpoint {
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
pub(super) fn among_others(run_id: &str) -> CrashHarness {
    let mut world = CrashHarness::new(run_id);
    world.config.aggregators.peers =
        vec![format!("/ip4/127.0.0.1/tcp/1/p2p/{}", PeerId::random()).parse().unwrap()];
    world
}

/// An event of the aggregator with this number.
pub(super) async fn tell(alive: &Alive, number: u8, event: AggregatorEvent) {
    let peer = PeerKey(vec![number]);
    alive.events.send(CoreEvent::Aggregator { peer, event }).await.unwrap();
}

/// The answer to an event that has one.
pub(super) async fn ask<T>(alive: &Alive, event: impl FnOnce(oneshot::Sender<T>) -> AggregatorEvent) -> T {
    let (done, answered) = oneshot::channel();
    tell(alive, 7, event(done)).await;
    answered.await.expect("the backbone has ended")
}

/// Whether the model was taken, or why not yet.
pub(super) async fn take(alive: &Alive, model: &Checkpoint) -> Result<(), AdoptError> {
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

/// Waits until this is the last point of the published history: epoch, samples until then, and training loss.
async fn shows(alive: &mut Alive, last: (u64, u64, Option<f32>)) {
    let is_shown = |status: &RunStatus| {
        status.history.last().map(|point| (point.epoch, point.n_samples_total, point.train_loss))
            == Some(last)
    };
    tokio::time::timeout(HANG, alive.status.wait_for(is_shown)).await.unwrap().unwrap();
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
    shows(&mut alive, (1, n_samples, Some(1.0))).await;
    take(&alive, &model).await.unwrap();
    shows(&mut alive, (1, model.n_samples_total, None)).await;
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

/// A contribution as it is journaled.
pub(super) fn entry(world: &CrashHarness, id: u64, epoch: u64) -> JournalEntry {
    let (offer, payload, _) = world.contribution(id, epoch);
    JournalEntry {
        peer: world.contributor(id).0.clone(),
        group: AddressGroup(1),
        offer,
        milliseconds: 0,
        accepted_at: UnixTime(0),
        payload: payload.into(),
        samples: None,
    }
}

/// The contributions that are journaled for an epoch.
async fn journaled(journal: &Journal, epoch: u64) -> Vec<u64> {
    let (mut ids, mut entries) = (Vec::new(), journal.entries(epoch).await.unwrap());
    while let Some((_, (_, id))) = entries.next_name().await.unwrap() {
        ids.push(id);
    }
    ids
}

/// The backbone has entries of epochs 0 to 2, and of its steps that of epoch 1 is the last in the model of the others.
#[tokio::test]
async fn what_is_not_in_the_last_own_step_of_a_model_is_carried_and_what_came_before_it_is_not() {
    const RUN: &str = "included";
    const NONCE: u64 = 5;
    let of_others = model_of_others(RUN, 3).await;
    let (world, folder) = (among_others(RUN), folder());
    let store = world.store(folder.path()).await;
    let me = peer_id(world.key.public()).unwrap().to_bytes();
    let included = BTreeMap::from([(me.clone(), Included { epoch: 1, nonce: NONCE })]);
    let model = Checkpoint { included, ..of_others };
    let aggregation = learner::round_config(world.configured(), world.layout.n_parameters()).aggregation;
    // The step in the journal, the list of what went into the averaging of that number, and what is carried.
    for (commit, averaged, carried) in [
        (Some((NONCE, vec![0])), None, vec![111, 120, 121]),
        (Some((NONCE, vec![1])), None, vec![110, 120, 121]),
        (Some((NONCE + 1, vec![0])), Some(vec![1]), vec![110, 120, 121]),
        (Some((NONCE, Vec::new())), Some(vec![0, 1]), vec![120, 121]),
        (None, Some(vec![0]), vec![111, 120, 121]),
        (None, None, vec![110, 111, 120, 121]),
    ] {
        let of = format!("{commit:?}, {averaged:?}");
        let disk = SimulatedDisk::new(1);
        let journal = Journal::new(Storage::on(Arc::new(disk.clone())));
        let alive = start(&world, &disk, &store).await;
        for epoch in 0..3_u64 {
            for seq in 0..2_u32 {
                let id = 100 + 10 * epoch + u64::from(seq);
                journal.append(epoch, seq, &entry(&world, id, epoch)).await.unwrap();
            }
        }
        if let Some((nonce, seqs)) = commit {
            let (before, members) = (Sha256Hash::of(b"a model"), vec![me.clone(), vec![7]]);
            let (n_samples, loss, learning_rate) = (256, 1.0, 1.0);
            let record = CommitRecord {
                epoch: 1,
                before,
                nonce,
                members,
                n_samples,
                loss,
                seqs,
                aggregation,
                learning_rate,
            };
            journal.commit(&record).await.unwrap();
        }
        if let Some(seqs) = averaged {
            journal.write_averaged_entries(1, NONCE, &seqs).await.unwrap();
        }
        take(&alive, &model).await.unwrap();
        assert_eq!(journaled(&journal, 3).await, carried, "{of}");
        alive.stop().await;
    }
    store.close().await;
}

#[tokio::test]
async fn what_was_accepted_for_an_epoch_that_was_not_reached_counts_for_the_open_one() {
    let (world, folder, disk) = (CrashHarness::new("later"), folder(), SimulatedDisk::new(1));
    let store = world.store(folder.path()).await;
    let storage = Storage::on(Arc::new(disk.clone()));
    let journal = Journal::new(storage.clone());
    for (epoch, id) in [(0, 100), (4, 101)] {
        journal.append(epoch, 0, &entry(&world, id, epoch)).await.unwrap();
    }
    let alive = world.start(storage, &store).await.unwrap();
    // Answered after the start.
    ask(&alive, AggregatorEvent::WantModel).await;
    assert_eq!(journal.epochs().await.unwrap(), [0]);
    assert_eq!(journaled(&journal, 0).await, [100, 101]);
    alive.stop().await;
    store.close().await;
}

#[tokio::test]
async fn the_own_history_is_kept_as_far_as_a_model_of_others_may_have_come_from_it() {
    const RUN: &str = "histories";
    let model = model_of_others(RUN, 3).await;
    assert_eq!((model.epoch, model.n_samples_total), (3, 768));
    let (world, folder) = (among_others(RUN), folder());
    let store = world.store(folder.path()).await;
    // Samples of the own steps, and the points of them that are left: epoch, and samples until then.
    for (of_steps, left) in [
        ([256, 256, 1], vec![(1, 256), (2, 512)]),
        ([256, 512, 1], vec![(1, 256), (2, 768)]),
        ([256, 513, 1], vec![(1, 256)]),
    ] {
        let disk = SimulatedDisk::new(1);
        let alive = start(&world, &disk, &store).await;
        for (epoch, n_samples) in (0..).zip(of_steps) {
            let before = ask(&alive, AggregatorEvent::WantModel).await.hash;
            let mean = TensorCodec::F32.encode(&vec![0.25; world.layout.n_parameters()]).unwrap();
            let (transfer, members) = (Transfer::of(&mean), vec![vec![7]]);
            let header = StepHeader { epoch, before, nonce: 5, n_samples, loss: 1.0, members, transfer };
            ask(&alive, |done| AggregatorEvent::Step(header, mean, done)).await.unwrap();
        }
        take(&alive, &model).await.unwrap();
        let checkpoints = Checkpoints::new(Storage::on(Arc::new(disk.clone())), KEPT);
        let loaded = checkpoints.load_latest(RUN, &world.config.model_spec()).await.unwrap();
        let points = loaded.checkpoint.unwrap().history;
        let points: Vec<(u64, u64)> = points.iter().map(|it| (it.epoch, it.n_samples_total)).collect();
        assert_eq!(points, [left, vec![(3, 768)]].concat(), "{of_steps:?}");
        alive.stop().await;
    }
    store.close().await;
}
