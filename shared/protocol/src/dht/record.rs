//! Records of the DHT, their names, and the owners that alone may replace them.
//!
//! The owner of a name is part of the name and so of its key; so is whether it is a value or a dictionary.
//! A record without an owner thus cannot replace an owned one, and a plain value cannot replace a
//! dictionary. Never reads a clock: the time is an argument.
//!
//! ```text
//! key       = SHA-256("barnraise dht key 1\0" | kind, 1 byte | 1 and owner, or 33 zeros | label)
//! signed    =         "barnraise dht record 1\0" | postcard of name, subkey, value, expiration
//! point     = SHA-256(key)   or   SHA-256(peer id): distances are measured between points
//! ```

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Sha256Hash;
use crate::access::{KeyPair, PublicKey, Signature};

const KEY_DOMAIN: &[u8] = b"barnraise dht key 1\0";
const RECORD_DOMAIN: &[u8] = b"barnraise dht record 1\0";

/// Longest value of a record.
pub const VALUE_BYTES_MAX: usize = 4096;
/// Longest label of a subkey.
pub const SUBKEY_BYTES_MAX: usize = 64;
/// Most bytes of a record on the wire beside its value and the label of its subkey.
pub const RECORD_OVERHEAD_BYTES: usize = 192;

/// Milliseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// `duration` later, saturating.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// `duration` earlier, saturating.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// Key of a name: its records are stored at the peers closest to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecordKey(pub [u8; 32]);

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Sha256Hash(self.0), f)
    }
}

/// A key or a peer id in the metric space: its SHA-256, as in libp2p's Kademlia.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point([u8; 32]);

/// Distance of two points: their XOR, as a big-endian number (Kademlia §2.1; Hydra, eq. 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Distance([u8; 32]);

impl Point {
    /// Of a key.
    pub fn of_key(key: &RecordKey) -> Self {
        Self(Sha256Hash::of(&key.0).0)
    }

    /// Of the bytes of a peer id.
    pub fn of_peer(peer_id: &[u8]) -> Self {
        Self(Sha256Hash::of(peer_id).0)
    }

    /// To another point.
    #[must_use]
    pub fn distance(&self, other: &Self) -> Distance {
        let mut distance = self.0;
        distance.iter_mut().zip(&other.0).for_each(|(a, b)| *a ^= b);
        Distance(distance)
    }
}

impl Distance {
    /// Leading zero bits: the number of the k-bucket, counted from the farthest.
    #[must_use]
    pub fn leading_zeros(&self) -> u32 {
        let mut zeros = 0;
        for byte in self.0 {
            zeros += byte.leading_zeros();
            if byte != 0 {
                break;
            }
        }
        zeros
    }
}

/// Whether a name has one value or many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RecordKind {
    /// One value.
    Value,
    /// A value for each subkey, each with its own expiration.
    Dictionary,
}

/// Name of a value or dictionary; its hash is the key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecordName {
    /// One value or many.
    pub kind: RecordKind,
    /// The owner, if any: it signs every record of this name.
    pub owner: Option<PublicKey>,
    /// Hash of the label.
    pub label: Sha256Hash,
}

impl RecordName {
    /// A name with one value that any peer may replace.
    pub fn value(label: &[u8]) -> Self {
        Self { kind: RecordKind::Value, owner: None, label: Sha256Hash::of(label) }
    }

    /// A name with many values. A peer owns one of them by owning its subkey.
    pub fn dictionary(label: &[u8]) -> Self {
        Self { kind: RecordKind::Dictionary, owner: None, label: Sha256Hash::of(label) }
    }

    /// The same name, to which only `owner` may write.
    #[must_use]
    pub fn owned_by(self, owner: PublicKey) -> Self {
        Self { owner: Some(owner), ..self }
    }

    /// The key of its records.
    pub fn key(&self) -> RecordKey {
        let mut input = [0; KEY_DOMAIN.len() + 1 + 33 + 32];
        let (domain, rest) = input.split_at_mut(KEY_DOMAIN.len());
        domain.copy_from_slice(KEY_DOMAIN);
        rest[0] = match self.kind {
            RecordKind::Value => 0,
            RecordKind::Dictionary => 1,
        };
        if let Some(owner) = &self.owner {
            rest[1] = 1;
            rest[2..34].copy_from_slice(&owner.0);
        }
        rest[34..].copy_from_slice(&self.label.0);
        RecordKey(Sha256Hash::of(&input).0)
    }
}

/// Key of an entry in a dictionary.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Subkey {
    /// The owner, if any: it signs the record.
    pub owner: Option<PublicKey>,
    /// At most [`SUBKEY_BYTES_MAX`] bytes.
    pub label: Vec<u8>,
}

impl Subkey {
    /// An entry that any peer may write.
    pub fn new(label: impl Into<Vec<u8>>) -> Self {
        Self { owner: None, label: label.into() }
    }

    /// The entry of a peer, which only it may write.
    pub fn of_owner(owner: PublicKey) -> Self {
        Self { owner: Some(owner), label: Vec::new() }
    }
}

/// A value with its name and expiration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub name: RecordName,
    /// Its entry in a dictionary; `None` for a single value.
    pub subkey: Option<Subkey>,
    /// At most [`VALUE_BYTES_MAX`] bytes.
    pub value: Vec<u8>,
    /// Peers delete it then. Of two records, the one with the later expiration counts.
    pub expires_at: UnixMillis,
    /// Signature of the owner of name or subkey; `None` where neither has an owner.
    pub signature: Option<Signature>,
}

/// Why a record is not stored, or a request not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum DhtRefusal {
    /// A value, label or dictionary over its limit.
    #[error("{got} bytes, at most {max} are kept there")]
    TooLong {
        /// Bytes of the value, label or dictionary.
        got: u64,
        /// The limit.
        max: u64,
    },
    /// A subkey where there is no dictionary, or none where there is one.
    #[error("a dictionary's records have a subkey, a single value has none")]
    Kind,
    /// The name has one owner and the subkey another.
    #[error("name and subkey have different owners")]
    TwoOwners,
    /// A signature that is not the owner's, or one without an owner.
    #[error("the record is not signed by its owner")]
    Signature,
    /// Expired.
    #[error("the record expired at {} (Unix time, ms), it is {} now", expired_at.0, now.0)]
    Expired {
        /// In the record.
        expired_at: UnixMillis,
        /// By the clock of the peer that refuses.
        now: UnixMillis,
    },
    /// An expiration too far in the future: a wrong clock or a dishonest peer.
    #[error("the record would expire at {} (Unix time, ms), at most {} is kept", expires_at.0, latest.0)]
    TooFar {
        /// In the record.
        expires_at: UnixMillis,
        /// The latest expiration that is accepted now.
        latest: UnixMillis,
    },
    /// A record that expires later is stored.
    #[error("a record that expires later, at {} (Unix time, ms), is held", held.0)]
    Older {
        /// Its expiration.
        held: UnixMillis,
    },
    /// The owner or the sender has used its quota.
    #[error("{max} records of the same owner or sender are kept already")]
    Quota {
        /// The quota.
        max: u64,
    },
    /// No space, and no record to replace.
    #[error("there is no place left")]
    Full,
    /// Too many requests in progress.
    #[error("too busy, try again later")]
    Busy,
    /// Too many keys or records in one message.
    #[error("{got} keys or records in one message, at most {max} are answered")]
    TooMany {
        /// Number that came.
        got: u64,
        /// The limit.
        max: u64,
    },
    /// None of the peers that would store it answered.
    #[error("no peer that would keep the record answered")]
    Unreachable,
}

impl DhtRefusal {
    /// Whether another peer might accept the record.
    pub fn is_of_this_peer(&self) -> bool {
        matches!(self, Self::Quota { .. } | Self::Full | Self::Busy | Self::Unreachable)
    }
}

impl Record {
    /// A record without an owner.
    pub fn new(name: RecordName, subkey: Option<Subkey>, value: Vec<u8>, expires_at: UnixMillis) -> Self {
        Self { name, subkey, value, expires_at, signature: None }
    }

    /// A record that only the holder of `key` can replace: `key` owns the name or the subkey.
    ///
    /// # Errors
    /// A name and a subkey that are not owned by `key`, or bytes beyond the limits.
    pub fn sign(
        key: &KeyPair,
        name: RecordName,
        subkey: Option<Subkey>,
        value: Vec<u8>,
        expires_at: UnixMillis,
    ) -> Result<Self, DhtRefusal> {
        let mut record = Self::new(name, subkey, value, expires_at);
        record.check_shape()?;
        if record.owner() != Some(key.public()) {
            return Err(DhtRefusal::Signature);
        }
        record.signature = Some(key.sign(&record.signed_bytes().ok_or(DhtRefusal::Signature)?));
        Ok(record)
    }

    /// The peer that alone may replace it. A record whose name and subkey have different owners passes no check.
    pub fn owner(&self) -> Option<PublicKey> {
        self.name.owner.or_else(|| self.subkey.as_ref().and_then(|subkey| subkey.owner))
    }

    /// Upper bound of its bytes on the wire.
    pub fn n_bytes(&self) -> usize {
        self.value.len() + self.subkey.as_ref().map_or(0, |subkey| subkey.label.len()) + RECORD_OVERHEAD_BYTES
    }

    /// Whether it replaces `other`, a record of the same name and subkey: the later expiration wins, and on a tie
    /// the greater value, so that peers agree in any order of arrival.
    pub fn supersedes(&self, other: &Self) -> bool {
        (self.expires_at, &self.value) > (other.expires_at, &other.value)
    }

    /// Checks shape, time and signature at `now`; the signature last, because it costs the most.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, now: UnixMillis, lifetime_max: Duration) -> Result<(), DhtRefusal> {
        self.check_shape()?;
        self.check_time(now, lifetime_max)?;
        self.check_signature()
    }

    /// Checks lengths, and that name and subkey fit.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check_shape(&self) -> Result<(), DhtRefusal> {
        let too_long = |got: usize, max: usize| Err(DhtRefusal::TooLong { got: got as u64, max: max as u64 });
        if self.value.len() > VALUE_BYTES_MAX {
            return too_long(self.value.len(), VALUE_BYTES_MAX);
        }
        match (self.name.kind, &self.subkey) {
            (RecordKind::Value, None) => Ok(()),
            (RecordKind::Dictionary, Some(subkey)) if subkey.label.len() > SUBKEY_BYTES_MAX => {
                too_long(subkey.label.len(), SUBKEY_BYTES_MAX)
            }
            (RecordKind::Dictionary, Some(subkey)) => match (self.name.owner, subkey.owner) {
                (Some(of_name), Some(of_subkey)) if of_name != of_subkey => Err(DhtRefusal::TwoOwners),
                _ => Ok(()),
            },
            _ => Err(DhtRefusal::Kind),
        }
    }

    /// Checks that it is neither expired nor expires too late.
    ///
    /// # Errors
    /// [`DhtRefusal::Expired`] or [`DhtRefusal::TooFar`].
    pub fn check_time(&self, now: UnixMillis, lifetime_max: Duration) -> Result<(), DhtRefusal> {
        let (expires_at, latest) = (self.expires_at, now.after(lifetime_max));
        match (expires_at > now, expires_at <= latest) {
            (false, _) => Err(DhtRefusal::Expired { expired_at: expires_at, now }),
            (true, false) => Err(DhtRefusal::TooFar { expires_at, latest }),
            (true, true) => Ok(()),
        }
    }

    /// Checks that it is signed by its owner, or neither owned nor signed.
    ///
    /// # Errors
    /// [`DhtRefusal::Signature`].
    pub fn check_signature(&self) -> Result<(), DhtRefusal> {
        let is_good = match (self.owner(), &self.signature) {
            (None, None) => true,
            (Some(owner), Some(signature)) => {
                self.signed_bytes().is_some_and(|bytes| owner.has_signed(&bytes, signature))
            }
            _ => false,
        };
        if is_good { Ok(()) } else { Err(DhtRefusal::Signature) }
    }

    fn signed_bytes(&self) -> Option<Vec<u8>> {
        let signed = (&self.name, &self.subkey, &self.value, self.expires_at);
        postcard::to_extend(&signed, RECORD_DOMAIN.to_vec()).ok()
    }
}
