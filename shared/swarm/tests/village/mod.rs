//! Contributors, an attacker, a backbone and its device in virtual time, from one seed.
//!
//! What is learnt is a line through points of a plane of ten dimensions, by gradients that are computed, so that there is an
//! accuracy. Time is in milliseconds. Nothing here decides anything that the state machines decide.

mod attacker;
mod backbone;
mod honest;
mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_protocol::TensorCodec;
use barnraise_protocol::account::SampleId;
use barnraise_protocol::contribute::Report;
use barnraise_protocol::gradient::{Accepted, Offer, Refusal};
use barnraise_swarm::contributor::Contributor;
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::recomputation::{Claim, FairQueue, Ledger, Name, Selection, Usual};
use barnraise_swarm::robust::Aggregation;
use barnraise_swarm::round::{AddressGroup, AveragingRound, RoundConfig, Ticket};
use barnraise_swarm::{Moment, PeerKey};

use attacker::Attacker;
use model::Model;

pub(crate) const IN_FLIGHT_MAX: usize = 64;
pub(crate) const TARGET: u32 = 1024;
pub(crate) const MICRO_BATCH: u32 = 64;
const END_MS: u64 = 60_000;
const LATENCY_MS: u64 = 20;
const STORE_MS: u64 = 5;
const PROGRESS_MS: u64 = 500;
/// The device of the backbone computes a sample in so many microseconds, as a core does with a LeNet.
const RECOMPUTED_US: u64 = 600;
/// Of a pass of each peer: three tabs, and two native ones.
const BATCH_MS: [u64; 5] = [107, 91, 80, 43, 43];
const TRANSFER_MS: [u64; 5] = [120, 100, 80, 40, 40];
const N_DATA: u64 = 60_000;

/// What one machine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attack {
    Claim,
    Late,
    Random,
    Turned,
    Scaled,
    Stale,
    Trickle,
    Seats,
    Repeat,
    Single,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Seen {
    /// Samples of honest contributors that were accepted, and that they computed.
    pub(crate) n_honest: u64,
    pub(crate) n_computed: u64,
    /// Samples that the attacker has credit for, and that it computed.
    pub(crate) n_credited: u64,
    pub(crate) n_worked: u64,
    pub(crate) n_convicted: u64,
    pub(crate) n_steps: u64,
    pub(crate) n_entries: u64,
    pub(crate) in_flight_max: usize,
    pub(crate) n_honest_evicted: u64,
    /// Percent.
    pub(crate) accuracy: f64,
}

#[derive(Debug, Clone)]
enum Event {
    Wake(usize, u64),
    Connect(usize, u64),
    State(usize, u64),
    Batch(usize, u64),
    Answer(PeerKey, u64, Result<Accepted, Refusal>),
    Hear(usize, Message),
    Report(PeerKey, Report),
    Offer(Box<Contribution>),
    Received(Ticket),
    Recomputed,
    Stored(Ticket),
    Deadline,
    Progress,
    Attack,
}

#[derive(Debug, Clone, Copy)]
enum Message {
    Progress,
    Epoch(u64),
    Due(u64),
}

/// All that comes with an offer, and what it truly is.
#[derive(Debug, Clone)]
struct Contribution {
    peer: PeerKey,
    group: AddressGroup,
    offer: Offer,
    samples: Vec<SampleId>,
    values: Vec<f32>,
    is_true: bool,
    /// `None`: it never arrives.
    transfer_ms: Option<u64>,
}

struct Flight {
    contribution: Contribution,
    claim: Claim,
    /// What was recomputed is not pulled again.
    is_here: bool,
    has_gradient: bool,
}

struct Honest {
    contributor: Contributor,
    operation: u64,
    is_busy: bool,
    batch_ms: u64,
    transfer_ms: u64,
    parameters: Vec<f32>,
    samples: Vec<SampleId>,
    contribution: Option<Contribution>,
}

pub(crate) struct Village {
    seen: Seen,
    now: u64,
    random: SplitMix64,
    events: BTreeMap<(u64, u64), Event>,
    n_events: u64,
    honest: Vec<Honest>,
    attacker: Option<Attacker>,
    round: AveragingRound,
    ledger: Ledger,
    selection: Selection,
    usual: Usual,
    /// Of the attacker's keys.
    credit: BTreeMap<PeerKey, u64>,
    queue: FairQueue<Flight>,
    recomputing: Option<(AddressGroup, Flight)>,
    flights: BTreeMap<Ticket, Flight>,
    banned: BTreeSet<PeerKey>,
    model: Model,
    deadline: Option<u64>,
}

fn honest_key(peer: usize) -> PeerKey {
    PeerKey(vec![1, peer as u8])
}

fn honest_at(key: &PeerKey) -> Option<usize> {
    match key.0[..] {
        [1, peer] => Some(peer.into()),
        _ => None,
    }
}

fn name(contribution: &Contribution) -> Name {
    Name { peer: contribution.peer.clone(), contribution_id: contribution.offer.contribution_id }
}

impl Village {
    pub(crate) fn new(seed: u64, attack: Option<(Attack, u32)>) -> Self {
        Self::of(seed, &[0, 1, 2, 3, 4], attack)
    }

    /// With one native peer and nobody else.
    pub(crate) fn alone(seed: u64) -> Self {
        Self::of(seed, &[4], None)
    }

    fn of(seed: u64, peers: &[usize], attack: Option<(Attack, u32)>) -> Self {
        let config = RoundConfig {
            target_batch_size: TARGET,
            n_parameters: model::N,
            codec: TensorCodec::F32,
            slow_codec: None,
            micro_batch_size: MICRO_BATCH,
            contribution_samples_max: TARGET,
            samples_per_second_max: 20_000,
            collect_timeout: Duration::from_secs(5),
            in_flight_max: IN_FLIGHT_MAX,
            contributors_max: 256,
            is_open: true,
            aggregation: Aggregation::MeanOfAddresses { places: 1000 },
            gradient_norm_max: 1e3,
        };
        let mut random = SplitMix64::new(seed);
        let honest = peers.iter().map(|&peer| Honest {
            contributor: Contributor::new(1, random.next_u64()),
            operation: 0,
            is_busy: false,
            batch_ms: BATCH_MS[peer],
            transfer_ms: TRANSFER_MS[peer],
            parameters: vec![0.0; model::N],
            samples: Vec::new(),
            contribution: None,
        });
        let honest = honest.collect();
        let mut village = Self {
            seen: Seen::default(),
            now: 0,
            random,
            events: BTreeMap::new(),
            n_events: 0,
            honest,
            attacker: attack.map(|(attack, n_keys)| Attacker::new(attack, n_keys)),
            round: AveragingRound::new(config, 0),
            ledger: Ledger::new(N_DATA),
            selection: Selection::new(0.05, [7; 32]),
            usual: Usual::default(),
            credit: BTreeMap::new(),
            queue: FairQueue::new(32),
            recomputing: None,
            flights: BTreeMap::new(),
            banned: BTreeSet::new(),
            model: Model::new(),
            deadline: None,
        };
        // The attacker is there first.
        if village.attacker.is_some() {
            village.after(0, Event::Attack);
        }
        for peer in 0..village.honest.len() {
            let clock = village.clock();
            village.honest[peer].contributor.start(clock);
            village.after(1 + 100 * peer as u64, Event::Wake(peer, 0));
        }
        village.after(PROGRESS_MS, Event::Progress);
        village
    }

    pub(crate) fn run(mut self) -> Seen {
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at >= END_MS {
                break;
            }
            self.now = at;
            self.on(event);
        }
        self.seen.accuracy = self.model.accuracy();
        self.seen
    }

    fn after(&mut self, delay_ms: u64, event: Event) {
        self.n_events += 1;
        self.events.insert((self.now + delay_ms, self.n_events), event);
    }

    fn clock(&self) -> Moment {
        Duration::from_millis(self.now)
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Wake(peer, operation) if self.honest[peer].operation == operation => self.drive(peer),
            Event::Connect(peer, operation) if self.is_current(peer, operation) => self.connect(peer),
            Event::State(peer, operation) if self.is_current(peer, operation) => {
                let (epoch, parameters) = (self.round.epoch(), self.model.parameters().to_vec());
                let one = &mut self.honest[peer];
                (one.parameters, one.samples) = (parameters, Vec::new());
                one.contributor.on_state(epoch);
                self.finish(peer);
            }
            Event::Batch(peer, operation) if self.is_current(peer, operation) => self.computed(peer),
            Event::Wake(..) | Event::Connect(..) | Event::State(..) | Event::Batch(..) => {}
            Event::Answer(peer, id, answer) => self.answered(&peer, id, &answer),
            Event::Hear(peer, message) => self.hear(peer, message),
            Event::Attack => self.attack(),
            event => self.on_backbone(event),
        }
    }

    /// Samples of the data that nobody else is told of, as if each peer had its own shards in its buffer.
    fn draw(&mut self, n: u32) -> Vec<SampleId> {
        let mut draw =
            || SampleId { shard: self.random.below(120) as u32, index: self.random.below(500) as u32 };
        (0..n).map(|_| draw()).collect()
    }
}
