//! A simulation of peers, a backbone and a network in virtual time, from one seed.
//!
//! Time is in milliseconds since the start. Each peer has a clock of its own, off by minutes; so has each process of the
//! backbone. All decisions are those of the production state machines. The simulation carries messages, loses them with
//! their sender or receiver, and checks every step of the optimizer against the journal.

#![allow(dead_code)] // Each test uses some of it.

mod faults;
mod peers;
mod stalls;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_protocol::TensorCodec;
use barnraise_protocol::contribute::Report;
use barnraise_protocol::gradient::{Accepted, ContributionRefusal, Offer};
use barnraise_simulation::{Latency, Network, NodeId, Simulation};
use barnraise_swarm::collection::{
    CollectedMean, CollectionAction, CollectionConfig, CollectionRound, Ticket,
};
use barnraise_swarm::contributor::Contributor;
use barnraise_swarm::robust::Aggregation;
use barnraise_swarm::session::Session;
use barnraise_swarm::{Moment, PeerKey};

pub(crate) const N_EPOCHS: u64 = 15;
pub(crate) const COLLECT_TIMEOUT_MS: u64 = 2000;
const N_PARAMETERS: usize = 2;
const MICRO_BATCH: u32 = 64;
const CLOCKS_OFF_MS: usize = 20 * 60 * 1000;
/// Longest time until a backbone notices that a peer is gone.
const UNNOTICED_MS: usize = 15_000;
/// Longest time until a peer notices that its backbone is unreachable.
const SILENCE_MS: usize = 8000;
const LATENCY_MS: u64 = 40;
const STORE_MS: u64 = 5;
const PROGRESS_MS: u64 = 500;
/// A run that takes longer has stalled.
const END_MS: u64 = 30 * 60 * 1000;

/// How large the run is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) n_peers: usize,
    pub(crate) target: u32,
    pub(crate) samples_max: u32,
    /// Peers that are killed in every round.
    pub(crate) n_killed: usize,
}

/// 30 % are killed.
pub(crate) const CROWD: Size = Size { n_peers: 20, target: 16_384, samples_max: 2048, n_killed: 6 };

/// Faults beside killed peers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InjectedFaults {
    pub(crate) backbone_dies: bool,
    /// Untrusted peers: gradients are clipped.
    pub(crate) clips_gradients: bool,
    /// Half of the peers are unreachable for a while, and come back.
    pub(crate) partitions: bool,
    /// Peers and the backbone stall now and then, or are slow.
    pub(crate) stalls: bool,
}

/// Counts of faults and their effects.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ChurnStatistics {
    pub(crate) n_runs: u64,
    pub(crate) n_killed: u64,
    pub(crate) n_cut_transfers: u64,
    /// Contributions that were stored, but whose answer did not reach the sender.
    pub(crate) n_unheard_answers: u64,
    pub(crate) n_duplicates: u64,
    pub(crate) n_partitions: u64,
    /// Rounds that waited for a peer until the deadline.
    pub(crate) n_timeouts: u64,
    pub(crate) n_backbone_deaths: u64,
    pub(crate) epoch_ms_max: u64,
}

#[derive(Debug, Clone)]
enum ChurnEvent {
    /// Events at a peer; void once the operation of that number was cancelled.
    Wake(usize, u64),
    Connect(usize, u64),
    State(usize, u64),
    Batch(usize, u64),
    Answer(usize, u64, Result<Accepted, ContributionRefusal>),
    Deliver(usize, u64, BackboneMessage),
    Disconnected(usize, u64),
    Kill(usize),
    Start(usize),
    ClockJumps(usize),
    Heal,
    /// Events at the backbone; void once that process or session is gone.
    Report(usize, u64, Report),
    Offer(usize, u64, u64),
    Received(Ticket, u64),
    TransferBroken(Ticket, u64),
    Stored(Ticket, u64, u64, u32),
    Lost(usize, u64),
    Deadline(u64),
    Progress,
    KillBackbone,
    StartBackbone,
    /// A stall of this many milliseconds; `None` is the backbone.
    Stall(Option<usize>, u64),
    /// Slowdown of a peer by this factor from now on.
    Throttle(usize, u64),
}

#[derive(Debug, Clone, Copy)]
enum BackboneMessage {
    Progress,
    Epoch(u64),
    Due(u64),
}

struct ChurnPeer {
    contributor: Contributor,
    link: Session,
    is_alive: bool,
    /// The operation under way; a number is never used twice.
    operation: u64,
    is_busy: bool,
    session: u64,
    clock_ms: u64,
    batch_ms: u64,
    transfer_ms: u64,
    /// On its disk: survives a crash.
    next_id: u64,
    offer: Option<Offer>,
}

struct StoredContribution {
    peer: usize,
    offer: Offer,
    values: Vec<f32>,
}

struct Flight {
    peer: usize,
    operation: u64,
    offer: Offer,
}

pub(crate) struct ChurnSimulation {
    pub(crate) seen: ChurnStatistics,
    /// Its nodes are the peers, and then the backbone.
    simulation: Simulation<ChurnEvent>,
    peers: Vec<ChurnPeer>,
    next_number: u64,
    round: CollectionRound,
    is_up: bool,
    /// The number of the backbone's process, and when it began.
    boot: u64,
    boot_ms: u64,
    sessions: BTreeMap<usize, u64>,
    flights: BTreeMap<Ticket, Flight>,
    collecting_since: Option<u64>,
    epoch_since: u64,
    /// The timer that is set for the backbone.
    deadline: Option<(u64, u64)>,
    size: Size,
    faults: InjectedFaults,
    stalls: stalls::Stalls,
    /// The backbone dies after it stores the next contribution and before it answers.
    dies_before_answer: bool,
    // Durable state.
    journal: BTreeMap<u64, BTreeMap<u32, StoredContribution>>,
    n_committed: u64,
    stored: BTreeSet<(usize, u64)>,
}

fn key(peer: usize) -> PeerKey {
    PeerKey(vec![peer as u8])
}

/// Values that identify the contribution.
fn gradient(peer: usize, id: u64) -> Vec<f32> {
    vec![(peer * 31 % 17) as f32, (id % 23) as f32]
}

fn config(size: &Size, clips_gradients: bool) -> CollectionConfig {
    CollectionConfig {
        target_batch_size: size.target,
        n_parameters: N_PARAMETERS,
        codec: TensorCodec::F32,
        slow_codec: None,
        micro_batch_size: MICRO_BATCH,
        contribution_samples_max: size.samples_max,
        samples_per_second_max: 1_000_000,
        collect_timeout: Duration::from_millis(COLLECT_TIMEOUT_MS),
        in_flight_max: 2 * size.n_peers,
        contributors_max: 2 * size.n_peers,
        is_open: false,
        aggregation: if clips_gradients {
            Aggregation::CenteredClip { places: 64 }
        } else {
            Aggregation::Mean
        },
        gradient_norm_max: 1e3,
    }
}

impl ChurnSimulation {
    pub(crate) fn new(seed: u64, size: Size, faults: InjectedFaults) -> Self {
        let network = Network::new(size.n_peers + 1, Latency::Constant(Duration::from_millis(LATENCY_MS)));
        let mut simulation = Simulation::new(seed, network);
        let peer = |_| ChurnPeer {
            contributor: Contributor::new(0),
            link: Session::new(0),
            is_alive: false,
            operation: 0,
            is_busy: false,
            session: 0,
            clock_ms: 0,
            batch_ms: 30 + simulation.random.below(170) as u64,
            transfer_ms: 50 + simulation.random.below(550) as u64,
            next_id: 0,
            offer: None,
        };
        let peers = (0..size.n_peers).map(peer).collect();
        let mut world = Self {
            seen: ChurnStatistics { n_runs: 1, ..ChurnStatistics::default() },
            simulation,
            peers,
            next_number: 1,
            round: CollectionRound::new(config(&size, faults.clips_gradients), 0),
            is_up: true,
            boot: 0,
            boot_ms: 0,
            sessions: BTreeMap::new(),
            flights: BTreeMap::new(),
            collecting_since: None,
            epoch_since: 0,
            deadline: None,
            size,
            faults,
            stalls: stalls::Stalls::new(size.n_peers),
            dies_before_answer: false,
            journal: BTreeMap::new(),
            n_committed: 0,
            stored: BTreeSet::new(),
        };
        (0..size.n_peers).for_each(|peer| world.after(0, ChurnEvent::Start(peer)));
        world.after(PROGRESS_MS, ChurnEvent::Progress);
        world.schedule_faults(1000);
        world
    }

    pub(crate) fn run(&mut self) {
        while self.n_committed < N_EPOCHS {
            let event = self.simulation.next().expect("something always happens");
            assert!(self.now() < END_MS, "epoch {} does not end: {:?}", self.n_committed, self.round);
            self.on(event);
        }
    }

    /// Every stored contribution is in a step or in the open epoch, exactly once.
    pub(crate) fn check_the_end(&self) {
        let named = self.journal.values().flat_map(BTreeMap::values);
        let named: Vec<_> = named.map(|entry| (entry.peer, entry.offer.contribution_id)).collect();
        assert_eq!(named.len(), self.stored.len());
        assert!(named.iter().all(|name| self.stored.contains(name)));
        let heard: u64 = self.peers.iter().map(|peer| peer.contributor.sample_counts().n_accepted).sum();
        assert!(heard > 0 && heard <= named.len() as u64, "{heard} of {} were heard", named.len());
    }

    /// Milliseconds since the start.
    fn now(&self) -> u64 {
        self.simulation.now().as_millis() as u64
    }

    fn backbone(&self) -> NodeId {
        NodeId(self.size.n_peers)
    }

    /// Schedules an event where it happens. Messages are sent with [`Self::send`].
    fn after(&mut self, delay_ms: u64, event: ChurnEvent) {
        let (delay, backbone) = (Duration::from_millis(delay_ms), self.backbone());
        match &event {
            ChurnEvent::Wake(peer, _)
            | ChurnEvent::Connect(peer, _)
            | ChurnEvent::State(peer, _)
            | ChurnEvent::Batch(peer, _)
            | ChurnEvent::Disconnected(peer, _) => self.simulation.after_at(NodeId(*peer), delay, event),
            ChurnEvent::Stored(..) | ChurnEvent::Deadline(_) | ChurnEvent::Progress => {
                self.simulation.after_at(backbone, delay, event)
            }
            ChurnEvent::Received(ticket, _) => {
                // A stalled sender sends no bytes.
                let sender = NodeId(self.flights[ticket].peer);
                self.simulation.after_at_both([sender, backbone], delay, event)
            }
            _ => self.simulation.after(delay, event),
        };
    }

    /// Sends a message to a peer, or of a peer to the backbone. Partitions lose it, stalls delay it.
    fn send(&mut self, event: ChurnEvent) {
        let backbone = self.backbone();
        let (from, to) = match &event {
            ChurnEvent::Answer(peer, ..) | ChurnEvent::Deliver(peer, ..) => (backbone, NodeId(*peer)),
            ChurnEvent::Report(peer, ..) | ChurnEvent::Offer(peer, ..) => (NodeId(*peer), backbone),
            event => unreachable!("{event:?} is no message"),
        };
        self.simulation.send(from, to, event);
    }

    /// Whether a peer is partitioned from the backbone.
    fn is_cut(&self, peer: usize) -> bool {
        self.simulation.network.is_parted(NodeId(peer))
    }

    /// How long something takes a peer at its present pace.
    fn slowed(&self, peer: usize, ms: u64) -> u64 {
        (ms as f64 * self.simulation.network.slower(NodeId(peer))) as u64
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn below(&mut self, n: usize) -> u64 {
        self.simulation.random.below(n) as u64
    }

    fn backbone_clock(&self) -> Moment {
        Duration::from_millis(self.now() - self.boot_ms)
    }

    fn clock(&self, peer: usize) -> Moment {
        Duration::from_millis(self.now() + self.peers[peer].clock_ms)
    }

    fn on(&mut self, event: ChurnEvent) {
        match event {
            ChurnEvent::Heal => self.simulation.network.heal(),
            ChurnEvent::Wake(peer, operation) if self.peers[peer].operation == operation => self.drive(peer),
            ChurnEvent::Connect(peer, operation) if self.is_current(peer, operation) => self.connect(peer),
            ChurnEvent::State(peer, operation) if self.is_current(peer, operation) => {
                if self.is_up && !self.is_cut(peer) {
                    self.peers[peer].contributor.on_state(self.round.epoch());
                    self.finish(peer);
                } else {
                    self.disconnected(peer);
                }
            }
            ChurnEvent::Batch(peer, operation) if self.is_current(peer, operation) => {
                let batch_ms = self.slowed(peer, self.peers[peer].batch_ms);
                let speed = 1000.0 * MICRO_BATCH as f32 / batch_ms as f32;
                self.peers[peer].contributor.on_batch(MICRO_BATCH, speed);
                self.finish(peer);
            }
            ChurnEvent::Answer(peer, operation, answer) => self.answered(peer, operation, &answer),
            ChurnEvent::Deliver(peer, session, message) if self.peers[peer].session == session => {
                self.on_message(peer, message);
            }
            ChurnEvent::Disconnected(peer, session) if self.peers[peer].session == session => {
                self.disconnected(peer);
            }
            ChurnEvent::Kill(peer) if self.peers[peer].is_alive => self.kill(peer),
            ChurnEvent::Start(peer) => self.start(peer),
            // As after a laptop resumes: the clock of its process has advanced.
            ChurnEvent::ClockJumps(peer) => {
                self.peers[peer].clock_ms += 60_000 + self.simulation.random.below(240_000) as u64;
                self.drive(peer);
            }
            ChurnEvent::Progress => {
                if self.is_up {
                    self.broadcast(BackboneMessage::Progress);
                }
                self.after(PROGRESS_MS, ChurnEvent::Progress);
            }
            ChurnEvent::StartBackbone => self.start_backbone(),
            ChurnEvent::Stall(of, for_ms) => self.stall(of, for_ms),
            ChurnEvent::Throttle(peer, slower) => self.throttle(peer, slower),
            event if self.is_up => self.on_backbone(event),
            _ => {}
        }
    }

    fn on_backbone(&mut self, event: ChurnEvent) {
        let now = self.backbone_clock();
        match event {
            ChurnEvent::Report(peer, session, report) if self.sessions.get(&peer) == Some(&session) => {
                self.round.on_report(now, &key(peer), &report).unwrap();
            }
            ChurnEvent::Offer(peer, operation, boot) if boot == self.boot => self.offered(peer, operation),
            ChurnEvent::Received(ticket, boot) if boot == self.boot => {
                let flight = &self.flights[&ticket];
                if self.is_current(flight.peer, flight.operation) && !self.is_cut(flight.peer) {
                    let values = gradient(flight.peer, flight.offer.contribution_id);
                    self.round.on_gradient(now, ticket, values);
                } else {
                    self.seen.n_cut_transfers += 1;
                    let unnoticed = self.below(UNNOTICED_MS);
                    self.after(unnoticed, ChurnEvent::TransferBroken(ticket, boot));
                }
            }
            ChurnEvent::TransferBroken(ticket, boot) if boot == self.boot => {
                self.round.on_transfer_failed(now, ticket);
            }
            ChurnEvent::Stored(ticket, boot, epoch, sequence) if boot == self.boot => {
                let Flight { peer, offer, .. } = &self.flights[&ticket];
                let (peer, offer) = (*peer, offer.clone());
                let id = offer.contribution_id;
                assert!(self.stored.insert((peer, id)), "{id} of {peer} is stored twice");
                let entry = StoredContribution { peer, offer, values: gradient(peer, id) };
                let before = self.journal.entry(epoch).or_default().insert(sequence, entry);
                assert!(before.is_none(), "entry {sequence} of epoch {epoch} is written twice");
                if std::mem::take(&mut self.dies_before_answer) {
                    return self.kill_backbone();
                }
                self.stalls.accepted_at = self.now();
                self.round.on_persisted(now, ticket);
            }
            ChurnEvent::Lost(peer, session) if self.sessions.get(&peer) == Some(&session) => {
                self.sessions.remove(&peer);
                self.round.on_leave(now, &key(peer));
            }
            ChurnEvent::Deadline(boot) if boot == self.boot => {
                self.deadline = None;
                let is_due = self.round.next_deadline().is_some_and(|at| at <= now);
                self.seen.n_timeouts += u64::from(is_due);
                self.round.on_timeout(now);
            }
            ChurnEvent::KillBackbone => return self.kill_backbone(),
            _ => return,
        }
        self.act();
    }

    fn act(&mut self) {
        while let Some(action) = self.round.poll_action() {
            let boot = self.boot;
            match action {
                CollectionAction::Persist { ticket, epoch, sequence, .. } => {
                    self.after(STORE_MS, ChurnEvent::Stored(ticket, boot, epoch, sequence));
                }
                CollectionAction::Acknowledge(ticket, accepted) => self.answer(ticket, Ok(accepted)),
                CollectionAction::Refuse(ticket, refusal) => self.answer(ticket, Err(refusal)),
                CollectionAction::RequestGradients(epoch) => {
                    self.collecting_since = Some(self.now());
                    self.broadcast(BackboneMessage::Due(epoch));
                }
                CollectionAction::Announce(epoch) => {
                    self.collected();
                    self.broadcast(BackboneMessage::Epoch(epoch));
                }
                CollectionAction::Abandon(ticket) => self.answer(ticket, Err(ContributionRefusal::Busy)),
                CollectionAction::Evict(peer) => unreachable!("there are seats for all, {peer:?} included"),
                CollectionAction::Step(mean) => self.step(&mean),
            }
        }
        if let Some(at) = self.round.next_deadline() {
            // Rounded up, like timers.
            let wait = at.saturating_sub(self.backbone_clock()).as_nanos().div_ceil(1_000_000) as u64;
            if self.deadline != Some((self.boot, self.now() + wait)) {
                self.deadline = Some((self.boot, self.now() + wait));
                self.after(wait, ChurnEvent::Deadline(self.boot));
            }
        }
    }

    /// Checks that collecting took no longer than its deadline and a store.
    fn collected(&mut self) {
        if let Some(since) = self.collecting_since.take() {
            let took = self.now() - since;
            assert!(self.faults.stalls || took <= COLLECT_TIMEOUT_MS + STORE_MS, "collecting took {took} ms");
        }
    }

    /// Checks a step against the journal, then makes it.
    fn step(&mut self, mean: &CollectedMean) {
        let epoch = self.n_committed;
        assert_eq!(mean.epoch, epoch);
        let entries = self.journal.get(&epoch).expect("a step has contributions");
        let mut sequences: Vec<u32> = mean.sequences.clone();
        sequences.sort_unstable();
        assert!(sequences.iter().eq(entries.keys()), "epoch {epoch}: {sequences:?}");
        let n_samples: u64 = entries.values().map(|entry| u64::from(entry.offer.n_samples)).sum();
        assert_eq!(mean.n_samples, n_samples);
        assert!(n_samples >= u64::from(self.size.target));
        let parameters = if self.faults.clips_gradients { 0..0 } else { 0..N_PARAMETERS };
        for at in parameters {
            let weighted =
                |entry: &StoredContribution| f64::from(entry.values[at]) * f64::from(entry.offer.n_samples);
            let want = entries.values().map(weighted).sum::<f64>() / n_samples as f64;
            let got = f64::from(mean.gradient[at]);
            assert!((got - want).abs() < 1e-4, "epoch {epoch}: {got}, {want} was wanted");
        }
        self.n_committed += 1;
        self.collected();
        self.round.on_stepped(self.backbone_clock());
        let now = self.now();
        let took = now - std::mem::replace(&mut self.epoch_since, now);
        self.seen.epoch_ms_max = self.seen.epoch_ms_max.max(took);
        self.schedule_faults(took);
    }

    fn offered(&mut self, peer: usize, operation: u64) {
        let Some(offer) = self.peers[peer].offer.clone() else { return };
        match self.round.on_offer(self.backbone_clock(), &key(peer), &offer) {
            Ok(ticket) => {
                self.flights.insert(ticket, Flight { peer, operation, offer });
                let takes = self.slowed(peer, self.peers[peer].transfer_ms);
                self.after(takes, ChurnEvent::Received(ticket, self.boot));
            }
            Err(refusal) => self.send(ChurnEvent::Answer(peer, operation, Err(refusal))),
        }
    }

    fn answer(&mut self, ticket: Ticket, answer: Result<Accepted, ContributionRefusal>) {
        let Flight { peer, operation, .. } = &self.flights[&ticket];
        let event = ChurnEvent::Answer(*peer, *operation, answer);
        self.send(event);
    }

    fn broadcast(&mut self, message: BackboneMessage) {
        let sessions: Vec<_> = self.sessions.iter().map(|(&peer, &session)| (peer, session)).collect();
        for (peer, session) in sessions {
            self.send(ChurnEvent::Deliver(peer, session, message));
        }
    }
}
