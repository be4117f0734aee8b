//! A backbone as it ships, without its sockets: the core with its learner, the journal and the checkpoints in memory, and
//! what answers on streams. What it counted is looked up afterwards in each place that says so.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use barnraise_learning::{DataShape, ParameterLayout};
use barnraise_protocol::access::{AccessMode, Authority, KeyPair};
use barnraise_protocol::dataset::{ImageShape, LabelledImages, SampleKind, Samples};
use barnraise_protocol::run::ModelKind;
use barnraise_relay::{Misdeed, Node, NodeConfig};
use barnraise_swarm::access::Policy;
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::round::AddressGroup;
use libp2p::PeerId;
use libp2p::identity::Keypair;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, spawn_local};

use super::super::addresses::Addresses;
use super::super::core::crash::folder;
use super::super::core::{Core, EVENTS_MAX, Storing};
use super::super::learner::{self, Learner, LearnerError, PublishedState};
use super::super::ledger::SharedLedger;
use super::super::metrics::Metrics;
use super::super::states::States;
use super::super::streams::{Services, answer};
use super::super::{Listening, describe, outputs};
use super::link::{End, Halt, Halting};
use crate::access::{Access, Gate, peer_id, system_clock};
use crate::config::RunConfig;
use crate::contributions::{Crediting, Issuer, KnownReceipts, Names, Recorder, Recording, Store, WorkMeter};
use crate::data::TrainingData;
use crate::data::shards::ShardStore;
use crate::recomputation::EvidenceStore;
use crate::storage::Storage;
use crate::storage::checkpoint::Checkpoints;
use crate::storage::journal::{Journal, Name};
use crate::storage::room::Room;

/// Samples of a pass.
pub(super) const MICRO_BATCH: u32 = 16;
const RUN: &str = "stalls";
const SHAPE: ImageShape = ImageShape { height: 2, width: 2, channels: 1 };
const N_CLASSES: usize = 4;
const TRAIN_SAMPLES: usize = 400;
const SHARD_SAMPLES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(199);

/// What all worlds share: the data, and all that has threads of its own, which would not know what time it is.
pub(super) struct Beside {
    runtime: Runtime,
    key: KeyPair,
    shards: Arc<ShardStore>,
    store: Store,
    names: Names,
    /// It has stopped: streams come from elsewhere, and it knows of no way to anybody.
    node: Node,
    _folder: TempDir,
}

/// What one world has of it.
pub(super) struct Here {
    storage: Storage,
    recorder: Recorder,
    work: Arc<WorkMeter>,
}

/// What counts, by the contributor and its number for it: samples.
pub(super) type Counted = BTreeMap<Name, u32>;

/// Noise on a ground that tells the class.
fn noise(n_samples: usize) -> Samples {
    let (mut random, mut images) = (SplitMix64::new(3), LabelledImages::default());
    for _ in 0..n_samples {
        let label = random.below(N_CLASSES) as u8;
        images.images.extend((0..SHAPE.n_values()).map(|_| label * 32 + random.below(128) as u8));
        images.labels.push(label);
    }
    Samples::Images(images)
}

/// Of a tiny model.
pub(super) fn config(target_batch_size: u32, mode: AccessMode) -> RunConfig {
    let mut config = RunConfig::dev(Path::new("unused"));
    config.run.id = RUN.to_owned();
    config.run.model = ModelKind::Mlp { hidden: vec![2] };
    config.run.target_batch_size = target_batch_size;
    config.run.micro_batch_size = MICRO_BATCH;
    config.run.shuffle_buffer_samples = TRAIN_SAMPLES as u32;
    config.data.shard_samples = SHARD_SAMPLES;
    config.access.mode = mode;
    config
}

impl Beside {
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
                vocabulary: None,
            };
            let sharding = config(1, AccessMode::Open).sharding();
            let shards = ShardStore::open(Storage::in_memory(), &data, sharding).await.unwrap();
            let here = peer_id(key.public()).unwrap();
            let store = Store::open(folder.path(), None, RUN, here).await.unwrap();
            let names = Names::start(store.clone(), system_clock());
            let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
            node.clone().shutdown().await;
            (Arc::new(shards), store, names, node)
        });
        Self { runtime, key, shards, store, names, node, _folder: folder }
    }

    /// What a world wants of what is here, and the task that writes down afterwards what was accepted in it.
    pub(super) fn open(&self) -> (Here, Recording) {
        let (storage, work) = (Storage::in_memory(), Arc::new(WorkMeter::default()));
        let issuer = Issuer::new(RUN, self.key.clone());
        let (store, journal) = (self.store.clone(), Journal::new(storage.clone()));
        let refused = Box::new(BTreeMap::<&'static str, u64>::new);
        let made = Recording::new(store, journal, issuer, 0, refused, Arc::clone(&work));
        let (recording, recorder) = self.runtime.block_on(made).unwrap();
        (Here { storage, recorder, work }, recording)
    }

    /// That exactly what was counted is credited.
    pub(super) fn check_credit(&self, mut recording: Recording, counted: &Counted, of: &str) {
        let mut totals: BTreeMap<&[u8], (u64, u64)> = BTreeMap::new();
        for ((peer, _), &n_samples) in counted {
            let (n_contributions, sum) = totals.entry(peer).or_default();
            (*n_contributions, *sum) = (*n_contributions + 1, *sum + u64::from(n_samples));
        }
        self.runtime.block_on(async {
            recording.catch_up().await.unwrap();
            for (peer, total) in totals {
                let given = self.store.of_peer(PeerId::from_bytes(peer).unwrap()).await.unwrap();
                let given = given.map(|it| (it.given.n_contributions, it.given.n_samples));
                assert_eq!(given, Some(total), "{of}: what is credited to {peer:?}");
            }
        });
    }
}

/// As long as it runs.
pub(super) struct Backbone {
    /// Where its core, and all that it answers with, stands still.
    pub(super) core_halt: Rc<Halt>,
    pub(super) streams_halt: Rc<Halt>,
    pub(super) id: PeerId,
    pub(super) config: RunConfig,
    layout: ParameterLayout,
    storage: Storage,
    services: Services,
    state: watch::Receiver<PublishedState>,
    stop: RefCell<Option<oneshot::Sender<()>>>,
    core: RefCell<Option<JoinHandle<Result<(), LearnerError>>>>,
    /// What the streams of each contributor ended with.
    pub(super) misdeeds: RefCell<Vec<(PeerId, Misdeed)>>,
}

impl Backbone {
    /// As `barnraise serve` begins.
    pub(super) async fn start(beside: &Beside, config: RunConfig, here: Here) -> Rc<Self> {
        let Here { storage, recorder, work } = here;
        let id = peer_id(beside.key.public()).unwrap();
        let manifest = beside.shards.manifest();
        let layout = ParameterLayout::of(&config.model_spec(), DataShape::of(&manifest.samples)).unwrap();
        let room = Room::new(storage.clone(), storage.clone(), 0);
        let storing = Storing {
            journal: Journal::new(storage.clone()),
            checkpoints: Checkpoints::new(storage.clone(), config.storage.keep_checkpoints),
            room,
            checkpoint_every_epochs: config.storage.checkpoint_every_epochs,
        };
        let (learner, round) = recover(&config, &layout, &storing).await;
        let issuer = Issuer::new(RUN, beside.key.clone());
        let known = KnownReceipts::restore(&storing.journal, learner.epoch(), &issuer).await.unwrap();
        let crediting = Crediting::new(issuer.clone(), known, recorder, Arc::clone(&work), system_clock());
        let authority = Authority { key: beside.key.public(), run_id: RUN.to_owned() };
        let clock_tolerance = config.access.clock_tolerance;
        // Contributors are let in, in runs of peers that are known by name, too.
        let policy = Policy { mode: AccessMode::Open, authority, clock_tolerance };
        let gate = Gate::new(policy, beside.key.public(), system_clock());
        let access = Access { gate, authority: None, elsewhere: None, here: beside.key.public() };
        let description = Arc::new(describe(&config, &access, manifest, &layout).unwrap());
        let listening = Listening { run_id: RUN.to_owned(), operator: None, addresses: Vec::new() };
        let (outputs, state, status) = outputs(&learner, &description, &listening).unwrap();
        let metrics = Metrics::new(status, Some(storing.room.clone()));
        let ledger = SharedLedger::restore(manifest.n_samples(), &storing.journal, learner.epoch()).await;
        let (events, heard) = mpsc::channel(EVENTS_MAX);
        let services = Services {
            description: Arc::clone(&description),
            states: States::follow(state.clone()),
            ledger: ledger.unwrap(),
            shards: Arc::clone(&beside.shards),
            core: events,
            access,
            node: beside.node.clone(),
            metrics: metrics.clone(),
            issuer,
            names: beside.names.clone(),
            work,
            conversations: config.conversations.clone(),
            addresses: Addresses::new(&beside.key),
            recomputing: None,
            evidence: EvidenceStore::open(storage.clone()).await.unwrap(),
        };
        let core = Core::new(description, learner, round, storing, outputs, metrics, crediting);
        let (core_halt, streams_halt) = (Halt::new(), Halt::new());
        let (stop, stopped) = oneshot::channel();
        let core = core.run(heard, async move { drop(stopped.await) });
        let core = spawn_local(Halting::new(&core_halt, core));
        Rc::new(Self {
            core_halt,
            streams_halt,
            id,
            config,
            layout,
            storage,
            services,
            state,
            stop: RefCell::new(Some(stop)),
            core: RefCell::new(Some(core)),
            misdeeds: RefCell::default(),
        })
    }

    /// Answers on a stream that a contributor opened.
    pub(super) fn serve(self: &Rc<Self>, from: (PeerId, AddressGroup), protocol: &'static str, stream: End) {
        let backbone = Rc::clone(self);
        let answering = async move {
            let misdeed = answer(backbone.services.clone(), from, protocol, stream).await;
            backbone.misdeeds.borrow_mut().extend(misdeed.map(|misdeed| (from.0, misdeed)));
        };
        spawn_local(Halting::new(&self.streams_halt, answering));
    }

    /// Ends as a process that is told to, and looks up what it counted: the steps are of all that was accepted for them
    /// and of nothing else, each contribution is there once, and a restart finds the same.
    pub(super) async fn end(&self, of: &str) -> Counted {
        drop(self.stop.take());
        let core = self.core.take().unwrap();
        core.await.unwrap().unwrap();
        let journal = Journal::new(self.storage.clone());
        let checkpoints = Checkpoints::new(self.storage.clone(), self.config.storage.keep_checkpoints);
        let loaded = checkpoints.load_latest(RUN, &self.config.model_spec()).await.unwrap();
        let last = loaded.checkpoint.unwrap();
        let (mut counted, mut n_in_steps, mut n_open) = (Counted::new(), 0, 0);
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
        let room = Room::new(self.storage.clone(), self.storage.clone(), 0);
        let storing = Storing { journal, checkpoints, room, checkpoint_every_epochs: 1 };
        let (learner, round) = recover(&self.config, &self.layout, &storing).await;
        let again = learner.publish().unwrap();
        assert_eq!(again.header, self.state.borrow().header, "{of}: a restart has another model");
        assert_eq!(round.n_samples(), n_open, "{of}: a restart has other samples of the open step");
        counted
    }
}

async fn recover(
    config: &RunConfig,
    layout: &ParameterLayout,
    Storing { journal, checkpoints, .. }: &Storing,
) -> (Learner, barnraise_swarm::round::AveragingRound) {
    let round = learner::round_config(config, layout.n_parameters());
    Learner::recover(config, round, layout, (checkpoints, journal), false).await.unwrap()
}
