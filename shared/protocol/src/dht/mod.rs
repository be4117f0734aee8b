//! The `dht` conversation: peers store records for each other and find them again.
//!
//! The semantics are hivemind's (Learning@home §2.4 and §3.2): a key holds a value or a dictionary of
//! subkeys, each entry with its own expiration, the latest expiration counts, and a message carries many
//! keys. The differences are described in [`record`]. Peers that store nothing themselves, such as browsers,
//! ask a connected peer for the whole search ([`get`], [`put`]) and check signatures themselves. Any number
//! of questions on a stream, one after the other.

pub mod backbone;
pub mod checkpoints;
pub mod experts;
pub mod progress;
pub mod record;
pub mod shards;

use std::time::Duration;

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

pub use self::record::{
    DhtRefusal, Distance, Point, Record, RecordKey, RecordKind, RecordName, Subkey, UnixMillis,
};
use self::record::{RECORD_OVERHEAD_BYTES, SUBKEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::framing::{self, FrameError};

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/dht/1";

/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 384 * 1024;
/// Most keys in one question.
pub const KEYS_MAX: usize = 64;
/// Most records in one message.
pub const RECORDS_MAX: usize = 1024;
/// Most bytes of records in one message, by [`Record::n_bytes`].
pub const RECORDS_BYTES_MAX: usize = 256 * 1024;
/// Most subkeys of a dictionary.
pub const SUBKEYS_MAX: usize = 512;
/// Most bytes of a dictionary, by [`Record::n_bytes`].
pub const DICTIONARY_BYTES_MAX: usize = 192 * 1024;
/// Most peers in the answer for one key.
pub const CLOSEST_MAX: usize = 20;
/// Most peers in one message.
pub const PEERS_MAX: usize = 128;
/// Longest peer id.
pub const PEER_ID_BYTES_MAX: usize = 64;
/// Most addresses of a peer.
pub const ADDRESSES_MAX: usize = 4;
/// Longest address, in the binary form of multiaddresses.
pub const ADDRESS_BYTES_MAX: usize = 160;

// One key is always answered in full, and a message with the most of everything fits.
const _: () = assert!(DICTIONARY_BYTES_MAX <= RECORDS_BYTES_MAX && SUBKEYS_MAX <= RECORDS_MAX);
const _: () = assert!(VALUE_BYTES_MAX + SUBKEY_BYTES_MAX + RECORD_OVERHEAD_BYTES <= DICTIONARY_BYTES_MAX);
const _: () = assert!(CLOSEST_MAX <= PEERS_MAX);
const _: () = assert!(
    RECORDS_BYTES_MAX
        + PEERS_MAX * (PEER_ID_BYTES_MAX + 2 + ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 2))
        + KEYS_MAX * (CLOSEST_MAX * 2 + 8)
        <= MESSAGE_BYTES_MAX
);

/// Question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerToNode {
    /// Send your records of these keys, and the closest peers that you know. At most [`KEYS_MAX`].
    Find(Vec<RecordKey>),
    /// Store these records. At most [`RECORDS_MAX`] and [`RECORDS_BYTES_MAX`].
    Store {
        /// In any order.
        records: Vec<Record>,
        /// As replicas or in the cache.
        purpose: Purpose,
    },
    /// Search for these keys on my behalf. At most [`KEYS_MAX`].
    Get {
        /// The keys.
        keys: Vec<RecordKey>,
        /// How far to search.
        freshness: Freshness,
    },
    /// Store these records at the peers closest to their keys. At most [`RECORDS_MAX`] and [`RECORDS_BYTES_MAX`].
    Put(Vec<Record>),
}

/// Why a peer stores a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// It is one of the closest peers: it stores the record until it expires.
    Replica,
    /// It is asked often: it stores the record as long as there is space.
    Cache,
}

/// When a search ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freshness {
    /// At the first record found, a cached one included.
    Any,
    /// When all of the closest peers have answered.
    Newest,
}

/// Answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeToPeer {
    /// To [`PeerToNode::Find`].
    Found(FindResponse),
    /// To [`PeerToNode::Store`] and [`PeerToNode::Put`]: for each record, in order.
    Stored(Vec<Result<(), DhtRefusal>>),
    /// To [`PeerToNode::Get`]: the records of the keys in order; fewer than were asked for where one message
    /// does not hold them, but of one key at least.
    Got(Vec<Vec<Record>>),
    /// To any question.
    Refused(DhtRefusal),
}

/// Records that a peer stores, and the closest peers that it knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindResponse {
    /// For the keys in order; fewer than were asked for where one message does not hold them, but of one key
    /// at least.
    pub answers: Vec<FindResult>,
    /// The closest peers of all answers. At most [`PEERS_MAX`].
    pub peers: Vec<PeerAddresses>,
}

/// Records and closest peers of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindResult {
    /// The stored records of the key.
    pub records: Vec<Record>,
    /// The closest known peers, as positions in [`FindResponse::peers`]. At most [`CLOSEST_MAX`].
    pub closest: Vec<u8>,
}

/// A peer and its addresses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PeerAddresses {
    /// Bytes of its id, at most [`PEER_ID_BYTES_MAX`].
    pub peer_id: Vec<u8>,
    /// At most [`ADDRESSES_MAX`] multiaddresses of at most [`ADDRESS_BYTES_MAX`] bytes.
    pub addresses: Vec<Vec<u8>>,
}

/// Why a question has no valid answer.
#[derive(Debug, thiserror::Error)]
pub enum DhtError {
    /// A message failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The other side declined, with its reason.
    #[error(transparent)]
    Refused(#[from] DhtRefusal),
    /// An answer to another question.
    #[error("the answer does not belong to the question")]
    Unexpected,
    /// More than the limit, or fewer than were asked for.
    #[error("an answer with {got} {what}, {want} was wanted at most")]
    Count {
        /// Of what.
        what: &'static str,
        /// The limit.
        want: usize,
        /// Came.
        got: usize,
    },
    /// A record of another key.
    #[error("the answer has a record that belongs to another key")]
    Foreign,
}

/// Reads a question of at most `bytes_max` bytes from `stream`; `None` where the other side closed it.
///
/// # Errors
/// A message that is no question of this conversation.
pub async fn receive<S: AsyncRead + Unpin>(
    stream: &mut S,
    bytes_max: usize,
) -> Result<Option<PeerToNode>, DhtError> {
    match framing::read(stream, bytes_max.min(MESSAGE_BYTES_MAX)).await {
        Ok(question) => Ok(Some(question)),
        Err(FrameError::Closed) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes the answer to a question that was [`receive`]d.
///
/// # Errors
/// A stream that failed.
pub async fn reply<S: AsyncWrite + Unpin>(stream: &mut S, answer: &NodeToPeer) -> Result<(), DhtError> {
    Ok(framing::write(stream, answer, MESSAGE_BYTES_MAX).await?)
}

/// Asks `question`. [`NodeToPeer::found`] and [`NodeToPeer::stored`] check that the answer belongs to it.
///
/// # Errors
/// A refusal, or a stream that failed.
pub async fn ask<S>(stream: &mut S, question: &PeerToNode) -> Result<NodeToPeer, DhtError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, question, MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        NodeToPeer::Refused(refusal) => Err(refusal.into()),
        answer => Ok(answer),
    }
}

/// Asks the other side to search for `keys`. Returns the records of as many keys as fit into one message, at
/// least of the first. Drops records that are expired, expire too late, or are not signed by their owner.
///
/// # Errors
/// A refusal, or an invalid answer.
pub async fn get<S>(
    stream: &mut S,
    keys: Vec<RecordKey>,
    freshness: Freshness,
    now: UnixMillis,
    lifetime_max: Duration,
) -> Result<Vec<Vec<Record>>, DhtError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    get_telling(stream, keys, freshness, (now, lifetime_max), |_| ()).await
}

/// As [`get`]; `on_dropped` gets why a record was dropped.
///
/// # Errors
/// A refusal, or an invalid answer.
pub async fn get_telling<S>(
    stream: &mut S,
    keys: Vec<RecordKey>,
    freshness: Freshness,
    (now, lifetime_max): (UnixMillis, Duration),
    mut on_dropped: impl FnMut(DhtRefusal),
) -> Result<Vec<Vec<Record>>, DhtError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let asked = keys.clone();
    let NodeToPeer::Got(mut answers) = ask(stream, &PeerToNode::Get { keys, freshness }).await? else {
        return Err(DhtError::Unexpected);
    };
    check_answered("keys", asked.len(), answers.len())?;
    for (key, records) in asked.iter().zip(&mut answers) {
        check_records(key, records)?;
        records.retain(|record| record.check(now, lifetime_max).map_err(&mut on_dropped).is_ok());
    }
    Ok(answers)
}

/// Asks the other side to store `records` at the peers closest to their keys.
///
/// # Errors
/// A refusal of all, or an invalid answer.
pub async fn put<S>(stream: &mut S, records: Vec<Record>) -> Result<Vec<Result<(), DhtRefusal>>, DhtError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let n_records = records.len();
    ask(stream, &PeerToNode::Put(records)).await?.stored(n_records)
}

fn check_count(what: &'static str, want: usize, got: usize) -> Result<(), DhtError> {
    if got <= want { Ok(()) } else { Err(DhtError::Count { what, want, got }) }
}

/// Answers must be for a prefix of the keys asked for, and not an empty one.
fn check_answered(what: &'static str, want: usize, got: usize) -> Result<(), DhtError> {
    match got == 0 && want > 0 {
        true => Err(DhtError::Count { what, want, got }),
        false => check_count(what, want, got),
    }
}

fn check_records(key: &RecordKey, records: &[Record]) -> Result<(), DhtError> {
    check_count("records of a key", SUBKEYS_MAX, records.len())?;
    // The records of a key have the same name nearly always, and hashing it once is enough.
    let mut last: Option<&RecordName> = None;
    for record in records {
        if last != Some(&record.name) && record.name.key() != *key {
            return Err(DhtError::Foreign);
        }
        last = Some(&record.name);
    }
    Ok(())
}

impl PeerToNode {
    /// Checks the number of keys or records, and their bytes.
    ///
    /// # Errors
    /// [`DhtRefusal::TooMany`] or [`DhtRefusal::TooLong`].
    pub fn check(&self) -> Result<(), DhtRefusal> {
        let (got, max, records) = match self {
            Self::Find(keys) | Self::Get { keys, .. } => (keys.len(), KEYS_MAX, &[][..]),
            Self::Store { records, .. } | Self::Put(records) => (records.len(), RECORDS_MAX, &records[..]),
        };
        if got > max {
            return Err(DhtRefusal::TooMany { got: got as u64, max: max as u64 });
        }
        let n_bytes: usize = records.iter().map(Record::n_bytes).sum();
        match n_bytes > RECORDS_BYTES_MAX {
            true => Err(DhtRefusal::TooLong { got: n_bytes as u64, max: RECORDS_BYTES_MAX as u64 }),
            false => Ok(()),
        }
    }
}

impl NodeToPeer {
    /// The answer to [`PeerToNode::Find`]. Checks every count, and that each record belongs to its key. Time
    /// and signature of records are not checked: after merging answers, only some records need that.
    ///
    /// # Errors
    /// An invalid answer.
    pub fn found(self, asked: &[RecordKey]) -> Result<FindResponse, DhtError> {
        match self {
            Self::Found(found) => found.check(asked).map(|()| found),
            _ => Err(DhtError::Unexpected),
        }
    }

    /// The answer to [`PeerToNode::Store`] or [`PeerToNode::Put`] of `n_records`.
    ///
    /// # Errors
    /// An invalid answer.
    pub fn stored(self, n_records: usize) -> Result<Vec<Result<(), DhtRefusal>>, DhtError> {
        match self {
            Self::Stored(verdicts) if verdicts.len() == n_records => Ok(verdicts),
            Self::Stored(verdicts) => {
                Err(DhtError::Count { what: "verdicts", want: n_records, got: verdicts.len() })
            }
            _ => Err(DhtError::Unexpected),
        }
    }
}

impl FindResponse {
    /// Checks every count, and that each record belongs to its key.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, asked: &[RecordKey]) -> Result<(), DhtError> {
        check_answered("keys", asked.len(), self.answers.len())?;
        check_count("peers", PEERS_MAX, self.peers.len())?;
        for peer in &self.peers {
            check_count("bytes of a peer id", PEER_ID_BYTES_MAX, peer.peer_id.len())?;
            check_count("addresses of a peer", ADDRESSES_MAX, peer.addresses.len())?;
            let longest = peer.addresses.iter().map(Vec::len).max().unwrap_or(0);
            check_count("bytes of an address", ADDRESS_BYTES_MAX, longest)?;
        }
        for (key, answer) in asked.iter().zip(&self.answers) {
            check_count("closest peers", CLOSEST_MAX, answer.closest.len())?;
            if let Some(&beyond) = answer.closest.iter().find(|&&at| usize::from(at) >= self.peers.len()) {
                let want = self.peers.len();
                return Err(DhtError::Count { what: "as the position of a peer", want, got: beyond.into() });
            }
            check_records(key, &answer.records)?;
        }
        Ok(())
    }

    /// The peers of the answer at `position`, closest first.
    pub fn closest(&self, position: usize) -> impl Iterator<Item = &PeerAddresses> {
        let closest = self.answers.get(position).map_or(&[][..], |answer| &answer.closest[..]);
        closest.iter().filter_map(|&at| self.peers.get(usize::from(at)))
    }
}

impl PeerAddresses {
    /// A peer with as many of its addresses as the limits allow.
    pub fn new(peer_id: Vec<u8>, addresses: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let addresses = addresses.into_iter().filter(|address| address.len() <= ADDRESS_BYTES_MAX);
        Self { peer_id, addresses: addresses.take(ADDRESSES_MAX).collect() }
    }
}

/// Collects answers for one message while they fit.
#[derive(Debug, Default)]
pub struct FindResponseBuilder {
    found: FindResponse,
    n_bytes: usize,
}

impl FindResponseBuilder {
    /// Adds the records of the next key and the peers closest to it. Returns `false`, and adds nothing, if they
    /// do not fit: the message is then full.
    pub fn push(&mut self, records: Vec<Record>, closest: &[PeerAddresses]) -> bool {
        let n_bytes: usize = records.iter().map(Record::n_bytes).sum();
        let closest = &closest[..closest.len().min(CLOSEST_MAX)];
        let known = |peer: &&PeerAddresses| self.found.peers.contains(*peer);
        let n_new = closest.iter().filter(|peer| !known(peer)).count();
        let is_first = self.found.answers.is_empty();
        let fits = self.n_bytes + n_bytes <= RECORDS_BYTES_MAX && self.found.peers.len() + n_new <= PEERS_MAX;
        if !is_first && !fits {
            return false;
        }
        self.n_bytes += n_bytes;
        let peers = &mut self.found.peers;
        let position = |peer: &PeerAddresses| {
            let known = peers.iter().position(|known| known == peer);
            let at = known.unwrap_or_else(|| {
                peers.push(peer.clone());
                peers.len() - 1
            });
            // PEERS_MAX positions fit into a byte.
            u8::try_from(at).unwrap_or(u8::MAX)
        };
        let closest = closest.iter().map(position).collect();
        self.found.answers.push(FindResult { records, closest });
        true
    }

    /// The message.
    pub fn finish(self) -> FindResponse {
        self.found
    }
}
