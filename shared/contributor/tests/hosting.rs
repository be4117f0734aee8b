//! A host of experts without a disk, over streams in memory and in virtual time: a backbone that grants leases and keeps
//! checkpoints, and trainers, honest and not.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use barnraise_contributor::hosting::{HostConfig, HostError, StoredExpert, host};
use barnraise_contributor::{IncomingStreams, Platform, PlatformError};
use barnraise_learning::hosted::HostedLayer;
use barnraise_learning::{ComputeDevice, DeviceChoice};
use barnraise_protocol::access::{AccessDescription, AccessMode, KeyPair, PublicKey, UnixTime};
use barnraise_protocol::bulk;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::dataset::{ImageShape, LabelledImages, Manifest, SampleKind, Samples};
use barnraise_protocol::dht::{self, NodeToPeer, PeerToNode, UnixMillis};
use barnraise_protocol::experts::checkpoints::{
    self, CheckpointAnswer, CheckpointQuestion, CheckpointRefusal, ExpertCheckpoint,
};
use barnraise_protocol::experts::leases::{
    self, ExpertLoad, Grantors, LEASE_TIME, LeaseAnswer, LeaseAsk, LeaseQuestion, LeaseVerdict,
};
use barnraise_protocol::experts::{
    self, ExpertCopy, ExpertPass, ExpertPlace, ExpertRefusal, ExpertRequest, ExpertRequestError, ExpertRows,
    PreparedRequest,
};
use barnraise_protocol::run::model::{FirstWeights, Graph};
use barnraise_protocol::run::{
    self, DataSpec, GradientCodec, HostedExperts, ModelSpec, OptimizerDescription, RunDescription,
    RunIdentity, ScheduleDescription, Scheme, Synchronous,
};
use barnraise_protocol::{Sha256Hash, TensorCodec, framing};
use barnraise_swarm::experts::HostedWork;
use barnraise_swarm::experts::leases::{COPIED_ROWS, LeaseBook, LeasedRun, VACANT_LONG, count_votes};
use barnraise_swarm::{AddressGroup, Moment, PeerKey};
use futures::StreamExt;
use futures::channel::{mpsc, oneshot};
use tokio::io::DuplexStream;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::Instant;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

type Pipe = Compat<DuplexStream>;

const DUPLEX_BYTES: usize = 64 * 1024;
/// Of the run.
const N_EXPERTS: usize = 4;

/// Experts of 20 parameters.
const GRAPH: &str = r#"
name = "experts"
loss = "classification"
parts = [{ name = "expert", blocks = [{ name = "only", op = { dense = { units = 4 } } }] }]
blocks = [
    { name = "flat", op = "flatten" },
    { name = "first", op = { dense = { units = 4 } } },
    { name = "moe", op = { experts = { part = "expert", side = 4, active = 2 } } },
    { name = "fc", op = { dense = { units = "classes" } } },
]
"#;

fn backbone_key() -> KeyPair {
    KeyPair::from_seed(&[1; 32])
}

fn run_of(graph: &str) -> RunDescription {
    let graph: Graph = toml::from_str(graph).unwrap();
    let hosted = HostedExperts {
        optimizer: OptimizerDescription::plain_sgd(),
        schedule: ScheduleDescription::constant(0.1),
        codec: TensorCodec::F32,
    };
    let shape = ImageShape { height: 4, width: 4, channels: 1 };
    let samples = LabelledImages { images: vec![7; 2 * 16], labels: vec![0, 1] };
    let (_, entry) = Samples::Images(samples).encode().unwrap();
    let manifest = Manifest {
        name: "noise".into(),
        samples: SampleKind::Images { shape, class_names: (0..3).map(|class| class.to_string()).collect() },
        shards: vec![entry],
        gallery: entry,
        frozen: Vec::new(),
        preprocessing: None,
        stream: None,
    };
    RunDescription {
        identity: RunIdentity { run_id: "barn".into(), title: "Test".into(), purpose: "Testing.".into() },
        model: ModelSpec { graph, seed: 7, weights: FirstWeights::Drawn, hosted: Some(hosted) },
        data: DataSpec { manifest, shuffle_buffer_samples: 300, augmentation: None },
        scheme: Scheme::Synchronous(Synchronous {
            target_batch_size: 64,
            micro_batch_size: 16,
            contribution_samples_max: 256,
            gradient_codec: GradientCodec::F16,
            slow_links: None,
            state_codec: TensorCodec::F32,
            delayed_updates: false,
            optimizer: OptimizerDescription::plain_sgd(),
            schedule: ScheduleDescription::constant(0.1),
            local_steps: None,
            recomputed: false,
        }),
        access: AccessDescription::open(backbone_key().public()),
    }
}

/// A backbone, in whose address space the hosts are.
struct World {
    run: RunDescription,
    origin: Instant,
    leases: RefCell<LeaseBook>,
    kept: RefCell<BTreeMap<ExpertCopy, (ExpertCheckpoint, Vec<u8>)>>,
    /// Records that hosts put into the DHT.
    n_records: Cell<usize>,
    is_up: Cell<bool>,
    /// Offers of checkpoints that are refused, as others are on their way.
    n_busy: Cell<u32>,
    /// Questions about leases.
    n_leased: Cell<u32>,
    /// Which are answered so late.
    answers_after: Cell<Duration>,
    /// By how much the wall clock is ahead.
    slept: Cell<Duration>,
    /// What all are told that ask for leases.
    frozen: RefCell<Vec<experts::LayerId>>,
    /// For which many rows wait, as all its hosts say.
    loaded: Cell<Option<ExpertPlace>>,
}

impl World {
    fn new(run: RunDescription) -> Rc<Self> {
        let layers = HostedLayer::of_run(&run).unwrap_or_default();
        let grids = layers.iter().map(|layer| (layer.id, layer.grid)).collect();
        let grantors = Grantors::new([backbone_key().public()]).unwrap();
        let leased = LeasedRun { run_id: run.identity.run_id.clone(), grids, grantors };
        let leases = LeaseBook::new(backbone_key(), leased, Moment::ZERO, false, 3);
        Rc::new(Self {
            run,
            origin: Instant::now(),
            leases: RefCell::new(leases),
            kept: RefCell::default(),
            n_records: Cell::new(0),
            is_up: Cell::new(true),
            n_busy: Cell::default(),
            n_leased: Cell::default(),
            answers_after: Cell::default(),
            slept: Cell::default(),
            frozen: RefCell::default(),
            loaded: Cell::default(),
        })
    }

    /// By the clock of the hosts, which stands still while they sleep.
    fn now(&self) -> Moment {
        self.origin.elapsed()
    }

    /// By that of the backbone.
    fn awake(&self) -> Moment {
        self.now() + self.slept.get()
    }

    fn wall(&self) -> UnixMillis {
        UnixMillis(1_000_000_000_000 + self.awake().as_millis() as u64)
    }

    fn holder(&self, place: ExpertPlace) -> Option<PublicKey> {
        self.leases.borrow().holder(self.awake(), place)
    }

    fn n_held(&self) -> usize {
        self.leases.borrow_mut().standing(self.awake()).n_held as usize
    }

    async fn serve(self: Rc<Self>, peer: PublicKey, protocol: &'static str, mut stream: Pipe) {
        match protocol {
            run::PROTOCOL => {
                let _: run::ContributorToBackbone = framing::read(&mut stream, 1024).await.unwrap();
                let described = run::SignedRun { run: self.run.clone(), signature: None };
                let answer = run::BackboneToContributor::Description(Box::new(described));
                framing::write(&mut stream, &answer, run::MESSAGE_BYTES_MAX).await.unwrap();
            }
            leases::PROTOCOL => {
                while let Ok(Some(question)) = leases::receive(&mut stream).await {
                    let answer = self.lease(peer, question);
                    self.n_leased.set(self.n_leased.get() + 1);
                    tokio::time::sleep(self.answers_after.get()).await;
                    // Who asked may have gone.
                    let _ = leases::reply(&mut stream, &answer).await;
                }
            }
            dht::PROTOCOL => {
                while let Ok(Some(question)) = dht::receive(&mut stream, 1 << 20).await {
                    let answer = match question {
                        PeerToNode::Put(records) => {
                            self.n_records.set(self.n_records.get() + records.len());
                            NodeToPeer::Stored(vec![Ok(()); records.len()])
                        }
                        PeerToNode::Get { keys, .. } => NodeToPeer::Got(vec![Vec::new(); keys.len()]),
                        other => panic!("{other:?}"),
                    };
                    dht::reply(&mut stream, &answer).await.unwrap();
                }
            }
            checkpoints::PROTOCOL => self.keep(stream).await,
            other => panic!("{other}"),
        }
    }

    fn lease(&self, holder: PublicKey, question: LeaseQuestion) -> LeaseAnswer {
        let (now, wall, mut book) = (self.awake(), self.wall(), self.leases.borrow_mut());
        let (host, asks, n_vacant) = match question {
            LeaseQuestion::Lease { host, asks, n_vacant, .. } => (host, asks, n_vacant),
            LeaseQuestion::Holders { places, .. } => {
                return LeaseAnswer::Holders(book.holders(now, &places).unwrap());
            }
            _ => return LeaseAnswer::Keepers(vec![Vec::new()]),
        };
        assert!(host.addresses.is_empty(), "it keeps nothing for others");
        book.on_host(now, holder, AddressGroup(1), &host).unwrap();
        let n_asks = asks.len();
        let chosen = book.chosen(now, &holder, n_vacant.into());
        let as_loaded = |ask: LeaseAsk| match ask {
            LeaseAsk::Renew { lease, .. } if Some(lease.place) == self.loaded.get() => LeaseAsk::Renew {
                lease,
                load: ExpertLoad { n_waiting: COPIED_ROWS, ..ExpertLoad::default() },
            },
            ask => ask,
        };
        let asks = asks.into_iter().map(as_loaded).chain(chosen);
        let termed: Vec<(LeaseAsk, u64)> = asks.map(|ask| (ask.clone(), book.term_of(wall, &ask))).collect();
        let grantors = book.run().grantors.clone();
        for (ask, _) in &termed {
            if let LeaseAsk::Renew { lease, .. } = ask {
                // The vote says it.
                let _ = book.check_wanted(now, &holder, lease);
            }
        }
        let votes = book.votes(now, wall, holder, &termed);
        let mut verdicts = termed.iter().zip(votes).map(|((ask, term), vote)| match ask {
            LeaseAsk::Release { .. } => LeaseVerdict::Released,
            _ => count_votes(&grantors, (ask.of(), holder, *term), &[vote]),
        });
        let asked: Vec<_> = verdicts.by_ref().take(n_asks).collect();
        let vacant = verdicts.filter_map(|verdict| match verdict {
            LeaseVerdict::Granted(lease) => Some(lease),
            _ => None,
        });
        LeaseAnswer::Leased {
            vacant: vacant.collect(),
            asked,
            copied: termed
                .iter()
                .take(n_asks)
                .map(|(ask, _)| ask.of().0)
                .filter(|place| book.is_copied(now, *place))
                .collect(),
            grantors,
            frozen: self.frozen.borrow().clone(),
        }
    }

    fn found(&self, place: ExpertPlace) -> Vec<ExpertCheckpoint> {
        let kept = self.kept.borrow();
        kept.range((place, 0)..=(place, u8::MAX)).map(|(_, (checkpoint, _))| checkpoint.clone()).collect()
    }

    async fn keep(&self, mut stream: Pipe) {
        while let Ok(Some(question)) = checkpoints::receive(&mut stream).await {
            match question {
                CheckpointQuestion::Offer { .. } if self.n_busy.get() > 0 => {
                    self.n_busy.set(self.n_busy.get() - 1);
                    let busy = CheckpointAnswer::Refused(CheckpointRefusal::Busy);
                    checkpoints::reply(&mut stream, &busy).await.unwrap();
                }
                CheckpointQuestion::Offer { checkpoint, .. } => {
                    let transfer = checkpoint.transfer;
                    let bytes = checkpoints::take_offered(&mut stream, transfer, 1 << 20).await.unwrap();
                    self.kept.borrow_mut().insert(checkpoint.lease.of(), (checkpoint, bytes));
                    checkpoints::reply(&mut stream, &CheckpointAnswer::Kept).await.unwrap();
                }
                CheckpointQuestion::Newest { place, .. } => {
                    let found = self.found(place);
                    checkpoints::reply(&mut stream, &CheckpointAnswer::Found(found)).await.unwrap();
                }
                CheckpointQuestion::Get { sha256, .. } => {
                    let is_asked = |(made, _): &&(ExpertCheckpoint, Vec<u8>)| made.transfer.sha256 == sha256;
                    let (checkpoint, bytes) = self.kept.borrow().values().find(is_asked).unwrap().clone();
                    checkpoints::reply(&mut stream, &CheckpointAnswer::Sent(checkpoint.transfer))
                        .await
                        .unwrap();
                    bulk::serve_source(&mut stream, &bytes).await.unwrap();
                }
            }
        }
    }
}

struct HostPlatform {
    world: Rc<World>,
    key: PublicKey,
    incoming: RefCell<Option<mpsc::Receiver<(PeerKey, Pipe)>>>,
    is_reachable: Rc<Cell<bool>>,
    is_connected: Cell<bool>,
}

impl Platform for HostPlatform {
    type Stream = Pipe;

    fn now(&self) -> Moment {
        self.world.now()
    }

    fn unix_time(&self) -> UnixTime {
        UnixTime(self.world.wall().0 / 1000)
    }

    fn device_kind(&self, _: DeviceChoice) -> DeviceKind {
        DeviceKind::BrowserCpu
    }

    async fn sleep_until(&self, at: Moment) {
        tokio::time::sleep_until(self.world.origin + at).await;
    }

    async fn yield_now(&self) {
        tokio::task::yield_now().await;
    }

    async fn connect(&self) -> Result<Vec<u8>, PlatformError> {
        self.is_connected.set(self.world.is_up.get());
        match self.world.is_up.get() {
            true => Ok(backbone_key().public().to_peer_id()),
            false => Err(PlatformError::Network("nobody is there".into())),
        }
    }

    fn set_other_backbones(&self, _: Vec<String>) {}

    async fn disconnect(&self) {}

    async fn open(&self, protocol: &'static str) -> Result<Pipe, PlatformError> {
        if !self.world.is_up.get() {
            self.is_connected.set(false);
        }
        if !self.is_connected.get() {
            return Err(PlatformError::NotConnected);
        }
        let (ours, theirs) = tokio::io::duplex(DUPLEX_BYTES);
        spawn_local(Rc::clone(&self.world).serve(self.key, protocol, theirs.compat()));
        Ok(ours.compat())
    }

    async fn cached(&self, _: Sha256Hash) -> Option<Vec<u8>> {
        None
    }

    async fn cache(&self, _: Sha256Hash, _: &[u8]) {}

    fn accept(&self, protocol: &'static str) -> Result<IncomingStreams<Pipe>, PlatformError> {
        assert_eq!(protocol, experts::PROTOCOL);
        Ok(self.incoming.take().unwrap().boxed_local())
    }

    fn addresses(&self, _: usize) -> Vec<Vec<u8>> {
        if self.is_reachable.get() && self.is_connected.get() && self.world.is_up.get() {
            vec![vec![4, 127, 0, 0, 1, 6, 0, 1]]
        } else {
            Vec::new()
        }
    }
}

/// What it told last.
type Told = Rc<RefCell<(HostedWork, Option<String>)>>;

struct RunningHost {
    key: PublicKey,
    streams: mpsc::Sender<(PeerKey, Pipe)>,
    leave: Option<oneshot::Sender<()>>,
    told: Told,
    is_reachable: Rc<Cell<bool>>,
    task: tokio::task::JoinHandle<Result<(), HostError>>,
}

impl RunningHost {
    fn start(world: &Rc<World>, at: u8) -> Self {
        Self::start_as(world, at, true)
    }

    fn start_as(world: &Rc<World>, at: u8, is_reachable: bool) -> Self {
        let key = KeyPair::from_seed(&[at; 32]);
        let (streams, incoming) = mpsc::channel(256);
        let is_reachable = Rc::new(Cell::new(is_reachable));
        let platform = HostPlatform {
            world: Rc::clone(world),
            key: key.public(),
            incoming: RefCell::new(Some(incoming)),
            is_reachable: Rc::clone(&is_reachable),
            is_connected: Cell::new(false),
        };
        let (leave, leaving) = oneshot::channel();
        let told = Told::default();
        let (public, telling) = (key.public(), Rc::clone(&told));
        let task = spawn_local(async move {
            let config = HostConfig { key, device: ComputeDevice::cpu() };
            host(&platform, config, leaving, |work, problem| *telling.borrow_mut() = (work, problem)).await
        });
        Self { key: public, streams, leave: Some(leave), told, is_reachable, task }
    }

    fn work(&self) -> HostedWork {
        self.told.borrow().0
    }

    fn problem(&self) -> Option<String> {
        self.told.borrow().1.clone()
    }

    async fn until(&self, what: impl Fn(&HostedWork) -> bool) {
        for _ in 0..600 {
            if what(&self.work()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{:?}", self.told.borrow());
    }

    fn stream(&self, trainer: u8) -> Pipe {
        let (ours, theirs) = tokio::io::duplex(DUPLEX_BYTES);
        self.streams.clone().try_send((PeerKey(vec![trainer]), theirs.compat())).unwrap();
        ours.compat()
    }

    async fn ask(
        &self,
        place: ExpertPlace,
        id: u64,
        pass: ExpertPass,
    ) -> Result<Vec<f32>, ExpertRequestError> {
        let prepared = prepared(place, (id, 4), pass);
        let rows: ExpertRows = experts::ask(&mut self.stream(1), &prepared).await?;
        Ok(prepared.decode(&rows).unwrap())
    }

    async fn leave(mut self) -> Result<(), HostError> {
        drop(self.leave.take());
        self.task.await.unwrap()
    }
}

fn prepared((layer, uid): ExpertPlace, (request_id, width): (u64, u32), pass: ExpertPass) -> PreparedRequest {
    let request = ExpertRequest {
        run_id: "barn".into(),
        request_id,
        layer,
        uid,
        pass,
        n_steps: 0,
        n_rows: 2,
        input_values: width,
        output_values: 4,
        codec: TensorCodec::F32,
        transfer: bulk::Transfer::of(&[]),
    };
    let inputs = vec![0.5; 2 * width as usize];
    let gradients = (pass == ExpertPass::Backward).then(|| vec![0.25; 8]);
    PreparedRequest::new(request, &inputs, gradients.as_deref()).unwrap()
}

fn places(world: &World) -> Vec<ExpertPlace> {
    let layer = HostedLayer::of_run(&world.run).unwrap().remove(0);
    (0..layer.grid.n_places()).map(|number| (layer.id, layer.grid.uid(number).unwrap())).collect()
}

async fn in_memory(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_serves_experts_and_the_next_one_goes_on_from_what_they_learned() {
    in_memory(async {
        let world = World::new(run_of(GRAPH));
        let first = RunningHost::start(&world, 7);
        first.until(|work| work.n_experts as usize == N_EXPERTS).await;
        assert_eq!((world.n_held(), first.work().n_parameters, first.problem()), (N_EXPERTS, 80, None));
        let place = places(&world)[2];
        let before = first.ask(place, 1, ExpertPass::Forward).await.unwrap();
        assert_eq!(first.ask(place, 2, ExpertPass::Forward).await.unwrap(), before, "it changes nothing");
        let back = first.ask(place, 3, ExpertPass::Backward).await.unwrap();
        assert_eq!(back.len(), 8);
        let after = first.ask(place, 4, ExpertPass::Forward).await.unwrap();
        assert_ne!(after, before, "it has made a step");
        // The same request is counted once.
        let again = first.ask(place, 3, ExpertPass::Backward).await.unwrap_err();
        assert!(matches!(again, ExpertRequestError::Refused(ExpertRefusal::Duplicate)), "{again}");
        first.until(|work| (work.n_forward, work.n_backward) == (6, 2)).await;
        assert!(first.work().bytes_received > 0 && first.work().bytes_sent > 0);
        assert!(world.n_records.get() > 0, "trainers can find it");
        // It hands over what it has learned, and gives all places back.
        let key = first.key;
        first.leave().await.unwrap();
        assert_eq!(world.n_held(), 0);
        let (checkpoint, bytes) = world.kept.borrow()[&(place, 0)].clone();
        assert_eq!((checkpoint.n_steps, checkpoint.lease.holder), (1, key));
        assert_eq!(StoredExpert::open(&bytes).unwrap().version(), checkpoint.version());
        assert_eq!(world.kept.borrow().len(), N_EXPERTS);

        let second = RunningHost::start(&world, 8);
        second.until(|work| work.n_experts as usize == N_EXPERTS).await;
        assert_eq!(second.ask(place, 5, ExpertPass::Forward).await.unwrap(), after);
        // A request that the first host has counted is not counted by the second.
        let again = second.ask(place, 3, ExpertPass::Backward).await.unwrap_err();
        assert!(matches!(again, ExpertRequestError::Refused(ExpertRefusal::Duplicate)), "{again}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_ends_without_a_word_costs_what_was_learned_since_its_last_checkpoint() {
    in_memory(async {
        let world = World::new(run_of(GRAPH));
        let first = RunningHost::start(&world, 7);
        first.until(|work| work.n_experts as usize == N_EXPERTS).await;
        let place = places(&world)[0];
        first.ask(place, 1, ExpertPass::Backward).await.unwrap();
        let kept = || world.kept.borrow().get(&(place, 0)).map(|(checkpoint, _)| checkpoint.n_steps);
        while kept() != Some(1) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let learned = first.ask(place, 2, ExpertPass::Forward).await.unwrap();
        first.ask(place, 3, ExpertPass::Backward).await.unwrap();
        first.task.abort();
        let second = RunningHost::start(&world, 8);
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(second.work().n_experts, 0, "the leases of the first one hold");
        assert!(second.problem().unwrap().contains("none is free"));
        second.until(|work| work.n_experts as usize == N_EXPERTS).await;
        assert_eq!(world.holder(place), Some(second.key));
        assert_eq!(second.ask(place, 4, ExpertPass::Forward).await.unwrap(), learned);
    })
    .await;
}

/// How far the answers of two hosts are from each other.
fn apart(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt()
}

#[tokio::test(start_paused = true)]
async fn a_loaded_expert_gets_a_copy_both_answer_are_averaged_and_the_copy_gives_way() {
    in_memory(async {
        let world = World::new(run_of(GRAPH));
        let first = RunningHost::start(&world, 7);
        first.until(|work| work.n_experts as usize == N_EXPERTS).await;
        let place = places(&world)[1];
        let fresh = first.ask(place, 1, ExpertPass::Forward).await.unwrap();
        first.ask(place, 2, ExpertPass::Backward).await.unwrap();
        let learned = first.ask(place, 3, ExpertPass::Forward).await.unwrap();
        let step = apart(&fresh, &learned);
        world.loaded.set(Some(place));
        tokio::time::sleep(VACANT_LONG).await;
        let second = RunningHost::start(&world, 8);
        second.until(|work| work.n_experts == 1).await;
        assert_eq!(world.holder(place), Some(first.key), "that of the expert itself");
        assert_eq!(second.ask(place, 1, ExpertPass::Forward).await.unwrap(), learned, "it begins from there");
        // One learns from three times as much as the other.
        const MINUTES: u64 = 8;
        let mut id = 10;
        for _ in 0..MINUTES {
            for host in [&first, &first, &first, &second] {
                host.ask(place, id, ExpertPass::Backward).await.unwrap();
                id += 1;
            }
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        let one = first.ask(place, id, ExpertPass::Forward).await.unwrap();
        let other = second.ask(place, id, ExpertPass::Forward).await.unwrap();
        let (distance, alone) = (apart(&one, &other), 2.0 * MINUTES as f32 * step);
        assert!(distance < alone / 2.0, "{distance} apart, each on its own they would be {alone}");
        let n_steps = |copy| world.kept.borrow()[&(place, copy)].0.n_steps;
        assert!(n_steps(0) > 1 + 3 * MINUTES && n_steps(1) > 1 + MINUTES, "{} {}", n_steps(0), n_steps(1));
        // Its place is vacant, which a host with a copy cannot have: the copy ends, and it goes on as the expert itself.
        first.leave().await.unwrap();
        second.until(|work| work.n_experts as usize == N_EXPERTS).await;
        while world.holder(place) != Some(second.key) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        second.until(|work| work.n_experts as usize == N_EXPERTS).await;
        assert_eq!(second.ask(place, id + 1, ExpertPass::Forward).await.unwrap(), one);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_host_without_a_backbone_serves_until_its_leases_end_and_again_when_it_is_back() {
    in_memory(async {
        let world = World::new(run_of(GRAPH));
        world.is_up.set(false);
        let host = RunningHost::start(&world, 7);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(host.problem().unwrap(), "nobody is there");
        world.is_up.set(true);
        host.until(|work| work.n_experts as usize == N_EXPERTS).await;
        let place = places(&world)[1];
        world.is_up.set(false);
        tokio::time::sleep(Duration::from_secs(5)).await;
        host.ask(place, 1, ExpertPass::Forward).await.unwrap();
        tokio::time::sleep(LEASE_TIME).await;
        let refused = host.ask(place, 2, ExpertPass::Forward).await.unwrap_err();
        assert!(matches!(refused, ExpertRequestError::Refused(ExpertRefusal::Unknown)), "{refused}");
        host.until(|work| work.n_experts == 0).await;
        assert_eq!(host.problem().unwrap(), "nobody is there");
        world.is_up.set(true);
        host.until(|work| work.n_experts as usize == N_EXPERTS).await;
        host.ask(place, 3, ExpertPass::Forward).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_nobody_reaches_takes_no_places() {
    in_memory(async {
        let world = World::new(run_of(GRAPH));
        let host = RunningHost::start_as(&world, 7, false);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!((host.work().n_experts, world.n_held(), world.n_records.get()), (0, 0, 0));
        assert!(host.problem().unwrap().contains("can be reached"), "{:?}", host.problem());
        host.leave().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_reached_no_longer_hands_its_experts_over() {
    in_memory(async {
        let world = World::new(run_of(GRAPH));
        let host = RunningHost::start(&world, 7);
        host.until(|work| work.n_experts as usize == N_EXPERTS).await;
        let place = places(&world)[3];
        host.ask(place, 1, ExpertPass::Backward).await.unwrap();
        host.is_reachable.set(false);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(world.n_held(), N_EXPERTS, "it may be reached again");
        host.until(|work| work.n_experts == 0).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(world.n_held(), 0);
        assert_eq!(world.kept.borrow()[&(place, 0)].0.n_steps, 1);
        assert!(host.problem().unwrap().contains("can be reached"));
        host.is_reachable.set(true);
        host.until(|work| work.n_experts as usize == N_EXPERTS).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_has_no_place_comes_back_to_its_backbone() {
    in_memory(async {
        let world = World::new(run_of(GRAPH));
        let first = RunningHost::start(&world, 7);
        first.until(|work| work.n_experts as usize == N_EXPERTS).await;
        let second = RunningHost::start(&world, 8);
        tokio::time::sleep(Duration::from_secs(10)).await;
        world.is_up.set(false);
        first.task.abort();
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(second.problem().unwrap(), "nobody is there");
        world.is_up.set(true);
        second.until(|work| work.n_experts as usize == N_EXPERTS).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_reached_again_while_it_hands_over_loses_nothing() {
    for after in 0..60 {
        in_memory(async {
            let world = World::new(run_of(GRAPH));
            let host = RunningHost::start(&world, 7);
            host.until(|work| work.n_experts as usize == N_EXPERTS).await;
            for (id, place) in places(&world).into_iter().enumerate() {
                host.ask(place, id as u64, ExpertPass::Backward).await.unwrap();
            }
            host.is_reachable.set(false);
            tokio::time::sleep(Duration::from_millis(29_500 + 50 * after)).await;
            host.is_reachable.set(true);
            tokio::time::sleep(Duration::from_secs(20)).await;
            host.until(|work| work.n_experts as usize == N_EXPERTS).await;
            for (id, place) in places(&world).into_iter().enumerate() {
                let again = host.ask(place, id as u64, ExpertPass::Backward).await;
                let is_known = matches!(&again, Err(ExpertRequestError::Refused(ExpertRefusal::Duplicate)));
                assert!(is_known, "after {after}: {again:?}");
            }
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_without_a_backbone_says_what_is_lost_when_it_leaves() {
    in_memory(async {
        let world = World::new(run_of(GRAPH));
        let host = RunningHost::start(&world, 7);
        host.until(|work| work.n_experts as usize == N_EXPERTS).await;
        world.is_up.set(false);
        let lost = host.leave().await.unwrap_err();
        assert!(matches!(lost, HostError::NotHandedOver { n_experts: N_EXPERTS }), "{lost}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_slept_serves_nothing_until_it_has_asked_again() {
    in_memory(async {
        let world = World::new(run_of(GRAPH));
        let host = RunningHost::start(&world, 7);
        host.until(|work| work.n_experts as usize == N_EXPERTS).await;
        let place = places(&world)[0];
        let before = world.n_leased.get();
        // An answer that was on its way when it fell asleep counts no more.
        world.answers_after.set(Duration::from_secs(3));
        while world.n_leased.get() == before {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        world.slept.set(world.slept.get() + Duration::from_secs(60));
        host.until(|work| work.n_experts == 0).await;
        let refused = host.ask(place, 1, ExpertPass::Forward).await.unwrap_err();
        assert!(matches!(refused, ExpertRequestError::Refused(ExpertRefusal::Unknown)), "{refused}");
        world.answers_after.set(Duration::ZERO);
        host.until(|work| work.n_experts as usize == N_EXPERTS).await;
        host.ask(place, 2, ExpertPass::Forward).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_leaves_while_it_takes_places_gives_all_of_them_back() {
    for after in [0, 1, 50, 500, 1500, 2500] {
        in_memory(async {
            let world = World::new(run_of(GRAPH));
            world.answers_after.set(Duration::from_millis(1000));
            let host = RunningHost::start(&world, 7);
            tokio::time::sleep(Duration::from_millis(1000 + after)).await;
            host.leave().await.unwrap();
            assert_eq!(world.n_held(), 0, "after {after} ms");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_keeper_that_is_busy_is_asked_again_before_a_place_is_given_back() {
    in_memory(async {
        let world = World::new(run_of(GRAPH));
        let host = RunningHost::start(&world, 7);
        host.until(|work| work.n_experts as usize == N_EXPERTS).await;
        let place = places(&world)[2];
        host.ask(place, 1, ExpertPass::Backward).await.unwrap();
        world.n_busy.set(12);
        host.leave().await.unwrap();
        assert_eq!((world.n_held(), world.kept.borrow()[&(place, 0)].0.n_steps), (0, 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn frozen_experts_make_no_step_here() {
    in_memory(async {
        let world = World::new(run_of(GRAPH));
        let place = places(&world)[1];
        world.frozen.replace(vec![place.0]);
        let host = RunningHost::start(&world, 7);
        host.until(|work| work.n_experts as usize == N_EXPERTS).await;
        let before = host.ask(place, 1, ExpertPass::Forward).await.unwrap();
        host.ask(place, 2, ExpertPass::Backward).await.unwrap();
        assert_eq!(host.ask(place, 3, ExpertPass::Forward).await.unwrap(), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_no_expert_can_compute_is_refused_and_holds_nothing_up() {
    in_memory(async {
        let world = World::new(run_of(GRAPH));
        let host = RunningHost::start(&world, 7);
        host.until(|work| work.n_experts as usize == N_EXPERTS).await;
        let place = places(&world)[0];
        // Rows of another width.
        let wide = prepared(place, (1, 5), ExpertPass::Forward);
        let refused = experts::ask(&mut host.stream(1), &wide).await.unwrap_err();
        assert!(
            matches!(refused, ExpertRequestError::Refused(ExpertRefusal::Shape { want: 4, got: 5 })),
            "{refused}"
        );
        // Streams that say nothing: those of one trainer leave room for others, and all of them end.
        let silent: Vec<Pipe> = (0..200).map(|_| host.stream(66)).collect();
        tokio::time::sleep(Duration::from_millis(10)).await;
        host.ask(place, 3, ExpertPass::Forward).await.unwrap();
        let early = prepared(place, (4, 4), ExpertPass::Forward);
        assert!(experts::ask(&mut host.stream(66), &early).await.is_err(), "it has as many as it may");
        tokio::time::sleep(Duration::from_secs(30)).await;
        let after = prepared(place, (5, 4), ExpertPass::Forward);
        experts::ask(&mut host.stream(66), &after).await.unwrap();
        drop(silent);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_a_tab_cannot_host_is_refused_with_its_reason() {
    in_memory(async {
        let mut closed = run_of(GRAPH);
        closed.access.mode = AccessMode::Invitation;
        let large = GRAPH.replacen("units = 4", "units = 900000", 1);
        let dense = {
            let mut run = run_of(GRAPH);
            run.model.hosted = None;
            run
        };
        for (run, reason) in [
            (closed, "not open"),
            (dense, "no experts that peers host"),
            (run_of(&large), "a tab has room for"),
        ] {
            let refused = RunningHost::start(&World::new(run), 7).task.await.unwrap().unwrap_err();
            assert!(refused.to_string().contains(reason), "{refused}");
        }
    })
    .await;
}
