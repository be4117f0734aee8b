//! Commands of an operator, one after the other, and what a restart finds of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use barnraise_protocol::Refusal;
use barnraise_protocol::access::Authority;
use barnraise_swarm::access::Policy;
use serde_json::json;

use super::*;
use crate::host::access::Gate;
use crate::host::clock::WallClock;
use crate::host::operator::request::{OperatorCommand, OperatorError, OperatorReply, OperatorRequest};
use crate::host::operator::settings::{EffectiveSettings, SettingsChange};
use crate::host::operator::state::{BLOCKED_MAX, Blocked, OperatorState, OperatorStateStore};
use crate::host::operator::view::{PauseView, RunState, RunView};
use crate::storage::checkpoint::Checkpoint;
use crate::storage::simulated::SimulatedDisk;

/// What a backbone with an operator is started on.
struct Operated {
    world: CrashHarness,
    storage: Storage,
    store: Store,
    folder: tempfile::TempDir,
    gate: Gate,
    /// Unix time.
    clock: Arc<AtomicU64>,
}

impl Operated {
    async fn new(run_id: &str) -> Self {
        let (world, folder) = (CrashHarness::new(run_id), folder());
        let store = world.store(folder.path()).await;
        let storage = Storage::on(Arc::new(SimulatedDisk::new(1)));
        let authority = Authority { key: world.key.public(), run_id: run_id.to_owned() };
        let policy = Policy { mode: AccessMode::Open, authority, clock_tolerance: Duration::from_secs(30) };
        let gate = Gate::new(policy, world.key.public(), system_clock());
        Self { world, storage, store, folder, gate, clock: Arc::new(AtomicU64::new(1000)) }
    }

    /// Starts it, in a run with so many other backbones.
    async fn start(&self, n_others: usize) -> Alive {
        let control = self.control(n_others).await;
        self.start_under(control).await
    }

    async fn start_under(&self, control: OperatorControl) -> Alive {
        let storage = self.storage.clone();
        let starting = self.world.start_with(storage, &self.store, following::nobody, Some(control));
        Box::pin(starting).await.unwrap()
    }

    async fn control(&self, n_others: usize) -> OperatorControl {
        let clock = Arc::clone(&self.clock);
        let clock: WallClock = Arc::new(move || UnixTime(clock.load(Ordering::Relaxed)));
        let file = EffectiveSettings {
            learning_rate_factor: 1.0,
            collect_timeout_seconds: 60.0,
            samples_per_second_max: u32::MAX,
            gradient_norm_max: 1e20,
            contributors_max: 100,
            checkpoint_every_epochs: EVERY,
            stream_weights: BTreeMap::from([("books".to_owned(), 1.0)]),
        };
        let kept = OperatorStateStore::new(self.storage.clone());
        OperatorControl::resume(kept, self.gate.clone(), clock, n_others, file).await.unwrap()
    }
}

impl Alive {
    /// The reply to a command.
    async fn command(&mut self, command: OperatorCommand) -> Result<OperatorReply, OperatorError> {
        self.told();
        let (answer, answered) = oneshot::channel();
        self.events.send(OperatorRequest { command, answer }.into()).await.unwrap();
        answered.await.unwrap()
    }

    /// The run after a command.
    async fn after(&mut self, command: OperatorCommand) -> RunView {
        match self.command(command).await.unwrap() {
            OperatorReply::Run(view) => *view,
            OperatorReply::Peers(peers) => panic!("{peers:?}"),
        }
    }
}

fn pause(reason: &str, alone: bool) -> OperatorCommand {
    OperatorCommand::Pause { reason: reason.to_owned(), alone }
}

fn set(value: &serde_json::Value) -> OperatorCommand {
    OperatorCommand::Set(SettingsChange::of(value).unwrap())
}

#[tokio::test]
async fn a_pause_lasts_over_a_restart_and_what_is_accepted_in_it_counts_afterwards() {
    let run = Operated::new("paused").await;
    let mut alive = run.start(0).await;
    let shown = alive.after(OperatorCommand::Show).await;
    assert_eq!((shown.state, shown.paused, shown.n_contributors), (RunState::Training, None, 2));
    for (reason, now) in [("lunch", 1000), ("dinner", 2000)] {
        run.clock.store(now, Ordering::Relaxed);
        let shown = alive.after(pause(reason, false)).await;
        let since_the_first = PauseView { reason: reason.to_owned(), since: 1000 };
        assert_eq!((shown.state, shown.paused), (RunState::Paused, Some(since_the_first)));
        let told = alive.told();
        let is_notice = |told: &BackboneToContributor| matches!(told, BackboneToContributor::Refused(Refusal::Paused { reason: told }) if told.as_str() == reason);
        assert!(told.iter().any(is_notice), "{told:?}");
    }
    for id in 0..PER_STEP {
        alive.contribute(&run.world, id).await.unwrap().unwrap();
    }
    assert_eq!(alive.after(OperatorCommand::Show).await.epoch, 0, "no step is made");
    alive.status.wait_for(|status| status.paused.as_deref() == Some("dinner")).await.unwrap();
    alive.crash().await;

    let mut alive = run.start(0).await;
    let shown = alive.after(OperatorCommand::Show).await;
    let paused = PauseView { reason: "dinner".to_owned(), since: 1000 };
    assert_eq!((shown.state, shown.paused), (RunState::Paused, Some(paused)));
    let shown = alive.after(OperatorCommand::Resume).await;
    assert_eq!((shown.state, shown.paused), (RunState::Training, None));
    alive.reaches(1).await;
    run.world.all_counted(&mut alive, run.folder.path(), PER_STEP, "paused").await;
    alive.stop().await;
    run.store.close().await;
}

#[tokio::test]
async fn among_others_what_concerns_them_is_done_only_where_that_is_said() {
    let run = Operated::new("among").await;
    let mut alive = run.start(2).await;
    for command in [pause("lunch", false), OperatorCommand::RollBack { epoch: 0, alone: false }] {
        let told = alive.command(command).await;
        assert!(matches!(told, Err(OperatorError::Others { others: 2, .. })), "{told:?}");
    }
    let told = alive.command(set(&json!({"learning_rate_factor": 0.5}))).await;
    assert!(matches!(told, Err(OperatorError::Setting(_))), "{told:?}");
    let shown = alive.after(pause("lunch", true)).await;
    assert_eq!((shown.state, shown.n_other_backbones), (RunState::Paused, 2));
    let told = alive.command(OperatorCommand::RollBack { epoch: 0, alone: true }).await;
    assert!(matches!(told, Err(OperatorError::NotEarlier { epoch: 0, now: 0 })), "{told:?}");
    alive.stop().await;
    run.store.close().await;
}

#[tokio::test]
async fn a_blocked_peer_is_out_until_it_is_let_in_and_there_are_so_many_at_most() {
    let run = Operated::new("blocked").await;
    let before = |n: usize| Blocked { peer: n.to_le_bytes().to_vec(), reason: "before".to_owned(), since: 1 };
    let blocked = (0..BLOCKED_MAX - 1).map(before).collect();
    let kept = OperatorState { blocked, ..OperatorState::default() };
    OperatorStateStore::new(run.storage.clone()).save(&kept).await.unwrap();
    let mut alive = run.start(0).await;
    let [peer, other] = [0_usize, 1].map(|idx| run.world.contributors[idx].clone());
    let block = |peer: &PeerKey, reason: &str| {
        let reason = reason.to_owned();
        OperatorCommand::Block { peer: peer.clone(), reason }
    };
    // A second time it is blocked for another reason, and counts once.
    for reason in ["it floods", "it lies"] {
        assert_eq!(alive.after(block(&peer, reason)).await.n_blocked, BLOCKED_MAX as u64);
        assert!(run.gate.is_excluded(&peer));
    }
    let told = alive.command(block(&other, "it is one too many")).await;
    assert!(matches!(told, Err(OperatorError::TooManyBlocked)) && !run.gate.is_excluded(&other), "{told:?}");
    for (offset, limit, n_listed) in [(0, 9, 2), (0, 1, 1), (1, 9, 1), (2, 9, 0)] {
        let list = match alive.command(OperatorCommand::Peers { offset, limit }).await.unwrap() {
            OperatorReply::Peers(list) => list,
            OperatorReply::Run(run) => panic!("{run:?}"),
        };
        let n_blocked = list.blocked.len();
        assert_eq!((list.contributors.len(), list.n_contributors, n_blocked), (n_listed, 2, BLOCKED_MAX));
        assert_eq!(list.blocked.last().unwrap().reason, "it lies");
    }
    let unblock = || OperatorCommand::Unblock { peer: peer.clone() };
    assert_eq!(alive.after(unblock()).await.n_blocked, BLOCKED_MAX as u64 - 1);
    assert!(!run.gate.is_excluded(&peer));
    let told = alive.command(unblock()).await;
    assert!(matches!(told, Err(OperatorError::NotBlocked)), "{told:?}");
    alive.stop().await;
    run.store.close().await;
}

#[tokio::test]
async fn a_setting_holds_at_once_and_over_a_restart_of_the_only_backbone() {
    let run = Operated::new("set").await;
    let control = run.control(0).await;
    let mut weights = control.stream_weights();
    let mut alive = run.start_under(control).await;
    let change = json!({"checkpoint_every_epochs": 1, "learning_rate_factor": 0.5});
    let settings = alive.after(set(&change)).await.settings;
    assert_eq!((settings.checkpoint_every_epochs, settings.learning_rate_factor), (1, 0.5));
    assert!(!weights.has_changed().unwrap(), "nothing of the stream was changed");
    alive.after(set(&json!({"stream_weights": {"books": 2.0}}))).await;
    assert!(weights.has_changed().unwrap());
    assert_eq!(weights.borrow_and_update().get("books"), Some(&2.0));
    for id in 0..PER_STEP {
        alive.contribute(&run.world, id).await.unwrap().unwrap();
    }
    alive.reaches(1).await;
    // Answered once the step's checkpoint is stored.
    alive.after(OperatorCommand::Show).await;
    let kept = Checkpoints::new(run.storage.clone(), KEPT).kept().await.unwrap();
    assert!(kept.iter().map(|(epoch, _)| *epoch).eq([1]), "{kept:?}");
    alive.crash().await;
    // Those of a run with several are in the file of each.
    for (n_others, factor) in [(0, 0.5), (2, 1.0)] {
        let mut alive = run.start(n_others).await;
        let settings = alive.after(OperatorCommand::Show).await.settings;
        assert_eq!(settings.learning_rate_factor, factor, "{n_others} others");
        alive.crash().await;
    }
    run.store.close().await;
}

#[tokio::test]
async fn a_run_goes_back_to_a_checkpoint_as_a_later_epoch_and_on_from_there() {
    // With delayed updates, gradients of the epoch before still count: none of the old branch may.
    for (run_id, delayed_updates, next) in [("back", false, 7), ("back-delayed", true, 8)] {
        let mut run = Operated::new(run_id).await;
        let mut description = RunDescription::clone(&run.world.description);
        description.synchronous_mut().unwrap().delayed_updates = delayed_updates;
        run.world.description = Arc::new(description);
        let mut alive = run.start(0).await;
        for id in 0..6 * PER_STEP {
            alive.contribute(&run.world, id).await.unwrap().unwrap();
        }
        alive.reaches(6).await;
        let back = |epoch: u64| OperatorCommand::RollBack { epoch, alone: false };
        let told = alive.command(back(6)).await;
        assert!(matches!(told, Err(OperatorError::NotEarlier { epoch: 6, now: 6 })), "{told:?}");
        match alive.command(back(5)).await {
            Err(OperatorError::NoCheckpoint { epoch: 5, kept }) => assert_eq!(kept, [3, 6]),
            told => panic!("{told:?}"),
        }
        let checkpoints = Checkpoints::new(run.storage.clone(), 9);
        let of_the_run = checkpoints.load(3).await.unwrap().unwrap();
        let foreign = Checkpoint { run_id: "another".to_owned(), epoch: 4, ..of_the_run };
        checkpoints.save(foreign).await.unwrap();
        let told = alive.command(back(4)).await;
        assert!(matches!(told, Err(OperatorError::Unfit { epoch: 4, .. })), "{told:?}");

        let shown = alive.after(back(3)).await;
        assert_eq!((shown.epoch, shown.state), (next, RunState::Training));
        let counts = run.world.counts(&alive.state.borrow().parameters);
        for (id, count) in counts[..24].iter().enumerate() {
            let want: f32 = if id < 12 { 1.0 } else { 0.0 };
            assert!((count - want).abs() < 0.05, "{run_id}: {id} counts {count} times, not {want}");
        }
        for id in 24..24 + PER_STEP {
            alive.contribute(&run.world, id).await.unwrap().unwrap();
        }
        alive.reaches(next + 1).await;
        alive.crash().await;
        let again = run.start(0).await;
        assert_eq!(again.state.borrow().header.epoch, next + 1, "{run_id}");
        again.stop().await;
        run.store.close().await;
    }
}
