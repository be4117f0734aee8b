//! The `dht` conversation: peers keep records for each other and find them again.
//!
//! The semantics are hivemind's (Learning@home §2.4 and §3.2): a key holds a value or a dictionary of
//! subkeys, each entry with its own expiration, the latest expiration counts, and a message carries many
//! keys. What is different is said in [`record`]. Peers that keep nothing themselves, such as browsers, ask
//! one that they are connected to for the whole search ([`get`], [`put`]) and check signatures
//! themselves. Any number of questions on a stream, one after the other.

pub mod backbone;
pub mod progress;
pub mod record;
pub mod shards;

use std::time::Duration;

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

pub use self::record::{Distance, Key, Kind, Name, Point, Record, Refusal, Subkey, UnixMillis};
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
/// Most peers named for one key.
pub const CLOSEST_MAX: usize = 20;
/// Most peers named in one answer.
pub const PEERS_MAX: usize = 128;
/// Longest peer id.
pub const PEER_ID_BYTES_MAX: usize = 64;
/// Most addresses of a peer.
pub const ADDRESSES_MAX: usize = 4;
/// Longest address, in the binary form of multiaddresses.
pub const ADDRESS_BYTES_MAX: usize = 160;

// One key is always answered in full, and whatever a message may hold fits into it.
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
    /// What do you hold of these keys, and who is closest to them? At most [`KEYS_MAX`].
    Find(Vec<Key>),
    /// Keep these. At most [`RECORDS_MAX`] and [`RECORDS_BYTES_MAX`].
    Store {
        /// In any order.
        records: Vec<Record>,
        /// How they are kept.
        purpose: Purpose,
    },
    /// Search for these keys on my behalf. At most [`KEYS_MAX`].
    Get {
        /// Which.
        keys: Vec<Key>,
        /// How far to search.
        freshness: Freshness,
    },
    /// Have these kept by whom they belong to. At most [`RECORDS_MAX`] and [`RECORDS_BYTES_MAX`].
    Put(Vec<Record>),
}

/// How a record is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// By one of the closest peers, until it expires.
    Replica,
    /// By one that is asked often, as long as there is place.
    Cache,
}

/// When a search is content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freshness {
    /// With the first that is found, a cached one included.
    Any,
    /// With what all of the closest peers hold.
    Newest,
}

/// Answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeToPeer {
    /// To [`PeerToNode::Find`].
    Found(Found),
    /// To [`PeerToNode::Store`] and [`PeerToNode::Put`]: for each record, in order.
    Stored(Vec<Result<(), Refusal>>),
    /// To [`PeerToNode::Get`]: the records of the keys in order; fewer than were asked for where one message
    /// does not hold them, but of one key at least.
    Got(Vec<Vec<Record>>),
    /// To none of it.
    Refused(Refusal),
}

/// What a peer holds and whom it knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// For the keys in order; fewer than were asked for where one message does not hold them, but of one key
    /// at least.
    pub answers: Vec<Answer>,
    /// Whom the answers name. At most [`PEERS_MAX`].
    pub peers: Vec<PeerAddresses>,
}

/// For one key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Whatever is held.
    pub records: Vec<Record>,
    /// The closest peers that are known, as positions in [`Found::peers`]. At most [`CLOSEST_MAX`].
    pub closest: Vec<u8>,
}

/// A peer, and where it can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PeerAddresses {
    /// Bytes of its id, at most [`PEER_ID_BYTES_MAX`].
    pub peer_id: Vec<u8>,
    /// At most [`ADDRESSES_MAX`] multiaddresses of at most [`ADDRESS_BYTES_MAX`] bytes.
    pub addresses: Vec<Vec<u8>>,
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum DhtError {
    /// A message failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The other side declined, with its reason.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// An answer to another question.
    #[error("the answer does not belong to the question")]
    Unexpected,
    /// More than may be, or fewer than were asked for.
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

/// A question of at most `bytes_max` bytes from `stream`; `None` where the other side closed it.
///
/// # Errors
/// What is no question of this conversation.
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

/// The answer to what was [`receive`]d.
///
/// # Errors
/// A stream that failed.
pub async fn reply<S: AsyncWrite + Unpin>(stream: &mut S, answer: &NodeToPeer) -> Result<(), DhtError> {
    Ok(framing::write(stream, answer, MESSAGE_BYTES_MAX).await?)
}

/// Asks `question`. Whether the answer belongs to it is told by [`NodeToPeer::found`] and
/// [`NodeToPeer::stored`].
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

/// Asks the other side to search for `keys`. Returns the records of as many of them as one message held, at
/// least of the first; what is expired, too far in the future or not signed by its owner is left out.
///
/// # Errors
/// A refusal, or an answer that is none.
pub async fn get<S>(
    stream: &mut S,
    keys: Vec<Key>,
    freshness: Freshness,
    now: UnixMillis,
    lifetime_max: Duration,
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
        records.retain(|record| record.check(now, lifetime_max).is_ok());
    }
    Ok(answers)
}

/// Asks the other side to have `records` kept by whom they belong to.
///
/// # Errors
/// A refusal of all, or an answer that is none.
pub async fn put<S>(stream: &mut S, records: Vec<Record>) -> Result<Vec<Result<(), Refusal>>, DhtError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let n_records = records.len();
    ask(stream, &PeerToNode::Put(records)).await?.stored(n_records)
}

fn check_count(what: &'static str, want: usize, got: usize) -> Result<(), DhtError> {
    if got <= want { Ok(()) } else { Err(DhtError::Count { what, want, got }) }
}

/// A prefix of what was asked for, and not an empty one.
fn check_answered(what: &'static str, want: usize, got: usize) -> Result<(), DhtError> {
    match got == 0 && want > 0 {
        true => Err(DhtError::Count { what, want, got }),
        false => check_count(what, want, got),
    }
}

fn check_records(key: &Key, records: &[Record]) -> Result<(), DhtError> {
    check_count("records of a key", SUBKEYS_MAX, records.len())?;
    // The records of a key have the same name nearly always, and hashing it once is enough.
    let mut last: Option<&Name> = None;
    for record in records {
        if last != Some(&record.name) && record.name.key() != *key {
            return Err(DhtError::Foreign);
        }
        last = Some(&record.name);
    }
    Ok(())
}

impl PeerToNode {
    /// Whether it asks for no more than may be.
    ///
    /// # Errors
    /// [`Refusal::TooMany`] or [`Refusal::TooLong`].
    pub fn check(&self) -> Result<(), Refusal> {
        let (got, max, records) = match self {
            Self::Find(keys) | Self::Get { keys, .. } => (keys.len(), KEYS_MAX, &[][..]),
            Self::Store { records, .. } | Self::Put(records) => (records.len(), RECORDS_MAX, &records[..]),
        };
        if got > max {
            return Err(Refusal::TooMany { got: got as u64, max: max as u64 });
        }
        let n_bytes: usize = records.iter().map(Record::n_bytes).sum();
        match n_bytes > RECORDS_BYTES_MAX {
            true => Err(Refusal::TooLong { got: n_bytes as u64, max: RECORDS_BYTES_MAX as u64 }),
            false => Ok(()),
        }
    }
}

impl NodeToPeer {
    /// The answer to [`PeerToNode::Find`]. Every count is checked, and that each record belongs to its key;
    /// time and signature of a record are not, because whoever merges answers need not look at each.
    ///
    /// # Errors
    /// An answer that is none.
    pub fn found(self, asked: &[Key]) -> Result<Found, DhtError> {
        match self {
            Self::Found(found) => found.check(asked).map(|()| found),
            _ => Err(DhtError::Unexpected),
        }
    }

    /// The answer to [`PeerToNode::Store`] or [`PeerToNode::Put`] of so many records.
    ///
    /// # Errors
    /// An answer that is none.
    pub fn stored(self, n_records: usize) -> Result<Vec<Result<(), Refusal>>, DhtError> {
        match self {
            Self::Stored(verdicts) if verdicts.len() == n_records => Ok(verdicts),
            Self::Stored(verdicts) => {
                Err(DhtError::Count { what: "verdicts", want: n_records, got: verdicts.len() })
            }
            _ => Err(DhtError::Unexpected),
        }
    }
}

impl Found {
    /// Checks every count, and that each record belongs to its key.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, asked: &[Key]) -> Result<(), DhtError> {
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

    /// The peers that the answer at `position` names, closest first.
    pub fn closest(&self, position: usize) -> impl Iterator<Item = &PeerAddresses> {
        let closest = self.answers.get(position).map_or(&[][..], |answer| &answer.closest[..]);
        closest.iter().filter_map(|&at| self.peers.get(usize::from(at)))
    }
}

impl PeerAddresses {
    /// A peer with as many of its addresses as may be told.
    pub fn new(peer_id: Vec<u8>, addresses: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let addresses = addresses.into_iter().filter(|address| address.len() <= ADDRESS_BYTES_MAX);
        Self { peer_id, addresses: addresses.take(ADDRESSES_MAX).collect() }
    }
}

/// Puts answers into one message for as long as they fit.
#[derive(Debug, Default)]
pub struct FoundBuilder {
    found: Found,
    n_bytes: usize,
}

impl FoundBuilder {
    /// Adds what is held of the next key and who is closest to it; returns `false`, and adds nothing, where
    /// it does not fit: then the message is sent as it is.
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
        self.found.answers.push(Answer { records, closest });
        true
    }

    /// The message.
    pub fn finish(self) -> Found {
        self.found
    }
}
