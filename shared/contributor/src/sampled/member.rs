//! One member of a run without a server, over the streams of a platform: its state machine, and the conversations that it
//! holds.
//!
//! It decides nothing: [`SampledPeer`] does. Each conversation is a future with limits, which the participant polls.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::codec::CodecError;
use barnraise_protocol::sampled::{
    self, AcceptorToDialler, DiallerToAcceptor, ModelOffer, ModelSketch, OfferTurn, PushEnd, SampledTask,
    View, ViewDigest,
};
use barnraise_protocol::{ConversationError, TensorCodec};
use barnraise_swarm::sampled::{OfferRefusal, PushOutcome, SampledAction, SampledModel, SampledPeer};
use barnraise_swarm::{Moment, PeerKey};
use futures::channel::oneshot;

use super::encoded::{EncodedModel, EncodedModels, encode, sketch_of};
use super::turns::OfferTurns;
use crate::error::OperationError;
use crate::kit::meter::{Metered, TrafficMeter};
use crate::kit::operation::{CountedStream, NetworkOperation, StallLimits};
use crate::platform::Platform;
use crate::race::before;

/// Conversations that other members hold here at a time.
const ANSWERED_MAX: usize = 64;
/// Of one of them: a ping, a view, a model, and those of a broken connection.
const ANSWERED_PER_PEER: usize = 4;
/// Memory for models that are pulled at a time: further ones are offered again. There is room for two in any case, one of which may
/// not come.
const PULLED_BYTES_MAX: u64 = 128 * 1024 * 1024;
const PULLED_MIN: u64 = 2;
/// Longest time for a whole model.
const MODEL_MAX: Duration = Duration::from_secs(300);
/// Longest time for telling a view, dialling included.
const MEET_MAX: Duration = Duration::from_secs(15);
/// Interval between questions to the backbone: it is given up after a silence of twice that.
const WATCH_EVERY: Duration = Duration::from_secs(3);

/// Why a conversation came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemberError {
    #[error(transparent)]
    Operation(#[from] OperationError),
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error("the model: {0}")]
    Codec(#[from] CodecError),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

/// What conversations need to know of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemberSettings {
    pub(super) codec: TensorCodec,
    pub(super) n_parameters: usize,
    pub(super) ping_timeout: Duration,
}

impl MemberSettings {
    /// Bytes of an encoded model.
    pub(super) fn n_bytes(&self) -> u64 {
        self.codec.encoded_len(self.n_parameters) as u64
    }
}

/// A member, and the means of its conversations.
pub(super) struct Member<'a, P: Platform> {
    platform: &'a P,
    meter: Rc<TrafficMeter>,
    settings: MemberSettings,
    peer: RefCell<SampledPeer>,
    /// The backbone that it is connected to.
    home: Cell<Option<PublicKey>>,
    encoded: RefCell<EncodedModels>,
    /// Bytes of the newest stream on which a model is pushed.
    sending: RefCell<Rc<Cell<u64>>>,
    /// Rounds in whose averages a model is that somebody took.
    delivered: RefCell<BTreeSet<u64>>,
    /// Conversations that others hold here.
    answered: RefCell<BTreeMap<PublicKey, usize>>,
    /// Models that are pulled now.
    n_pulled: Cell<u64>,
    turns: RefCell<OfferTurns>,
}

impl<'a, P: Platform> Member<'a, P> {
    pub(super) fn new(
        (platform, meter): (&'a P, Rc<TrafficMeter>),
        settings: MemberSettings,
        peer: SampledPeer,
    ) -> Self {
        Self {
            platform,
            meter,
            settings,
            peer: RefCell::new(peer),
            home: Cell::new(None),
            encoded: RefCell::default(),
            sending: RefCell::default(),
            delivered: RefCell::default(),
            answered: RefCell::default(),
            n_pulled: Cell::new(0),
            turns: RefCell::default(),
        }
    }

    pub(super) fn settings(&self) -> MemberSettings {
        self.settings
    }

    /// Looks at the state machine.
    pub(super) fn look<T>(&self, at: impl FnOnce(&SampledPeer) -> T) -> T {
        at(&self.peer.borrow())
    }

    /// Gives the state machine an event.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut SampledPeer, Moment) -> T) -> T {
        act(&mut self.peer.borrow_mut(), self.platform.now())
    }

    /// The next thing to do, after all that is due by now.
    pub(super) fn poll_action(&self) -> Option<SampledAction> {
        self.with(|peer, now| {
            if peer.next_deadline().is_some_and(|deadline| deadline <= now) {
                peer.on_timeout(now);
            }
            peer.poll_action()
        })
    }

    /// The connection is with this backbone now.
    pub(super) fn set_home(&self, home: PublicKey) {
        self.home.set(Some(home));
    }

    /// The connection with the backbone is gone: it may be reached as any other member.
    pub(super) fn forget_home(&self) {
        self.home.set(None);
    }

    /// Rounds in whose averages a model is that somebody took from here since it was asked last.
    pub(super) fn take_delivered(&self) -> BTreeSet<u64> {
        self.delivered.take()
    }

    /// Bytes that the newest push of a model has moved.
    pub(super) fn n_bytes_sent(&self) -> u64 {
        self.sending.borrow().get()
    }

    /// Tells the sender of a wanted model what comes next.
    pub(super) fn tell_turn(&self, to: PublicKey, task: SampledTask, turn: OfferTurn) {
        self.turns.borrow_mut().tell(to, task, turn);
    }

    /// Carries out a ping, a meeting or a push, and tells the state machine what came of it. All else is the participant's.
    pub(super) async fn carry(self: Rc<Self>, action: SampledAction) {
        match action {
            SampledAction::Ping { to, round } => {
                let pinged = self.within(self.settings.ping_timeout, self.ping(to, round)).await;
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
            SampledAction::Push { to, task, model } => {
                let member = Rc::clone(&self);
                let mut pushing = Pushing { member, to, task, outcome: PushOutcome::Failed };
                let pushed = self.push(to, task, &model).await;
                pushing.outcome = pushed.map_or(PushOutcome::Failed, PushOutcome::from);
                if pushing.outcome == PushOutcome::Delivered
                    && let SampledTask::Aggregate { round } = task
                {
                    self.delivered.borrow_mut().insert(round);
                }
            }
            SampledAction::Train { .. }
            | SampledAction::CancelTraining
            | SampledAction::Collect { .. }
            | SampledAction::Turn { .. }
            | SampledAction::Average { .. } => {}
        }
    }

    async fn within<T>(
        &self,
        limit: Duration,
        conversation: impl Future<Output = Result<T, MemberError>>,
    ) -> Result<T, MemberError> {
        let timer = self.platform.sleep_until(self.platform.now() + limit);
        before(timer, conversation).await.unwrap_or(Err(MemberError::Timeout(limit)))
    }

    /// What conversations are held with, and what cancels them when it is dropped.
    fn operation(&self) -> (NetworkOperation<'a, P>, oneshot::Sender<()>) {
        let (cancel, cancelled) = oneshot::channel();
        (NetworkOperation { platform: self.platform, meter: Rc::clone(&self.meter), cancelled }, cancel)
    }

    /// A stream to a member: on the connection that stands with it, or at the addresses that it told.
    async fn open(
        &self,
        operation: &mut NetworkOperation<'a, P>,
        to: PublicKey,
    ) -> Result<CountedStream<P>, OperationError> {
        if self.home.get() == Some(to) {
            return operation.open(sampled::PROTOCOL).await;
        }
        let told = self.look(|peer| {
            let joined = peer.registry().membership(&to).and_then(|membership| membership.joined().cloned());
            joined.map(|joined| joined.addresses).unwrap_or_default()
        });
        operation.open_announced(&PeerKey(to.to_peer_id()), &told, sampled::PROTOCOL).await
    }

    async fn ping(&self, to: PublicKey, round: u64) -> Result<(), MemberError> {
        let (mut operation, _cancel) = self.operation();
        let mut stream = self.open(&mut operation, to).await?;
        Ok(sampled::ping(&mut stream, round).await?)
    }

    async fn meet(&self, to: PublicKey, view: View, digest: ViewDigest) -> Result<View, MemberError> {
        let (mut operation, _cancel) = self.operation();
        let mut stream = self.open(&mut operation, to).await?;
        Ok(sampled::meet(&mut stream, view, digest).await?)
    }

    async fn push(
        &self,
        to: PublicKey,
        task: SampledTask,
        model: &SampledModel,
    ) -> Result<PushEnd, MemberError> {
        let (transfer, bytes) = self.encoded(task, model)?;
        let (mut operation, _cancel) = self.operation();
        let mut stream = self.open(&mut operation, to).await?;
        let moved = stream.moved();
        self.sending.replace(Rc::clone(&moved));
        let view_for = async |digest: ViewDigest| self.look(|peer| peer.view_beyond(&digest));
        let MemberSettings { codec, n_parameters, .. } = self.settings;
        let sketch = async |seed| Ok(sketch_of(codec, &bytes, n_parameters, seed)?);
        let push = sampled::push(&mut stream, task, (transfer, &bytes), view_for, sketch);
        let limits = StallLimits::of_model(transfer.n_bytes, MODEL_MAX);
        Ok(operation.guard_with(limits, &moved, push).await??)
    }

    fn encoded(&self, task: SampledTask, model: &SampledModel) -> Result<EncodedModel, CodecError> {
        let mut encoded = self.encoded.borrow_mut();
        if let Some(kept) = encoded.find(task, model) {
            return Ok(kept);
        }
        let made = encode(self.settings.codec, model)?;
        encoded.keep(task, model.clone(), made.clone());
        Ok(made)
    }

    /// What its access is shown by, in a run that is not open.
    fn shown(&self) -> View {
        self.look(|peer| match peer.registry().is_open() {
            true => View::default(),
            false => peer.view_beyond(&ViewDigest::of_everything()),
        })
    }

    /// Asks the backbone for its news, again and again. Returns why it no longer answers.
    pub(super) async fn watch(self: Rc<Self>, home: PublicKey) -> MemberError {
        let (mut operation, _cancel) = self.operation();
        let mut stream = None;
        loop {
            self.platform.sleep_until(self.platform.now() + WATCH_EVERY).await;
            let asking = operation.converse(&mut stream, sampled::PROTOCOL, async |stream| {
                sampled::meet(stream, self.shown(), ViewDigest::of_everything()).await
            });
            match asking.await {
                Ok(view) => self.with(|peer, now| peer.on_met(now, home, &view)),
                Err(error) => return error.into(),
            }
        }
    }

    /// Whether there is memory for one more model.
    fn has_room(&self) -> bool {
        let n_max = PULLED_BYTES_MAX / self.settings.n_bytes().max(1);
        self.n_pulled.get() < n_max.max(PULLED_MIN)
    }

    /// Takes a place for a conversation that another peer began; `None` where there is none.
    pub(super) fn admit(self: &Rc<Self>, from: &PeerKey) -> Option<Answering<'a, P>> {
        // Other kinds of keys sign no membership.
        let from = PublicKey::of_peer_id(&from.0)?;
        let mut answered = self.answered.borrow_mut();
        let n_of_peer = answered.get(&from).copied().unwrap_or_default();
        if n_of_peer >= ANSWERED_PER_PEER || answered.values().sum::<usize>() >= ANSWERED_MAX {
            return None;
        }
        answered.insert(from, n_of_peer + 1);
        Some(Answering { member: Rc::clone(self), from })
    }
}

/// Tells the state machine what came of a push, also where that was given up with the connection: it is offered once more.
struct Pushing<'a, P: Platform> {
    member: Rc<Member<'a, P>>,
    to: PublicKey,
    task: SampledTask,
    outcome: PushOutcome,
}

impl<P: Platform> Drop for Pushing<'_, P> {
    fn drop(&mut self) {
        let Self { to, task, outcome, .. } = *self;
        self.member.with(|peer, now| peer.on_pushed(now, to, task, outcome));
    }
}

/// A place for a conversation that another peer began.
pub(super) struct Answering<'a, P: Platform> {
    member: Rc<Member<'a, P>>,
    from: PublicKey,
}

impl<P: Platform> Drop for Answering<'_, P> {
    fn drop(&mut self) {
        let mut answered = self.member.answered.borrow_mut();
        if let Some(n) = answered.get_mut(&self.from) {
            *n -= 1;
            if *n == 0 {
                answered.remove(&self.from);
            }
        }
    }
}

impl<P: Platform> Answering<'_, P> {
    /// Holds the conversation, until the peer ends it, violates it or is too slow.
    pub(super) async fn answer(self, stream: P::Stream) {
        let member = &self.member;
        let stream = Metered::new(stream, Rc::clone(&member.meter));
        let mut stream = if member.home.get() == Some(self.from) { stream } else { stream.with_peer() };
        let moved = stream.moved();
        let (mut operation, _cancel) = member.operation();
        let limits = StallLimits::of_model(member.settings.n_bytes(), MODEL_MAX);
        // Nobody waits for it: the state machine hears of a model that does not come, and the peer of a stream that ends.
        let _ = operation.guard_with(limits, &moved, self.converse(&mut stream)).await;
    }

    async fn converse(&self, stream: &mut CountedStream<P>) -> Result<(), MemberError> {
        let (member, from) = (&self.member, self.from);
        while let Some(request) = sampled::next_request(stream).await? {
            let response = match request {
                DiallerToAcceptor::Ping { round } => {
                    match member.with(|peer, now| peer.on_ping(now, from, round)) {
                        true => AcceptorToDialler::Pong { round },
                        false => AcceptorToDialler::Declined,
                    }
                }
                DiallerToAcceptor::Meet(view, digest) => {
                    let told = member.with(|peer, now| peer.on_meet(now, from, &view, &digest));
                    told.map_or(AcceptorToDialler::Declined, AcceptorToDialler::View)
                }
                DiallerToAcceptor::Offer(_) if !member.has_room() => AcceptorToDialler::Busy,
                DiallerToAcceptor::Offer(offer) => {
                    match member.with(|peer, now| peer.on_offer(now, from, offer.task)) {
                        Ok(digest) => {
                            self.take(offer, digest, stream).await?;
                            continue;
                        }
                        Err(OfferRefusal::Declined) => AcceptorToDialler::Declined,
                        Err(OfferRefusal::Busy) => AcceptorToDialler::Busy,
                    }
                }
                // They were refused above.
                DiallerToAcceptor::View(_) | DiallerToAcceptor::Sketch(_) => continue,
            };
            sampled::respond(stream, &response).await?;
        }
        Ok(())
    }

    /// Takes a wanted model.
    async fn take(
        &self,
        ModelOffer { task, transfer }: ModelOffer,
        digest: ViewDigest,
        stream: &mut CountedStream<P>,
    ) -> Result<(), MemberError> {
        let (member, from) = (&self.member, self.from);
        let MemberSettings { codec, n_parameters, .. } = member.settings;
        // Also where this conversation is ended from outside.
        let pulling = Pulling::new(member, from, task);
        sampled::respond(stream, &AcceptorToDialler::Wanted(digest)).await?;
        let on_view = async |view: View| {
            let turn = member.turns.borrow_mut().wait(from, task);
            let is_proven = member.with(|peer, now| peer.on_view_before(now, from, task, &view));
            if is_proven { pulling.turn(turn).await } else { None }
        };
        let on_sketch = async |sketch: ModelSketch| {
            let turn = member.turns.borrow_mut().wait(from, task);
            member.with(|peer, now| peer.on_sketch(now, from, task, sketch));
            pulling.turn(turn).await
        };
        let n_bytes = member.settings.n_bytes();
        if let Some(bytes) = sampled::receive(stream, transfer, n_bytes, on_view, on_sketch).await? {
            pulling.done(codec.decode(&bytes, n_parameters)?.into());
        }
        Ok(())
    }
}

/// A wanted model. Dropped before it is done, the transfer has failed.
struct Pulling<'m, 'a, P: Platform> {
    member: &'m Member<'a, P>,
    from: PublicKey,
    task: SampledTask,
    /// There is memory for it.
    has_room: Cell<bool>,
    is_done: bool,
}

impl<'m, 'a, P: Platform> Pulling<'m, 'a, P> {
    fn new(member: &'m Member<'a, P>, from: PublicKey, task: SampledTask) -> Self {
        Self { member, from, task, has_room: Cell::new(false), is_done: false }
    }

    /// What comes next, once that is told. A model for which there is no memory now is to be offered again.
    async fn turn(&self, turn: oneshot::Receiver<OfferTurn>) -> Option<OfferTurn> {
        let turn = turn.await.ok()?;
        if turn == OfferTurn::Pull {
            if !self.member.has_room() {
                return Some(OfferTurn::Busy);
            }
            self.member.n_pulled.set(self.member.n_pulled.get() + 1);
            self.has_room.set(true);
        }
        Some(turn)
    }

    fn done(mut self, model: SampledModel) {
        self.is_done = true;
        self.member.with(|peer, now| peer.on_model(now, self.from, self.task, model));
    }
}

impl<P: Platform> Drop for Pulling<'_, '_, P> {
    fn drop(&mut self) {
        if self.has_room.get() {
            self.member.n_pulled.set(self.member.n_pulled.get().saturating_sub(1));
        }
        self.member.turns.borrow_mut().forget(self.from, self.task);
        if !self.is_done {
            self.member.with(|peer, now| peer.on_transfer_failed(now, self.from, self.task));
        }
    }
}
