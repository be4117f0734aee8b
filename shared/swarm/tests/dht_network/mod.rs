//! Peers with storage and routing tables, and a network of virtual time between them.
#![allow(unreachable_pub)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::{
    Found, FoundBuilder, Key, PeerAddresses, Point, Record, Refusal, Subkey, UnixMillis,
};
use barnraise_swarm::dht::{
    Eviction, Goal, Placement, PlacementAction, PlacementLimits, Storage, StorageLimits, Traversal,
    TraversalAction, TraversalLimits,
};
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::{Moment, PeerKey};

/// Peers of one k-bucket, as in libp2p.
const BUCKET: usize = 20;
const LIFETIME_MAX: Duration = Duration::from_secs(24 * 3600);
const START: UnixMillis = UnixMillis(1_795_000_000_000);

pub fn traversal() -> TraversalLimits {
    TraversalLimits::default()
}

pub fn placement() -> PlacementLimits {
    PlacementLimits::default()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Honest,
    /// Names peers that do not exist, holds back what it was given, and makes records up.
    Liar,
    /// Does not answer.
    Dead,
}

struct Peer {
    contact: PeerAddresses,
    point: Point,
    fate: Fate,
    storage: Storage,
    known: Vec<usize>,
}

pub struct Network {
    random: SplitMix64,
    peers: Vec<Peer>,
    positions: HashMap<Vec<u8>, usize>,
    now: Moment,
}

pub struct PutResult {
    pub verdicts: Vec<Result<usize, Refusal>>,
    pub requests_per_key: Vec<usize>,
}

pub struct GetResult {
    pub records: Vec<Vec<Record>>,
    pub requests_per_key: Vec<usize>,
    pub took: Duration,
}

impl Network {
    pub fn new(seed: u64, n_peers: usize, n_liars: usize) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut peers: Vec<Peer> = (0..n_peers).map(|at| peer(&mut random, at < n_liars)).collect();
        let mut order: Vec<usize> = (0..n_peers).collect();
        for at in 0..n_peers {
            // Whom a peer met first is in its table.
            random.shuffle(&mut order);
            let mut buckets: HashMap<u32, Vec<usize>> = HashMap::new();
            for &other in order.iter().filter(|other| **other != at) {
                let bucket = peers[at].point.distance(&peers[other].point).leading_zeros();
                let bucket = buckets.entry(bucket).or_default();
                if bucket.len() < BUCKET {
                    bucket.push(other);
                }
            }
            let mut known: Vec<usize> = buckets.into_values().flatten().collect();
            known.sort_unstable();
            peers[at].known = known;
        }
        let positions =
            peers.iter().enumerate().map(|(at, peer)| (peer.contact.peer_id.clone(), at)).collect();
        Self { random, peers, positions, now: Duration::ZERO }
    }

    pub fn wall(&self) -> UnixMillis {
        START.after(self.now)
    }

    pub fn random_living(&mut self) -> usize {
        loop {
            let at = self.random.below(self.peers.len());
            if self.peers[at].fate == Fate::Honest {
                return at;
            }
        }
    }

    pub fn kill(&mut self, n_peers: usize) {
        let mut order: Vec<usize> = (0..self.peers.len()).collect();
        self.random.shuffle(&mut order);
        order.truncate(n_peers);
        order.iter().for_each(|&at| self.peers[at].fate = Fate::Dead);
    }

    pub fn n_holders(&self, key: &Key, fate: impl Fn(Fate) -> bool) -> usize {
        let holds = |peer: &&Peer| fate(peer.fate) && peer.storage.records().any(|(held, _)| held == key);
        self.peers.iter().filter(holds).count()
    }

    pub fn put(&mut self, from: usize, records: Vec<Record>) -> PutResult {
        let keys: Vec<Key> = records.iter().map(|record| record.name.key()).collect();
        let searched = self.traverse(from, &keys);
        let requests_per_key = searched.iter().map(|outcome| outcome.n_requests).collect();
        let closest: HashMap<Key, Vec<PeerAddresses>> =
            searched.into_iter().map(|outcome| (outcome.key, outcome.closest)).collect();
        let mut placing = Placement::new(placement(), records, |key| closest[key].clone());
        let mut queue = Queue::default();
        loop {
            while let Some(PlacementAction::Store { peer, records }) = placing.poll_action(self.now) {
                if let Some(verdicts) = self.store(from, &peer, records) {
                    queue.push(self.now + self.round_trip(), (peer.peer_id, verdicts));
                }
            }
            if placing.is_done() {
                return PutResult { verdicts: placing.into_verdicts(), requests_per_key };
            }
            match queue.pop(placing.next_deadline()) {
                (at, Some((peer, verdicts))) => {
                    self.now = at;
                    placing.on_stored(&peer, &verdicts);
                }
                (at, None) => {
                    self.now = at;
                    placing.on_timeout(at);
                }
            }
        }
    }

    pub fn get(&mut self, from: usize, keys: &[Key]) -> GetResult {
        let started = self.now;
        let outcomes = self.traverse(from, keys);
        GetResult {
            requests_per_key: outcomes.iter().map(|outcome| outcome.n_requests).collect(),
            records: outcomes.into_iter().map(|outcome| outcome.records).collect(),
            took: self.now - started,
        }
    }

    fn traverse(&mut self, from: usize, keys: &[Key]) -> Vec<barnraise_swarm::dht::KeyOutcome> {
        let here = PeerKey(self.peers[from].contact.peer_id.clone());
        let mut search = Traversal::new(traversal(), Goal::Closest, LIFETIME_MAX, here, keys.iter().copied());
        for key in keys {
            let wall = self.wall();
            let records = self.peers[from].storage.get(wall, key);
            search.on_local(wall, key, &self.closest(from, key), records);
        }
        let mut queue = Queue::default();
        loop {
            while let Some(TraversalAction::Ask { peer, keys }) = search.poll_action(self.now) {
                if let Some(found) = self.find(&peer, &keys) {
                    queue.push(self.now + self.round_trip(), (peer.peer_id, found));
                }
            }
            if search.is_done() {
                return search.into_outcomes();
            }
            match queue.pop(search.next_deadline(self.now)) {
                (at, Some((peer, found))) => {
                    self.now = at;
                    search.on_found(self.wall(), &peer, found);
                }
                (at, None) => {
                    self.now = at;
                    search.on_timeout(at);
                }
            }
        }
    }

    fn round_trip(&mut self) -> Duration {
        Duration::from_millis(20 + self.random.below(200) as u64)
    }

    fn closest(&self, at: usize, key: &Key) -> Vec<PeerAddresses> {
        let point = Point::of_key(key);
        let mut known = self.peers[at].known.clone();
        known.sort_by_key(|&other| self.peers[other].point.distance(&point));
        known.into_iter().take(BUCKET).map(|other| self.peers[other].contact.clone()).collect()
    }

    /// `None` is an answer that never comes.
    fn find(&mut self, peer: &PeerAddresses, keys: &[Key]) -> Option<Found> {
        let at = *self.positions.get(&peer.peer_id)?;
        let wall = self.wall();
        let mut answer = FoundBuilder::default();
        for key in keys {
            let (records, closest) = match self.peers[at].fate {
                Fate::Dead => return None,
                Fate::Honest => (self.peers[at].storage.get(wall, key), self.closest(at, key)),
                Fate::Liar => (self.lies(at, key), self.made_up(key)),
            };
            if !answer.push(records, &closest) {
                break;
            }
        }
        let found = answer.finish();
        found.check(keys).unwrap();
        Some(found)
    }

    fn store(
        &mut self,
        from: usize,
        peer: &PeerAddresses,
        records: Vec<Record>,
    ) -> Option<Vec<Result<(), Refusal>>> {
        let sender = PeerKey(self.peers[from].contact.peer_id.clone());
        let wall = self.wall();
        let peer = &mut self.peers[*self.positions.get(&peer.peer_id)?];
        match peer.fate {
            Fate::Dead => None,
            // It keeps them and never shows them: so much is known of what it held back.
            Fate::Liar | Fate::Honest => {
                Some(records.into_iter().map(|record| peer.storage.store(wall, &sender, record)).collect())
            }
        }
    }

    /// Records that are not to be believed: expired, of the far future, changed after they were signed.
    fn lies(&mut self, at: usize, key: &Key) -> Vec<Record> {
        let wall = self.wall();
        let mut records = self.peers[at].storage.get(wall, key);
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

    /// Peers that nobody will ever reach, all closer to the key than most.
    fn made_up(&mut self, key: &Key) -> Vec<PeerAddresses> {
        let point = Point::of_key(key);
        let mut peers: Vec<PeerAddresses> = (0..200)
            .map(|_| PeerAddresses::new(random_key(&mut self.random).public().to_peer_id(), []))
            .collect();
        peers.sort_by_key(|peer| Point::of_peer(&peer.peer_id).distance(&point));
        peers.truncate(BUCKET);
        peers
    }
}

fn random_key(random: &mut SplitMix64) -> KeyPair {
    let mut seed = [0; 32];
    seed.chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&random.next_u64().to_le_bytes()));
    KeyPair::from_seed(&seed)
}

fn peer(random: &mut SplitMix64, is_liar: bool) -> Peer {
    let peer_id = random_key(random).public().to_peer_id();
    Peer {
        point: Point::of_peer(&peer_id),
        contact: PeerAddresses::new(peer_id, [vec![4, 127, 0, 0, 1]]),
        fate: if is_liar { Fate::Liar } else { Fate::Honest },
        storage: Storage::new(StorageLimits::default(), Eviction::EarliestExpiry),
        known: Vec::new(),
    }
}

/// What will arrive, by when.
struct Queue<T> {
    order: BinaryHeap<Reverse<(Moment, usize)>>,
    events: HashMap<usize, T>,
    n_pushed: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { order: BinaryHeap::new(), events: HashMap::new(), n_pushed: 0 }
    }
}

impl<T> Queue<T> {
    fn push(&mut self, at: Moment, event: T) {
        self.order.push(Reverse((at, self.n_pushed)));
        self.events.insert(self.n_pushed, event);
        self.n_pushed += 1;
    }

    /// What comes next, an event or the deadline.
    fn pop(&mut self, deadline: Option<Moment>) -> (Moment, Option<T>) {
        match (self.order.peek().map(|Reverse((at, _))| *at), deadline) {
            (Some(at), deadline) if deadline.is_none_or(|deadline| at <= deadline) => {
                let Reverse((at, id)) = self.order.pop().unwrap();
                (at, self.events.remove(&id))
            }
            (_, Some(deadline)) => (deadline, None),
            (_, None) => panic!("the search waits for nothing and is not done"),
        }
    }
}
