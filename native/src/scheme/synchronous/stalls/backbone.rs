//! A simulated backbone without sockets: the core with its learner, journal and checkpoints in memory, and the stream
//! handlers. Afterwards all records of what it counted are compared.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use barnraise_learning::{DataShape, ParameterLayout};
use barnraise_protocol::access::{AccessMode, Authority, KeyPair};
use barnraise_protocol::dataset::{ImageShape, LabelledImages, SampleKind, Samples};
use barnraise_protocol::run::{Preset, SignedRun};
use barnraise_relay::{Node, NodeConfig, Violation};
use barnraise_simulation::{Cpu, StreamEnd, VirtualNetwork};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::access::Policy;
use barnraise_swarm::random::SplitMix64;
use libp2p::PeerId;
use libp2p::identity::Keypair;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, spawn_local};
use tokio_util::sync::CancellationToken;

use super::super::core::crash::folder;
use super::super::core::{Core, CoreStorage, EVENTS_MAX};
use super::super::learner::{self, Learner, LearnerError};
use super::super::ledger::SharedLedger;
use super::super::metrics::Metrics;
use super::super::streams::{Services, answer};
use super::super::{outputs, states_max};
use crate::config::RunConfig;
use crate::data::TrainingData;
use crate::data::shards::ShardStore;
use crate::host::access::{Access, Gate};
use crate::host::addresses::AddressGroups;
use crate::host::clock::system_clock;
use crate::host::contributions::{
    Crediting, Issuer, KnownReceipts, NameRecorder, Recorder, Recording, Store, WorkMeter,
};
use crate::host::conversations::RunServices;
use crate::host::events::EventSender;
use crate::host::evidence::EvidenceStore;
use crate::host::peer_id;
use crate::host::run::BackboneAddresses;
use crate::host::sessions::SessionServices;
use crate::host::states::{PublishedState, States};
use crate::storage::Storage;
use crate::storage::checkpoint::Checkpoints;
use crate::storage::disk_space::DiskSpace;
use crate::storage::journal::{ContributionName, Journal};

/// Samples of a pass.
pub(super) const MICRO_BATCH: u32 = 16;
const RUN: &str = "stalls";
const SHAPE: ImageShape = ImageShape { height: 2, width: 2, channels: 1 };
const N_CLASSES: usize = 4;
const TRAIN_SAMPLES: usize = 400;
const SHARD_SAMPLES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(199);

/// Shared by all simulations: the data, and all that has threads of its own, which do not follow the virtual time.
pub(super) struct SimulationFixture {
    runtime: Runtime,
    key: KeyPair,
    shards: Arc<ShardStore>,
    store: Store,
    names: NameRecorder,
    /// A stopped node: streams do not come from it, and it knows no paths.
    node: Node,
    _folder: TempDir,
}

/// The part of one simulation.
pub(super) struct SimulatedStorage {
    storage: Storage,
    recorder: Recorder,
    work: Arc<WorkMeter>,
}

/// Counted contributions: number of samples by contributor and its contribution id.
pub(super) type CountedSamples = BTreeMap<ContributionName, u32>;

/// Noise on a background that depends on the class.
fn noise(n_samples: usize) -> Samples {
    let (mut random, mut images) = (SplitMix64::new(3), LabelledImages::default());
    for _ in 0..n_samples {
        let label = random.below(N_CLASSES) as u8;
        images.images.extend((0..SHAPE.n_values()).map(|_| label * 32 + random.below(128) as u8));
        images.labels.push(label);
    }
    Samples::Images(images)
}

/// Configuration of a run of a tiny model.
pub(super) fn config(target_batch_size: u32, mode: AccessMode) -> RunConfig {
    let mut config = RunConfig::dev(Path::new("unused"));
    config.run.id = RUN.to_owned();
    config.model.kind = Preset::Mlp { hidden: vec![2] };
    config.synchronous_mut().unwrap().target_batch_size = target_batch_size;
    config.synchronous_mut().unwrap().micro_batch_size = MICRO_BATCH;
    config.data.shuffle_buffer_samples = TRAIN_SAMPLES as u32;
    config.data.shard_samples = SHARD_SAMPLES;
    config.access.mode = mode;
    config
}

impl SimulationFixture {
    pub(super) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (runtime, folder, key) = (runtime.unwrap(), folder(), KeyPair::from_seed(&[1; 32]));
        let (shards, store, names, node) = runtime.block_on(async {
            let class_names = (0..N_CLASSES).map(|class| class.to_string()).collect();
            let data = TrainingData {
                name: "noise".into(),
                kind: SampleKind::Images { shape: SHAPE, class_names },
                train: noise(TRAIN_SAMPLES),
                test: noise(8 * N_CLASSES),
                tokenizer: None,
                columns: None,
                stream: None,
            };
            let sharding = config(1, AccessMode::Open).sharding();
            let shards = ShardStore::open(Storage::in_memory(), &data, sharding).await.unwrap();
            let here = peer_id(key.public()).unwrap();
            let store = Store::open(folder.path(), None, RUN, here).await.unwrap();
            let (names, recording) =
                NameRecorder::new(store.clone(), system_clock(), CancellationToken::new());
            tokio::spawn(recording);
            let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
            node.clone().shutdown().await;
            (Arc::new(shards), store, names, node)
        });
        Self { runtime, key, shards, store, names, node, _folder: folder }
    }

    /// The part of a simulation, and the task that records its contributions afterwards.
    pub(super) fn open(&self) -> (SimulatedStorage, Recording) {
        let (storage, work) = (Storage::in_memory(), Arc::new(WorkMeter::default()));
        let issuer = Issuer::new(RUN, self.key.clone());
        let (store, journal) = (self.store.clone(), Journal::new(storage.clone()));
        let refused = Box::new(BTreeMap::<&'static str, u64>::new);
        let made = Recording::new(store, journal, issuer, 0, refused, Arc::clone(&work));
        let (recording, recorder) = self.runtime.block_on(made).unwrap();
        (SimulatedStorage { storage, recorder, work }, recording)
    }

    /// Asserts that exactly the counted contributions are credited.
    pub(super) fn check_credit(&self, mut recording: Recording, counted: &CountedSamples, of: &str) {
        let mut totals: BTreeMap<&[u8], (u64, u64)> = BTreeMap::new();
        for ((peer, _), &n_samples) in counted {
            let (n_contributions, sum) = totals.entry(peer).or_default();
            (*n_contributions, *sum) = (*n_contributions + 1, *sum + u64::from(n_samples));
        }
        self.runtime.block_on(async {
            recording.catch_up().await.unwrap();
            for (peer, total) in totals {
                let given = self.store.of_peer(PeerId::from_bytes(peer).unwrap()).await.unwrap();
                let given = given.map(|it| (it.totals.n_contributions, it.totals.n_samples));
                assert_eq!(given, Some(total), "{of}: what is credited to {peer:?}");
            }
        });
    }
}

/// A running backbone.
pub(super) struct SimulatedBackbone {
    /// Stalls its core, and its stream handlers.
    pub(super) core_cpu: Cpu,
    pub(super) streams_cpu: Cpu,
    pub(super) id: PeerId,
    pub(super) config: RunConfig,
    layout: ParameterLayout,
    storage: Storage,
    services: Services,
    state: watch::Receiver<PublishedState>,
    stop: RefCell<Option<oneshot::Sender<()>>>,
    core: RefCell<Option<JoinHandle<Result<(), LearnerError>>>>,
    /// What the streams of each contributor ended with.
    pub(super) violations: RefCell<Vec<(PeerId, Violation)>>,
}

impl SimulatedBackbone {
    /// Starts as `barnraise serve` does.
    pub(super) async fn start(
        beside: &SimulationFixture,
        network: &VirtualNetwork,
        config: RunConfig,
        here: SimulatedStorage,
    ) -> Rc<Self> {
        let SimulatedStorage { storage, recorder, work } = here;
        let id = peer_id(beside.key.public()).unwrap();
        let manifest = beside.shards.manifest();
        let layout = ParameterLayout::of(&config.model_spec(), DataShape::of(&manifest.samples)).unwrap();
        let room = DiskSpace::new(storage.clone(), storage.clone(), 0);
        let storing = CoreStorage {
            journal: Journal::new(storage.clone()),
            checkpoints: Checkpoints::new(storage.clone(), config.storage.keep_checkpoints),
            disk_space: room,
            checkpoint_every_epochs: config.storage.checkpoint_every_epochs,
        };
        let (learner, round) = recover(&config, &layout, &storing).await;
        let issuer = Issuer::new(RUN, beside.key.clone());
        let known = KnownReceipts::restore(&storing.journal, learner.epoch(), &issuer).await.unwrap();
        let crediting = Crediting::new(issuer.clone(), known, recorder, Arc::clone(&work), system_clock());
        let authority = Authority { key: beside.key.public(), run_id: RUN.to_owned() };
        let clock_tolerance = config.access.clock_tolerance;
        // Contributors are admitted, also in runs by invitation.
        let policy = Policy { mode: AccessMode::Open, authority, clock_tolerance };
        let gate = Gate::new(policy, beside.key.public(), system_clock());
        let access = Access { gate, authority: None, remote_authority: None, here: beside.key.public() };
        let description = Arc::new(config.describe(manifest.clone(), access.describe()));
        let listening = BackboneAddresses { run_id: RUN.to_owned(), operator: None, addresses: Vec::new() };
        let (outputs, state, status) = outputs(&learner, &description, &listening, None).await.unwrap();
        let metrics = Metrics::new(status, Some(storing.disk_space.clone()));
        let ledger = SharedLedger::restore(manifest, &storing.journal, learner.epoch()).await;
        let (events, heard) = mpsc::channel(EVENTS_MAX);
        let (states, following) =
            States::follow(state.clone(), states_max(description.synchronous().unwrap()));
        tokio::spawn(following);
        let services = Services {
            sessions: SessionServices {
                host: RunServices {
                    described: Arc::new(SignedRun { run: description.as_ref().clone(), signature: None }),
                    states,
                    shards: Arc::clone(&beside.shards),
                    access,
                    node: beside.node.clone(),
                    conversations: config.conversations.clone(),
                    metrics: metrics.of_run().clone(),
                },
                driver: EventSender::new(events.clone()),
                names: beside.names.clone(),
                addresses: AddressGroups::new(&beside.key),
            },
            ledger: ledger.unwrap(),
            core: events,
            metrics: metrics.clone(),
            issuer,
            work,
            recomputing: None,
            evidence: EvidenceStore::open(storage.clone()).await.unwrap(),
        };
        let core = Core::new(description, learner, round, storing, outputs, metrics, crediting);
        let (core_cpu, streams_cpu) = (Cpu::new(network), Cpu::new(network));
        let (stop, stopped) = oneshot::channel();
        let core = core.run(heard, async move { drop(stopped.await) });
        let core = spawn_local(core_cpu.run(core));
        Rc::new(Self {
            core_cpu,
            streams_cpu,
            id,
            config,
            layout,
            storage,
            services,
            state,
            stop: RefCell::new(Some(stop)),
            core: RefCell::new(Some(core)),
            violations: RefCell::default(),
        })
    }

    /// Handles a stream that a contributor opened.
    pub(super) fn serve(
        self: &Rc<Self>,
        from: (PeerId, AddressGroup),
        protocol: &'static str,
        stream: StreamEnd,
    ) {
        let backbone = Rc::clone(self);
        let answering = async move {
            let violation = answer(backbone.services.clone(), from, protocol, stream).await;
            backbone.violations.borrow_mut().extend(violation.map(|violation| (from.0, violation)));
        };
        spawn_local(self.streams_cpu.run(answering));
    }

    /// Stops it, and compares its records: each step is of exactly the contributions accepted for it, each is there once,
    /// and a restart finds the same.
    pub(super) async fn end(&self, of: &str) -> CountedSamples {
        drop(self.stop.take());
        let core = self.core.take().unwrap();
        core.await.unwrap().unwrap();
        let journal = Journal::new(self.storage.clone());
        let checkpoints = Checkpoints::new(self.storage.clone(), self.config.storage.keep_checkpoints);
        let loaded = checkpoints.load_latest(RUN, &self.config.model_spec()).await.unwrap();
        let last = loaded.checkpoint.unwrap();
        let (mut counted, mut n_in_steps, mut n_open) = (CountedSamples::new(), 0, 0);
        for epoch in journal.epochs().await.unwrap() {
            let mut of_epoch = BTreeMap::new();
            let mut entries = journal.entries(epoch).await.unwrap();
            while let Some((sequence, entry)) = entries.next().await.unwrap() {
                let twice = counted.insert(entry.name(), entry.offer.n_samples);
                assert_eq!(twice, None, "{of}: {:?} is there twice", entry.name());
                of_epoch.insert(sequence, u64::from(entry.offer.n_samples));
            }
            let n_samples: u64 = of_epoch.values().sum();
            let Some(commit) = journal.commit_of(epoch).await.unwrap() else {
                assert_eq!(epoch, last.epoch, "{of}: an epoch that is over has no step");
                n_open = n_samples;
                continue;
            };
            let commit = commit.unwrap();
            let mut sequences = commit.seqs.clone();
            sequences.sort_unstable();
            let all: Vec<u32> = of_epoch.into_keys().collect();
            assert_eq!(sequences, all, "{of}: the step of epoch {epoch}");
            assert_eq!(commit.n_samples, n_samples, "{of}: the step of epoch {epoch}");
            n_in_steps += n_samples;
        }
        assert_eq!(n_in_steps, last.n_samples_total, "{of}: what the core says of its steps");
        let room = DiskSpace::new(self.storage.clone(), self.storage.clone(), 0);
        let storing = CoreStorage { journal, checkpoints, disk_space: room, checkpoint_every_epochs: 1 };
        let (learner, round) = recover(&self.config, &self.layout, &storing).await;
        let again = learner.publish(learner.epoch()).await.unwrap();
        assert_eq!(again.header, self.state.borrow().header, "{of}: a restart has another model");
        assert_eq!(round.n_samples(), n_open, "{of}: a restart has other samples of the open step");
        counted
    }
}

async fn recover(
    config: &RunConfig,
    layout: &ParameterLayout,
    CoreStorage { journal, checkpoints, .. }: &CoreStorage,
) -> (Learner, barnraise_swarm::collection::CollectionRound) {
    let configured = (config, config.synchronous().unwrap());
    let round = learner::round_config(configured, layout.n_parameters());
    let first = layout.initial_parameters(configured.0.model_spec().seed);
    Learner::recover(configured, round, (layout, first), (checkpoints, journal), false).await.unwrap()
}
