//! Stores records at the closest peers of each key that accept them, many records to a message.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use barnraise_protocol::dht::{DhtRefusal, PeerAddresses, RECORDS_BYTES_MAX, RECORDS_MAX, Record, RecordKey};

use crate::Moment;

/// Replicas, concurrency and timeout of a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementLimits {
    /// Peers that store each record. Default 5 (hivemind's).
    pub n_replicas: usize,
    /// Most requests under way. Default 8.
    pub requests: usize,
    /// A request has failed after this. Default 3 s.
    pub timeout: Duration,
}

impl Default for PlacementLimits {
    fn default() -> Self {
        Self { n_replicas: 5, requests: 8, timeout: Duration::from_secs(3) }
    }
}

/// A task for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlacementAction {
    /// Send `records` to `peer`, which may be this peer itself. Then call [`Placement::on_stored`] or
    /// [`Placement::on_failure`].
    Store {
        /// The peer that should store them.
        peer: PeerAddresses,
        /// At most [`RECORDS_MAX`] records.
        records: Vec<Record>,
    },
}

/// Records and candidates of one key.
#[derive(Debug)]
struct KeyPlacement {
    /// Positions of records.
    records: Vec<usize>,
    /// Closest first.
    candidates: Vec<PeerAddresses>,
    /// Number of candidates that were chosen.
    n_chosen: usize,
}

#[derive(Debug)]
struct StoreRequest {
    at: Moment,
    records: Vec<usize>,
}

/// Stores records at the closest peers of their keys.
#[derive(Debug)]
pub struct Placement {
    limits: PlacementLimits,
    records: Vec<Record>,
    keys: Vec<RecordKey>,
    verdicts: Vec<Result<usize, DhtRefusal>>,
    plans: HashMap<RecordKey, KeyPlacement>,
    contacts: HashMap<Vec<u8>, PeerAddresses>,
    /// Records that wait for a peer.
    waiting: BTreeMap<Vec<u8>, Vec<usize>>,
    in_flight: HashMap<Vec<u8>, StoreRequest>,
}

impl Placement {
    /// Places `records` at the first candidates of their keys. `candidates` returns them closest first.
    pub fn new(
        limits: PlacementLimits,
        records: Vec<Record>,
        candidates: impl Fn(&RecordKey) -> Vec<PeerAddresses>,
    ) -> Self {
        let keys: Vec<RecordKey> = records.iter().map(|record| record.name.key()).collect();
        let mut plans: HashMap<RecordKey, KeyPlacement> = HashMap::new();
        for (at, key) in keys.iter().enumerate() {
            let plan = plans.entry(*key).or_insert_with(|| KeyPlacement {
                records: Vec::new(),
                candidates: candidates(key),
                n_chosen: 0,
            });
            plan.records.push(at);
        }
        let contacts = plans.values().flat_map(|plan| &plan.candidates);
        let contacts = contacts.map(|peer| (peer.peer_id.clone(), peer.clone())).collect();
        let verdicts = records.iter().map(|_| Err(DhtRefusal::Unreachable)).collect();
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
    pub fn on_stored(&mut self, peer: &[u8], verdicts: &[Result<(), DhtRefusal>]) {
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

    /// The request to `peer` failed.
    pub fn on_failure(&mut self, peer: &[u8]) {
        let Some(asked) = self.in_flight.remove(peer) else { return };
        let mut elsewhere = asked.records;
        // Records that wait for this peer go elsewhere.
        elsewhere.extend(self.waiting.remove(peer).unwrap_or_default());
        self.choose_next(&elsewhere);
    }

    /// Fails the requests that took too long.
    pub fn on_timeout(&mut self, now: Moment) {
        let late = self.in_flight.iter().filter(|(_, asked)| asked.at + self.limits.timeout <= now);
        let mut late: Vec<Vec<u8>> = late.map(|(peer, _)| peer.clone()).collect();
        // In an order that is the same each time.
        late.sort_unstable();
        late.iter().for_each(|peer| self.on_failure(peer));
    }

    /// When to call [`Self::on_timeout`].
    pub fn next_deadline(&self) -> Option<Moment> {
        self.in_flight.values().map(|asked| asked.at + self.limits.timeout).min()
    }

    /// The next task; `None` while requests are under way, or when all is done ([`Self::is_done`]).
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
        self.in_flight.insert(peer, StoreRequest { at: now, records: waiting });
        Some(PlacementAction::Store { peer: contact, records })
    }

    /// Whether everything was answered.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty()
    }

    /// For each record, in order, how many peers keep it, or why none does.
    pub fn into_verdicts(self) -> Vec<Result<usize, DhtRefusal>> {
        self.verdicts
    }

    /// Assigns each of these records to the next candidate of its key.
    fn choose_next(&mut self, records: &[usize]) {
        let mut of_keys: BTreeMap<RecordKey, Vec<usize>> = BTreeMap::new();
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
