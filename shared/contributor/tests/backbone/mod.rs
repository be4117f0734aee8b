//! A backbone in memory: the collection round of `barnraise-swarm` behind the conversations of
//! `barnraise-protocol`, on duplex streams that can be cut.

#![allow(dead_code)] // Each test uses some of it.

pub(crate) mod peers;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use barnraise_contributor::{Platform, PlatformError};
use barnraise_learning::{DataShape, DeviceChoice, ParameterLayout};
use barnraise_protocol::access::{AccessDescription, KeyPair, PublicKey, UnixTime};
use barnraise_protocol::bulk::{self, Partial, Transfer};
use barnraise_protocol::commitment::Commitment;
use barnraise_protocol::contribute::{self, DeviceKind, RunProgress};
use barnraise_protocol::dataset::{ImageShape, LabelledImages, Manifest, SampleKind, Samples};
use barnraise_protocol::evidence::{ContributionEvidence, EvidenceHeader};
use barnraise_protocol::gradient::{self, Accepted, ContributionRefusal, Offer};
use barnraise_protocol::pieces::Pieces;
use barnraise_protocol::receipt::{Receipt, SignedReceipt};
use barnraise_protocol::run::{
    self, DataSpec, GradientCodec, OptimizerDescription, Preset, RunDescription, RunIdentity,
    ScheduleDescription, Scheme, Synchronous,
};
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::state::{self, StateHeader};
use barnraise_protocol::{Refusal, Sha256Hash, TensorCodec, framing};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::collection::{CollectionAction, CollectionConfig, CollectionRound, Ticket};
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::robust::Aggregation;
use barnraise_swarm::{Moment, PeerKey};
use futures::channel::{mpsc, oneshot};
use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use futures::{FutureExt, StreamExt, select_biased};
use tokio::io::DuplexStream;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

pub(crate) const MICRO_BATCH: u32 = 16;
pub(crate) const CONTRIBUTION_SAMPLES_MAX: u32 = 256;
/// Codec of slow links.
pub(crate) const SLOW_CODEC: GradientCodec = GradientCodec::Int4;
/// Large enough that transfers take several chunks.
pub(crate) const SHAPE: ImageShape = ImageShape { height: 28, width: 28, channels: 1 };
const HIDDEN: u32 = 64;
const N_CLASSES: usize = 4;
const SHARD_SAMPLES: usize = 250;
const LEARNING_RATE: f32 = 0.01;
const DUPLEX_BYTES: usize = 16 * 1024;

type DuplexPipe = Compat<DuplexStream>;

thread_local! {
    static ORIGIN: Instant = Instant::now();
}

fn now() -> Moment {
    ORIGIN.with(Instant::elapsed)
}

pub(crate) struct InMemoryBackbone {
    pub(crate) description: RefCell<RunDescription>,
    /// Wakes the waiting test script.
    pub(crate) happened: Notify,
    pub(crate) accepted: RefCell<Vec<Accepted>>,
    /// All offers.
    pub(crate) offers: RefCell<Vec<Offer>>,
    /// ContributionEvidence of each contribution with a commitment.
    pub(crate) evidence: RefCell<Vec<ContributionEvidence>>,
    /// Every state that was sent.
    states: RefCell<HashMap<Sha256Hash, Vec<u8>>>,
    /// Offers are received, and not requested until [`Self::release`].
    pub(crate) is_holding: Cell<bool>,
    /// Offers are pulled and counted, and not answered until [`Self::release`].
    pub(crate) is_holding_answers: Cell<bool>,
    pub(crate) n_held: Cell<u32>,
    released: Notify,
    /// Receipts name another reducer than their signer.
    pub(crate) is_forging: Cell<bool>,
    is_up: Cell<bool>,
    /// The version of the `run` protocol that this backbone speaks.
    pub(crate) speaks: Cell<&'static str>,
    shards: HashMap<ShardId, (Transfer, Arc<[u8]>)>,
    round: RefCell<CollectionRound>,
    parameters: RefCell<Vec<f32>>,
    sessions: RefCell<BTreeMap<PeerKey, mpsc::Sender<contribute::BackboneToContributor>>>,
    receiving: RefCell<BTreeSet<Ticket>>,
    answers: RefCell<HashMap<Ticket, oneshot::Sender<Result<Accepted, ContributionRefusal>>>>,
    tasks: RefCell<Vec<AbortHandle>>,
}

/// Noise over a grey level that tells the class, so that it neither compresses well nor is uniform.
pub(crate) fn shard(seed: u64) -> Samples {
    let mut random = SplitMix64::new(seed);
    let mut shard = LabelledImages::default();
    for _ in 0..SHARD_SAMPLES {
        let label = random.below(N_CLASSES) as u8;
        shard.images.extend((0..SHAPE.n_values()).map(|_| label * 32 + random.below(128) as u8));
        shard.labels.push(label);
    }
    Samples::Images(shard)
}

/// Key of the contributor.
pub(crate) fn contributor_key() -> KeyPair {
    KeyPair::from_seed(&[1; 32])
}

impl InMemoryBackbone {
    pub(crate) fn new(n_shards: u32, target_batch_size: u32) -> Rc<Self> {
        Self::with_codec(n_shards, target_batch_size, GradientCodec::F16)
    }

    /// A backbone of a run with this gradient codec.
    pub(crate) fn with_codec(
        n_shards: u32,
        target_batch_size: u32,
        gradient_codec: GradientCodec,
    ) -> Rc<Self> {
        let mut shards = HashMap::new();
        let mut keep = |id, seed| {
            let (bytes, entry) = shard(seed).encode().unwrap();
            shards.insert(id, (Transfer::of(&bytes), Arc::from(bytes)));
            entry
        };
        let manifest = Manifest {
            name: "noise".into(),
            samples: SampleKind::Images {
                shape: SHAPE,
                class_names: (0..N_CLASSES).map(|class| class.to_string()).collect(),
            },
            shards: (0..n_shards).map(|id| keep(ShardId::Numbered(id), u64::from(id))).collect(),
            gallery: keep(ShardId::Gallery, 1_000),
            frozen: Vec::new(),
            preprocessing: None,
            stream: None,
        };
        let model = Preset::Mlp { hidden: vec![HIDDEN] }.model(5);
        let layout = ParameterLayout::of(&model, DataShape::of(&manifest.samples)).unwrap();
        let description = RunDescription {
            identity: RunIdentity { run_id: "test".into(), title: "Test".into(), purpose: "Testing.".into() },
            model,
            data: DataSpec { manifest, shuffle_buffer_samples: 300, augmentation: None },
            scheme: Scheme::Synchronous(Synchronous {
                target_batch_size,
                micro_batch_size: MICRO_BATCH,
                contribution_samples_max: CONTRIBUTION_SAMPLES_MAX,
                gradient_codec,
                slow_links: None,
                state_codec: TensorCodec::F32,
                delayed_updates: false,
                optimizer: OptimizerDescription::plain_sgd(),
                schedule: ScheduleDescription::constant(0.1),
                local_steps: None,
                recomputed: false,
            }),
            access: AccessDescription::open(PublicKey([1; 32])),
        };
        let config = CollectionConfig {
            target_batch_size,
            n_parameters: layout.n_parameters(),
            codec: gradient_codec.encoding(),
            slow_codec: Some(SLOW_CODEC.encoding()),
            contribution_samples_max: CONTRIBUTION_SAMPLES_MAX,
            micro_batch_size: 1,
            samples_per_second_max: 10_000_000,
            collect_timeout: Duration::from_secs(5),
            in_flight_max: 4,
            contributors_max: 4,
            is_open: false,
            aggregation: Aggregation::Mean,
            gradient_norm_max: 1e3,
        };
        Rc::new(Self {
            description: RefCell::new(description),
            happened: Notify::new(),
            accepted: RefCell::default(),
            offers: RefCell::default(),
            evidence: RefCell::default(),
            states: RefCell::default(),
            is_holding: Cell::new(false),
            is_holding_answers: Cell::new(false),
            n_held: Cell::new(0),
            released: Notify::new(),
            is_forging: Cell::new(false),
            is_up: Cell::new(true),
            speaks: Cell::new(run::PROTOCOL),
            shards,
            round: RefCell::new(CollectionRound::new(config, 0)),
            parameters: RefCell::new(layout.initial_parameters(5)),
            sessions: RefCell::default(),
            receiving: RefCell::default(),
            answers: RefCell::default(),
            tasks: RefCell::default(),
        })
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.round.borrow().epoch()
    }

    pub(crate) fn n_samples_accepted(&self) -> u64 {
        self.accepted.borrow().iter().map(|accepted| u64::from(accepted.n_samples)).sum()
    }

    /// Samples of the epoch: reported, in flight and counted.
    pub(crate) fn n_samples_of_epoch(&self) -> u64 {
        self.round.borrow().n_samples()
    }

    pub(crate) fn state_bytes(&self) -> u64 {
        self.parameters.borrow().len() as u64 * 4
    }

    pub(crate) fn shard_transfer(&self, id: ShardId) -> (Transfer, Arc<[u8]>) {
        self.shards[&id].clone()
    }

    /// Ends the epoch, as if other contributors had made its step.
    pub(crate) fn end_epoch(&self) {
        let now = now();
        self.round.borrow_mut().on_stepped(now);
        self.drain();
    }

    /// Ends every stream; none can be opened afterwards.
    pub(crate) fn vanish(&self) {
        self.is_up.set(false);
        self.tasks.take().iter().for_each(AbortHandle::abort);
        let gone: Vec<_> = self.sessions.take().into_keys().collect();
        let now = now();
        gone.iter().for_each(|peer| self.round.borrow_mut().on_leave(now, peer));
        // Otherwise what is offered again after it came back would be in flight for ever.
        let broken_off = self.receiving.take().into_iter();
        broken_off.for_each(|ticket| self.round.borrow_mut().on_transfer_failed(now, ticket));
        self.answers.take();
    }

    /// Continues with the offers and answers that were held back.
    pub(crate) fn release(&self) {
        self.is_holding.set(false);
        self.is_holding_answers.set(false);
        self.released.notify_one();
    }

    pub(crate) fn come_back(&self) {
        self.is_up.set(true);
    }

    pub(crate) fn is_up(&self) -> bool {
        self.is_up.get()
    }

    /// Makes its run another one, which learns from `samples`. It has no shards of those.
    pub(crate) fn learn_from(&self, samples: SampleKind) {
        let mut description = self.description.borrow_mut();
        description.model = Preset::Mlp { hidden: vec![HIDDEN] }.model(5);
        let layout = ParameterLayout::of(&description.model, DataShape::of(&samples)).unwrap();
        self.parameters.replace(layout.initial_parameters(5));
        description.data.manifest.samples = samples;
    }

    /// The parameters that it hands out.
    pub(crate) fn parameters(&self) -> Vec<f32> {
        self.parameters.borrow().clone()
    }

    fn progress(&self) -> RunProgress {
        let round = self.round.borrow();
        RunProgress {
            epoch: round.epoch(),
            n_samples: round.n_samples(),
            target_batch_size: self.description.borrow().scheme.step_samples(),
            n_contributors: round.n_contributors() as u32,
            samples_per_second: round.samples_per_second(),
            train_loss: None,
            test_accuracy: None,
        }
    }

    fn broadcast(&self, message: &contribute::BackboneToContributor) {
        // A contributor that does not take it has to join again.
        self.sessions.borrow_mut().retain(|_, session| session.try_send(message.clone()).is_ok());
    }

    fn drain(&self) {
        loop {
            let action = self.round.borrow_mut().poll_action();
            let Some(action) = action else { break };
            let now = now();
            match action {
                CollectionAction::Persist { ticket, .. } => self.round.borrow_mut().on_persisted(now, ticket),
                CollectionAction::Acknowledge(ticket, accepted) => {
                    self.accepted.borrow_mut().push(accepted);
                    self.answer(ticket, Ok(accepted));
                }
                CollectionAction::Refuse(ticket, refusal) => self.answer(ticket, Err(refusal)),
                CollectionAction::RequestGradients(epoch) => {
                    self.broadcast(&contribute::BackboneToContributor::GradientDue(epoch));
                }
                CollectionAction::Announce(epoch) => {
                    self.broadcast(&contribute::BackboneToContributor::EpochStarted(epoch));
                }
                CollectionAction::Abandon(_) | CollectionAction::Evict(_) => {}
                CollectionAction::Step(mean) => {
                    let mut parameters = self.parameters.borrow_mut();
                    for (parameter, slope) in parameters.iter_mut().zip(&mean.gradient) {
                        *parameter -= LEARNING_RATE * slope;
                    }
                    self.round.borrow_mut().on_stepped(now);
                }
            }
        }
        self.happened.notify_one();
    }

    fn answer(&self, ticket: Ticket, answer: Result<Accepted, ContributionRefusal>) {
        if let Some(waiting) = self.answers.borrow_mut().remove(&ticket) {
            let _ = waiting.send(answer);
        }
    }

    async fn serve(self: Rc<Self>, peer: PeerKey, protocol: &'static str, mut stream: DuplexPipe) {
        // A contributor may hang up at any time.
        let _ = match protocol {
            // The answer of a backbone of a newer version.
            run::PROTOCOL if version(self.speaks.get()) > version(run::PROTOCOL) => {
                let newer = run::BackboneToContributor::Newer { speaks: self.speaks.get().into() };
                let asked: Result<run::ContributorToBackbone, _> =
                    framing::read(&mut stream, run::REQUEST_BYTES_MAX).await;
                asked.unwrap();
                let told = framing::write(&mut stream, &newer, run::MESSAGE_BYTES_MAX).await;
                told.map_err(|error| error.to_string())
            }
            before if run::OLDER_PROTOCOLS.contains(&before) => Ok(()),
            run::PROTOCOL => {
                let described = run::SignedRun { run: self.description.borrow().clone(), signature: None };
                run::answer(&mut stream, &described).await.map_err(|error| error.to_string())
            }
            state::PROTOCOL => {
                let lookup = async |epoch| self.state(epoch);
                state::serve(&mut stream, lookup, || ()).await.map_err(|error| error.to_string())
            }
            shard::PROTOCOL => {
                let lookup = async |id| self.shards.get(&id).cloned().ok_or(Refusal::NoShard);
                shard::serve(&mut stream, lookup, || ()).await.map_err(|error| error.to_string())
            }
            contribute::PROTOCOL => self.session(peer, stream).await,
            gradient::PROTOCOL => self.gradients(peer, stream).await,
            other => panic!("{other}"),
        };
    }

    fn state(&self, epoch: Option<u64>) -> Result<(StateHeader, Arc<[u8]>), Refusal> {
        let newest = self.epoch();
        if epoch.is_some_and(|epoch| epoch != newest) {
            return Err(Refusal::Stale { epoch: newest, newest });
        }
        let parameters = self.parameters.borrow();
        let codec = self.description.borrow().scheme.state_codec();
        let bytes = codec.encode(&parameters).unwrap();
        let transfer = Transfer::of(&bytes);
        self.states.borrow_mut().insert(transfer.sha256, bytes.clone());
        let header = StateHeader { epoch: newest, n_values: parameters.len() as u64, codec, transfer };
        Ok((header, bytes.into()))
    }

    async fn session(&self, peer: PeerKey, stream: DuplexPipe) -> Result<(), String> {
        let (mut reader, mut writer) = stream.split();
        let max = contribute::MESSAGE_BYTES_MAX;
        let text = |error: framing::FrameError| error.to_string();
        let join = framing::read(&mut reader, max).await.map_err(text)?;
        let contribute::ContributorToBackbone::Join(join) = join else { panic!("{join:?}") };
        assert_eq!(join.run_id, "test");
        // Each peer has an address group of its own.
        let group = AddressGroup(peer.0.first().copied().unwrap_or_default().into());
        self.round.borrow_mut().on_join(peer.clone(), join.device, group).unwrap();
        let (sender, mut outgoing) = mpsc::channel(64);
        self.sessions.borrow_mut().insert(peer.clone(), sender);
        let welcome = contribute::BackboneToContributor::Welcome(self.progress());
        framing::write(&mut writer, &welcome, max).await.map_err(text)?;
        let send = async {
            while let Some(message) = outgoing.next().await {
                framing::write(&mut writer, &message, max).await?;
            }
            Ok::<_, framing::FrameError>(())
        };
        let receive = async {
            loop {
                let message = framing::read(&mut reader, max).await?;
                let contribute::ContributorToBackbone::Report(report) = message else { panic!() };
                self.round.borrow_mut().on_report(now(), &peer, &report).unwrap();
                self.drain();
            }
        };
        let ended: Result<(), framing::FrameError> = select_biased! {
            sent = Box::pin(send.fuse()) => sent,
            received = Box::pin(receive.fuse()) => received,
        };
        self.sessions.borrow_mut().remove(&peer);
        self.round.borrow_mut().on_leave(now(), &peer);
        self.drain();
        ended.map_err(text)
    }

    async fn gradients(&self, peer: PeerKey, mut stream: DuplexPipe) -> Result<(), String> {
        let max = gradient::MESSAGE_BYTES_MAX;
        let text = |error: framing::FrameError| error.to_string();
        loop {
            let offer_bytes_max = gradient::offer_bytes_max(&self.description.borrow());
            let gradient::ContributorToBackbone::Offer(offer, commitment, list) =
                framing::read(&mut stream, offer_bytes_max).await.map_err(text)?;
            self.hold(&self.is_holding).await;
            let answer = match self.gradient(&peer, &mut stream, &offer, (commitment, list)).await? {
                Ok(accepted) => gradient::BackboneToContributor::Accepted(self.receipt(accepted, &offer)),
                Err(refusal) => gradient::BackboneToContributor::Refused(refusal),
            };
            self.hold(&self.is_holding_answers).await;
            framing::write(&mut stream, &answer, max).await.map_err(text)?;
        }
    }

    async fn hold(&self, is_holding: &Cell<bool>) {
        while is_holding.get() {
            self.n_held.set(self.n_held.get() + 1);
            self.happened.notify_one();
            self.released.notified().await;
        }
    }

    fn receipt(&self, accepted: Accepted, offer: &Offer) -> SignedReceipt {
        let key = KeyPair::from_seed(&[7; 32]);
        let named = if self.is_forging.get() { PublicKey([8; 32]) } else { key.public() };
        let receipt = Receipt {
            run_id: "test".into(),
            peer: contributor_key().public(),
            reducer: named,
            contribution_id: accepted.contribution_id,
            epoch: accepted.epoch,
            n_samples: accepted.n_samples,
            n_bytes: offer.transfer.n_bytes,
            milliseconds: 1,
            issued_at: UnixTime(1),
        };
        receipt.sign(&key).unwrap()
    }

    async fn gradient(
        &self,
        peer: &PeerKey,
        stream: &mut DuplexPipe,
        offer: &Offer,
        (commitment, samples): (Option<Commitment>, Vec<u8>),
    ) -> Result<Result<Accepted, ContributionRefusal>, String> {
        self.offers.borrow_mut().push(offer.clone());
        let offered = self.round.borrow_mut().on_offer(now(), peer, offer);
        self.drain();
        let ticket = match offered {
            Ok(ticket) => ticket,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.receiving.borrow_mut().insert(ticket);
        let wanted = gradient::BackboneToContributor::Wanted;
        let asked = framing::write(stream, &wanted, gradient::MESSAGE_BYTES_MAX).await;
        asked.map_err(|error| error.to_string())?;
        let mut partial = Partial::new(offer.transfer, offer.transfer.n_bytes).unwrap();
        let pulled = bulk::pull(stream, &mut partial, |_| ()).await;
        self.receiving.borrow_mut().remove(&ticket);
        let bytes = match pulled {
            Ok(bytes) => bytes,
            Err(error) => {
                self.round.borrow_mut().on_transfer_failed(now(), ticket);
                self.drain();
                return Err(error.to_string());
            }
        };
        let values = offer.codec.decode(&bytes, offer.n_values as usize).unwrap();
        if let Some(commitment) = commitment {
            let checking = gradient::BackboneToContributor::Checking { n_left: 3 };
            framing::write(stream, &checking, gradient::MESSAGE_BYTES_MAX).await.unwrap();
            let parameters = self.states.borrow().get(&commitment.parameters).unwrap().clone();
            let run = self.description.borrow().clone();
            let header =
                EvidenceHeader { peer: contributor_key().public(), run, offer: offer.clone(), commitment };
            self.evidence.borrow_mut().push(ContributionEvidence {
                header,
                samples,
                gradient: bytes,
                parameters,
            });
        }
        let (sender, answer) = oneshot::channel();
        self.answers.borrow_mut().insert(ticket, sender);
        self.round.borrow_mut().on_gradient(now(), ticket, values);
        self.drain();
        answer.await.map_err(|error| error.to_string())
    }
}

/// The contributor's platform: streams to the backbone that can be cut, and a cache.
pub(crate) struct TestPlatform {
    pub(crate) backbone: Rc<InMemoryBackbone>,
    pub(crate) cache: RefCell<HashMap<Sha256Hash, Vec<u8>>>,
    /// The cached model.
    pub(crate) model: RefCell<Option<Vec<u8>>>,
    /// The next stream of a protocol ends after so many bytes were read from it.
    pub(crate) cuts: RefCell<HashMap<&'static str, u64>>,
    read: RefCell<HashMap<&'static str, Rc<Cell<u64>>>>,
    is_connected: Cell<bool>,
    /// Peer id of the backbone that is dialled.
    pub(crate) name: Cell<u8>,
    pub(crate) elsewhere: RefCell<Vec<String>>,
    /// The contributor.
    pub(crate) peer: PeerKey,
}

impl TestPlatform {
    pub(crate) fn new(backbone: &Rc<InMemoryBackbone>) -> Rc<Self> {
        Rc::new(Self {
            backbone: Rc::clone(backbone),
            cache: RefCell::default(),
            model: RefCell::default(),
            cuts: RefCell::default(),
            read: RefCell::default(),
            is_connected: Cell::new(false),
            name: Cell::new(0),
            elsewhere: RefCell::default(),
            peer: PeerKey(vec![1]),
        })
    }

    /// Bytes read from all streams of a protocol.
    pub(crate) fn n_read(&self, protocol: &'static str) -> u64 {
        self.read.borrow().get(protocol).map_or(0, |read| read.get())
    }
}

impl Platform for TestPlatform {
    type Stream = CutStream;

    fn now(&self) -> Moment {
        now()
    }

    fn unix_time(&self) -> UnixTime {
        UnixTime(now().as_secs())
    }

    fn device_kind(&self, _: DeviceChoice) -> DeviceKind {
        DeviceKind::NativeCpu
    }

    async fn sleep_until(&self, at: Moment) {
        let at = tokio::time::Instant::from_std(ORIGIN.with(|origin| *origin)) + at;
        tokio::time::sleep_until(at).await;
    }

    async fn yield_now(&self) {
        tokio::task::yield_now().await;
    }

    async fn connect(&self) -> Result<Vec<u8>, PlatformError> {
        if !self.backbone.is_up.get() {
            return Err(PlatformError::Network("nobody is there".into()));
        }
        self.is_connected.set(true);
        Ok(vec![self.name.get()])
    }

    fn set_other_backbones(&self, addresses: Vec<String>) {
        self.elsewhere.replace(addresses);
    }

    async fn disconnect(&self) {
        self.is_connected.set(false);
    }

    async fn open(&self, protocol: &'static str) -> Result<CutStream, PlatformError> {
        if !self.is_connected.get() || !self.backbone.is_up.get() {
            return Err(PlatformError::NotConnected);
        }
        let speaks = self.backbone.speaks.get();
        if protocol.starts_with("/barnraise/run/") && version(protocol) > version(speaks) {
            return Err(PlatformError::Network("the other side does not speak it".into()));
        }
        let (ours, theirs) = tokio::io::duplex(DUPLEX_BYTES);
        let serve = Rc::clone(&self.backbone).serve(self.peer.clone(), protocol, theirs.compat());
        self.backbone.tasks.borrow_mut().push(spawn_local(serve).abort_handle());
        Ok(CutStream {
            inner: ours.compat(),
            left: self.cuts.borrow_mut().remove(protocol),
            read: Rc::clone(self.read.borrow_mut().entry(protocol).or_default()),
        })
    }

    async fn cached(&self, sha256: Sha256Hash) -> Option<Vec<u8>> {
        self.cache.borrow().get(&sha256).cloned()
    }

    async fn cache(&self, sha256: Sha256Hash, bytes: &[u8]) {
        self.cache.borrow_mut().insert(sha256, bytes.to_vec());
    }

    fn caches_models(&self) -> bool {
        true
    }

    async fn cache_model(&self, file: impl Iterator<Item = Vec<u8>>) {
        self.model.replace(Some(file.flatten().collect()));
    }

    async fn cached_model(&self) -> Option<Pieces> {
        self.model.borrow().as_deref().map(Pieces::from)
    }
}

/// What a platform leaves to the [`TestPlatform`] in its field `platform`.
macro_rules! of_test_platform {
    () => {
        fn now(&self) -> barnraise_swarm::Moment {
            self.platform.now()
        }

        fn unix_time(&self) -> barnraise_protocol::access::UnixTime {
            self.platform.unix_time()
        }

        fn device_kind(
            &self,
            choice: barnraise_learning::DeviceChoice,
        ) -> barnraise_protocol::contribute::DeviceKind {
            self.platform.device_kind(choice)
        }

        async fn sleep_until(&self, at: barnraise_swarm::Moment) {
            self.platform.sleep_until(at).await;
        }

        async fn yield_now(&self) {
            self.platform.yield_now().await;
        }

        fn set_other_backbones(&self, addresses: Vec<String>) {
            self.platform.set_other_backbones(addresses);
        }

        async fn disconnect(&self) {
            self.platform.disconnect().await;
        }

        async fn cached(&self, sha256: barnraise_protocol::Sha256Hash) -> Option<Vec<u8>> {
            self.platform.cached(sha256).await
        }

        async fn cache(&self, sha256: barnraise_protocol::Sha256Hash, bytes: &[u8]) {
            self.platform.cache(sha256, bytes).await;
        }
    };
}
pub(crate) use of_test_platform;

/// A stream that can be cut after a number of bytes.
pub(crate) struct CutStream {
    inner: DuplexPipe,
    left: Option<u64>,
    read: Rc<Cell<u64>>,
}

impl CutStream {
    /// Two ends of a stream that nothing cuts.
    pub(crate) fn pair() -> (Self, Self) {
        let (near, far) = tokio::io::duplex(DUPLEX_BYTES);
        let whole = |end: DuplexStream| Self { inner: end.compat(), left: None, read: Rc::default() };
        (whole(near), whole(far))
    }
}

impl AsyncRead for CutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let room = self.left.map_or(buffer.len(), |left| buffer.len().min(left as usize));
        if room == 0 && !buffer.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let polled = Pin::new(&mut self.inner).poll_read(context, &mut buffer[..room]);
        if let Poll::Ready(Ok(n)) = polled {
            self.left = self.left.map(|left| left - n as u64);
            self.read.set(self.read.get() + n as u64);
        }
        polled
    }
}

impl AsyncWrite for CutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, buffer);
        if let Poll::Ready(Ok(n)) = polled {
            TRAFFIC.with_borrow_mut(|traffic| {
                traffic.iter_mut().for_each(|traffic| traffic.extend_from_slice(&buffer[..n]));
            });
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(context)
    }
}

thread_local! {
    /// All bytes that were written to streams of this thread, in both directions, once [`record_traffic`] was called.
    static TRAFFIC: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// From now on what is written to streams of this thread is kept.
pub(crate) fn record_traffic() {
    TRAFFIC.set(Some(Vec::new()));
}

/// What was kept.
pub(crate) fn recorded_traffic() -> Vec<u8> {
    TRAFFIC.take().unwrap_or_default()
}

/// The number at the end of a protocol's name.
fn version(protocol: &str) -> Option<u32> {
    protocol.rsplit('/').next()?.parse().ok()
}
