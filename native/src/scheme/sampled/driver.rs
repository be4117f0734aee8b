//! The driver of one peer of a sampled run: carries out what its state machine asks for, for `barnraise serve` and for
//! `barnraise join`.
//!
//! It decides nothing. Each conversation is a task with limits, and training has a thread of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use barnraise_contributor::{EncodedModel, EncodedModels, OfferTurns, encode, sketch_of};
use barnraise_protocol::access::{AccessMode, AccessToken, PublicKey};
use barnraise_protocol::codec::CodecError;
use barnraise_protocol::run::ModelAverage;
use barnraise_protocol::sampled::{
    self, AcceptorToDialler, Aggregates, DiallerToAcceptor, Membership, ModelOffer, ModelSketch, PushEnd,
    SampledRoles, SampledTask, View, ViewDigest,
};
use barnraise_protocol::{ConversationError, TensorCodec};
use barnraise_relay::tasks::TaskSet;
use barnraise_relay::{Node, NodeError, Paced};
use barnraise_swarm::Moment;
use barnraise_swarm::guard::PaceLimits;
use barnraise_swarm::sampled::{
    CollectedModels, OfferRefusal, PushOutcome, SampledAction, SampledModel, SampledPeer,
};
use futures::{AsyncRead, AsyncWrite};
use libp2p::{Multiaddr, PeerId, Stream};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::trainer::LocalTrainer;
use crate::computing::compute;
use crate::host::access::Gate;
use crate::net::announced::{is_circuit, to_dial};

/// How slow a peer may be in a conversation.
const PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(30),
    message: Duration::from_secs(30),
    stall: Duration::from_secs(20),
    bytes_per_second_min: 4 * 1024,
};
/// Longest time for a whole model, at the least speed of a stream of a model.
const MODEL_MAX: Duration = Duration::from_secs(300);
/// Longest time for telling a view, dialling included.
const MEET_MAX: Duration = Duration::from_secs(15);
/// Longest time for dialling a peer that was live a moment ago.
const DIAL_MAX: Duration = Duration::from_secs(10);
/// Interval of looks at whose access has ended.
const APPROVED_EVERY: Duration = Duration::from_secs(1);
/// Longest time for telling others that this peer leaves.
const LEAVE_MAX: Duration = Duration::from_secs(3);

/// Why a conversation with another peer came to nothing. Only for the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SampledError {
    #[error("no peer id has the key {0}")]
    Key(PublicKey),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error("the model: {0}")]
    Codec(#[from] CodecError),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

/// The newest average, with its round.
pub(crate) type NewestModel = Option<(u64, SampledModel)>;

/// What the driver needs beside the state machine.
pub(crate) struct DriverMeans {
    pub(crate) node: Node,
    pub(crate) codec: TensorCodec,
    pub(crate) average: ModelAverage,
    pub(crate) n_parameters: usize,
    pub(crate) ping_timeout: Duration,
    /// Says whose access has ended, in a run that is not open; somebody else keeps it up to date.
    pub(crate) gate: Gate,
    /// For a peer that trains.
    pub(crate) trainer: Option<LocalTrainer>,
}

/// The driver of one peer. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SampledDriver(Arc<DriverState>);

struct DriverState {
    means: DriverMeans,
    /// The models that are pushed now.
    encoded: tokio::sync::Mutex<EncodedModels>,
    /// Those of a round that are averaged next.
    collected: Mutex<(u64, Vec<SampledModel>)>,
    turns: Mutex<OfferTurns>,
    peer: Mutex<SampledPeer>,
    /// Notified after each event.
    woken: Notify,
    newest: watch::Sender<NewestModel>,
    /// Rounds that were trained here.
    n_trained: AtomicU64,
    started: Instant,
}

impl SampledDriver {
    pub(crate) fn new(means: DriverMeans, peer: SampledPeer) -> Self {
        let newest = peer.newest().map(|(round, model)| (round, model.clone()));
        let (newest, _) = watch::channel(newest);
        let (peer, woken, started) = (Mutex::new(peer), Notify::new(), Instant::now());
        let (encoded, n_trained) = (tokio::sync::Mutex::default(), AtomicU64::new(0));
        let (collected, turns) = Default::default();
        let state = DriverState { means, encoded, collected, turns, peer, woken, newest, n_trained, started };
        Self(Arc::new(state))
    }

    /// Rounds that were trained here.
    pub(crate) fn n_trained(&self) -> u64 {
        self.0.n_trained.load(Ordering::Relaxed)
    }

    /// The newest average from now on.
    pub(crate) fn newest(&self) -> watch::Receiver<NewestModel> {
        self.0.newest.subscribe()
    }

    /// The newest average as it travels, with its round; `None` where there is none yet, or it cannot be encoded.
    pub(crate) async fn newest_encoded(&self) -> Option<(u64, EncodedModel)> {
        let (round, model) = self.0.newest.borrow().clone()?;
        match self.encoded(SampledTask::Train { round }, model).await {
            Ok(encoded) => Some((round, encoded)),
            Err(error) => {
                tracing::warn!(round, %error, "the newest model cannot be handed out");
                None
            }
        }
    }

    /// Looks at the state machine.
    pub(crate) fn look<T>(&self, at: impl FnOnce(&SampledPeer) -> T) -> T {
        at(&self.0.peer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives the state machine an event.
    fn with<T>(&self, act: impl FnOnce(&mut SampledPeer, Moment) -> T) -> T {
        let mut peer = self.0.peer.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut peer, self.0.started.elapsed());
        let newest = peer.newest().map(|(round, model)| (round, model.clone()));
        drop(peer);
        self.0.newest.send_if_modified(|known| {
            let is_newer =
                known.as_ref().map(|(round, _)| *round) != newest.as_ref().map(|(round, _)| *round);
            if is_newer {
                *known = newest;
            }
            is_newer
        });
        self.0.woken.notify_one();
        done
    }

    /// What this peer does, and where others can dial it, from now on.
    ///
    /// - `addresses`: binary multiaddresses
    pub(crate) fn on_own_change(&self, roles: SampledRoles, addresses: Vec<Vec<u8>>) {
        self.with(|peer, now| peer.on_own_change(now, roles, addresses));
    }

    /// This peer's access from now on.
    pub(crate) fn on_approval(&self, token: AccessToken) {
        self.with(|peer, now| peer.on_approval(now, token));
    }

    /// Joins through peers that it was told of, and takes part until the shutdown. Then it leaves.
    pub(crate) async fn run(&self, introduced: Vec<PublicKey>, shutdown: CancellationToken) {
        let work = TaskSet::default();
        let gate = &self.0.means.gate;
        let is_open = gate.policy().mode == AccessMode::Open;
        let mut looks = tokio::time::interval(APPROVED_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.with(|peer, now| peer.join(now, introduced));
        loop {
            let deadline = self.carry_out(&work);
            let timeout = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(self.0.started + deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = self.0.woken.notified() => {}
                () = timeout => self.with(|peer, now| peer.on_timeout(now)),
                _ = looks.tick(), if !is_open => self.with(|peer, _| {
                    peer.on_revoked(&gate.revoked());
                    peer.on_clock(gate.now());
                }),
            }
        }
        self.with(|peer, now| peer.leave(now));
        self.carry_out(&work);
        work.finish(LEAVE_MAX).await;
    }

    /// Starts all that the state machine asks for. Returns its next deadline.
    fn carry_out(&self, work: &TaskSet) -> Option<Moment> {
        loop {
            let action = {
                let mut peer = self.0.peer.lock().unwrap_or_else(PoisonError::into_inner);
                match peer.poll_action() {
                    Some(action) => action,
                    None => return peer.next_deadline(),
                }
            };
            match action {
                SampledAction::CancelTraining => {
                    if let Some(trainer) = &self.0.means.trainer {
                        trainer.cancel();
                    }
                }
                SampledAction::Collect { round, model } => self.collect(round, model),
                SampledAction::Turn { to, task, turn } => self.turns(|turns| turns.tell(to, task, turn)),
                action => {
                    let driver = self.clone();
                    work.spawn("a step of a sampled run", async move { driver.carry(action).await });
                }
            }
        }
    }

    async fn carry(&self, action: SampledAction) {
        match action {
            SampledAction::Ping { to, round } => {
                let limit = self.0.means.ping_timeout;
                let pinged = self.within(limit, self.ping(to, round)).await;
                self.with(|peer, now| match pinged {
                    Ok(()) => peer.on_pong(now, to, round),
                    Err(_) => peer.on_unreachable(now, to, round),
                });
            }
            SampledAction::Meet { to, view, digest } => {
                let met = self.within(MEET_MAX, self.meet(to, view, digest)).await;
                self.with(|peer, now| match met {
                    Ok(view) => peer.on_met(now, to, &view),
                    Err(_) => peer.on_not_met(now, to),
                });
            }
            SampledAction::Train { round, model } => {
                let trained = match &self.0.means.trainer {
                    Some(trainer) => trainer.train(round, model).await,
                    None => None,
                };
                self.0.n_trained.fetch_add(trained.is_some().into(), Ordering::Relaxed);
                self.with(|peer, now| match trained {
                    Some(model) => peer.on_trained(now, round, model),
                    None => peer.on_training_failed(round),
                });
            }
            SampledAction::Average { round } => {
                let models = self.take_collected(round);
                let n_models = models.len();
                let n_bytes = n_models * self.0.means.n_parameters * size_of::<f32>();
                let kind = self.0.means.average;
                // None of them is here where a later round has begun.
                let average = compute(n_bytes, move || average(&models, kind)).await;
                if average.is_some() {
                    tracing::info!(round, n_models, "averaged");
                }
                self.with(|peer, now| match average {
                    Some(average) => peer.on_averaged(now, round, &average),
                    None => peer.on_collected_lost(round),
                });
            }
            SampledAction::Push { to, task, model } => {
                let outcome = self.push(to, task, model).await.map_or_else(
                    |error| {
                        tracing::debug!(peer = %to, ?task, %error, "a model could not be pushed");
                        PushOutcome::Failed
                    },
                    PushOutcome::from,
                );
                self.with(|peer, now| peer.on_pushed(now, to, task, outcome));
            }
            SampledAction::CancelTraining | SampledAction::Collect { .. } | SampledAction::Turn { .. } => {}
        }
    }

    fn turns<T>(&self, act: impl FnOnce(&mut OfferTurns) -> T) -> T {
        act(&mut self.0.turns.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn within<T>(
        &self,
        limit: Duration,
        conversation: impl Future<Output = Result<T, SampledError>>,
    ) -> Result<T, SampledError> {
        let ended = tokio::time::timeout(limit, conversation).await;
        let ended = ended.unwrap_or(Err(SampledError::Timeout(limit)));
        if let Err(error) = &ended {
            tracing::debug!(%error, "a peer of the run does not answer");
        }
        ended
    }

    /// Who has shown its access in what it told is let in at the gate, too: it may fetch shards, and is no stranger.
    fn let_in(&self, peer: PublicKey) {
        let gate = &self.0.means.gate;
        let Some(id) = crate::host::peer_id(peer).filter(|id| gate.check(*id).is_err()) else { return };
        let approval = self.look(|state| state.registry().membership(&peer)?.approval.clone());
        if let Some(Err(refusal)) = approval.map(|token| gate.present(id, &token)) {
            tracing::debug!(%peer, %refusal, "a member is not let in at the gate");
        }
    }

    /// Connects to a member, at the addresses that it told.
    pub(crate) async fn reach(&self, to: PublicKey) -> Result<PeerId, SampledError> {
        let peer = crate::host::peer_id(to).ok_or(SampledError::Key(to))?;
        let node = &self.0.means.node;
        let (told, aggregates) = self.look(|state| {
            let joined = state.registry().membership(&to).and_then(Membership::joined);
            joined.map(|joined| (joined.addresses.clone(), joined.roles.aggregates)).unzip()
        });
        let told = told.unwrap_or_default();
        // Those of a peer that can be dialled are for browsers.
        let is_relayed = aggregates == Some(Aggregates::Relayed);
        let addresses = to_dial(node, peer, &told).await.into_iter();
        let addresses: Vec<Multiaddr> =
            addresses.filter(|address| is_relayed || !is_circuit(address)).collect();
        let dial = node.dial_peer(peer, addresses);
        tokio::time::timeout(DIAL_MAX, dial).await.map_err(|_| SampledError::Timeout(DIAL_MAX))??;
        Ok(peer)
    }

    /// A stream to a member.
    async fn open(&self, to: PublicKey) -> Result<Paced<Stream>, SampledError> {
        let peer = self.reach(to).await?;
        let node = &self.0.means.node;
        Ok(Paced::new(node.open(peer, sampled::PROTOCOL).await?, self.pace()))
    }

    /// The least speed grows with the model: none takes longer than [`MODEL_MAX`].
    fn pace(&self) -> PaceLimits {
        let DriverMeans { codec, n_parameters, .. } = self.0.means;
        let n_bytes = codec.encoded_len(n_parameters) as u64;
        let bytes_per_second_min = PACE.bytes_per_second_min.max(n_bytes / MODEL_MAX.as_secs().max(1));
        PaceLimits { bytes_per_second_min, ..PACE }
    }

    async fn ping(&self, to: PublicKey, round: u64) -> Result<(), SampledError> {
        Ok(sampled::ping(&mut self.open(to).await?, round).await?)
    }

    async fn meet(&self, to: PublicKey, view: View, digest: ViewDigest) -> Result<View, SampledError> {
        Ok(sampled::meet(&mut self.open(to).await?, view, digest).await?)
    }

    async fn push(
        &self,
        to: PublicKey,
        task: SampledTask,
        model: SampledModel,
    ) -> Result<PushEnd, SampledError> {
        let (transfer, bytes) = self.encoded(task, model).await?;
        let mut stream = self.open(to).await?;
        let view_for = async |digest: ViewDigest| self.look(|peer| peer.view_beyond(&digest));
        let sketch = async |seed| self.sketch(bytes.clone(), seed).await;
        Ok(sampled::push(&mut stream, task, (transfer, &bytes), view_for, sketch).await?)
    }

    /// The sketch of an encoded model by a seed.
    async fn sketch(&self, bytes: Arc<[u8]>, seed: u64) -> Result<ModelSketch, ConversationError> {
        let DriverMeans { codec, n_parameters, .. } = self.0.means;
        Ok(compute(bytes.len(), move || sketch_of(codec, &bytes, n_parameters, seed)).await?)
    }

    /// A model as it is pulled. All pushes of a task have the same one, which is encoded once.
    async fn encoded(&self, task: SampledTask, model: SampledModel) -> Result<EncodedModel, SampledError> {
        let mut encoded = self.0.encoded.lock().await;
        if let Some(kept) = encoded.find(task, &model) {
            return Ok(kept);
        }
        let (codec, n_bytes, values) = (self.0.means.codec, size_of_val(&*model), model.clone());
        let pushed = compute(n_bytes, move || encode(codec, &values)).await?;
        encoded.keep(task, model, pushed.clone());
        Ok(pushed)
    }

    /// Keeps a model for the average of its round.
    fn collect(&self, round: u64, model: SampledModel) {
        let mut collected = self.0.collected.lock().unwrap_or_else(PoisonError::into_inner);
        if collected.0 != round {
            *collected = (round, Vec::new());
        }
        collected.1.push(model);
    }

    fn take_collected(&self, round: u64) -> Vec<SampledModel> {
        let mut collected = self.0.collected.lock().unwrap_or_else(PoisonError::into_inner);
        match collected.0 == round {
            true => std::mem::take(&mut collected.1),
            false => Vec::new(),
        }
    }

    /// Holds a conversation that another peer began.
    ///
    /// # Errors
    /// The stream failed, or the peer does not keep to the conversation.
    pub(crate) async fn answer<S>(&self, from: PeerId, stream: S) -> Result<(), ConversationError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // Other kinds of keys sign no membership.
        let Some(from) = PublicKey::of_peer_id(&from.to_bytes()) else { return Ok(()) };
        let mut stream = Paced::new(stream, self.pace());
        let pace = stream.pace();
        while let Some(request) = sampled::next_request(&mut stream).await? {
            match request {
                DiallerToAcceptor::Ping { round } => {
                    let response = match self.with(|peer, now| peer.on_ping(now, from, round)) {
                        true => AcceptorToDialler::Pong { round },
                        false => AcceptorToDialler::Declined,
                    };
                    sampled::respond(&mut stream, &response).await?;
                }
                DiallerToAcceptor::Meet(view, digest) => {
                    let told = self.with(|peer, now| peer.on_meet(now, from, &view, &digest));
                    self.let_in(from);
                    let response = told.map_or(AcceptorToDialler::Declined, AcceptorToDialler::View);
                    sampled::respond(&mut stream, &response).await?;
                }
                DiallerToAcceptor::Offer(offer) => self.take(from, offer, &mut stream).await?,
                // They were refused above.
                DiallerToAcceptor::View(_) | DiallerToAcceptor::Sketch(_) => {}
            }
            // The next request has its own time.
            pace.wait();
        }
        Ok(())
    }

    /// Takes an offered model, if it is wanted.
    async fn take<S>(
        &self,
        from: PublicKey,
        ModelOffer { task, transfer }: ModelOffer,
        stream: &mut S,
    ) -> Result<(), ConversationError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let digest = match self.with(|peer, now| peer.on_offer(now, from, task)) {
            Ok(digest) => digest,
            Err(OfferRefusal::Declined) => {
                return sampled::respond(stream, &AcceptorToDialler::Declined).await;
            }
            Err(OfferRefusal::Busy) => return sampled::respond(stream, &AcceptorToDialler::Busy).await,
        };
        // Also where this conversation is ended from outside.
        let pulling = Pulling { driver: self, from, task, is_done: false };
        sampled::respond(stream, &AcceptorToDialler::Wanted(digest)).await?;
        let DriverMeans { codec, n_parameters, .. } = self.0.means;
        let n_bytes = codec.encoded_len(n_parameters) as u64;
        let wait = || self.turns(|turns| turns.wait(from, task));
        let on_view = async |view: View| {
            let turn = wait();
            let is_proven = self.with(|peer, now| peer.on_view_before(now, from, task, &view));
            if is_proven { turn.await.ok() } else { None }
        };
        let on_sketch = async |sketch: ModelSketch| {
            let turn = wait();
            self.with(|peer, now| peer.on_sketch(now, from, task, sketch));
            turn.await.ok()
        };
        if let Some(bytes) = sampled::receive(stream, transfer, n_bytes, on_view, on_sketch).await? {
            let model = compute(bytes.len(), move || codec.decode(&bytes, n_parameters)).await?;
            pulling.done(model.into());
        }
        Ok(())
    }
}

/// A wanted model. Dropped before it is done, the transfer has failed.
struct Pulling<'d> {
    driver: &'d SampledDriver,
    from: PublicKey,
    task: SampledTask,
    is_done: bool,
}

impl Pulling<'_> {
    fn done(mut self, model: SampledModel) {
        self.is_done = true;
        self.driver.with(|peer, now| peer.on_model(now, self.from, self.task, model));
    }
}

impl Drop for Pulling<'_> {
    fn drop(&mut self) {
        self.driver.turns(|turns| turns.forget(self.from, self.task));
        if !self.is_done {
            self.driver.with(|peer, now| peer.on_transfer_failed(now, self.from, self.task));
        }
    }
}

/// One model of at least one, `[n_parameters]` each.
fn average(models: &[SampledModel], kind: ModelAverage) -> Option<SampledModel> {
    let mut collected = CollectedModels::new(kind);
    models.iter().for_each(|model| collected.add(0, model));
    collected.take(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::ops::Range;

    use barnraise_protocol::Sha256Hash;
    use barnraise_protocol::access::{Authority, KeyPair};
    use barnraise_protocol::bulk::{CHUNK_BYTES, ChunkSource, Transfer, Withdrawn};
    use barnraise_protocol::run::ModelExchange;
    use barnraise_relay::NodeConfig;
    use barnraise_swarm::access::Policy;
    use barnraise_swarm::sampled::{SampledIdentity, SampledSettings};
    use libp2p::identity::Keypair;
    use tokio_util::compat::TokioAsyncReadCompatExt as _;

    use super::*;
    use crate::host::clock::system_clock;

    /// One that trains and aggregates, and has joined.
    fn joined(seed: u8) -> SampledPeer {
        let settings = SampledSettings {
            sample_size: 1,
            n_aggregators: 1,
            success_fraction: 1.0,
            ping_timeout: Duration::from_secs(1),
            activity_window: 4,
            round_estimate: Duration::from_secs(1),
            average: ModelAverage::Mean,
            exchange: ModelExchange::Sample,
        };
        let identity = SampledIdentity {
            key: KeyPair::from_seed(&[seed; 32]),
            run: Sha256Hash([0; 32]),
            counter: 0,
            roles: SampledRoles { trains: true, aggregates: Aggregates::Dialled },
            addresses: Vec::new(),
            seed: seed.into(),
        };
        let mut peer = SampledPeer::new(settings, identity);
        peer.join(Moment::ZERO, Vec::new());
        peer
    }

    /// Of an open run.
    fn gate() -> Gate {
        let here = KeyPair::from_seed(&[1; 32]).public();
        let authority = Authority { key: here, run_id: "barn".into() };
        let policy = Policy { mode: AccessMode::Open, authority, clock_tolerance: Duration::ZERO };
        Gate::new(policy, here, system_clock())
    }

    /// Of a member that nobody drives, with a clock that stands still as long as something is to be done.
    async fn driver(n_parameters: usize) -> SampledDriver {
        let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
        tokio::time::pause();
        let means = DriverMeans {
            node,
            codec: TensorCodec::F32,
            average: ModelAverage::Mean,
            n_parameters,
            ping_timeout: Duration::from_secs(1),
            gate: gate(),
            trainer: None,
        };
        SampledDriver::new(means, joined(1))
    }

    /// A tab asks its backbone every few seconds, on one stream.
    #[tokio::test]
    async fn a_stream_lives_as_long_as_something_is_asked_on_it() {
        let driver = driver(1).await;
        let (near, far) = tokio::io::duplex(CHUNK_BYTES);
        let from = crate::host::peer_id(joined(2).peer()).unwrap();
        let asking = async {
            let mut near = near.compat();
            for _ in 0..5 {
                tokio::time::sleep(PACE.first_message / 2).await;
                sampled::meet(&mut near, View::default(), ViewDigest::of_everything()).await.unwrap();
                tokio::time::sleep(PACE.message / 2).await;
            }
        };
        tokio::select! {
            ended = driver.answer(from, far.compat()) => panic!("{ended:?}"),
            () = asking => {}
        }
    }

    /// Bytes of which each chunk takes its time.
    struct Slow(Arc<[u8]>);

    impl ChunkSource for Slow {
        fn n_bytes(&self) -> u64 {
            self.0.n_bytes()
        }

        async fn read(&self, range: Range<u64>) -> Result<Vec<u8>, Withdrawn> {
            tokio::time::sleep(PACE.message / 5).await;
            self.0.read(range).await
        }
    }

    #[tokio::test]
    async fn a_model_may_take_longer_than_a_message() {
        let n_parameters = 8 * CHUNK_BYTES / size_of::<f32>();
        let driver = driver(n_parameters).await;
        let (near, far) = tokio::io::duplex(CHUNK_BYTES);
        let sender = joined(2);
        let from = crate::host::peer_id(sender.peer()).unwrap();
        let bytes: Arc<[u8]> = TensorCodec::F32.encode(&vec![0.5; n_parameters]).unwrap().into();
        let pushing = async {
            let mut near = Paced::new(near.compat(), driver.pace());
            let (task, transfer) = (SampledTask::Aggregate { round: 1 }, Transfer::of(&bytes));
            let view_for = async |_: ViewDigest| sender.view();
            let sketch = async |_| panic!("nobody compares what is aggregated");
            sampled::push(&mut near, task, (transfer, &Slow(bytes.clone())), view_for, sketch).await
        };
        let turning = async {
            loop {
                driver.0.woken.notified().await;
                driver.carry_out(&TaskSet::default());
            }
        };
        let answering = async { tokio::join!(pushing, driver.answer(from, far.compat())) };
        let (pushed, ended) = tokio::select! {
            ended = answering => ended,
            () = turning => unreachable!("it does not end"),
        };
        assert_eq!(pushed.unwrap(), PushEnd::Delivered);
        ended.unwrap();
        assert_eq!(driver.look(SampledPeer::own_round), 1);
    }
}
