//! A simulated DHT: peers with storage and routing tables. Lookup, placement and storage are the production code.
#![allow(unreachable_pub, dead_code)] // Each test uses some of it.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::{
    DhtRefusal, FindResponse, FindResponseBuilder, PeerAddresses, Point, Record, RecordKey, Subkey,
    UnixMillis,
};
use barnraise_simulation::{Latency, Network, NodeAction, NodeId, NodeSimulation, Random, SimulatedNode};
use barnraise_swarm::dht::{
    Eviction, Goal, KeyOutcome, Placement, PlacementAction, PlacementLimits, Storage, StorageLimits,
    Traversal, TraversalAction, TraversalLimits,
};
use barnraise_swarm::{Moment, PeerKey};

/// Size of a k-bucket, as in libp2p.
const BUCKET: usize = 20;
const LIFETIME_MAX: Duration = Duration::from_secs(24 * 3600);
const START: UnixMillis = UnixMillis(1_795_000_000_000);
/// A request and its answer take 20 to 220 ms.
const LATENCY: Latency = Latency::Uniform(Duration::from_millis(10), Duration::from_millis(110));
/// Contacts that Byzantine peers choose from.
const N_FABRICATED: usize = 2000;

pub fn traversal() -> TraversalLimits {
    TraversalLimits::default()
}

pub fn placement() -> PlacementLimits {
    PlacementLimits::default()
}

pub fn wall(now: Moment) -> UnixMillis {
    START.after(now)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerBehaviour {
    Honest,
    /// Names peers that do not exist, withholds records, and forges records.
    Byzantine,
    /// Does not answer.
    Dead,
}

#[derive(Debug)]
pub enum DhtMessage {
    Find { keys: Vec<RecordKey> },
    Found(FindResponse),
    Store { records: Vec<Record> },
    Stored(Vec<Result<(), DhtRefusal>>),
}

/// What all peers could know of all others, and what the Byzantine ones invent.
pub struct DhtDirectory {
    contacts: Vec<PeerAddresses>,
    points: Vec<Point>,
    positions: HashMap<Vec<u8>, NodeId>,
    fabricated: Vec<(Point, PeerAddresses)>,
}

#[derive(Debug)]
enum DhtOperation {
    Lookup(Traversal),
    Placement(Placement),
}

/// What the operation of a peer has come to.
#[derive(Debug)]
pub enum DhtResult {
    Found(Vec<KeyOutcome>),
    Placed(PutResult),
}

/// A peer. It has one operation at a time.
pub struct SimulatedDhtPeer {
    at: usize,
    directory: Rc<DhtDirectory>,
    behaviour: PeerBehaviour,
    storage: Storage,
    known: Vec<usize>,
    random: Random,
    operation: Option<DhtOperation>,
    /// Records to be placed at the peers that the lookup finds.
    to_place: Vec<Record>,
    /// Requests of that lookup, for each key.
    requests_per_key: Vec<usize>,
    answers: VecDeque<NodeAction<DhtMessage>>,
    /// The result of the last operation, and when it came.
    pub result: Option<(Moment, DhtResult)>,
}

pub struct DhtNetwork {
    pub simulation: NodeSimulation<SimulatedDhtPeer>,
    n_peers: usize,
}

#[derive(Debug)]
pub struct PutResult {
    pub verdicts: Vec<Result<usize, DhtRefusal>>,
    pub requests_per_key: Vec<usize>,
}

pub struct GetResult {
    pub records: Vec<Vec<Record>>,
    pub requests_per_key: Vec<usize>,
    pub took: Duration,
}

impl SimulatedNode for SimulatedDhtPeer {
    type Message = DhtMessage;

    fn on_message(&mut self, now: Moment, from: NodeId, message: DhtMessage) {
        let sender = self.directory.contacts[from.0].peer_id.clone();
        let answer = match (message, &mut self.operation) {
            (DhtMessage::Find { keys }, _) => DhtMessage::Found(self.find(wall(now), &keys)),
            (DhtMessage::Store { records }, _) => {
                // A Byzantine peer stores records and never returns them.
                let sender = PeerKey(sender);
                let store = |record| self.storage.store(wall(now), &sender, record);
                DhtMessage::Stored(records.into_iter().map(store).collect())
            }
            (DhtMessage::Found(found), Some(DhtOperation::Lookup(lookup))) => {
                lookup.on_found(wall(now), &sender, found);
                return;
            }
            (DhtMessage::Stored(verdicts), Some(DhtOperation::Placement(placement))) => {
                placement.on_stored(&sender, &verdicts);
                return;
            }
            // The answer to an operation that is over.
            (DhtMessage::Found(_) | DhtMessage::Stored(_), _) => return,
        };
        self.answers.push_back(NodeAction::Send { to: from, message: answer });
    }

    fn on_timeout(&mut self, now: Moment) {
        match &mut self.operation {
            Some(DhtOperation::Lookup(lookup)) => lookup.on_timeout(now),
            Some(DhtOperation::Placement(placement)) => placement.on_timeout(now),
            None => {}
        }
    }

    fn poll_action(&mut self, now: Moment) -> Option<NodeAction<DhtMessage>> {
        if let Some(answer) = self.answers.pop_front() {
            return Some(answer);
        }
        while self.operation.is_some() {
            let asked = match self.operation.as_mut()? {
                DhtOperation::Lookup(lookup) => lookup.poll_action(now).map(|action| {
                    let TraversalAction::Ask { peer, keys } = action;
                    (peer, DhtMessage::Find { keys })
                }),
                DhtOperation::Placement(placement) => placement.poll_action(now).map(|action| {
                    let PlacementAction::Store { peer, records } = action;
                    (peer, DhtMessage::Store { records })
                }),
            };
            let Some((peer, message)) = asked else {
                if self.finish(now) {
                    continue;
                }
                break;
            };
            // A fabricated peer never answers.
            if let Some(&to) = self.directory.positions.get(&peer.peer_id) {
                return Some(NodeAction::Send { to, message });
            }
        }
        None
    }

    fn next_deadline(&self, now: Moment) -> Option<Moment> {
        match self.operation.as_ref()? {
            DhtOperation::Lookup(lookup) => lookup.next_deadline(now),
            DhtOperation::Placement(placement) => placement.next_deadline(),
        }
    }
}

impl SimulatedDhtPeer {
    /// Peers that know some of each other; the first ones are Byzantine.
    pub fn all(seed: u64, n_peers: usize, n_liars: usize) -> Vec<Self> {
        let mut random = Random::new(seed);
        let contacts: Vec<PeerAddresses> = (0..n_peers)
            .map(|_| PeerAddresses::new(random_peer_id(&mut random), [vec![4, 127, 0, 0, 1]]))
            .collect();
        let points: Vec<Point> = contacts.iter().map(|contact| Point::of_peer(&contact.peer_id)).collect();
        let positions = contacts.iter().enumerate();
        let positions = positions.map(|(at, contact)| (contact.peer_id.clone(), NodeId(at))).collect();
        let n_fabricated = if n_liars == 0 { 0 } else { N_FABRICATED };
        let fabricated = (0..n_fabricated).map(|_| {
            let peer_id = random_peer_id(&mut random);
            (Point::of_peer(&peer_id), PeerAddresses::new(peer_id, []))
        });
        let fabricated = fabricated.collect();
        let known = routing_tables(&points, &mut random);
        let directory = Rc::new(DhtDirectory { contacts, points, positions, fabricated });
        let peer = |(at, known)| SimulatedDhtPeer {
            at,
            directory: Rc::clone(&directory),
            behaviour: if at < n_liars { PeerBehaviour::Byzantine } else { PeerBehaviour::Honest },
            storage: Storage::new(StorageLimits::default(), Eviction::EarliestExpiry),
            known,
            random: Random::new(random.next_u64()),
            operation: None,
            to_place: Vec::new(),
            requests_per_key: Vec::new(),
            answers: VecDeque::new(),
            result: None,
        };
        known.into_iter().enumerate().map(peer).collect()
    }

    /// Its contact.
    pub fn contact(&self) -> &PeerAddresses {
        &self.directory.contacts[self.at]
    }

    /// The peer id of a node.
    pub fn id_of(&self, node: NodeId) -> &[u8] {
        &self.directory.contacts[node.0].peer_id
    }

    /// The node of a contact; none of one that does not exist.
    pub fn node_of(&self, contact: &PeerAddresses) -> Option<NodeId> {
        self.directory.positions.get(&contact.peer_id).copied()
    }

    /// The peers closest to a key among all.
    pub fn closest_of_all(&self, key: &RecordKey, n_peers: usize) -> Vec<NodeId> {
        let point = Point::of_key(key);
        let mut all: Vec<usize> = (0..self.directory.points.len()).collect();
        let n_peers = n_peers.min(all.len());
        all.select_nth_unstable_by_key(n_peers - 1, |at| self.directory.points[*at].distance(&point));
        all[..n_peers].iter().map(|at| NodeId(*at)).collect()
    }

    /// Stores a record that another peer sent.
    pub fn store(&mut self, now: Moment, sender: &PeerAddresses, record: Record) -> Result<(), DhtRefusal> {
        self.storage.store(wall(now), &PeerKey(sender.peer_id.clone()), record)
    }

    /// Its own records of a key.
    pub fn held(&mut self, now: Moment, key: &RecordKey) -> Vec<Record> {
        self.storage.get(wall(now), key)
    }

    /// Whether an operation ended and the next one begins.
    fn finish(&mut self, now: Moment) -> bool {
        let is_done = match &self.operation {
            Some(DhtOperation::Lookup(lookup)) => lookup.is_done(),
            Some(DhtOperation::Placement(placement)) => placement.is_done(),
            None => false,
        };
        let Some(operation) = self.operation.take_if(|_| is_done) else { return false };
        let result = match operation {
            DhtOperation::Lookup(lookup) => {
                let found = lookup.into_outcomes();
                if !self.to_place.is_empty() {
                    self.place(&found);
                    return true;
                }
                DhtResult::Found(found)
            }
            DhtOperation::Placement(placement) => {
                let requests_per_key = std::mem::take(&mut self.requests_per_key);
                DhtResult::Placed(PutResult { verdicts: placement.into_verdicts(), requests_per_key })
            }
        };
        self.result = Some((now, result));
        false
    }

    /// Begins to look up keys.
    pub fn look_up(&mut self, now: Moment, keys: &[RecordKey], goal: Goal) {
        let here = PeerKey(self.directory.contacts[self.at].peer_id.clone());
        let mut lookup = Traversal::new(traversal(), goal, LIFETIME_MAX, here, keys.iter().copied());
        for key in keys {
            let records = self.storage.get(wall(now), key);
            lookup.on_local(wall(now), key, &self.closest(key), records);
        }
        (self.operation, self.result) = (Some(DhtOperation::Lookup(lookup)), None);
    }

    /// Begins to store records at the closest peers of their keys.
    pub fn put(&mut self, now: Moment, records: Vec<Record>) {
        let keys: Vec<RecordKey> = records.iter().map(|record| record.name.key()).collect();
        self.to_place = records;
        self.look_up(now, &keys, Goal::Closest);
    }

    fn place(&mut self, found: &[KeyOutcome]) {
        self.requests_per_key = found.iter().map(|outcome| outcome.n_requests).collect();
        let closest: HashMap<RecordKey, &Vec<PeerAddresses>> =
            found.iter().map(|outcome| (outcome.key, &outcome.closest)).collect();
        let records = std::mem::take(&mut self.to_place);
        let placing = Placement::new(placement(), records, |key| closest[key].clone());
        self.operation = Some(DhtOperation::Placement(placing));
    }

    pub fn closest(&self, key: &RecordKey) -> Vec<PeerAddresses> {
        let point = Point::of_key(key);
        let mut known = self.known.clone();
        let distance = |peer: &usize| self.directory.points[*peer].distance(&point);
        if known.len() > BUCKET {
            known.select_nth_unstable_by_key(BUCKET, distance);
            known.truncate(BUCKET);
        }
        known.sort_by_key(distance);
        known.into_iter().map(|other| self.directory.contacts[other].clone()).collect()
    }

    pub fn find(&mut self, wall: UnixMillis, keys: &[RecordKey]) -> FindResponse {
        let mut answer = FindResponseBuilder::default();
        for key in keys {
            let (records, closest) = match self.behaviour {
                PeerBehaviour::Byzantine => (self.forged_records(wall, key), self.fabricated_contacts(key)),
                PeerBehaviour::Honest | PeerBehaviour::Dead => {
                    (self.storage.get(wall, key), self.closest(key))
                }
            };
            if !answer.push(records, &closest) {
                break;
            }
        }
        let found = answer.finish();
        found.check(keys).unwrap();
        found
    }

    /// Invalid records: expired, in the far future, or changed after they were signed.
    fn forged_records(&mut self, wall: UnixMillis, key: &RecordKey) -> Vec<Record> {
        let mut records = self.storage.get(wall, key);
        for record in &mut records {
            record.expires_at = match record.subkey {
                Some(_) => wall.after(LIFETIME_MAX),
                None if self.random.below(2) == 0 => wall,
                None => wall.after(LIFETIME_MAX * 2),
            };
            record.value = b"a lie".to_vec();
            if let Some(Subkey { label, .. }) = &mut record.subkey {
                label.clear();
            }
        }
        records
    }

    /// Contacts of peers that do not exist, all closer to the key than most.
    fn fabricated_contacts(&mut self, key: &RecordKey) -> Vec<PeerAddresses> {
        let (point, all) = (Point::of_key(key), &self.directory.fabricated);
        let mut peers: Vec<&(Point, PeerAddresses)> =
            (0..200).map(|_| &all[self.random.below(all.len())]).collect();
        peers.sort_by_key(|(of, _)| of.distance(&point));
        peers.dedup_by_key(|(_, peer)| &peer.peer_id);
        peers.truncate(BUCKET);
        peers.into_iter().map(|(_, peer)| peer.clone()).collect()
    }
}

impl DhtNetwork {
    pub fn new(seed: u64, n_peers: usize, n_liars: usize) -> Self {
        Self::within(seed, Network::new(n_peers, LATENCY), n_liars)
    }

    /// A peer for each machine of a network.
    pub fn within(seed: u64, network: Network, n_liars: usize) -> Self {
        let n_peers = network.n_nodes();
        let peers = SimulatedDhtPeer::all(seed, n_peers, n_liars);
        Self { simulation: NodeSimulation::new(seed, network, peers), n_peers }
    }

    pub fn wall(&self) -> UnixMillis {
        wall(self.simulation.now())
    }

    pub fn random_living(&mut self) -> NodeId {
        loop {
            let at = self.simulation.random().below(self.n_peers);
            if self.simulation.nodes[at].behaviour == PeerBehaviour::Honest {
                return NodeId(at);
            }
        }
    }

    pub fn kill(&mut self, n_peers: usize) {
        let mut order: Vec<usize> = (0..self.n_peers).collect();
        self.simulation.random().shuffle(&mut order);
        for &at in &order[..n_peers] {
            self.simulation.nodes[at].behaviour = PeerBehaviour::Dead;
            self.simulation.network().take_down(NodeId(at));
        }
    }

    pub fn n_holders(&self, key: &RecordKey, has_behaviour: impl Fn(PeerBehaviour) -> bool) -> usize {
        let holds = |peer: &&SimulatedDhtPeer| {
            has_behaviour(peer.behaviour) && peer.storage.records().any(|(held, _)| held == key)
        };
        self.simulation.nodes.iter().filter(holds).count()
    }

    /// Runs until the operation of a peer is over.
    fn finish(&mut self, from: NodeId) -> DhtResult {
        let is_over = self.simulation.run_while(|simulation| simulation.nodes[from.0].result.is_none());
        assert!(is_over, "the operation waits for nothing and is not done");
        self.simulation.nodes[from.0].result.take().unwrap().1
    }

    pub fn put(&mut self, from: NodeId, records: Vec<Record>) -> PutResult {
        self.simulation.with(from, |peer, now| peer.put(now, records));
        let DhtResult::Placed(result) = self.finish(from) else { panic!("another operation") };
        result
    }

    pub fn get(&mut self, from: NodeId, keys: &[RecordKey]) -> GetResult {
        let started = self.simulation.now();
        self.simulation.with(from, |peer, now| peer.look_up(now, keys, Goal::Closest));
        let DhtResult::Found(outcomes) = self.finish(from) else { panic!("another operation") };
        GetResult {
            requests_per_key: outcomes.iter().map(|outcome| outcome.n_requests).collect(),
            records: outcomes.into_iter().map(|outcome| outcome.records).collect(),
            took: self.simulation.now() - started,
        }
    }
}

fn random_peer_id(random: &mut Random) -> Vec<u8> {
    let mut seed = [0; 32];
    seed.chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&random.next_u64().to_le_bytes()));
    KeyPair::from_seed(&seed).public().to_peer_id()
}

/// The peers that each peer knows: of each distance, that is in each bucket, some that it met.
fn routing_tables(points: &[Point], random: &mut Random) -> Vec<Vec<usize>> {
    let mut known = vec![Vec::new(); points.len()];
    // Those of a bucket are neighbours in this order, from any point.
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by_key(|&at| points[at].distance(&points[0]));
    let mut ranges = vec![&order[..]];
    while let Some(range) = ranges.pop() {
        let [first, .., last] = range else { continue };
        let bits_alike = |other: &usize| points[*first].distance(&points[*other]).leading_zeros();
        let farthest = bits_alike(last);
        let (near, far) = range.split_at(range.partition_point(|other| bits_alike(other) > farthest));
        for (half, other) in [(near, far), (far, near)] {
            half.iter().for_each(|&at| known[at].extend(some_of(other, random)));
            ranges.push(half);
        }
    }
    known
}

/// At most as many as fit into a bucket.
fn some_of(peers: &[usize], random: &mut Random) -> Vec<usize> {
    if peers.len() <= BUCKET {
        return peers.to_vec();
    }
    let mut chosen = Vec::with_capacity(BUCKET);
    while chosen.len() < BUCKET {
        let peer = peers[random.below(peers.len())];
        if !chosen.contains(&peer) {
            chosen.push(peer);
        }
    }
    chosen
}
