//! Who keeps which records: the closest peers of each key that accept them, many records to a message.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use barnraise_protocol::dht::{Key, PeerAddresses, RECORDS_BYTES_MAX, RECORDS_MAX, Record, Refusal};

use crate::Moment;

/// How records are placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementLimits {
    /// Peers that keep each record. Default 5 (hivemind's).
    pub n_replicas: usize,
    /// Requests under way. Default 8.
    pub requests: usize,
    /// A request is lost after this. Default 3 s.
    pub timeout: Duration,
}

impl Default for PlacementLimits {
    fn default() -> Self {
        Self { n_replicas: 5, requests: 8, timeout: Duration::from_secs(3) }
    }
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlacementAction {
    /// Have `peer`, which may be the driver itself, keep `records`; tell [`Placement::on_stored`] or
    /// [`Placement::on_failure`].
    Store {
        /// Whom.
        peer: PeerAddresses,
        /// What.
        records: Vec<Record>,
    },
}

/// The records of one key.
#[derive(Debug)]
struct Plan {
    /// Positions of records.
    records: Vec<usize>,
    /// Closest first.
    candidates: Vec<PeerAddresses>,
    /// Of these, how many were chosen.
    n_chosen: usize,
}

#[derive(Debug)]
struct Asked {
    at: Moment,
    records: Vec<usize>,
}

/// Has records kept by the closest peers of their keys.
#[derive(Debug)]
pub struct Placement {
    limits: PlacementLimits,
    records: Vec<Record>,
    keys: Vec<Key>,
    verdicts: Vec<Result<usize, Refusal>>,
    plans: HashMap<Key, Plan>,
    contacts: HashMap<Vec<u8>, PeerAddresses>,
    /// Records that wait for a peer.
    waiting: BTreeMap<Vec<u8>, Vec<usize>>,
    in_flight: HashMap<Vec<u8>, Asked>,
}

impl Placement {
    /// Places `records` with the first of the candidates of their keys, which are given closest first.
    pub fn new(
        limits: PlacementLimits,
        records: Vec<Record>,
        candidates: impl Fn(&Key) -> Vec<PeerAddresses>,
    ) -> Self {
        let keys: Vec<Key> = records.iter().map(|record| record.name.key()).collect();
        let mut plans: HashMap<Key, Plan> = HashMap::new();
        for (at, key) in keys.iter().enumerate() {
            let plan = plans.entry(*key).or_insert_with(|| Plan {
                records: Vec::new(),
                candidates: candidates(key),
                n_chosen: 0,
            });
            plan.records.push(at);
        }
        let contacts = plans.values().flat_map(|plan| &plan.candidates);
        let contacts = contacts.map(|peer| (peer.peer_id.clone(), peer.clone())).collect();
        let verdicts = records.iter().map(|_| Err(Refusal::Unreachable)).collect();
        let mut placement = Self {
            limits,
            records,
            keys,
            verdicts,
            plans,
            contacts,
            waiting: BTreeMap::new(),
            in_flight: HashMap::new(),
        };
        let all: Vec<usize> = (0..placement.records.len()).collect();
        for _ in 0..placement.limits.n_replicas {
            placement.choose_next(&all);
        }
        placement
    }

    /// `peer` answered for each record that it was sent, in order.
    pub fn on_stored(&mut self, peer: &[u8], verdicts: &[Result<(), Refusal>]) {
        let Some(asked) = self.in_flight.remove(peer) else { return };
        let mut elsewhere = Vec::new();
        for (&at, verdict) in asked.records.iter().zip(verdicts) {
            match (verdict, &mut self.verdicts[at]) {
                (Ok(()), Ok(n_replicas)) => *n_replicas += 1,
                (Ok(()), none @ Err(_)) => *none = Ok(1),
                (Err(refusal), known) => {
                    if refusal.is_of_this_peer() {
                        elsewhere.push(at);
                    }
                    if known.is_err() {
                        *known = Err(refusal.clone());
                    }
                }
            }
        }
        self.choose_next(&elsewhere);
    }

    /// `peer` could not be asked, or did not answer.
    pub fn on_failure(&mut self, peer: &[u8]) {
        let Some(asked) = self.in_flight.remove(peer) else { return };
        let mut elsewhere = asked.records;
        // What still waits for it need not wait.
        elsewhere.extend(self.waiting.remove(peer).unwrap_or_default());
        self.choose_next(&elsewhere);
    }

    /// Requests that took too long are lost.
    pub fn on_timeout(&mut self, now: Moment) {
        let late = self.in_flight.iter().filter(|(_, asked)| asked.at + self.limits.timeout <= now);
        let late: Vec<Vec<u8>> = late.map(|(peer, _)| peer.clone()).collect();
        late.iter().for_each(|peer| self.on_failure(peer));
    }

    /// When to call [`Self::on_timeout`].
    pub fn next_deadline(&self) -> Option<Moment> {
        self.in_flight.values().map(|asked| asked.at + self.limits.timeout).min()
    }

    /// What to do now; `None` until something happens. [`Self::is_done`] says whether something will.
    pub fn poll_action(&mut self, now: Moment) -> Option<PlacementAction> {
        if self.in_flight.len() >= self.limits.requests {
            return None;
        }
        let is_free = |(peer, _): &(&Vec<u8>, &Vec<usize>)| !self.in_flight.contains_key(*peer);
        let (peer, _) = self.waiting.iter().filter(is_free).max_by_key(|(_, records)| records.len())?;
        let peer = peer.clone();
        let mut waiting = self.waiting.remove(&peer)?;
        let contact = self.contacts.get(&peer)?.clone();
        let mut n_bytes = 0;
        let fits = |at: &&usize| {
            n_bytes += self.records[**at].n_bytes();
            n_bytes <= RECORDS_BYTES_MAX
        };
        let n_sent = waiting.iter().take(RECORDS_MAX).take_while(fits).count().max(1);
        let rest = waiting.split_off(n_sent.min(waiting.len()));
        if !rest.is_empty() {
            self.waiting.insert(peer.clone(), rest);
        }
        let records = waiting.iter().map(|&at| self.records[at].clone()).collect();
        self.in_flight.insert(peer, Asked { at: now, records: waiting });
        Some(PlacementAction::Store { peer: contact, records })
    }

    /// Whether everything was answered.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty()
    }

    /// For each record, in order, how many peers keep it, or why none does.
    pub fn into_verdicts(self) -> Vec<Result<usize, Refusal>> {
        self.verdicts
    }

    /// Has each of these records wait for the next candidate of its key.
    fn choose_next(&mut self, records: &[usize]) {
        let mut of_keys: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
        for &at in records {
            of_keys.entry(self.keys[at]).or_default().push(at);
        }
        for (key, records) in of_keys {
            let Some(plan) = self.plans.get_mut(&key) else { continue };
            let Some(next) = plan.candidates.get(plan.n_chosen) else { continue };
            plan.n_chosen += 1;
            self.waiting.entry(next.peer_id.clone()).or_default().extend(records);
        }
    }
}
