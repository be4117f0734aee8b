//! A peer of the simulation: the state machine that ships, and a driver for virtual time. What it sends is encoded as on the wire,
//! so that its length counts.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{KeyPair, PublicKey};
use barnraise_protocol::bulk::{CHUNK_BYTES, Transfer};
use barnraise_protocol::framing::{self, HEADER_BYTES};
use barnraise_protocol::run::ModelAverage;
use barnraise_protocol::sampled::{
    AcceptorToDialler, Aggregates, DiallerToAcceptor, MESSAGE_BYTES_MAX, ModelOffer, ModelSketch, OfferTurn,
    SampledRoles, SampledTask, View, ViewDigest,
};
use barnraise_simulation::{NodeAction, NodeId, SimulatedNode};
use barnraise_swarm::Moment;
use barnraise_swarm::sampled::{
    CollectedModels, OfferRefusal, PushOutcome, SampledAction, SampledIdentity, SampledModel, SampledPeer,
    SampledSettings,
};
use serde::Serialize;

pub(crate) const RUN: Sha256Hash = Sha256Hash([7; 32]);
/// As a driver gives up a stream.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub(crate) enum SimulatedMessage {
    Request(DiallerToAcceptor),
    Response(AcceptorToDialler, Option<SampledTask>),
    /// The rest of a push: the view, the sketch where its receiver compares, and the model once it pulls that.
    View(SampledTask, View),
    Turn(SampledTask, OfferTurn),
    Sketch(SampledTask, ModelSketch),
    Model(SampledTask, SampledModel),
    Received(SampledTask),
    /// A computation of this node is done.
    Trained(u64, SampledModel),
    Averaged(u64, SampledModel),
}

/// What peers compute, each by its number.
pub(crate) trait Learning: Send + Sync {
    /// The model that the run begins with.
    fn first(&self) -> SampledModel;
    /// A round of local training.
    fn train(&self, peer: usize, round: u64, model: &SampledModel) -> SampledModel;
}

/// The model is a number, and each peer moves it half the way to its own.
struct OwnNumbers;

impl Learning for OwnNumbers {
    fn first(&self) -> SampledModel {
        Arc::new([0.0])
    }

    fn train(&self, peer: usize, _: u64, model: &SampledModel) -> SampledModel {
        Arc::new([model[0] + (peer as f32 - model[0]) / 2.0])
    }
}

/// A conversation that may come to nothing.
#[derive(Debug, Clone, PartialEq)]
enum Open {
    Ping(NodeId, u64),
    Meet(NodeId),
    Push(NodeId, SampledTask),
    Pull(NodeId, SampledTask),
}

/// Bytes that a node has sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SentBytes {
    pub(crate) models: u64,
    pub(crate) views: u64,
    pub(crate) digests: u64,
    pub(crate) pings: u64,
    pub(crate) offers: u64,
}

impl SentBytes {
    pub(crate) fn overhead(&self) -> u64 {
        self.views + self.digests + self.pings + self.offers
    }

    pub(crate) fn total(&self) -> u64 {
        self.models + self.overhead()
    }
}

pub(crate) struct SimulatedPeer {
    pub(crate) peer: SampledPeer,
    keys: Arc<Vec<PublicKey>>,
    nodes: Arc<HashMap<PublicKey, NodeId>>,
    number: usize,
    learning: Arc<dyn Learning>,
    training_time: Duration,
    average: ModelAverage,
    model_bytes: u64,
    transfer_patience: Duration,
    open: Vec<(Moment, Open)>,
    /// Offered models.
    offered: Vec<(NodeId, SampledTask, SampledModel)>,
    outbox: VecDeque<NodeAction<SimulatedMessage>>,
    /// The models that it averages next, and their round.
    collected: (u64, Vec<SampledModel>),
    /// Models that it has collected.
    pub(crate) n_collected: usize,
    /// Rounds that it began to train, with their times, and those that it averaged.
    pub(crate) trained: Vec<(u64, Moment)>,
    pub(crate) averaged: Vec<(u64, Moment)>,
    pub(crate) sent: SentBytes,
    /// Bytes that came, counted as their senders count them.
    pub(crate) received: u64,
    /// What is pushed once its sample is found, and since when that is looked for.
    samplings: Vec<(SampledTask, Moment)>,
    /// When it began to look for a sample, and how long that took.
    pub(crate) sample_times: Vec<(Moment, Duration)>,
    /// Senders that were not believed.
    pub(crate) n_refused: usize,
    /// It takes models that others trained, and averages none.
    pub(crate) swallows: bool,
    /// It sends no average that was chosen.
    pub(crate) stalls: bool,
    /// What it trains and averages is this.
    pub(crate) lie: Option<Lie>,
    /// What a liar would offer if it were honest.
    honest: SampledModel,
}

/// What a dishonest peer says that it computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lie {
    /// What it makes of the honest result.
    pub(crate) of: fn(&SampledModel) -> SampledModel,
    /// It tells the sketch of an honest average.
    pub(crate) forges: bool,
}

/// Which peers there are and how they learn.
#[derive(Clone)]
pub(crate) struct Population {
    pub(crate) settings: SampledSettings,
    /// Of their keys, which say who is in which sample.
    seed: u64,
    pub(crate) keys: Arc<Vec<PublicKey>>,
    nodes: Arc<HashMap<PublicKey, NodeId>>,
    pub(crate) training_time: Duration,
    pub(crate) model_bytes: u64,
    /// For models that take longer than a request may.
    pub(crate) transfer_patience: Duration,
    pub(crate) learning: Arc<dyn Learning>,
}

impl Population {
    pub(crate) fn new(settings: SampledSettings, n: usize) -> Self {
        Self::of_seed(settings, n, 0)
    }

    pub(crate) fn of_seed(settings: SampledSettings, n: usize, seed: u64) -> Self {
        let keys: Vec<PublicKey> = (0..n).map(|at| key(seed, at).public()).collect();
        let nodes = keys.iter().enumerate().map(|(at, key)| (*key, NodeId(at))).collect();
        let (keys, nodes) = (Arc::new(keys), Arc::new(nodes));
        let training_time = Duration::from_secs(3);
        let transfer_patience = Duration::ZERO;
        let learning = Arc::new(OwnNumbers);
        Self { settings, seed, keys, nodes, training_time, model_bytes: 346_000, transfer_patience, learning }
    }

    pub(crate) fn node(&self, at: usize, aggregates: bool) -> SimulatedPeer {
        self.restarted(at, aggregates, 0)
    }

    /// With the counter that a process before it left on the disk.
    pub(crate) fn restarted(&self, at: usize, aggregates: bool, counter: u64) -> SimulatedPeer {
        let aggregates = if aggregates { Aggregates::Dialled } else { Aggregates::Never };
        self.of_kind(at, aggregates, counter)
    }

    pub(crate) fn of_kind(&self, at: usize, aggregates: Aggregates, counter: u64) -> SimulatedPeer {
        let identity = SampledIdentity {
            key: key(self.seed, at),
            run: RUN,
            counter,
            roles: SampledRoles { trains: true, aggregates },
            // An IPv4 address, UDP and QUIC.
            addresses: vec![vec![4; 12]],
            seed: at as u64 + 1000 * counter + (self.seed << 32),
        };
        let mut peer = SampledPeer::new(self.settings, identity);
        if at == 0 && counter == 0 {
            peer = peer.with_model(0, self.learning.first());
        }
        SimulatedPeer {
            peer,
            keys: Arc::clone(&self.keys),
            nodes: Arc::clone(&self.nodes),
            number: at,
            learning: Arc::clone(&self.learning),
            training_time: self.training_time,
            average: self.settings.average,
            model_bytes: self.model_bytes,
            transfer_patience: self.transfer_patience,
            open: Vec::new(),
            offered: Vec::new(),
            outbox: VecDeque::new(),
            collected: (0, Vec::new()),
            n_collected: 0,
            trained: Vec::new(),
            averaged: Vec::new(),
            sent: SentBytes::default(),
            received: 0,
            samplings: Vec::new(),
            sample_times: Vec::new(),
            n_refused: 0,
            swallows: false,
            stalls: false,
            lie: None,
            honest: self.learning.first(),
        }
    }
}

fn key(of: u64, at: usize) -> KeyPair {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&(at as u64 + 1).to_le_bytes());
    seed[8..16].copy_from_slice(&of.to_le_bytes());
    KeyPair::from_seed(&seed)
}

/// As a frame of the conversation.
fn n_bytes(message: &impl Serialize) -> u64 {
    framing::encode(message, MESSAGE_BYTES_MAX).unwrap().len() as u64
}

/// Requests of chunks, and the headers of chunks.
fn transfer_overhead(model_bytes: u64) -> u64 {
    let n_chunks = model_bytes.div_ceil(CHUNK_BYTES as u64);
    n_chunks * 8 + (n_chunks / 4 + 2) * (HEADER_BYTES as u64 + 4)
}

impl SimulatedPeer {
    /// The round whose models it collected last.
    pub(crate) fn collected_round(&self) -> u64 {
        self.collected.0
    }

    fn node_of(&self, peer: PublicKey) -> NodeId {
        self.nodes[&peer]
    }

    fn request(&mut self, now: Moment, to: NodeId, request: DiallerToAcceptor, open: Open) {
        let patience = match open {
            Open::Push(..) => REQUEST_TIMEOUT + self.transfer_patience,
            _ => REQUEST_TIMEOUT,
        };
        self.open.push((now + patience, open));
        self.outbox.push_back(NodeAction::Send { to, message: SimulatedMessage::Request(request) });
    }

    fn respond(&mut self, to: NodeId, response: AcceptorToDialler, task: Option<SampledTask>) {
        self.outbox.push_back(NodeAction::Send { to, message: SimulatedMessage::Response(response, task) });
    }

    fn close(&mut self, open: &Open) -> bool {
        let n_open = self.open.len();
        self.open.retain(|(_, other)| other != open);
        self.open.len() < n_open
    }

    fn on_request(&mut self, now: Moment, from: NodeId, request: DiallerToAcceptor) {
        let sender = self.keys[from.0];
        match request {
            DiallerToAcceptor::Ping { round } => {
                if self.peer.on_ping(now, sender, round) {
                    let pong = AcceptorToDialler::Pong { round };
                    self.sent.pings += n_bytes(&pong);
                    self.respond(from, pong, None);
                }
            }
            DiallerToAcceptor::Meet(view, digest) => {
                let view = self.peer.on_meet(now, sender, &view, &digest).unwrap_or_default();
                self.sent.views += n_bytes(&view);
                self.respond(from, AcceptorToDialler::View(view), None);
            }
            DiallerToAcceptor::Offer(offer) => {
                let response = match self.peer.on_offer(now, sender, offer.task) {
                    Ok(digest) => {
                        let until = now + 3 * REQUEST_TIMEOUT + self.transfer_patience;
                        self.open.push((until, Open::Pull(from, offer.task)));
                        self.sent.digests += n_bytes(&digest);
                        AcceptorToDialler::Wanted(digest)
                    }
                    Err(refusal) => {
                        let response = match refusal {
                            OfferRefusal::Declined => AcceptorToDialler::Declined,
                            OfferRefusal::Busy => AcceptorToDialler::Busy,
                        };
                        self.sent.offers += n_bytes(&response);
                        response
                    }
                };
                self.respond(from, response, Some(offer.task));
            }
            DiallerToAcceptor::View(_) | DiallerToAcceptor::Sketch(_) => {
                unreachable!("they come on their own")
            }
        }
    }

    fn on_response(
        &mut self,
        now: Moment,
        from: NodeId,
        response: AcceptorToDialler,
        task: Option<SampledTask>,
    ) {
        let sender = self.keys[from.0];
        match (response, task) {
            (AcceptorToDialler::Pong { round }, _) => {
                self.close(&Open::Ping(from, round));
                self.peer.on_pong(now, sender, round);
            }
            (AcceptorToDialler::View(view), _) if self.close(&Open::Meet(from)) => {
                self.peer.on_met(now, sender, &view);
            }
            (AcceptorToDialler::Wanted(digest), Some(task)) if self.has_offered(from, task) => {
                self.send_view(from, task, &digest);
            }
            (AcceptorToDialler::Declined, Some(task)) if self.close(&Open::Push(from, task)) => {
                self.peer.on_pushed(now, sender, task, PushOutcome::Declined);
            }
            (AcceptorToDialler::Busy, Some(task)) if self.close(&Open::Push(from, task)) => {
                self.offered.retain(|(peer, of, _)| (*peer, *of) != (from, task));
                self.peer.on_pushed(now, sender, task, PushOutcome::Busy);
            }
            _ => {}
        }
    }

    fn has_offered(&self, to: NodeId, task: SampledTask) -> bool {
        self.open.iter().any(|(_, open)| *open == Open::Push(to, task))
    }

    fn send_view(&mut self, to: NodeId, task: SampledTask, digest: &ViewDigest) {
        let view = self.peer.view_beyond(digest);
        self.sent.views += n_bytes(&view);
        self.outbox.push_back(NodeAction::Send { to, message: SimulatedMessage::View(task, view) });
    }

    /// What comes of its offer.
    fn on_turn(&mut self, now: Moment, from: NodeId, task: SampledTask, turn: OfferTurn) {
        let refusal = match turn {
            OfferTurn::Pull if self.stalls && matches!(task, SampledTask::Train { .. }) => return,
            OfferTurn::Pull => return self.send_model(from, task),
            OfferTurn::Compare { seed } => {
                let mut offered = self.offered.iter();
                let Some((_, _, model)) = offered.find(|(peer, of, _)| (*peer, *of) == (from, task)) else {
                    return;
                };
                let forges = self.lie.is_some_and(|lie| lie.forges);
                let sketch = ModelSketch::of(if forges { &self.honest } else { model }, seed);
                self.sent.offers += n_bytes(&sketch);
                let message = SimulatedMessage::Sketch(task, sketch);
                return self.outbox.push_back(NodeAction::Send { to: from, message });
            }
            OfferTurn::Declined => PushOutcome::Declined,
            OfferTurn::Busy => PushOutcome::Busy,
        };
        if self.close(&Open::Push(from, task)) {
            self.offered.retain(|(peer, of, _)| (*peer, *of) != (from, task));
            self.peer.on_pushed(now, self.keys[from.0], task, refusal);
        }
    }

    fn send_model(&mut self, to: NodeId, task: SampledTask) {
        let Some(at) = self.offered.iter().position(|(peer, of, _)| (*peer, *of) == (to, task)) else {
            return;
        };
        let (_, _, model) = self.offered.swap_remove(at);
        self.sent.offers += transfer_overhead(self.model_bytes);
        self.sent.models += self.model_bytes;
        let message = SimulatedMessage::Model(task, model);
        self.outbox.push_back(NodeAction::Transfer { to, bytes: self.model_bytes as f64, message });
    }

    fn on_open_timeout(&mut self, now: Moment) {
        let late: Vec<Open> =
            self.open.extract_if(.., |(until, _)| *until <= now).map(|(_, open)| open).collect();
        for open in late {
            match open {
                // The state machine has its own patience.
                Open::Ping(..) => {}
                Open::Meet(with) => self.peer.on_not_met(now, self.keys[with.0]),
                Open::Push(to, task) => {
                    self.offered.retain(|(peer, of, _)| (*peer, *of) != (to, task));
                    self.peer.on_pushed(now, self.keys[to.0], task, PushOutcome::Failed);
                }
                Open::Pull(from, task) => self.peer.on_transfer_failed(now, self.keys[from.0], task),
            }
        }
    }

    fn respond_received(&mut self, to: NodeId, task: SampledTask) {
        self.outbox.push_back(NodeAction::Send { to, message: SimulatedMessage::Received(task) });
    }

    fn n_bytes_of(&self, message: &SimulatedMessage) -> u64 {
        match message {
            SimulatedMessage::Request(DiallerToAcceptor::Meet(view, digest)) => {
                n_bytes(view) + n_bytes(digest)
            }
            SimulatedMessage::Request(request) => n_bytes(request),
            SimulatedMessage::Response(AcceptorToDialler::View(view), _)
            | SimulatedMessage::View(_, view) => n_bytes(view),
            SimulatedMessage::Response(AcceptorToDialler::Wanted(digest), _) => n_bytes(digest),
            SimulatedMessage::Response(response, _) => n_bytes(response),
            SimulatedMessage::Model(..) => self.model_bytes + transfer_overhead(self.model_bytes),
            SimulatedMessage::Sketch(_, sketch) => n_bytes(sketch),
            SimulatedMessage::Turn(..)
            | SimulatedMessage::Received(_)
            | SimulatedMessage::Trained(..)
            | SimulatedMessage::Averaged(..) => 0,
        }
    }

    /// `SAMPLE` begins, for what is pushed then.
    fn begin_sampling(&mut self, now: Moment, task: SampledTask) {
        self.samplings.retain(|(other, _)| other.round() + 2 > task.round());
        if self.samplings.iter().all(|(other, _)| *other != task) {
            self.samplings.push((task, now));
        }
    }

    fn end_sampling(&mut self, now: Moment, task: SampledTask) {
        if let Some(at) = self.samplings.iter().position(|(other, _)| *other == task) {
            let (_, since) = self.samplings.swap_remove(at);
            self.sample_times.push((since, now.saturating_sub(since)));
        }
    }

    /// The state machine's, until it has none.
    fn carry_out(&mut self, now: Moment) {
        while let Some(action) = self.peer.poll_action() {
            match action {
                SampledAction::Ping { to, round } => {
                    // That of a trainer began with its result.
                    let of_trainer = SampledTask::Aggregate { round };
                    if self.samplings.iter().all(|(task, _)| *task != of_trainer) {
                        self.begin_sampling(now, SampledTask::Train { round });
                    }
                    let to = self.node_of(to);
                    let request = DiallerToAcceptor::Ping { round };
                    self.sent.pings += n_bytes(&request);
                    self.request(now, to, request, Open::Ping(to, round));
                }
                SampledAction::Meet { to, view, digest } => {
                    let to = self.node_of(to);
                    (self.sent.views, self.sent.digests) =
                        (self.sent.views + n_bytes(&view), self.sent.digests + n_bytes(&digest));
                    self.request(now, to, DiallerToAcceptor::Meet(view, digest), Open::Meet(to));
                }
                SampledAction::Train { round, model } => {
                    assert!(
                        self.trained.last().is_none_or(|(last, _)| *last < round),
                        "no round is trained twice"
                    );
                    self.trained.push((round, now));
                    let trained = self.learning.train(self.number, round, &model);
                    let result = self.lie.map_or_else(|| Arc::clone(&trained), |lie| (lie.of)(&trained));
                    let message = SimulatedMessage::Trained(round, result);
                    self.outbox.push_back(NodeAction::Compute { work: self.training_time, message });
                }
                // The result comes, and is ignored.
                SampledAction::CancelTraining => {}
                SampledAction::Collect { round, model } => {
                    if round != self.collected.0 {
                        self.collected = (round, Vec::new());
                    }
                    self.collected.1.push(model);
                    self.n_collected += 1;
                }
                SampledAction::Average { round } => {
                    let (of, models) = std::mem::take(&mut self.collected);
                    assert_eq!(of, round, "models of another round are averaged");
                    assert!(
                        self.averaged.last().is_none_or(|(last, _)| *last < round),
                        "no round is averaged twice"
                    );
                    self.averaged.push((round, now));
                    self.end_sampling(now, SampledTask::Train { round });
                    let mut collected = CollectedModels::new(self.average);
                    models.iter().for_each(|model| collected.add(round, model));
                    self.honest = collected.take(round).unwrap();
                    let average =
                        self.lie.map_or_else(|| Arc::clone(&self.honest), |lie| (lie.of)(&self.honest));
                    let message = SimulatedMessage::Averaged(round, average);
                    self.outbox.push_back(NodeAction::Compute { work: Duration::from_millis(50), message });
                }
                SampledAction::Turn { to, task, turn } => {
                    let (sender, to) = (to, self.node_of(to));
                    let pull = Open::Pull(to, task);
                    if !self.open.iter().any(|(_, open)| *open == pull) {
                        continue;
                    }
                    if matches!(turn, OfferTurn::Declined | OfferTurn::Busy) {
                        self.close(&pull);
                        self.peer.on_transfer_failed(now, sender, task);
                    }
                    let message = SimulatedMessage::Turn(task, turn);
                    self.outbox.push_back(NodeAction::Send { to, message });
                }
                SampledAction::Push { to, task, model } => {
                    self.end_sampling(now, task);
                    let to = self.node_of(to);
                    let transfer = Transfer { n_bytes: self.model_bytes, sha256: RUN };
                    let request = DiallerToAcceptor::Offer(ModelOffer { task, transfer });
                    self.sent.offers += n_bytes(&request);
                    self.offered.push((to, task, model));
                    self.request(now, to, request, Open::Push(to, task));
                }
            }
        }
    }
}

impl SimulatedNode for SimulatedPeer {
    type Message = SimulatedMessage;

    fn on_message(&mut self, now: Moment, from: NodeId, message: SimulatedMessage) {
        self.received += self.n_bytes_of(&message);
        match message {
            SimulatedMessage::Request(request) => self.on_request(now, from, request),
            SimulatedMessage::Response(response, task) => self.on_response(now, from, response, task),
            SimulatedMessage::View(task, view) => {
                let pull = Open::Pull(from, task);
                let sender = self.keys[from.0];
                let is_open = self.open.iter().any(|(_, open)| *open == pull);
                if is_open && !self.peer.on_view_before(now, sender, task, &view) {
                    // A driver ends the stream.
                    self.close(&pull);
                    self.n_refused += 1;
                    self.peer.on_transfer_failed(now, sender, task);
                }
            }
            SimulatedMessage::Turn(task, turn) => self.on_turn(now, from, task, turn),
            SimulatedMessage::Sketch(task, sketch) => {
                self.peer.on_sketch(now, self.keys[from.0], task, sketch);
            }
            SimulatedMessage::Model(task, model) => {
                if self.close(&Open::Pull(from, task)) {
                    self.respond_received(from, task);
                    let sender = self.keys[from.0];
                    match task {
                        SampledTask::Aggregate { .. } if self.swallows => {
                            self.peer.on_transfer_failed(now, sender, task);
                        }
                        _ => self.peer.on_model(now, sender, task, model),
                    }
                }
            }
            SimulatedMessage::Received(task) => {
                if self.close(&Open::Push(from, task)) {
                    self.peer.on_pushed(now, self.keys[from.0], task, PushOutcome::Delivered);
                }
            }
            SimulatedMessage::Trained(round, model) => {
                self.begin_sampling(now, SampledTask::Aggregate { round: round + 1 });
                self.peer.on_trained(now, round, model);
            }
            SimulatedMessage::Averaged(round, model) => self.peer.on_averaged(now, round, &model),
        }
        self.carry_out(now);
    }

    fn on_timeout(&mut self, now: Moment) {
        self.on_open_timeout(now);
        if self.peer.next_deadline().is_some_and(|at| at <= now) {
            self.peer.on_timeout(now);
        }
        self.carry_out(now);
    }

    fn poll_action(&mut self, now: Moment) -> Option<NodeAction<SimulatedMessage>> {
        self.carry_out(now);
        self.outbox.pop_front()
    }

    fn next_deadline(&self, _: Moment) -> Option<Moment> {
        self.open.iter().map(|(until, _)| *until).chain(self.peer.next_deadline()).min()
    }
}
