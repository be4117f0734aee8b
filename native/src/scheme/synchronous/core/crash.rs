//! Crash tests: the core of a backbone with its storage, on a disk that loses power, fails or fills up, and in a process
//! that is killed. How it answers while it computes is tested here, too, since that needs the same parts.
//!
//! The parameters of the test model show which contributions are in it: each moves one value, by its weight.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answers;
mod averaging;
mod commands;
mod following;
mod kills;
mod latency;
mod memory;
mod power;
mod trouble;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use barnraise_learning::{DataShape, OptimizerSpec, ParameterLayout, ScheduleSpec};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::access::{AccessMode, KeyPair, UnixTime};
use barnraise_protocol::api::{ContributionsQuery, RunStatus};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::contribute::{BackboneToContributor, DeviceKind, Join};
use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::gradient::{ContributionRefusal, Offer};
use barnraise_protocol::receipt::Receipt;
use barnraise_protocol::run::{GradientCodec, Preset, RunDescription};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::PeerKey;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::super::aggregators::Aggregators;
use super::super::learner::{self, Learner, LearnerError};
use super::super::metrics::Metrics;
use super::super::{BackboneAddresses, outputs};
use super::event::{CoreEvent, DeclinedOffer};
use super::operator::OperatorControl;
use super::{Core, CoreStorage, EVENTS_MAX};
use crate::config::{RunConfig, SynchronousSection};
use crate::fixture;
use crate::host::clock::system_clock;
use crate::host::contributions::{Crediting, Issuer, KnownReceipts, Question, Recording, Store, WorkMeter};
use crate::host::peer_id;
use crate::host::sessions::SessionEvent;
use crate::host::states::PublishedState;
use crate::host::weights::SharedWeights;
use crate::storage::Storage;
use crate::storage::checkpoint::Checkpoints;
use crate::storage::disk_space::DiskSpace;
use crate::storage::journal::{Journal, JournalEntry};

const SAMPLES: u32 = 64;
/// Timeout after which a wait counts as a hang.
const HANG: std::time::Duration = std::time::Duration::from_secs(120);
/// Interval of progress messages and disk checks in tests.
const PROGRESS_EVERY: std::time::Duration = std::time::Duration::from_millis(10);
/// Messages that a test may leave unread: more of them than come while a machine has other things to do. A session whose
/// messages nobody reads is ended, and what is said next is said to nobody.
const UNREAD_MAX: usize = 100_000;
/// Contributions of a step.
const PER_STEP: u64 = 4;
const KEPT: usize = 2;
const EVERY: u64 = 3;
/// Assumed size of a checkpoint.
const CHECKPOINT_BYTES: u64 = 64 * 1024;

/// A run of a small model.
struct CrashHarness {
    config: RunConfig,
    layout: ParameterLayout,
    description: Arc<RunDescription>,
    key: KeyPair,
    contributors: Vec<PeerKey>,
}

/// A running backbone.
struct Alive {
    events: mpsc::Sender<CoreEvent>,
    stop: oneshot::Sender<()>,
    core: JoinHandle<Result<(), LearnerError>>,
    recording: Recording,
    sessions: Vec<mpsc::Receiver<BackboneToContributor>>,
    state: watch::Receiver<PublishedState>,
    status: watch::Receiver<RunStatus>,
    room: DiskSpace,
    weights: SharedWeights,
}

impl CrashHarness {
    fn new(run_id: &str) -> Self {
        Self::of_width(run_id, 16)
    }

    /// With so many hidden units.
    fn of_width(run_id: &str, n_hidden: u32) -> Self {
        let mut config = RunConfig::dev(Path::new("unused"));
        config.run.id = run_id.to_owned();
        config.model.kind = Preset::Mlp { hidden: vec![n_hidden] };
        config.synchronous_mut().unwrap().gradient_codec = GradientCodec::F32;
        config.synchronous_mut().unwrap().state_codec = TensorCodec::F32;
        config.synchronous_mut().unwrap().target_batch_size = PER_STEP as u32 * SAMPLES;
        config.synchronous_mut().unwrap().optimizer =
            OptimizerSpec::SgdMomentum { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
        config.synchronous_mut().unwrap().schedule =
            ScheduleSpec { peak: 1.0, warmup_steps: 0, ..config.synchronous().unwrap().schedule };
        config.synchronous_mut().unwrap().samples_per_second_max = u32::MAX;
        // Of peers that are let in by name: each contribution weighs what it has.
        config.access.mode = AccessMode::Invitation;
        let shape = ImageShape { height: 2, width: 2, channels: 1 };
        let data = DataShape::Images { shape, n_classes: 2 };
        let layout = ParameterLayout::of(&config.model_spec(), data).unwrap();
        let mut description = fixture::run();
        description.identity.run_id = run_id.to_owned();
        description.synchronous_mut().unwrap().target_batch_size =
            config.synchronous().unwrap().target_batch_size;
        let peer = |seed| PeerKey(peer_id(KeyPair::from_seed(&[seed; 32]).public()).unwrap().to_bytes());
        let contributors = vec![peer(2), peer(3)];
        let key = KeyPair::from_seed(&[1; 32]);
        Self { config, layout, description: Arc::new(description), key, contributors }
    }

    fn configured(&self) -> (&RunConfig, &SynchronousSection) {
        (&self.config, self.config.synchronous().unwrap())
    }

    /// What a fresh model begins with.
    fn fresh(&self) -> (&ParameterLayout, Vec<f32>) {
        (&self.layout, self.layout.initial_parameters(self.config.model_spec().seed))
    }

    async fn store(&self, folder: &Path) -> Store {
        let here = peer_id(self.key.public()).unwrap();
        Store::open(folder, None, &self.config.run.id, here).await.unwrap()
    }

    /// As `barnraise serve` begins.
    async fn start(&self, storage: Storage, store: &Store) -> Result<Alive, LearnerError> {
        self.start_among(storage, store, following::nobody).await
    }

    /// The same, in a run with other aggregators.
    async fn start_among<F>(
        &self,
        storage: Storage,
        store: &Store,
        others: impl FnOnce(following::Here) -> F,
    ) -> Result<Alive, LearnerError>
    where
        F: Future<Output = Option<Aggregators>>,
    {
        // What starts a backbone is large.
        Box::pin(self.start_with(storage, store, others, None)).await
    }

    /// The same, with an operator.
    async fn start_with<F>(
        &self,
        storage: Storage,
        store: &Store,
        others: impl FnOnce(following::Here) -> F,
        operating: Option<OperatorControl>,
    ) -> Result<Alive, LearnerError>
    where
        F: Future<Output = Option<Aggregators>>,
    {
        let sweep = storage.clone();
        let swept = tokio::task::spawn_blocking(move || sweep.sweep()).await.unwrap();
        swept
            .map_err(|source| crate::storage::StorageError::Folder {
                folder: "simulated".into(),
                what: "sweep it",
                source,
            })
            .map_err(crate::storage::journal::JournalError::from)?;
        let room = DiskSpace::new(storage.clone(), storage.clone(), CHECKPOINT_BYTES);
        let storing = CoreStorage {
            journal: Journal::new(storage.clone()),
            checkpoints: Checkpoints::new(storage.clone(), KEPT),
            disk_space: room.clone(),
            checkpoint_every_epochs: EVERY,
        };
        let round = learner::round_config(self.configured(), self.layout.n_parameters());
        let stored = (&storing.checkpoints, &storing.journal);
        let has_others = self.config.aggregators.peers().next().is_some();
        let recovered = Learner::recover(self.configured(), round, self.fresh(), stored, has_others);
        let (learner, round) = recovered.await?;
        let issuer = Issuer::new(&self.config.run.id, self.key.clone());
        let known = KnownReceipts::restore(&storing.journal, learner.epoch(), &issuer).await?;
        let work = Arc::new(WorkMeter::default());
        let refused = Box::new(BTreeMap::<&'static str, u64>::new);
        let journal = storing.journal.clone();
        let (recorded, epoch) = (journal.clone(), learner.epoch());
        let made = Recording::new(store.clone(), recorded, issuer.clone(), epoch, refused, work.clone());
        let (recording, recorder) = made.await.unwrap();
        let here =
            BackboneAddresses { run_id: self.config.run.id.clone(), operator: None, addresses: Vec::new() };
        let (outputs, state, status) = outputs(&learner, &self.description, &here, None).await.unwrap();
        let (metrics, weights) = (Metrics::new(status.clone(), None), learner.weights());
        let crediting = Crediting::new(issuer, known, recorder, work.clone(), system_clock());
        let (events, heard) = mpsc::channel(EVENTS_MAX);
        let checkpoints = storing.checkpoints.clone();
        let here =
            following::Here { events: events.clone(), metrics: metrics.clone(), work, journal, checkpoints };
        let others = others(here).await;
        let core = Core::new(self.description.clone(), learner, round, storing, outputs, metrics, crediting);
        let core = core.with_others(others).telling_every(PROGRESS_EVERY);
        let core = match operating {
            Some(operating) => core.with_operator(operating),
            None => core,
        };
        let (stop, stopped) = oneshot::channel();
        let core = tokio::spawn(core.run(heard, async move { drop(stopped.await) }));
        let mut alive =
            Alive { events, stop, core, recording, sessions: Vec::new(), state, status, room, weights };
        for peer in &self.contributors {
            alive.join(peer, &self.config.run.id).await;
        }
        Ok(alive)
    }

    /// The parameters, counted in contributions of each value.
    fn counts(&self, parameters: &[f32]) -> Vec<f32> {
        let (_, first) = self.fresh();
        first.iter().zip(parameters).map(|(first, now)| (first - now) * PER_STEP as f32).collect()
    }

    /// Asserts that all of `0..n` are in the model once, and credited once, also for a new database connection.
    async fn all_counted(&self, alive: &mut Alive, folder: &Path, n: u64, of: &str) {
        assert_eq!(n % PER_STEP, 0);
        let state = alive.state.borrow().clone();
        assert_eq!(state.header.epoch, n / PER_STEP, "{of}");
        let n_values = self.layout.n_parameters() as u64;
        for (index, count) in (0..n_values).zip(self.counts(&state.parameters)) {
            let want = (0..n).filter(|id| id % n_values == index).count();
            assert!(
                (count - want as f32).abs() < 0.05,
                "{of}: value {index} counts {count} times, not {want}"
            );
        }
        alive.recording.catch_up().await.unwrap();
        let other = self.store(folder).await;
        let names: Vec<(Vec<u8>, u64)> = (0..n).map(|id| (self.contributor(id).0.clone(), id)).collect();
        assert_eq!(other.n_missing(&names).await.unwrap(), 0, "{of}");
        let question = Question::try_from(ContributionsQuery { offset: None, limit: None, peer: None });
        let given = other.contributions(&question.unwrap()).await.unwrap();
        assert_eq!(
            (given.totals.n_contributions, given.totals.n_samples),
            (n, n * u64::from(SAMPLES)),
            "{of}"
        );
        let of_peers: u64 = given.contributors.iter().map(|it| it.totals.n_samples).sum();
        assert_eq!(of_peers, n * u64::from(SAMPLES), "{of}");
        other.close().await;
    }

    /// An offer, its bytes and its values.
    fn contribution(&self, id: u64, epoch: u64) -> (Offer, Vec<u8>, Vec<f32>) {
        let mut values = vec![0.0; self.layout.n_parameters()];
        let index = (id % values.len() as u64) as usize;
        values[index] = 1.0;
        let payload = TensorCodec::F32.encode(&values).unwrap();
        let offer = Offer {
            contribution_id: id,
            epoch,
            n_samples: SAMPLES,
            loss: 1.0,
            n_values: values.len() as u64,
            codec: TensorCodec::F32,
            transfer: Transfer::of(&payload),
        };
        (offer, payload, values)
    }

    fn contributor(&self, id: u64) -> &PeerKey {
        &self.contributors[(id % self.contributors.len() as u64) as usize]
    }
}

impl Alive {
    async fn join(&mut self, peer: &PeerKey, run_id: &str) {
        let (messages, session) = mpsc::channel(UNREAD_MAX);
        let (answer, answered) = oneshot::channel();
        let join = Join {
            run_id: run_id.to_owned(),
            device: DeviceKind::NativeCpu,
            device_name: "simulated".into(),
            name: None,
        };
        let group = AddressGroup(1);
        let event = SessionEvent::Join { peer: peer.clone(), group, join, messages, answer }.into();
        if self.events.send(event).await.is_ok()
            && let Ok(joined) = answered.await
        {
            joined.unwrap();
            self.sessions.push(session);
        }
    }

    /// Messages to contributors since the last call.
    fn told(&mut self) -> Vec<BackboneToContributor> {
        let sessions = self.sessions.iter_mut();
        sessions.flat_map(|session| std::iter::from_fn(|| session.try_recv().ok())).collect()
    }

    /// Offers a contribution and sends it if it is accepted; `None` where the core has ended.
    async fn contribute(
        &mut self,
        world: &CrashHarness,
        id: u64,
    ) -> Option<Result<Receipt, ContributionRefusal>> {
        loop {
            let epoch = self.state.borrow().header.epoch;
            let answer = self.contribute_to(world, id, epoch).await?;
            match answer {
                // The step is being made, or waits for a disk that takes no writes: then it is refused for that.
                Err(ContributionRefusal::Epoch { want, got }) if want > got => {
                    let (state, status) = (&mut self.state, &mut self.status);
                    tokio::select! {
                        made = state.wait_for(|state| state.header.epoch >= want) => drop(made.ok()?),
                        paused = status.wait_for(|status| status.paused.is_some()) => drop(paused.ok()?),
                    }
                }
                // The session ended because a test that was busy did not read its messages.
                Err(ContributionRefusal::NotJoined) => {
                    self.join(world.contributor(id), &world.config.run.id).await;
                }
                answer => return Some(answer),
            }
        }
    }

    async fn contribute_to(
        &mut self,
        world: &CrashHarness,
        id: u64,
        epoch: u64,
    ) -> Option<Result<Receipt, ContributionRefusal>> {
        self.told();
        let peer = world.contributor(id).clone();
        let (offer, payload, values) = world.contribution(id, epoch);
        let (answer, answered) = oneshot::channel();
        self.events.send(CoreEvent::Offer { peer: peer.clone(), offer: offer.clone(), answer }).await.ok()?;
        // Held until the end, as it also receives the abort of the transfer.
        let accepted = match answered.await.ok()? {
            Ok(accepted) => accepted,
            Err(DeclinedOffer::AlreadyCounted(receipt)) => return Some(Ok(*receipt)),
            Err(DeclinedOffer::Refused(refusal)) => return Some(Err(refusal)),
        };
        let entry = JournalEntry {
            peer: peer.0,
            group: AddressGroup(1),
            offer,
            milliseconds: 0,
            accepted_at: UnixTime(0),
            payload: payload.into(),
            samples: None,
        };
        let (answer, answered) = oneshot::channel();
        let (entry, values) = (Box::new(entry), values.into());
        self.events
            .send(CoreEvent::Gradient { ticket: accepted.ticket, entry, values, answer })
            .await
            .ok()?;
        answered.await.ok()
    }

    /// Waits for a step, with a timeout.
    async fn reaches(&mut self, epoch: u64) {
        let reached = self.state.wait_for(|state| state.header.epoch >= epoch);
        let reached = tokio::time::timeout(HANG, reached).await;
        let is_there = reached.is_ok_and(|state| state.is_ok());
        assert!(is_there, "epoch {epoch} is not reached, but {}", self.state.borrow().header.epoch);
    }

    /// Ends as a process that is asked to stop.
    async fn stop(self) {
        drop(self.stop);
        self.core.await.unwrap().unwrap();
    }

    /// Ends as a process that is killed.
    async fn crash(self) {
        self.core.abort();
        let _ = self.core.await;
    }
}

/// A folder for a database, in memory where possible, because SQLite syncs it often.
pub(in crate::scheme::synchronous) fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// The number in an environment variable, or else `otherwise`.
pub(in crate::scheme::synchronous) fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().map_or(otherwise, |text| text.parse().unwrap())
}
