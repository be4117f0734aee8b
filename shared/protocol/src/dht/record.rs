//! What the DHT keeps: records, the names they are kept under, and who may replace them.
//!
//! Who owns a name is part of the name and so of its key, and whether a name is a value or a dictionary
//! likewise: nobody can take an owned place with a record that says nothing of its owner, and no plain
//! value can wipe out a dictionary. Never reads a clock: what expired is decided against a time that is
//! given.
//!
//! ```text
//! key       = SHA-256("barnraise dht key 1\0" | kind, 1 byte | 1 and owner, or 33 zeros | label)
//! signed    =         "barnraise dht record 1\0" | postcard of name, subkey, value, expiration
//! point     = SHA-256(key)   or   SHA-256(peer id): what distances are measured between
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
/// What a record takes on the wire beside its value and the label of its subkey, at most.
pub const RECORD_OVERHEAD_BYTES: usize = 192;

/// Milliseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// So much later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// So much earlier.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// Where a name's records are kept: at the peers closest to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key(pub [u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Sha256Hash(self.0), f)
    }
}

/// A key or a peer id as distances see it: its SHA-256, as in libp2p's Kademlia.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point([u8; 32]);

/// How far two points lie apart, as a big-endian number: the XOR of both (Kademlia §2.1; Hydra, eq. 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Distance([u8; 32]);

impl Point {
    /// Of a key.
    pub fn of_key(key: &Key) -> Self {
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
pub enum Kind {
    /// One value.
    Value,
    /// A value for each subkey, each with its own expiration.
    Dictionary,
}

/// What a key is the hash of.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Name {
    /// One value or many.
    pub kind: Kind,
    /// Whose signature every record of this name carries, where it has an owner.
    pub owner: Option<PublicKey>,
    /// Hash of what people or programs call it.
    pub label: Sha256Hash,
}

impl Name {
    /// A name with one value that anybody may replace.
    pub fn value(label: &[u8]) -> Self {
        Self { kind: Kind::Value, owner: None, label: Sha256Hash::of(label) }
    }

    /// A name with many values. Whoever wants to own one of them owns its subkey.
    pub fn dictionary(label: &[u8]) -> Self {
        Self { kind: Kind::Dictionary, owner: None, label: Sha256Hash::of(label) }
    }

    /// Another name, which only `owner` writes to.
    #[must_use]
    pub fn owned_by(self, owner: PublicKey) -> Self {
        Self { owner: Some(owner), ..self }
    }

    /// Where its records are kept.
    pub fn key(&self) -> Key {
        let mut input = [0; KEY_DOMAIN.len() + 1 + 33 + 32];
        let (domain, rest) = input.split_at_mut(KEY_DOMAIN.len());
        domain.copy_from_slice(KEY_DOMAIN);
        rest[0] = match self.kind {
            Kind::Value => 0,
            Kind::Dictionary => 1,
        };
        if let Some(owner) = &self.owner {
            rest[1] = 1;
            rest[2..34].copy_from_slice(&owner.0);
        }
        rest[34..].copy_from_slice(&self.label.0);
        Key(Sha256Hash::of(&input).0)
    }
}

/// A place in a dictionary.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Subkey {
    /// Whose signature the record carries, where it has an owner.
    pub owner: Option<PublicKey>,
    /// At most [`SUBKEY_BYTES_MAX`] bytes.
    pub label: Vec<u8>,
}

impl Subkey {
    /// A place that anybody may write to.
    pub fn new(label: impl Into<Vec<u8>>) -> Self {
        Self { owner: None, label: label.into() }
    }

    /// The place of a peer, which only it writes to.
    pub fn of_owner(owner: PublicKey) -> Self {
        Self { owner: Some(owner), label: Vec::new() }
    }
}

/// A value, where it belongs and until when it is good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Where it belongs.
    pub name: Name,
    /// Where in a dictionary; none for a single value.
    pub subkey: Option<Subkey>,
    /// At most [`VALUE_BYTES_MAX`] bytes.
    pub value: Vec<u8>,
    /// Nobody keeps it from then on; of two records, the one with the later expiration counts.
    pub expires_at: UnixMillis,
    /// Of the owner of the name or the subkey; none where neither has one.
    pub signature: Option<Signature>,
}

/// Why a record is not kept, or a request not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// Longer than values, labels or dictionaries are.
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
    /// Not by its owner, or a signature where there is no owner.
    #[error("the record is not signed by its owner")]
    Signature,
    /// Its time is over.
    #[error("the record expired at {} (Unix time, ms), it is {} now", expired_at.0, now.0)]
    Expired {
        /// In the record.
        expired_at: UnixMillis,
        /// By the clock of whoever refuses.
        now: UnixMillis,
    },
    /// Further in the future than anything is kept: a wrong clock, or a lie.
    #[error("the record would expire at {} (Unix time, ms), at most {} is kept", expires_at.0, latest.0)]
    TooFar {
        /// In the record.
        expires_at: UnixMillis,
        /// What would be kept now.
        latest: UnixMillis,
    },
    /// A later one is held.
    #[error("a record that expires later, at {} (Unix time, ms), is held", held.0)]
    Older {
        /// When that expires.
        held: UnixMillis,
    },
    /// The owner or the sender has its share of the place already.
    #[error("{max} records of the same owner or sender are kept already")]
    Quota {
        /// The share.
        max: u64,
    },
    /// No place, and nothing that should give way.
    #[error("there is no place left")]
    Full,
    /// Too much is under way.
    #[error("too busy, try again later")]
    Busy,
    /// More in one message than may be.
    #[error("{got} keys or records in one message, at most {max} are answered")]
    TooMany {
        /// Came.
        got: u64,
        /// The limit.
        max: u64,
    },
    /// Nobody who would keep it answered.
    #[error("no peer that would keep the record answered")]
    Unreachable,
}

impl Refusal {
    /// Whether another peer may well accept what this one does not.
    pub fn is_of_this_peer(&self) -> bool {
        matches!(self, Self::Quota { .. } | Self::Full | Self::Busy | Self::Unreachable)
    }
}

impl Record {
    /// A record without an owner.
    pub fn new(name: Name, subkey: Option<Subkey>, value: Vec<u8>, expires_at: UnixMillis) -> Self {
        Self { name, subkey, value, expires_at, signature: None }
    }

    /// A record that only the holder of `key` can replace: `key` owns the name or the subkey.
    ///
    /// # Errors
    /// A name and a subkey that are not owned by `key`, or bytes beyond the limits.
    pub fn sign(
        key: &KeyPair,
        name: Name,
        subkey: Option<Subkey>,
        value: Vec<u8>,
        expires_at: UnixMillis,
    ) -> Result<Self, Refusal> {
        let mut record = Self::new(name, subkey, value, expires_at);
        record.check_shape()?;
        if record.owner() != Some(key.public()) {
            return Err(Refusal::Signature);
        }
        record.signature = Some(key.sign(&record.signed_bytes().ok_or(Refusal::Signature)?));
        Ok(record)
    }

    /// Who alone may replace it. Where name and subkey disagree the record passes no check.
    pub fn owner(&self) -> Option<PublicKey> {
        self.name.owner.or_else(|| self.subkey.as_ref().and_then(|subkey| subkey.owner))
    }

    /// Bytes that it takes, a little more than on the wire.
    pub fn n_bytes(&self) -> usize {
        self.value.len() + self.subkey.as_ref().map_or(0, |subkey| subkey.label.len()) + RECORD_OVERHEAD_BYTES
    }

    /// Whether this one counts where `other` is kept at the same place: the later expiration, and between
    /// equal ones the greater value, so that peers agree in whichever order both came.
    pub fn supersedes(&self, other: &Self) -> bool {
        (self.expires_at, &self.value) > (other.expires_at, &other.value)
    }

    /// Everything that can be checked of a record at `now`, the signature last: it costs the most.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, now: UnixMillis, lifetime_max: Duration) -> Result<(), Refusal> {
        self.check_shape()?;
        self.check_time(now, lifetime_max)?;
        self.check_signature()
    }

    /// Lengths, and that name and subkey go together.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check_shape(&self) -> Result<(), Refusal> {
        let too_long = |got: usize, max: usize| Err(Refusal::TooLong { got: got as u64, max: max as u64 });
        if self.value.len() > VALUE_BYTES_MAX {
            return too_long(self.value.len(), VALUE_BYTES_MAX);
        }
        match (self.name.kind, &self.subkey) {
            (Kind::Value, None) => Ok(()),
            (Kind::Dictionary, Some(subkey)) if subkey.label.len() > SUBKEY_BYTES_MAX => {
                too_long(subkey.label.len(), SUBKEY_BYTES_MAX)
            }
            (Kind::Dictionary, Some(subkey)) => match (self.name.owner, subkey.owner) {
                (Some(of_name), Some(of_subkey)) if of_name != of_subkey => Err(Refusal::TwoOwners),
                _ => Ok(()),
            },
            _ => Err(Refusal::Kind),
        }
    }

    /// Neither expired nor too far in the future.
    ///
    /// # Errors
    /// Which of both.
    pub fn check_time(&self, now: UnixMillis, lifetime_max: Duration) -> Result<(), Refusal> {
        let (expires_at, latest) = (self.expires_at, now.after(lifetime_max));
        match (expires_at > now, expires_at <= latest) {
            (false, _) => Err(Refusal::Expired { expired_at: expires_at, now }),
            (true, false) => Err(Refusal::TooFar { expires_at, latest }),
            (true, true) => Ok(()),
        }
    }

    /// Signed by its owner, or neither owned nor signed.
    ///
    /// # Errors
    /// [`Refusal::Signature`].
    pub fn check_signature(&self) -> Result<(), Refusal> {
        let is_good = match (self.owner(), &self.signature) {
            (None, None) => true,
            (Some(owner), Some(signature)) => {
                self.signed_bytes().is_some_and(|bytes| owner.has_signed(&bytes, signature))
            }
            _ => false,
        };
        if is_good { Ok(()) } else { Err(Refusal::Signature) }
    }

    fn signed_bytes(&self) -> Option<Vec<u8>> {
        let signed = (&self.name, &self.subkey, &self.value, self.expires_at);
        postcard::to_extend(&signed, RECORD_DOMAIN.to_vec()).ok()
    }
}
