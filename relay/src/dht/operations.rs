//! Searching and storing: drives the state machines of `swarm::dht` over streams.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::dht::{
    CLOSEST_MAX, DhtRefusal, FindResponse, Freshness, PeerAddresses, PeerToNode, Point, Purpose, Record,
    RecordKey,
};
use barnraise_swarm::Moment;
use barnraise_swarm::dht::{Goal, KeyOutcome, Placement, PlacementAction, Traversal, TraversalAction};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use super::links::RequestError;
use super::{DhtState, counters, lock};

/// Keys of one search; more are searched for one after the other.
const SEARCH_KEYS: usize = 256;

type Verdicts = Vec<Result<(), DhtRefusal>>;

impl DhtState {
    pub(super) async fn get(self: &Arc<Self>, keys: &[RecordKey], freshness: Freshness) -> Vec<Vec<Record>> {
        let mut found = HashMap::new();
        for keys in keys.chunks(SEARCH_KEYS) {
            for outcome in self.search(keys, freshness).await {
                found.insert(outcome.key, outcome.records);
            }
        }
        keys.iter().map(|key| found.get(key).cloned().unwrap_or_default()).collect()
    }

    /// Searches, then caches the found records here and at the closest peers that lacked them.
    pub(super) async fn search(
        self: &Arc<Self>,
        keys: &[RecordKey],
        freshness: Freshness,
    ) -> Vec<KeyOutcome> {
        counters::add(&self.counters.searched_keys, keys.len());
        let goal = match freshness {
            Freshness::Any => Goal::First,
            Freshness::Newest => Goal::Closest,
        };
        let outcomes = self.traverse(keys, goal).await;
        counters::add(&self.counters.found_keys, outcomes.iter().filter(|o| !o.records.is_empty()).count());
        let now = self.wall();
        let mut lacking: HashMap<PeerAddresses, Vec<Record>> = HashMap::new();
        let mut cache = lock(&self.cache);
        for outcome in outcomes.iter().filter(|outcome| outcome.n_requests > 0) {
            for record in &outcome.records {
                // A full cache is no failure.
                let _ = cache.store(now, &self.here, record.clone());
            }
            for peer in outcome.lacked.iter().take(self.config.cache_nearest) {
                lacking.entry(peer.clone()).or_default().extend(outcome.records.iter().cloned());
            }
        }
        drop(cache);
        for (peer, records) in lacking.into_iter().filter(|(_, records)| !records.is_empty()) {
            let shared = self.clone();
            // Nobody waits for it. It ends with its deadline.
            self.tasks.spawn("dht cache", async move {
                for records in batches(records) {
                    let _ = shared.send_records(&peer, records, Purpose::Cache).await;
                }
            });
        }
        outcomes
    }

    pub(super) async fn store(self: &Arc<Self>, records: Vec<Record>) -> Vec<Result<usize, DhtRefusal>> {
        let keys: Vec<RecordKey> = records.iter().map(|record| record.name.key()).collect();
        let mut unique = keys.clone();
        unique.sort_unstable();
        unique.dedup();
        let mut candidates: HashMap<RecordKey, Vec<PeerAddresses>> = HashMap::new();
        for keys in unique.chunks(SEARCH_KEYS) {
            for outcome in self.traverse(keys, Goal::Closest).await {
                candidates.insert(outcome.key, self.with_here(&outcome.key, outcome.closest));
            }
        }
        let placing = |key: &RecordKey| candidates.get(key).cloned().unwrap_or_default();
        let placement = Placement::new(self.config.placement.clone(), records.clone(), placing);
        let verdicts = self.place(placement).await;
        let now = self.wall();
        let mut cache = lock(&self.cache);
        for (record, _) in records.into_iter().zip(&verdicts).filter(|(_, verdict)| verdict.is_ok()) {
            // Of a dictionary one entry is not what a search would find.
            if record.subkey.is_none() {
                let _ = cache.store(now, &self.here, record);
            }
        }
        verdicts
    }

    async fn traverse(self: &Arc<Self>, keys: &[RecordKey], goal: Goal) -> Vec<KeyOutcome> {
        let limits = self.config.traversal.clone();
        let lifetime_max = self.config.storage.lifetime_max;
        let mut search = Traversal::new(limits, goal, lifetime_max, self.here.clone(), keys.iter().copied());
        for (key, peers) in keys.iter().zip(self.neighbours.closest(keys, &self.here.0, CLOSEST_MAX).await) {
            search.on_local(self.wall(), key, &peers, self.held(key, goal));
        }
        let mut answers = FuturesUnordered::new();
        loop {
            let now = self.now();
            while let Some(TraversalAction::Ask { peer, keys }) = search.poll_action(now) {
                let shared = self.clone();
                // In a task, so that an answer nobody waits for any more leaves its stream in order.
                answers.push(self.tasks.answer("dht search", async move {
                    let found = shared.find(&peer, keys).await;
                    (peer.peer_id, found)
                }));
            }
            if search.is_done() {
                return search.into_outcomes();
            }
            tokio::select! {
                Some(answer) = answers.next() => match answer {
                    Ok((peer, Ok(found))) => search.on_found(self.wall(), &peer, found),
                    Ok((peer, Err(error))) => {
                        tracing::debug!(%error, "a peer of the DHT did not answer");
                        search.on_failure(&peer);
                    }
                    // A task that was ended or panicked. Its deadline counts it as lost.
                    Err(_) => {}
                },
                () = self.sleep_until(search.next_deadline(now)) => search.on_timeout(self.now()),
            }
        }
    }

    async fn place(self: &Arc<Self>, mut placement: Placement) -> Vec<Result<usize, DhtRefusal>> {
        let mut answers = FuturesUnordered::new();
        loop {
            while let Some(PlacementAction::Store { peer, records }) = placement.poll_action(self.now()) {
                if peer.peer_id == self.here.0 {
                    let verdicts = self.keep(&self.here, records, Purpose::Replica);
                    placement.on_stored(&peer.peer_id, &verdicts);
                    continue;
                }
                let shared = self.clone();
                answers.push(self.tasks.answer("dht placement", async move {
                    let verdicts = shared.send_records(&peer, records, Purpose::Replica).await;
                    (peer.peer_id, verdicts)
                }));
            }
            if placement.is_done() {
                return placement.into_verdicts();
            }
            tokio::select! {
                Some(answer) = answers.next() => match answer {
                    Ok((peer, Ok(verdicts))) => placement.on_stored(&peer, &verdicts),
                    Ok((peer, Err(error))) => {
                        tracing::debug!(%error, "a peer of the DHT did not answer");
                        placement.on_failure(&peer);
                    }
                    Err(_) => {}
                },
                () = self.sleep_until(placement.next_deadline()) => placement.on_timeout(self.now()),
            }
        }
    }

    async fn find(&self, peer: &PeerAddresses, keys: Vec<RecordKey>) -> Result<FindResponse, RequestError> {
        let question = PeerToNode::Find(keys.clone());
        let found = self.ask(peer, &question).await.and_then(|answer| Ok(answer.found(&keys)?));
        if found.is_err() {
            counters::add(&self.counters.requests_failed, 1);
        }
        found
    }

    /// Has `peer` keep records that fit into one message.
    pub(super) async fn send_records(
        &self,
        peer: &PeerAddresses,
        records: Vec<Record>,
        purpose: Purpose,
    ) -> Result<Verdicts, RequestError> {
        let n_records = records.len();
        let question = PeerToNode::Store { records, purpose };
        let verdicts = self.ask(peer, &question).await.and_then(|answer| Ok(answer.stored(n_records)?));
        if verdicts.is_err() {
            counters::add(&self.counters.requests_failed, 1);
        }
        verdicts
    }

    async fn ask(
        &self,
        peer: &PeerAddresses,
        question: &PeerToNode,
    ) -> Result<barnraise_protocol::dht::NodeToPeer, RequestError> {
        counters::add(&self.counters.requests_sent, 1);
        self.links.ask(peer, question).await
    }

    /// Keeps records that `sender` sent.
    pub(super) fn keep(
        &self,
        sender: &barnraise_swarm::PeerKey,
        records: Vec<Record>,
        purpose: Purpose,
    ) -> Verdicts {
        let now = self.wall();
        let store = |record| match purpose {
            Purpose::Replica => lock(&self.storage).store(now, sender, record),
            Purpose::Cache => lock(&self.cache).store(now, sender, record),
        };
        let verdicts: Verdicts = records.into_iter().map(store).collect();
        let n_accepted = verdicts.iter().filter(|verdict| verdict.is_ok()).count();
        counters::add(&self.counters.records_accepted, n_accepted);
        counters::add(&self.counters.records_refused, verdicts.len() - n_accepted);
        verdicts
    }

    /// Records held here; cached ones count for a search that accepts any freshness.
    fn held(&self, key: &RecordKey, goal: Goal) -> Vec<Record> {
        let now = self.wall();
        let stored = lock(&self.storage).get(now, key);
        match goal {
            Goal::First if stored.is_empty() => lock(&self.cache).get(now, key),
            _ => stored,
        }
    }

    /// This node among those that may keep a record, where it serves.
    fn with_here(&self, key: &RecordKey, mut closest: Vec<PeerAddresses>) -> Vec<PeerAddresses> {
        if self.config.serves {
            let point = Point::of_key(key);
            let distance = |peer: &PeerAddresses| Point::of_peer(&peer.peer_id).distance(&point);
            let here = PeerAddresses::new(self.here.0.clone(), []);
            let at = closest.partition_point(|peer| distance(peer) < distance(&here));
            closest.insert(at, here);
        }
        closest
    }

    async fn sleep_until(&self, deadline: Option<Moment>) {
        match deadline {
            Some(deadline) => {
                let wait = deadline.saturating_sub(self.now()).max(Duration::from_millis(1));
                tokio::time::sleep(wait).await;
            }
            None => std::future::pending().await,
        }
    }
}

/// Records in messages that may be sent.
pub(super) fn batches(records: Vec<Record>) -> Vec<Vec<Record>> {
    use barnraise_protocol::dht::{RECORDS_BYTES_MAX, RECORDS_MAX};
    let (mut batches, mut n_bytes) = (vec![Vec::new()], 0);
    for record in records {
        n_bytes += record.n_bytes();
        let is_full = |batch: &Vec<Record>| batch.len() >= RECORDS_MAX || n_bytes > RECORDS_BYTES_MAX;
        if batches.last().is_none_or(is_full) {
            n_bytes = record.n_bytes();
            batches.push(Vec::new());
        }
        if let Some(batch) = batches.last_mut() {
            batch.push(record);
        }
    }
    batches.retain(|batch| !batch.is_empty());
    batches
}
