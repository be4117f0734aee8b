//! Peers, a backbone and a network in virtual time, from one seed.
//!
//! Time is in milliseconds since the beginning of the world. Each peer has a clock of its own, off by minutes;
//! so has each process of the backbone. Nothing here decides anything: it carries messages, loses them with
//! whoever was to send or hear them, and checks every step of the optimizer against the journal.

#![allow(dead_code)] // Each test uses some of it.

mod peers;
mod stalls;
mod troubles;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_protocol::TensorCodec;
use barnraise_protocol::contribute::Report;
use barnraise_protocol::gradient::{Accepted, Offer, Refusal};
use barnraise_swarm::contributor::Contributor;
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::robust::Aggregation;
use barnraise_swarm::round::{AveragingRound, MeanOfRound, RoundAction, RoundConfig, Ticket};
use barnraise_swarm::{Moment, PeerKey};

pub(crate) const N_EPOCHS: u64 = 15;
pub(crate) const COLLECT_TIMEOUT_MS: u64 = 2000;
const N_PARAMETERS: usize = 2;
const MICRO_BATCH: u32 = 64;
const CLOCKS_OFF_MS: usize = 20 * 60 * 1000;
/// How long a backbone may not notice that a peer is gone.
const UNNOTICED_MS: usize = 15_000;
/// How long a peer may not notice that its backbone is out of reach.
const SILENCE_MS: usize = 8000;
const LATENCY_MS: u64 = 40;
const STORE_MS: u64 = 5;
const PROGRESS_MS: u64 = 500;
/// A world that takes longer has stopped.
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

/// What happens beside peers that are killed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Troubles {
    pub(crate) backbone_dies: bool,
    /// Peers are not trusted: gradients are clipped.
    pub(crate) is_wary: bool,
    /// Half of the peers are out of reach for a while, and come back.
    pub(crate) partitions: bool,
    /// Everybody, the backbone too, stands still for a while now and then, or is slow.
    pub(crate) stalls: bool,
}

/// What happened, beside what was checked.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) n_killed: u64,
    pub(crate) n_cut_transfers: u64,
    /// Contributions that were stored and whose sender was gone before it heard of it.
    pub(crate) n_unheard_answers: u64,
    pub(crate) n_duplicates: u64,
    pub(crate) n_partitions: u64,
    /// Rounds that had to wait for somebody until the deadline.
    pub(crate) n_timeouts: u64,
    pub(crate) n_backbone_deaths: u64,
    pub(crate) epoch_ms_max: u64,
}

#[derive(Debug, Clone)]
enum Event {
    /// The peer's side of something; void once the operation of that number was given up.
    Wake(usize, u64),
    Connect(usize, u64),
    State(usize, u64),
    Batch(usize, u64),
    Answer(usize, u64, Result<Accepted, Refusal>),
    Hear(usize, u64, Message),
    Disconnected(usize, u64),
    Kill(usize),
    Start(usize),
    ClockJumps(usize),
    Heal,
    /// The backbone's side; void once that process or session is gone.
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
    /// Stands still for so long; `None` is the backbone.
    Stall(Option<usize>, u64),
    /// So many times as slow from now on.
    Throttle(usize, u64),
}

#[derive(Debug, Clone, Copy)]
enum Message {
    Progress,
    Epoch(u64),
    Due(u64),
}

struct Peer {
    contributor: Contributor,
    is_alive: bool,
    /// What is under way; a number is never used twice.
    operation: u64,
    is_busy: bool,
    session: u64,
    clock_ms: u64,
    batch_ms: u64,
    transfer_ms: u64,
    /// On its disk.
    next_id: u64,
    offer: Option<Offer>,
    /// Times its usual speed.
    slower: u64,
}

struct Stored {
    peer: usize,
    offer: Offer,
    values: Vec<f32>,
}

struct Flight {
    peer: usize,
    operation: u64,
    offer: Offer,
}

pub(crate) struct World {
    pub(crate) seen: Seen,
    now: u64,
    random: SplitMix64,
    events: BTreeMap<(u64, u64), Event>,
    n_events: u64,
    peers: Vec<Peer>,
    next_number: u64,
    round: AveragingRound,
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
    troubles: Troubles,
    stalls: stalls::Stalls,
    /// Peers from and to which nothing gets through.
    cut: BTreeSet<usize>,
    /// The next contribution is stored, and then nobody hears of it.
    dies_before_it_tells: bool,
    // What lasts.
    journal: BTreeMap<u64, BTreeMap<u32, Stored>>,
    n_committed: u64,
    stored: BTreeSet<(usize, u64)>,
}

fn key(peer: usize) -> PeerKey {
    PeerKey(vec![peer as u8])
}

/// Says whose contribution it is.
fn gradient(peer: usize, id: u64) -> Vec<f32> {
    vec![(peer * 31 % 17) as f32, (id % 23) as f32]
}

fn config(size: &Size, is_wary: bool) -> RoundConfig {
    RoundConfig {
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
        aggregation: if is_wary { Aggregation::CenteredClip { places: 64 } } else { Aggregation::Mean },
        gradient_norm_max: 1e3,
    }
}

impl World {
    pub(crate) fn new(seed: u64, size: Size, troubles: Troubles) -> Self {
        let mut random = SplitMix64::new(seed);
        let peer = |_| Peer {
            contributor: Contributor::new(0, 0),
            is_alive: false,
            operation: 0,
            is_busy: false,
            session: 0,
            clock_ms: 0,
            batch_ms: 30 + random.below(170) as u64,
            transfer_ms: 50 + random.below(550) as u64,
            next_id: 0,
            offer: None,
            slower: 1,
        };
        let peers = (0..size.n_peers).map(peer).collect();
        let mut world = Self {
            seen: Seen::default(),
            now: 0,
            random,
            events: BTreeMap::new(),
            n_events: 0,
            peers,
            next_number: 1,
            round: AveragingRound::new(config(&size, troubles.is_wary), 0),
            is_up: true,
            boot: 0,
            boot_ms: 0,
            sessions: BTreeMap::new(),
            flights: BTreeMap::new(),
            collecting_since: None,
            epoch_since: 0,
            deadline: None,
            size,
            troubles,
            stalls: stalls::Stalls::new(size.n_peers),
            cut: BTreeSet::new(),
            dies_before_it_tells: false,
            journal: BTreeMap::new(),
            n_committed: 0,
            stored: BTreeSet::new(),
        };
        (0..size.n_peers).for_each(|peer| world.after(0, Event::Start(peer)));
        world.after(PROGRESS_MS, Event::Progress);
        world.trouble(1000);
        world
    }

    pub(crate) fn run(&mut self) {
        while self.n_committed < N_EPOCHS {
            let ((at, _), event) = self.events.pop_first().expect("something always happens");
            assert!(at < END_MS, "epoch {} does not end: {:?}", self.n_committed, self.round);
            self.now = at;
            self.on(event);
        }
    }

    /// All that was stored, and so acknowledged, is in a step or in the open epoch, once.
    pub(crate) fn check_the_end(&self) {
        let named = self.journal.values().flat_map(BTreeMap::values);
        let named: Vec<_> = named.map(|entry| (entry.peer, entry.offer.contribution_id)).collect();
        assert_eq!(named.len(), self.stored.len());
        assert!(named.iter().all(|name| self.stored.contains(name)));
        let heard: u64 = self.peers.iter().map(|peer| peer.contributor.tally().n_accepted).sum();
        assert!(heard > 0 && heard <= named.len() as u64);
    }

    fn after(&mut self, delay_ms: u64, event: Event) {
        self.n_events += 1;
        self.events.insert((self.now + delay_ms, self.n_events), event);
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn below(&mut self, n: usize) -> u64 {
        self.random.below(n) as u64
    }

    fn backbone_clock(&self) -> Moment {
        Duration::from_millis(self.now - self.boot_ms)
    }

    fn clock(&self, peer: usize) -> Moment {
        Duration::from_millis(self.now + self.peers[peer].clock_ms)
    }

    fn on(&mut self, event: Event) {
        if self.is_cut(&event) {
            return;
        }
        let Some(event) = self.put_off(event) else { return };
        match event {
            Event::Heal => self.cut.clear(),
            Event::Wake(peer, operation) if self.peers[peer].operation == operation => self.drive(peer),
            Event::Connect(peer, operation) if self.is_current(peer, operation) => self.connect(peer),
            Event::State(peer, operation) if self.is_current(peer, operation) => {
                if self.is_up && !self.cut.contains(&peer) {
                    self.peers[peer].contributor.on_state(self.round.epoch());
                    self.finish(peer);
                } else {
                    self.disconnected(peer);
                }
            }
            Event::Batch(peer, operation) if self.is_current(peer, operation) => {
                let batch_ms = self.peers[peer].batch_ms * self.peers[peer].slower;
                let speed = 1000.0 * MICRO_BATCH as f32 / batch_ms as f32;
                self.peers[peer].contributor.on_batch(MICRO_BATCH, speed);
                self.finish(peer);
            }
            Event::Answer(peer, operation, answer) => self.answered(peer, operation, &answer),
            Event::Hear(peer, session, message) if self.peers[peer].session == session => {
                self.hear(peer, message);
            }
            Event::Disconnected(peer, session) if self.peers[peer].session == session => {
                self.disconnected(peer);
            }
            Event::Kill(peer) if self.peers[peer].is_alive => self.kill(peer),
            Event::Start(peer) => self.start(peer),
            // As after a suspended laptop is opened: the clock of its process has gone on.
            Event::ClockJumps(peer) => {
                self.peers[peer].clock_ms += 60_000 + self.random.below(240_000) as u64;
                self.drive(peer);
            }
            Event::Progress => {
                if self.is_up {
                    self.tell_all(Message::Progress);
                }
                self.after(PROGRESS_MS, Event::Progress);
            }
            Event::StartBackbone => self.start_backbone(),
            Event::Stall(of, for_ms) => self.stall(of, for_ms),
            Event::Throttle(peer, slower) => self.throttle(peer, slower),
            event if self.is_up => self.on_backbone(event),
            _ => {}
        }
    }

    fn on_backbone(&mut self, event: Event) {
        let now = self.backbone_clock();
        match event {
            Event::Report(peer, session, report) if self.sessions.get(&peer) == Some(&session) => {
                self.round.on_report(now, &key(peer), &report).unwrap();
            }
            Event::Offer(peer, operation, boot) if boot == self.boot => self.offered(peer, operation),
            Event::Received(ticket, boot) if boot == self.boot => {
                let flight = &self.flights[&ticket];
                if self.is_current(flight.peer, flight.operation) && !self.cut.contains(&flight.peer) {
                    let values = gradient(flight.peer, flight.offer.contribution_id);
                    self.round.on_gradient(now, ticket, values);
                } else {
                    self.seen.n_cut_transfers += 1;
                    let unnoticed = self.below(UNNOTICED_MS);
                    self.after(unnoticed, Event::TransferBroken(ticket, boot));
                }
            }
            Event::TransferBroken(ticket, boot) if boot == self.boot => {
                self.round.on_transfer_failed(now, ticket);
            }
            Event::Stored(ticket, boot, epoch, sequence) if boot == self.boot => {
                let Flight { peer, offer, .. } = &self.flights[&ticket];
                let (peer, offer) = (*peer, offer.clone());
                let id = offer.contribution_id;
                assert!(self.stored.insert((peer, id)), "{id} of {peer} is stored twice");
                let entry = Stored { peer, offer, values: gradient(peer, id) };
                let before = self.journal.entry(epoch).or_default().insert(sequence, entry);
                assert!(before.is_none(), "entry {sequence} of epoch {epoch} is written twice");
                if std::mem::take(&mut self.dies_before_it_tells) {
                    return self.kill_backbone();
                }
                self.stalls.accepted_at = self.now;
                self.round.on_persisted(now, ticket);
            }
            Event::Lost(peer, session) if self.sessions.get(&peer) == Some(&session) => {
                self.sessions.remove(&peer);
                self.round.on_leave(now, &key(peer));
            }
            Event::Deadline(boot) if boot == self.boot => {
                self.deadline = None;
                let is_due = self.round.next_deadline().is_some_and(|at| at <= now);
                self.seen.n_timeouts += u64::from(is_due);
                self.round.on_timeout(now);
            }
            Event::KillBackbone => return self.kill_backbone(),
            _ => return,
        }
        self.act();
    }

    fn act(&mut self) {
        while let Some(action) = self.round.poll_action() {
            let boot = self.boot;
            match action {
                RoundAction::Persist { ticket, epoch, sequence, .. } => {
                    self.after(STORE_MS, Event::Stored(ticket, boot, epoch, sequence));
                }
                RoundAction::Acknowledge(ticket, accepted) => self.answer(ticket, Ok(accepted)),
                RoundAction::Refuse(ticket, refusal) => self.answer(ticket, Err(refusal)),
                RoundAction::RequestGradients(epoch) => {
                    self.collecting_since = Some(self.now);
                    self.tell_all(Message::Due(epoch));
                }
                RoundAction::Announce(epoch) => {
                    self.collected();
                    self.tell_all(Message::Epoch(epoch));
                }
                RoundAction::Abandon(ticket) => self.answer(ticket, Err(Refusal::Busy)),
                RoundAction::Evict(peer) => unreachable!("there are seats for all, {peer:?} included"),
                RoundAction::Step(mean) => self.step(&mean),
            }
        }
        if let Some(at) = self.round.next_deadline() {
            // A moment later rather than earlier, as timers do.
            let wait = at.saturating_sub(self.backbone_clock()).as_nanos().div_ceil(1_000_000) as u64;
            if self.deadline != Some((self.boot, self.now + wait)) {
                self.deadline = Some((self.boot, self.now + wait));
                self.after(wait, Event::Deadline(self.boot));
            }
        }
    }

    /// No collecting takes longer than its deadline and what was being stored by then.
    fn collected(&mut self) {
        if let Some(since) = self.collecting_since.take() {
            let took = self.now - since;
            assert!(
                self.troubles.stalls || took <= COLLECT_TIMEOUT_MS + STORE_MS,
                "collecting took {took} ms"
            );
        }
    }

    /// Compares a step with what the journal says it should be, then makes it.
    fn step(&mut self, mean: &MeanOfRound) {
        let epoch = self.n_committed;
        assert_eq!(mean.epoch, epoch);
        let entries = self.journal.get(&epoch).expect("a step has contributions");
        let mut sequences: Vec<u32> = mean.sequences.clone();
        sequences.sort_unstable();
        assert!(sequences.iter().eq(entries.keys()), "epoch {epoch}: {sequences:?}");
        let n_samples: u64 = entries.values().map(|entry| u64::from(entry.offer.n_samples)).sum();
        assert_eq!(mean.n_samples, n_samples);
        assert!(n_samples >= u64::from(self.size.target));
        let parameters = if self.troubles.is_wary { 0..0 } else { 0..N_PARAMETERS };
        for at in parameters {
            let weighted = |entry: &Stored| f64::from(entry.values[at]) * f64::from(entry.offer.n_samples);
            let want = entries.values().map(weighted).sum::<f64>() / n_samples as f64;
            let got = f64::from(mean.gradient[at]);
            assert!((got - want).abs() < 1e-4, "epoch {epoch}: {got}, {want} was wanted");
        }
        self.n_committed += 1;
        self.collected();
        self.round.on_stepped(self.backbone_clock());
        let took = self.now - std::mem::replace(&mut self.epoch_since, self.now);
        self.seen.epoch_ms_max = self.seen.epoch_ms_max.max(took);
        self.trouble(took);
    }

    fn offered(&mut self, peer: usize, operation: u64) {
        let Some(offer) = self.peers[peer].offer.clone() else { return };
        match self.round.on_offer(self.backbone_clock(), &key(peer), &offer) {
            Ok(ticket) => {
                self.flights.insert(ticket, Flight { peer, operation, offer });
                let takes = self.peers[peer].transfer_ms * self.peers[peer].slower;
                self.after(takes, Event::Received(ticket, self.boot));
            }
            Err(refusal) => self.after(LATENCY_MS, Event::Answer(peer, operation, Err(refusal))),
        }
    }

    fn answer(&mut self, ticket: Ticket, answer: Result<Accepted, Refusal>) {
        let Flight { peer, operation, .. } = &self.flights[&ticket];
        let event = Event::Answer(*peer, *operation, answer);
        self.after(LATENCY_MS, event);
    }

    fn tell_all(&mut self, message: Message) {
        let sessions: Vec<_> = self.sessions.iter().map(|(&peer, &session)| (peer, session)).collect();
        for (peer, session) in sessions {
            self.after(LATENCY_MS, Event::Hear(peer, session, message));
        }
    }
}
