//! Iterative lookup of many keys at once: their closest peers and records.
//!
//! Kademlia's lookup (§2.3) over a batch of keys, as in hivemind's `traverse_dht`: one request asks a peer for all keys that
//! it may be close to. For each key the closest living peers are asked, closest first, until the `n_closest` of them
//! have answered. While a peer does not answer, other peers are asked in its place. A peer many of whose contacts do not
//! answer is suspected to invent them; its contacts are ignored from then on.

mod search;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use barnraise_protocol::dht::{
    CLOSEST_MAX, FindResponse, KEYS_MAX, PeerAddresses, Point, Record, RecordKey, UnixMillis,
};

use self::search::{CandidateState, Search};
use super::merged::MergedRecords;
use crate::{Moment, PeerKey};

/// Width, concurrency and timeouts of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraversalLimits {
    /// The lookup of a key ends when this many closest peers have answered: the number of replicas. Default 5 (hivemind's).
    pub n_closest: usize,
    /// Only this many of the closest candidates are asked. Default 8.
    pub beam: usize,
    /// Most requests under way. Default 8.
    pub requests: usize,
    /// Most requests under way for one key: alpha of Kademlia. Default 3.
    pub requests_per_key: usize,
    /// Most keys in one request. Default 16.
    pub keys_per_request: usize,
    /// A request has failed after this. Default 3 s.
    pub timeout: Duration,
    /// Another peer is asked when one has not answered for this long. Default 500 ms.
    pub patience: Duration,
    /// Most requests for one key; then its lookup ends with the records found so far. Default 100.
    pub requests_per_key_max: usize,
}

impl Default for TraversalLimits {
    fn default() -> Self {
        Self {
            n_closest: 5,
            beam: 8,
            requests: 8,
            requests_per_key: 3,
            keys_per_request: 16,
            timeout: Duration::from_secs(3),
            patience: Duration::from_millis(500),
            requests_per_key_max: 100,
        }
    }
}

/// When the lookup of a key ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// When the closest peers have answered.
    Closest,
    /// When one peer had a valid record, or the closest peers have answered.
    First,
}

/// A task for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraversalAction {
    /// Ask `peer` for its records and contacts of `keys`. Then call [`Traversal::on_found`] or
    /// [`Traversal::on_failure`].
    Ask {
        /// The peer to ask.
        peer: PeerAddresses,
        /// At most [`TraversalLimits::keys_per_request`] keys.
        keys: Vec<RecordKey>,
    },
}

/// The result of a lookup for one key.
#[derive(Debug, Clone)]
pub struct KeyOutcome {
    /// The key.
    pub key: RecordKey,
    /// The newest valid records.
    pub records: Vec<Record>,
    /// Peers that answered, closest first.
    pub closest: Vec<PeerAddresses>,
    /// Those of them that had no record of the key.
    pub lacked: Vec<PeerAddresses>,
    /// Requests that asked for the key.
    pub n_requests: usize,
}

#[derive(Debug)]
struct FindRequest {
    at: Moment,
    /// Positions of searches.
    searches: Vec<usize>,
}

#[derive(Debug)]
struct LookupPeer {
    contact: PeerAddresses,
    point: Point,
    asked: Option<FindRequest>,
    is_dead: bool,
    /// How many of its contacts answered, and how many did not.
    n_named_answered: usize,
    n_named_failed: usize,
}

impl LookupPeer {
    /// Of an honest peer's contacts three in ten may be dead, or more by chance; invented contacts are all dead.
    fn is_suspect(&self) -> bool {
        self.n_named_failed >= 5 + 2 * self.n_named_answered
    }
}

/// An iterative lookup of many keys.
#[derive(Debug)]
pub struct Traversal {
    limits: TraversalLimits,
    goal: Goal,
    lifetime_max: Duration,
    here: PeerKey,
    peers: Vec<LookupPeer>,
    positions: HashMap<Vec<u8>, usize>,
    searches: Vec<Search>,
    in_flight: Vec<usize>,
}

impl Traversal {
    /// A lookup of `keys` by `here`, which is never asked. Records that expire later than `lifetime_max` are invalid.
    pub fn new(
        limits: TraversalLimits,
        goal: Goal,
        lifetime_max: Duration,
        here: PeerKey,
        keys: impl IntoIterator<Item = RecordKey>,
    ) -> Self {
        let mut unique = std::collections::HashSet::new();
        let keys = keys.into_iter().filter(|key| unique.insert(*key));
        let searches = keys.map(Search::new).collect();
        Self {
            limits,
            goal,
            lifetime_max,
            here,
            peers: Vec::new(),
            positions: HashMap::new(),
            searches,
            in_flight: Vec::new(),
        }
    }

    /// The closest known peers of a key, and the records that `here` holds itself.
    pub fn on_local(
        &mut self,
        now: UnixMillis,
        key: &RecordKey,
        peers: &[PeerAddresses],
        records: Vec<Record>,
    ) {
        let Some(at) = self.searches.iter().position(|search| search.key == *key) else { return };
        self.add_candidates(at, None, peers.iter());
        let n_good = self.searches[at].merged.add(now, self.lifetime_max, records);
        self.searches[at].is_done |= n_good > 0 && self.goal == Goal::First;
    }

    /// `peer` answered for the keys that it was asked for, in order. It is asked again for keys at the end that the answer
    /// leaves out.
    pub fn on_found(&mut self, wall: UnixMillis, peer: &[u8], found: FindResponse) {
        let Some((from, asked)) = self.take_asked(peer) else { return };
        self.credit_namers(from, &asked, true);
        let n_answers = found.answers.len();
        let closest: Vec<Vec<PeerAddresses>> =
            (0..n_answers).map(|at| found.closest(at).take(CLOSEST_MAX).cloned().collect()).collect();
        let answers = found.answers.into_iter().zip(closest);
        for (&at, (answer, named)) in asked.searches.iter().zip(answers) {
            let n_good = self.searches[at].merged.add(wall, self.lifetime_max, answer.records);
            let state = CandidateState::Answered { held: n_good > 0 };
            self.searches[at].set_state(from, state);
            self.add_candidates(at, Some(from), named.iter());
            self.searches[at].is_done |= n_good > 0 && self.goal == Goal::First;
        }
        for &at in asked.searches.iter().skip(n_answers) {
            self.searches[at].set_state(from, CandidateState::New);
        }
        self.finish_searches();
    }

    /// The request to `peer` failed.
    pub fn on_failure(&mut self, peer: &[u8]) {
        let Some((from, asked)) = self.take_asked(peer) else { return };
        self.on_dead(from, &asked);
        self.finish_searches();
    }

    /// Fails the requests that took too long.
    pub fn on_timeout(&mut self, now: Moment) {
        let is_late = |asked: &FindRequest| asked.at + self.limits.timeout <= now;
        let late = self.in_flight.iter().filter(|&&at| self.peers[at].asked.as_ref().is_some_and(is_late));
        let late: Vec<Vec<u8>> = late.map(|&at| self.peers[at].contact.peer_id.clone()).collect();
        late.iter().for_each(|peer| self.on_failure(peer));
    }

    /// When to call [`Self::on_timeout`] and [`Self::poll_action`] again without an answer.
    pub fn next_deadline(&self, now: Moment) -> Option<Moment> {
        let asked = self.in_flight.iter().filter_map(|&at| self.peers[at].asked.as_ref());
        let due = asked.map(|asked| match asked.at + self.limits.patience {
            patience if patience > now => patience,
            _ => asked.at + self.limits.timeout,
        });
        due.min()
    }

    /// The next task; `None` while requests are under way, or when all is done ([`Self::is_done`]).
    pub fn poll_action(&mut self, now: Moment) -> Option<TraversalAction> {
        self.finish_searches();
        let is_waited_for =
            |at: &&usize| self.peers[**at].asked.as_ref().is_some_and(|a| now < a.at + self.limits.patience);
        let waited_for: Vec<usize> = self.in_flight.iter().filter(is_waited_for).copied().collect();
        if waited_for.len() >= self.limits.requests {
            return None;
        }
        let n_asked_of = |at: usize| {
            let asked = waited_for.iter().filter_map(|&peer| self.peers[peer].asked.as_ref());
            asked.filter(|asked| asked.searches.contains(&at)).count()
        };
        let open = (0..self.searches.len()).filter(|&at| !self.searches[at].is_done);
        let choices = open.filter_map(|at| {
            let n_asked = n_asked_of(at);
            if n_asked >= self.limits.requests_per_key || self.is_spent(at) {
                return None;
            }
            let peer = self.next_candidate(at)?;
            let distance = self.peers[peer].point.distance(&self.searches[at].point);
            Some((n_asked, distance, at, peer))
        });
        let (_, _, chosen, peer) = choices.min()?;
        Some(self.ask(now, chosen, peer))
    }

    /// Whether the lookup of every key has ended.
    pub fn is_done(&self) -> bool {
        self.searches.iter().all(|search| search.is_done)
    }

    /// The results, in the order of the keys.
    pub fn into_outcomes(self) -> Vec<KeyOutcome> {
        let Self { peers, searches, .. } = self;
        let outcome = |search: Search| {
            let named = |only_lacking: bool| {
                let answered =
                    search.candidates.values().filter_map(move |candidate| match candidate.state {
                        CandidateState::Answered { held } if !only_lacking || !held => Some(candidate.peer),
                        _ => None,
                    });
                answered.filter_map(|peer| peers.get(peer)).map(|peer| peer.contact.clone()).collect()
            };
            let (closest, lacked) = (named(false), named(true));
            let Search { key, merged, n_requests, .. } = search;
            KeyOutcome { key, records: MergedRecords::into_records(merged), closest, lacked, n_requests }
        };
        searches.into_iter().map(outcome).collect()
    }

    /// The closest candidate of a search that may be asked now, within its beam.
    fn next_candidate(&self, at: usize) -> Option<usize> {
        let search = &self.searches[at];
        let living = search.candidates.values().filter(|candidate| self.is_listened_to(candidate));
        let in_beam = living.take(self.limits.beam);
        let is_free = |peer: &usize| self.peers[*peer].asked.is_none();
        in_beam.filter(|c| c.state == CandidateState::New).map(|c| c.peer).find(is_free)
    }

    /// Whether a candidate counts: not known to be dead, and named by a peer that is not suspect.
    fn is_listened_to(&self, candidate: &search::Candidate) -> bool {
        let is_vouched_for = || {
            candidate.named_by.is_empty() || candidate.named_by.iter().any(|&by| !self.peers[by].is_suspect())
        };
        match candidate.state {
            CandidateState::Failed => false,
            CandidateState::New => is_vouched_for(),
            CandidateState::Asked | CandidateState::Answered { .. } => true,
        }
    }

    /// Asks `peer` for the chosen search, and for all others with `peer` in their beam.
    fn ask(&mut self, now: Moment, chosen: usize, peer: usize) -> TraversalAction {
        let may_ask = |at: &usize| {
            let search = &self.searches[*at];
            let in_beam =
                search.candidates.values().filter(|c| self.is_listened_to(c)).take(self.limits.beam);
            let is_open = !search.is_done && !self.is_spent(*at);
            is_open && in_beam.into_iter().any(|c| c.peer == peer && c.state == CandidateState::New)
        };
        let others = (0..self.searches.len()).filter(|at| *at != chosen && may_ask(at));
        let n_max = self.limits.keys_per_request.clamp(1, KEYS_MAX);
        let searches: Vec<usize> = std::iter::once(chosen).chain(others).take(n_max).collect();
        for &at in &searches {
            self.searches[at].set_state(peer, CandidateState::Asked);
            self.searches[at].n_requests += 1;
        }
        let keys = searches.iter().map(|&at| self.searches[at].key).collect();
        self.peers[peer].asked = Some(FindRequest { at: now, searches });
        self.in_flight.push(peer);
        TraversalAction::Ask { peer: self.peers[peer].contact.clone(), keys }
    }

    fn take_asked(&mut self, peer: &[u8]) -> Option<(usize, FindRequest)> {
        let at = *self.positions.get(peer)?;
        let asked = self.peers[at].asked.take()?;
        self.in_flight.retain(|other| *other != at);
        Some((at, asked))
    }

    fn on_dead(&mut self, peer: usize, asked: &FindRequest) {
        self.credit_namers(peer, asked, false);
        self.peers[peer].is_dead = true;
        for search in &mut self.searches {
            search.fail(peer);
        }
    }

    /// Counts for each peer that named `peer` whether it answered.
    fn credit_namers(&mut self, peer: usize, asked: &FindRequest, has_answered: bool) {
        let namers = asked.searches.iter().filter_map(|&at| self.searches[at].candidate(peer));
        let mut namers: Vec<usize> = namers.flat_map(|candidate| candidate.named_by.clone()).collect();
        namers.sort_unstable();
        namers.dedup();
        for by in namers {
            match has_answered {
                true => self.peers[by].n_named_answered += 1,
                false => self.peers[by].n_named_failed += 1,
            }
        }
    }

    fn add_candidates<'a>(
        &mut self,
        at: usize,
        by: Option<usize>,
        peers: impl Iterator<Item = &'a PeerAddresses>,
    ) {
        for contact in peers {
            if contact.peer_id == self.here.0 {
                continue;
            }
            let peer = self.peer(contact);
            let point = self.peers[peer].point;
            self.searches[at].add(peer, &point, by, self.peers[peer].is_dead);
        }
    }

    fn peer(&mut self, contact: &PeerAddresses) -> usize {
        if let Some(&at) = self.positions.get(&contact.peer_id) {
            let known = &mut self.peers[at].contact;
            if known.addresses.is_empty() {
                known.addresses.clone_from(&contact.addresses);
            }
            return at;
        }
        self.positions.insert(contact.peer_id.clone(), self.peers.len());
        self.peers.push(LookupPeer {
            contact: contact.clone(),
            point: Point::of_peer(&contact.peer_id),
            asked: None,
            is_dead: false,
            n_named_answered: 0,
            n_named_failed: 0,
        });
        self.peers.len() - 1
    }

    fn finish_searches(&mut self) {
        for at in 0..self.searches.len() {
            let search = &self.searches[at];
            if search.is_done {
                continue;
            }
            let closest = || {
                let living = search.candidates.values().filter(|candidate| self.is_listened_to(candidate));
                living.take(self.limits.n_closest)
            };
            let is_answered = |state| matches!(state, CandidateState::Answered { .. });
            let is_ended = self.is_spent(at) && closest().all(|c| c.state != CandidateState::Asked);
            let is_done = is_ended || closest().all(|candidate| is_answered(candidate.state));
            self.searches[at].is_done = is_done;
        }
    }

    /// Whether nobody else is asked for a key: an attacker could always name a closer peer.
    fn is_spent(&self, at: usize) -> bool {
        self.searches[at].n_requests >= self.limits.requests_per_key_max
    }
}
