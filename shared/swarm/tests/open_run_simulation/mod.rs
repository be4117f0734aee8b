//! Contributors, an attacker, a backbone and its device in virtual time, from one seed.
//!
//! The model is a linear classifier of points in ten dimensions with real gradients, so that there is an accuracy. Time is
//! in milliseconds. All decisions are those of the production state machines.

mod attacker;
mod backbone;
mod honest;
mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_protocol::TensorCodec;
use barnraise_protocol::commitment::SampleId;
use barnraise_protocol::contribute::Report;
use barnraise_protocol::gradient::{Accepted, ContributionRefusal, Offer};
use barnraise_simulation::{Latency, Network, NodeId, Simulation};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::collection::{CollectionConfig, CollectionRound, Ticket};
use barnraise_swarm::contributor::Contributor;
use barnraise_swarm::recomputation::{
    ContributionName, FairQueue, Ledger, SampleClaim, Selection, TypicalContributions,
};
use barnraise_swarm::robust::Aggregation;
use barnraise_swarm::session::Session;
use barnraise_swarm::{Moment, PeerKey};

use attacker::Attacker;
use model::Model;

pub(crate) const IN_FLIGHT_MAX: usize = 64;
pub(crate) const TARGET: u32 = 1024;
pub(crate) const MICRO_BATCH: u32 = 64;
const END_MS: u64 = 60_000;
const BACKBONE: NodeId = NodeId(0);
const ATTACKER: NodeId = NodeId(1);
const LATENCY_MS: u64 = 20;
const STORE_MS: u64 = 5;
const PROGRESS_MS: u64 = 500;
/// Microseconds in which the backbone's device recomputes a sample, as a core does with a LeNet.
const RECOMPUTED_US: u64 = 600;
/// Time of a batch of each peer: three tabs, and two native peers.
const BATCH_MS: [u64; 5] = [107, 91, 80, 43, 43];
const TRANSFER_MS: [u64; 5] = [120, 100, 80, 40, 40];
const N_DATA: u64 = 60_000;

/// The attack of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttackKind {
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

/// Statistics of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct AttackStatistics {
    /// Accepted and computed samples of honest contributors.
    pub(crate) n_honest: u64,
    pub(crate) n_computed: u64,
    /// Credited and computed samples of the attacker.
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
enum OpenRunEvent {
    Wake(usize, u64),
    Connect(usize, u64),
    State(usize, u64),
    Batch(usize, u64),
    Answer(PeerKey, u64, Result<Accepted, ContributionRefusal>),
    Deliver(usize, BackboneMessage),
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
enum BackboneMessage {
    Progress,
    Epoch(u64),
    Due(u64),
}

/// An offer with its samples and values, and whether they are honest.
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
    claim: SampleClaim,
    /// The values are here: a recomputed contribution is not transferred again.
    is_here: bool,
    has_gradient: bool,
}

/// A contribution to recompute.
enum RecomputationJob {
    BeforeCounting(Flight),
    Counted(Contribution),
}

struct Honest {
    contributor: Contributor,
    link: Session,
    operation: u64,
    is_busy: bool,
    batch_ms: u64,
    transfer_ms: u64,
    parameters: Vec<f32>,
    samples: Vec<SampleId>,
    contribution: Option<Contribution>,
}

pub(crate) struct OpenRunSimulation {
    seen: AttackStatistics,
    /// Its nodes are the backbone, the attacker, and the honest peers.
    simulation: Simulation<OpenRunEvent>,
    honest: Vec<Honest>,
    attacker: Option<Attacker>,
    round: CollectionRound,
    ledger: Ledger,
    selection: Selection,
    usual: TypicalContributions,
    /// Samples credited to each of the attacker's keys.
    credit: BTreeMap<PeerKey, u64>,
    queue: FairQueue<RecomputationJob>,
    recomputing: Option<(AddressGroup, RecomputationJob)>,
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

/// The attacker's keys are one machine.
fn node(key: &PeerKey) -> NodeId {
    honest_at(key).map_or(ATTACKER, |peer| NodeId(2 + peer))
}

impl RecomputationJob {
    fn contribution(&self) -> &Contribution {
        match self {
            Self::BeforeCounting(flight) => &flight.contribution,
            Self::Counted(contribution) => contribution,
        }
    }
}

fn name(contribution: &Contribution) -> ContributionName {
    ContributionName { peer: contribution.peer.clone(), contribution_id: contribution.offer.contribution_id }
}

impl OpenRunSimulation {
    pub(crate) fn new(seed: u64, attack: Option<(AttackKind, u32)>) -> Self {
        Self::of(seed, &[0, 1, 2, 3, 4], attack)
    }

    /// A run of one native peer.
    pub(crate) fn alone(seed: u64) -> Self {
        Self::of(seed, &[4], None)
    }

    fn of(seed: u64, peers: &[usize], attack: Option<(AttackKind, u32)>) -> Self {
        let config = CollectionConfig {
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
        let latency = Latency::Constant(Duration::from_millis(LATENCY_MS));
        let mut run = Simulation::new(seed, Network::new(2 + peers.len(), latency));
        let honest = peers.iter().map(|&peer| Honest {
            contributor: Contributor::new(1),
            link: Session::new(run.random.next_u64()),
            operation: 0,
            is_busy: false,
            batch_ms: BATCH_MS[peer],
            transfer_ms: TRANSFER_MS[peer],
            parameters: vec![0.0; model::N],
            samples: Vec::new(),
            contribution: None,
        });
        let honest = honest.collect();
        let mut simulation = Self {
            seen: AttackStatistics::default(),
            simulation: run,
            honest,
            attacker: attack.map(|(attack, n_keys)| Attacker::new(attack, n_keys)),
            round: CollectionRound::new(config, 0),
            ledger: Ledger::new(N_DATA),
            selection: Selection::new(0.05, [7; 32]),
            usual: TypicalContributions::default(),
            credit: BTreeMap::new(),
            queue: FairQueue::new(32),
            recomputing: None,
            flights: BTreeMap::new(),
            banned: BTreeSet::new(),
            model: Model::new(),
            deadline: None,
        };
        // The attacker joins first.
        if simulation.attacker.is_some() {
            simulation.after(0, OpenRunEvent::Attack);
        }
        for peer in 0..simulation.honest.len() {
            let clock = simulation.clock();
            simulation.honest[peer].link.start(clock);
            simulation.after(1 + 100 * peer as u64, OpenRunEvent::Wake(peer, 0));
        }
        simulation.after(PROGRESS_MS, OpenRunEvent::Progress);
        simulation
    }

    pub(crate) fn run(mut self) -> AttackStatistics {
        while let Some(event) = self.simulation.next_until(Duration::from_millis(END_MS - 1)) {
            self.on(event);
        }
        self.seen.accuracy = self.model.accuracy();
        self.seen
    }

    fn after(&mut self, delay_ms: u64, event: OpenRunEvent) {
        self.simulation.after(Duration::from_millis(delay_ms), event);
    }

    /// Sends a message from the backbone to a peer, or from a peer to the backbone.
    fn send(&mut self, event: OpenRunEvent) {
        let (from, to) = match &event {
            OpenRunEvent::Answer(peer, ..) => (BACKBONE, node(peer)),
            OpenRunEvent::Deliver(peer, _) => (BACKBONE, node(&honest_key(*peer))),
            OpenRunEvent::Report(peer, _) => (node(peer), BACKBONE),
            OpenRunEvent::Offer(contribution) => (node(&contribution.peer), BACKBONE),
            event => unreachable!("{event:?} is no message"),
        };
        self.simulation.send(from, to, event);
    }

    /// Milliseconds since the start.
    fn now(&self) -> u64 {
        self.simulation.now().as_millis() as u64
    }

    fn clock(&self) -> Moment {
        self.simulation.now()
    }

    fn on(&mut self, event: OpenRunEvent) {
        match event {
            OpenRunEvent::Wake(peer, operation) if self.honest[peer].operation == operation => {
                self.drive(peer);
            }
            OpenRunEvent::Connect(peer, operation) if self.is_current(peer, operation) => self.connect(peer),
            OpenRunEvent::State(peer, operation) if self.is_current(peer, operation) => {
                let (epoch, parameters) = (self.round.epoch(), self.model.parameters().to_vec());
                let one = &mut self.honest[peer];
                (one.parameters, one.samples) = (parameters, Vec::new());
                one.contributor.on_state(epoch);
                self.finish(peer);
            }
            OpenRunEvent::Batch(peer, operation) if self.is_current(peer, operation) => self.computed(peer),
            OpenRunEvent::Wake(..)
            | OpenRunEvent::Connect(..)
            | OpenRunEvent::State(..)
            | OpenRunEvent::Batch(..) => {}
            OpenRunEvent::Answer(peer, id, answer) => self.answered(&peer, id, &answer),
            OpenRunEvent::Deliver(peer, message) => self.on_message(peer, message),
            OpenRunEvent::Attack => self.attack(),
            event => self.on_backbone(event),
        }
    }

    /// Random samples that no other peer has, as if each peer had its own shards.
    fn draw(&mut self, n: u32) -> Vec<SampleId> {
        let random = &mut self.simulation.random;
        let mut draw = || SampleId { shard: random.below(120) as u32, index: random.below(500) as u32 };
        (0..n).map(|_| draw()).collect()
    }
}
