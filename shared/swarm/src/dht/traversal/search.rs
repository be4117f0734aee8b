//! One key of a lookup: its candidates by distance, and their states.

use std::collections::BTreeMap;

use barnraise_protocol::dht::{Distance, Point, RecordKey};

use crate::dht::merged::MergedRecords;

/// Most peers that are kept as having named a candidate.
const NAMERS_MAX: usize = 4;

/// State of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CandidateState {
    New,
    Asked,
    Answered { held: bool },
    Failed,
}

#[derive(Debug)]
pub(super) struct Candidate {
    /// Position among the peers of the traversal; so are those in `named_by`.
    pub(super) peer: usize,
    pub(super) state: CandidateState,
    /// Peers that named it; empty where it was known from the beginning.
    pub(super) named_by: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Search {
    pub(super) key: RecordKey,
    pub(super) point: Point,
    /// Closest first. No more than [`super::TraversalLimits::requests_per_key_max`] answers have added any.
    pub(super) candidates: BTreeMap<Distance, Candidate>,
    distances: std::collections::HashMap<usize, Distance>,
    pub(super) merged: MergedRecords,
    pub(super) n_requests: usize,
    pub(super) is_done: bool,
}

impl Search {
    pub(super) fn new(key: RecordKey) -> Self {
        Self {
            key,
            point: Point::of_key(&key),
            candidates: BTreeMap::new(),
            distances: std::collections::HashMap::new(),
            merged: MergedRecords::default(),
            n_requests: 0,
            is_done: false,
        }
    }

    pub(super) fn add(&mut self, peer: usize, point: &Point, by: Option<usize>, is_dead: bool) {
        let state = if is_dead { CandidateState::Failed } else { CandidateState::New };
        let distance = point.distance(&self.point);
        self.distances.insert(peer, distance);
        let new = Candidate { peer, state, named_by: by.into_iter().collect() };
        let Some(known) = self.candidates.get_mut(&distance) else {
            self.candidates.insert(distance, new);
            return;
        };
        // A candidate known from the beginning needs no other peer to name it.
        if !known.named_by.is_empty()
            && let Some(by) = by
            && known.named_by.len() < NAMERS_MAX
            && !known.named_by.contains(&by)
        {
            known.named_by.push(by);
        }
    }

    pub(super) fn candidate(&self, peer: usize) -> Option<&Candidate> {
        self.candidates.get(self.distances.get(&peer)?)
    }

    pub(super) fn set_state(&mut self, peer: usize, state: CandidateState) {
        if let Some(distance) = self.distances.get(&peer)
            && let Some(candidate) = self.candidates.get_mut(distance)
        {
            candidate.state = state;
        }
    }

    /// The peer is dead for every key. Its earlier answers do not count, because it stores nothing any more.
    pub(super) fn fail(&mut self, peer: usize) {
        self.set_state(peer, CandidateState::Failed);
    }
}
