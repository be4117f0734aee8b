//! A simulated DHT in which each peer hosts an expert, and trainers that search in it. Search, lookup and storage are the
//! production code; routing tables are drawn, and each record lies at the peers closest to its key.
#![allow(unreachable_pub, dead_code)] // Each user uses some of it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::experts::{self, AnnouncedExpert, LIFETIME};
use barnraise_protocol::dht::{RecordKey, Subkey};
use barnraise_protocol::experts::{ExpertUid, GridShape, LayerId};
use barnraise_simulation::{Latency, Network, NodeAction, NodeId, NodeSimulation, Random, SimulatedNode};
use barnraise_swarm::dht::{Goal, Traversal, TraversalAction, TraversalLimits};
use barnraise_swarm::experts::{ExpertQuery, ExpertSearch, ExpertSearchAction, GridPrefix, RowSelection};
use barnraise_swarm::{Moment, PeerKey};

use super::dht_network::{DhtMessage, SimulatedDhtPeer, placement, wall};

const RUN: &str = "barn";
const LAYER: LayerId = LayerId(0);
/// Rows of a batch, and experts of each, as in the paper's measurement (Learning@home §4.1).
pub const N_ROWS: usize = 64;
pub const N_ACTIVE: usize = 4;
/// A message takes half of the paper's round trip of 92.49 ± 32.42 ms: two of them have that mean and that deviation.
const LATENCY: Latency = Latency::LogNormal { median: Duration::from_micros(41_430), sigma: 0.4687 };

/// A message of one of a trainer's lookups.
#[derive(Debug)]
pub struct LookupMessage {
    lookup: u64,
    message: DhtMessage,
}

#[derive(Debug)]
struct PrefixLookup {
    traversal: Traversal,
    prefixes: HashMap<RecordKey, GridPrefix>,
}

/// What a trainer does.
#[derive(Debug)]
struct SearchingTrainer {
    search: ExpertSearch,
    limits: TraversalLimits,
    lookups: BTreeMap<u64, PrefixLookup>,
    n_lookups: u64,
    n_prefixes: usize,
    n_requests: usize,
    n_records: usize,
    selected: Option<(Moment, Vec<RowSelection>)>,
}

/// A peer of the DHT. Some train.
pub struct ExpertNode {
    peer: SimulatedDhtPeer,
    trainer: Option<SearchingTrainer>,
    answers: VecDeque<NodeAction<LookupMessage>>,
}

impl SimulatedNode for ExpertNode {
    type Message = LookupMessage;

    fn on_message(&mut self, now: Moment, from: NodeId, LookupMessage { lookup, message }: LookupMessage) {
        match message {
            DhtMessage::Find { keys } => {
                let message = DhtMessage::Found(self.peer.find(wall(now), &keys));
                self.answers
                    .push_back(NodeAction::Send { to: from, message: LookupMessage { lookup, message } });
            }
            DhtMessage::Found(found) => {
                let open = self.trainer.as_mut().and_then(|trainer| trainer.lookups.get_mut(&lookup));
                if let Some(open) = open {
                    open.traversal.on_found(wall(now), self.peer.id_of(from), found);
                }
            }
            DhtMessage::Store { .. } | DhtMessage::Stored(_) => {}
        }
    }

    fn on_timeout(&mut self, now: Moment) {
        if let Some(trainer) = &mut self.trainer {
            trainer.lookups.values_mut().for_each(|open| open.traversal.on_timeout(now));
            trainer.search.on_timeout(now);
        }
    }

    fn poll_action(&mut self, now: Moment) -> Option<NodeAction<LookupMessage>> {
        if let Some(answer) = self.answers.pop_front() {
            return Some(answer);
        }
        let trainer = self.trainer.as_mut()?;
        loop {
            while let Some(action) = trainer.search.poll_action(now) {
                match action {
                    ExpertSearchAction::LookUp(prefixes) => trainer.begin(now, &mut self.peer, &prefixes),
                    ExpertSearchAction::Selected { rows, .. } => trainer.selected = Some((now, rows)),
                }
            }
            for (lookup, open) in &mut trainer.lookups {
                while let Some(TraversalAction::Ask { peer, keys }) = open.traversal.poll_action(now) {
                    trainer.n_requests += 1;
                    if let Some(to) = self.peer.node_of(&peer) {
                        let message = LookupMessage { lookup: *lookup, message: DhtMessage::Find { keys } };
                        return Some(NodeAction::Send { to, message });
                    }
                }
            }
            if !trainer.end_one(now) {
                return None;
            }
        }
    }

    fn next_deadline(&self, now: Moment) -> Option<Moment> {
        let trainer = self.trainer.as_ref()?;
        let lookups = trainer.lookups.values().filter_map(|open| open.traversal.next_deadline(now));
        lookups.chain(trainer.search.next_deadline()).min()
    }
}

impl SearchingTrainer {
    fn new(limits: TraversalLimits, seed: u64) -> Self {
        Self {
            search: ExpertSearch::new(seed),
            limits,
            lookups: BTreeMap::new(),
            n_lookups: 0,
            n_prefixes: 0,
            n_requests: 0,
            n_records: 0,
            selected: None,
        }
    }

    fn begin(&mut self, now: Moment, peer: &mut SimulatedDhtPeer, prefixes: &[GridPrefix]) {
        let key = |prefix: &GridPrefix| experts::key(RUN, prefix.layer, &prefix.prefix);
        let prefixes: HashMap<RecordKey, GridPrefix> =
            prefixes.iter().map(|prefix| (key(prefix), *prefix)).collect();
        let mut keys: Vec<RecordKey> = prefixes.keys().copied().collect();
        keys.sort_unstable();
        let here = PeerKey(peer.contact().peer_id.clone());
        let mut traversal =
            Traversal::new(self.limits.clone(), Goal::First, LIFETIME, here, keys.iter().copied());
        for key in &keys {
            traversal.on_local(wall(now), key, &peer.closest(key), peer.held(now, key));
        }
        self.n_prefixes += keys.len();
        self.lookups.insert(self.n_lookups, PrefixLookup { traversal, prefixes });
        self.n_lookups += 1;
    }

    /// Passes a lookup that is done on to the search.
    fn end_one(&mut self, now: Moment) -> bool {
        let done = self.lookups.iter().find(|(_, open)| open.traversal.is_done());
        let Some(PrefixLookup { traversal, prefixes }) =
            done.map(|(lookup, _)| *lookup).and_then(|lookup| self.lookups.remove(&lookup))
        else {
            return false;
        };
        for outcome in traversal.into_outcomes() {
            self.n_records += outcome.records.len();
            self.search.on_records(now, wall(now), prefixes[&outcome.key], &outcome.records);
        }
        true
    }
}

/// What searches took.
#[derive(Debug, Default)]
pub struct SearchTimes {
    pub took: Vec<Duration>,
    pub n_prefixes: usize,
    pub n_requests: usize,
    /// Records that were found, and their signatures checked.
    pub n_records: usize,
    /// Rows whose experts were those of brute force, of all rows.
    pub n_best: usize,
    pub n_rows: usize,
}

/// What a trainer knows when it searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchCache {
    /// Nothing.
    Cold,
    /// What a search for other rows found.
    Warm,
}

pub struct ExpertNetwork {
    simulation: NodeSimulation<ExpertNode>,
    grid: GridShape,
    hosted: Vec<ExpertUid>,
    living: Vec<usize>,
    limits: TraversalLimits,
}

/// A square grid with room for about twice as many experts, as hosts come and go.
fn grid_for(n_experts: usize) -> GridShape {
    let side = (2.0 * n_experts as f64).sqrt().ceil() as u16;
    GridShape::new(&[side, side]).unwrap()
}

fn host(at: usize) -> KeyPair {
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&at.to_le_bytes());
    KeyPair::from_seed(&seed)
}

impl ExpertNetwork {
    /// `n_nodes` peers, each the host of one expert; then some of them die.
    pub fn new(seed: u64, n_nodes: usize, n_dead: usize, limits: TraversalLimits) -> Self {
        let mut random = Random::new(seed);
        let grid = grid_for(n_nodes);
        let mut numbers: Vec<u64> = (0..u64::from(grid.sides()[0]).pow(2)).collect();
        random.shuffle(&mut numbers);
        let hosted: Vec<ExpertUid> = numbers[..n_nodes].iter().map(|n| grid.uid(*n).unwrap()).collect();
        let mut peers = SimulatedDhtPeer::all(seed, n_nodes, 0);
        place(&mut peers, &hosted);
        let node = |peer| ExpertNode { peer, trainer: None, answers: VecDeque::new() };
        let nodes = peers.into_iter().map(node).collect();
        let mut simulation = NodeSimulation::new(seed, Network::new(n_nodes, LATENCY), nodes);
        let mut living: Vec<usize> = (0..n_nodes).collect();
        random.shuffle(&mut living);
        for dead in living.split_off(n_nodes - n_dead) {
            simulation.network().take_down(NodeId(dead));
        }
        Self { simulation, grid, hosted, living, limits }
    }

    /// Searches by as many trainers, one after the other.
    pub fn search(&mut self, n_searches: usize, cache: SearchCache) -> SearchTimes {
        let mut times = SearchTimes::default();
        for at in 0..n_searches {
            let node = NodeId(self.living[at % self.living.len()]);
            let trainer = SearchingTrainer::new(self.limits.clone(), at as u64);
            self.simulation.nodes[node.0].trainer = Some(trainer);
            if cache == SearchCache::Warm {
                self.search_once(node);
            }
            let before = self.counted(node);
            let (took, scores, rows) = self.search_once(node);
            let after = self.counted(node);
            times.took.push(took);
            times.n_prefixes += after[0] - before[0];
            times.n_requests += after[1] - before[1];
            times.n_records += after[2] - before[2];
            times.n_rows += rows.len();
            times.n_best += self.n_best(&scores, &rows);
            self.simulation.nodes[node.0].trainer = None;
        }
        times
    }

    fn counted(&self, node: NodeId) -> [usize; 3] {
        let trainer = self.simulation.nodes[node.0].trainer.as_ref().unwrap();
        [trainer.n_prefixes, trainer.n_requests, trainer.n_records]
    }

    fn search_once(&mut self, node: NodeId) -> (Duration, Vec<f32>, Vec<RowSelection>) {
        let n_scores = N_ROWS * self.grid.n_scores();
        let random = self.simulation.random();
        let scores: Vec<f32> = (0..n_scores).map(|_| random.normal() as f32).collect();
        let (grid, layer) = (self.grid, LAYER);
        let query =
            ExpertQuery { layer, grid, n_active: N_ACTIVE, scores: scores.clone(), deadline: Moment::MAX };
        let began = self.simulation.now();
        self.simulation.with(node, |node, now| {
            let trainer = node.trainer.as_mut().unwrap();
            trainer.selected = None;
            trainer.search.begin(now, query).unwrap();
        });
        let is_open = |simulation: &NodeSimulation<ExpertNode>| {
            simulation.nodes[node.0].trainer.as_ref().unwrap().selected.is_none()
        };
        assert!(self.simulation.run_while(is_open), "the search waits for nothing and is not done");
        let trainer = self.simulation.nodes[node.0].trainer.as_mut().unwrap();
        let (at, rows) = trainer.selected.take().unwrap();
        (at - began, scores, rows)
    }

    fn n_best(&self, scores: &[f32], rows: &[RowSelection]) -> usize {
        let side = usize::from(self.grid.sides()[0]);
        let is_best = |(scores, row): &(&[f32], &RowSelection)| {
            let score = |uid: &ExpertUid| {
                0.0 + scores[usize::from(uid.indices()[0])] + scores[side + usize::from(uid.indices()[1])]
            };
            let mut all: Vec<(f32, ExpertUid)> = self.hosted.iter().map(|uid| (score(uid), *uid)).collect();
            all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            row.experts.iter().map(|expert| (expert.score, expert.uid)).eq(all.into_iter().take(N_ACTIVE))
        };
        scores.chunks(self.grid.n_scores()).zip(rows).filter(is_best).count()
    }
}

/// Stores what each host announces at the peers closest to it.
fn place(peers: &mut [SimulatedDhtPeer], hosted: &[ExpertUid]) {
    let mut closest: HashMap<RecordKey, Vec<NodeId>> = HashMap::new();
    let mut branches: BTreeSet<(RecordKey, Option<Subkey>)> = BTreeSet::new();
    for (at, uid) in hosted.iter().enumerate() {
        let sender = peers[at].contact().clone();
        let expert = AnnouncedExpert { uid: *uid, n_waiting: 0, n_steps: 0 };
        let records = experts::announce(
            &host(at),
            (RUN, LAYER),
            &[expert],
            &sender.addresses,
            wall(Moment::ZERO).after(LIFETIME),
        );
        for record in records.unwrap() {
            let key = record.name.key();
            // The same record of another host.
            if record.owner().is_none() && !branches.insert((key, record.subkey.clone())) {
                continue;
            }
            let holders =
                closest.entry(key).or_insert_with(|| peers[0].closest_of_all(&key, placement().n_replicas));
            for holder in holders {
                peers[holder.0].store(Moment::ZERO, &sender, record.clone()).unwrap();
            }
        }
    }
}
