//! Answers others: a bounded number of streams of each, a deadline for each step.

use std::collections::HashMap;
use std::sync::Arc;

use barnraise_protocol::dht::{
    self, CLOSEST_MAX, DhtError, DhtRefusal, FindResponseBuilder, Freshness, NodeToPeer, PEERS_MAX,
    PeerToNode, RECORDS_BYTES_MAX, Record, RecordKey,
};
use barnraise_swarm::PeerKey;
use barnraise_swarm::dht::MergedRecords;
use libp2p::{PeerId, Stream};
use tokio::task::JoinSet;

use super::searches::SearchSlot;
use super::{DhtState, counters, lock};
use crate::source::source;
use crate::{IncomingStreams, Paced, Path, Violation};

/// Records checked in one go: about two milliseconds of signatures.
const CHECKED_AT_ONCE: usize = 32;
/// Closest peers named for each of many keys, at least.
const CLOSEST_MIN: usize = 8;

pub(super) async fn run(shared: Arc<DhtState>, mut incoming: IncomingStreams) {
    let mut streams: JoinSet<PeerId> = JoinSet::new();
    let mut n_of_peers: HashMap<PeerId, usize> = HashMap::new();
    loop {
        tokio::select! {
            next = incoming.recv() => {
                let Some((peer, stream)) = next else { return };
                let n_of_peer = n_of_peers.entry(peer).or_default();
                if streams.len() >= shared.config.streams || *n_of_peer >= shared.config.streams_per_peer {
                    // Dropping it resets it, which the requester sees at once.
                    counters::add(&shared.counters.streams_refused, 1);
                    shared.node.report(peer, Violation::Streams);
                    if *n_of_peer == 0 {
                        n_of_peers.remove(&peer);
                    }
                    continue;
                }
                *n_of_peer += 1;
                let shared = shared.clone();
                streams.spawn(async move {
                    serve(&shared, peer, stream).await;
                    peer
                });
            }
            Some(Ok(peer)) = streams.join_next() => {
                if let Some(n_of_peer) = n_of_peers.get_mut(&peer) {
                    *n_of_peer -= 1;
                    if *n_of_peer == 0 {
                        n_of_peers.remove(&peer);
                    }
                }
            }
        }
    }
}

async fn serve(shared: &Arc<DhtState>, peer: PeerId, stream: Stream) {
    let ended = converse(shared, peer, Paced::new(stream, shared.config.pace())).await;
    let Err(DhtError::Frame(error)) = ended else { return };
    tracing::debug!(%peer, %error, "no conversation of the DHT");
    if let Some(violation) = Violation::of_frame(&error) {
        shared.node.report(peer, violation);
    }
}

async fn converse(shared: &Arc<DhtState>, peer: PeerId, mut stream: Paced<Stream>) -> Result<(), DhtError> {
    let pace = stream.pace();
    loop {
        pace.wait();
        let Some(question) = dht::receive(&mut stream, shared.config.message_bytes_max).await? else {
            return Ok(());
        };
        let answer = match question.check() {
            Ok(()) => shared.answer(peer, question).await,
            Err(refusal) => {
                shared.node.report(peer, Violation::UnexpectedMessage);
                NodeToPeer::Refused(refusal)
            }
        };
        let counted = match answer {
            NodeToPeer::Refused(_) => &shared.counters.requests_refused,
            _ => &shared.counters.requests_served,
        };
        counters::add(counted, 1);
        pace.answer();
        dht::reply(&mut stream, &answer).await?;
    }
}

impl DhtState {
    async fn answer(self: &Arc<Self>, peer: PeerId, question: PeerToNode) -> NodeToPeer {
        match question {
            PeerToNode::Find(keys) => self.answer_find(peer, &keys).await,
            PeerToNode::Store { records, purpose } => {
                let sender = PeerKey(peer.to_bytes());
                let keep = |records| self.keep(&sender, records, purpose);
                NodeToPeer::Stored(self.take_records(peer, records, keep).await)
            }
            PeerToNode::Get { keys, freshness } => self.answer_get(peer, &keys, freshness).await,
            PeerToNode::Put(records) => {
                let Some(_place) = self.search_slot_for(peer).await else {
                    return NodeToPeer::Refused(DhtRefusal::Busy);
                };
                NodeToPeer::Stored(self.put(peer, records).await)
            }
        }
    }

    /// Stores records at the peers that they belong to. They are checked here: those peers know
    /// this node as the sender, and would blame it for invalid ones.
    async fn put(self: &Arc<Self>, peer: PeerId, records: Vec<Record>) -> Vec<Result<(), DhtRefusal>> {
        let (now, lifetime_max) = (self.wall(), self.config.storage.lifetime_max);
        let mut good = Vec::new();
        let check = |records: Vec<Record>| {
            let check = |record: Record| record.check(now, lifetime_max).map(|()| good.push(record));
            records.into_iter().map(check).collect()
        };
        let mut verdicts = self.take_records(peer, records, check).await;
        let mut placed = self.store(good).await.into_iter().map(|verdict| verdict.map(drop));
        for verdict in verdicts.iter_mut().filter(|verdict| verdict.is_ok()) {
            *verdict = placed.next().unwrap_or(Err(DhtRefusal::Unreachable));
        }
        verdicts
    }

    /// Stores as many records as `peer` may send now, in pieces, and returns the refusals. Records
    /// beyond its share are refused unseen.
    async fn take_records(
        &self,
        peer: PeerId,
        mut records: Vec<Record>,
        mut take: impl FnMut(Vec<Record>) -> Vec<Result<(), DhtRefusal>>,
    ) -> Vec<Result<(), DhtRefusal>> {
        let n_records = records.len();
        let n_wanted = u32::try_from(n_records).unwrap_or(u32::MAX);
        let n_taken = lock(&self.senders).take_up_to(self.now(), &peer, n_wanted) as usize;
        records.truncate(n_taken);
        let mut verdicts = Vec::with_capacity(n_records);
        while !records.is_empty() {
            let rest = records.split_off(records.len().min(CHECKED_AT_ONCE));
            verdicts.extend(take(records));
            records = rest;
            if !records.is_empty() {
                tokio::task::yield_now().await;
            }
        }
        for violation in verdicts.iter().filter_map(|verdict| violation(verdict.as_ref().err()?)) {
            self.node.report(peer, violation);
        }
        let n_beyond = n_records - verdicts.len();
        if n_beyond > 0 {
            self.node.guard().count_many(Violation::RecordRate, n_beyond);
            counters::add(&self.counters.records_refused, n_beyond);
            verdicts.resize(n_records, Err(DhtRefusal::Busy));
        }
        verdicts
    }

    async fn answer_find(&self, asker: PeerId, keys: &[RecordKey]) -> NodeToPeer {
        let n_closest = (PEERS_MAX / keys.len().max(1)).clamp(CLOSEST_MIN, CLOSEST_MAX);
        let closest = self.neighbours.closest(keys, &asker.to_bytes(), n_closest).await;
        let mut answer = FindResponseBuilder::default();
        for (key, closest) in keys.iter().zip(&closest) {
            if !answer.push(self.held_for_others(key), closest) {
                break;
            }
        }
        NodeToPeer::Found(answer.finish())
    }

    /// A slot for a search on behalf of `peer`, if its peer id and its address have one left.
    async fn search_slot_for(&self, peer: PeerId) -> Option<SearchSlot<'_>> {
        let address = match self.node.path(peer).await {
            Ok(Some(Path::Direct { address, .. })) => source(&address),
            _ => None,
        };
        self.on_behalf.take(peer, address)
    }

    async fn answer_get(
        self: &Arc<Self>,
        peer: PeerId,
        keys: &[RecordKey],
        freshness: Freshness,
    ) -> NodeToPeer {
        let Some(_place) = self.search_slot_for(peer).await else {
            return NodeToPeer::Refused(DhtRefusal::Busy);
        };
        let mut n_bytes = 0;
        let mut answers = self.get(keys, freshness).await;
        let fits = |records: &Vec<Record>| {
            n_bytes += records.iter().map(Record::n_bytes).sum::<usize>();
            n_bytes <= RECORDS_BYTES_MAX
        };
        let n_answers = answers.iter().map(fits).take_while(|fits| *fits).count();
        answers.truncate(n_answers.max(1));
        NodeToPeer::Got(answers)
    }

    /// The stored and the cached records of a key; all were checked on arrival.
    fn held_for_others(&self, key: &RecordKey) -> Vec<Record> {
        let now = self.wall();
        let stored = lock(&self.storage).get(now, key);
        let cached = lock(&self.cache).peek(now, key);
        if cached.is_empty() {
            return stored;
        }
        let mut merged = MergedRecords::default();
        merged.add_checked(stored);
        merged.add_checked(cached);
        fitting(merged.into_records())
    }
}

/// The violation that a refused record is, if the sender is to blame.
fn violation(refusal: &DhtRefusal) -> Option<Violation> {
    match refusal {
        DhtRefusal::Signature => Some(Violation::Forged),
        DhtRefusal::TooLong { .. } | DhtRefusal::Kind | DhtRefusal::TwoOwners => {
            Some(Violation::MalformedRecord)
        }
        DhtRefusal::Expired { .. } | DhtRefusal::TooFar { .. } => Some(Violation::WrongTime),
        DhtRefusal::Quota { .. } | DhtRefusal::Full => Some(Violation::Quota),
        DhtRefusal::Busy => Some(Violation::Busy),
        DhtRefusal::Older { .. } | DhtRefusal::TooMany { .. } | DhtRefusal::Unreachable => None,
    }
}

/// Both together may be more than one of them may be.
fn fitting(mut records: Vec<Record>) -> Vec<Record> {
    let mut n_bytes = 0;
    let fits = |record: &&Record| {
        n_bytes += record.n_bytes();
        n_bytes <= dht::DICTIONARY_BYTES_MAX
    };
    let n_fitting = records.iter().take(dht::SUBKEYS_MAX).take_while(fits).count();
    records.truncate(n_fitting);
    records
}
