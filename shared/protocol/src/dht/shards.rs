//! DHT records of the peers that share shards of a run's data: a dictionary under the run and the data, with an entry
//! for each peer (DeDLOC appendix H).
//!
//! A record is only a claim: received shards are compared with the manifest's hashes (`crate::shard`), and a peer may
//! not answer at all.

use serde::{Deserialize, Serialize};

use super::record::{DhtRefusal, Record, RecordName, Subkey, UnixMillis, VALUE_BYTES_MAX};
use super::{ADDRESS_BYTES_MAX, RecordKey};
use crate::Sha256Hash;
use crate::access::{KeyPair, PublicKey};
use crate::dataset::{Manifest, SHARDS_MAX};
use crate::framing;

/// Most addresses of a peer that shares shards.
pub const HOLDER_ADDRESSES_MAX: usize = 8;
/// Most bytes of a set: a bit for each possible shard.
const SET_BYTES_MAX: usize = SHARDS_MAX.div_ceil(8);

const _: () = assert!(SET_BYTES_MAX + HOLDER_ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 2) + 16 <= VALUE_BYTES_MAX);

/// Some of the numbered shards of a manifest, a bit for each; never more than [`SHARDS_MAX`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardSet {
    /// The least significant bit first; the last byte is not zero.
    bits: Vec<u8>,
}

/// A peer that shares shards, as announced by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The peer.
    pub peer: PublicKey,
    /// Shards that it has.
    pub shards: ShardSet,
    /// Addresses where it listens: multiaddresses in their binary form.
    pub addresses: Vec<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct HolderValue {
    shards: Vec<u8>,
    addresses: Vec<Vec<u8>>,
}

impl ShardSet {
    /// Adds a shard; returns whether it is new. One beyond [`SHARDS_MAX`] is not added.
    pub fn insert(&mut self, shard: u32) -> bool {
        let (byte, bit) = bit_position(shard);
        if byte >= SET_BYTES_MAX || self.contains(shard) {
            return false;
        }
        if byte >= self.bits.len() {
            self.bits.resize(byte + 1, 0);
        }
        if let Some(bits) = self.bits.get_mut(byte) {
            *bits |= bit;
        }
        true
    }

    /// Removes a shard; returns whether the set had it.
    pub fn remove(&mut self, shard: u32) -> bool {
        let was_in = self.contains(shard);
        let (byte, bit) = bit_position(shard);
        if let Some(bits) = self.bits.get_mut(byte) {
            *bits &= !bit;
        }
        self.trim();
        was_in
    }

    /// Whether the set has a shard.
    pub fn contains(&self, shard: u32) -> bool {
        let (byte, bit) = bit_position(shard);
        self.bits.get(byte).is_some_and(|bits| bits & bit != 0)
    }

    /// Number of shards.
    pub fn len(&self) -> usize {
        self.bits.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// Whether it has no shard.
    pub fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }

    /// The shards, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0..self.bits.len() as u32 * 8).filter(|&shard| self.contains(shard))
    }

    fn of_bytes(bits: Vec<u8>) -> Option<Self> {
        let mut set = (bits.len() <= SET_BYTES_MAX).then_some(Self { bits })?;
        set.trim();
        Some(set)
    }

    fn trim(&mut self) {
        let end = self.bits.iter().rposition(|&bits| bits != 0).map_or(0, |last| last + 1);
        self.bits.truncate(end);
    }
}

impl FromIterator<u32> for ShardSet {
    fn from_iter<I: IntoIterator<Item = u32>>(shards: I) -> Self {
        let mut set = Self::default();
        for shard in shards {
            set.insert(shard);
        }
        set
    }
}

fn bit_position(shard: u32) -> (usize, u8) {
    (shard as usize / 8, 1 << (shard % 8))
}

/// DHT key of the records for this data in a run.
pub fn key(run_id: &str, manifest: &Manifest) -> RecordKey {
    name(run_id, manifest).key()
}

fn name(run_id: &str, manifest: &Manifest) -> RecordName {
    // Identifies the data by its content, not by its name.
    let entries = manifest.shards.iter().chain(&manifest.frozen);
    let hashes: Vec<u8> = entries.flat_map(|entry| entry.sha256.0).collect();
    let data = Sha256Hash::of(&hashes);
    RecordName::dictionary(&[b"barnraise shards of ", run_id.as_bytes(), b"\0", &data.0].concat())
}

impl Holder {
    /// Creates the record of the peer with this key. Addresses that are too long or too many are left out.
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(
        key: &KeyPair,
        (run_id, manifest): (&str, &Manifest),
        shards: &ShardSet,
        addresses: impl IntoIterator<Item = Vec<u8>>,
        expires_at: UnixMillis,
    ) -> Result<Record, DhtRefusal> {
        let addresses = addresses.into_iter().filter(|address| address.len() <= ADDRESS_BYTES_MAX);
        let addresses = addresses.take(HOLDER_ADDRESSES_MAX).collect();
        let value = HolderValue { shards: shards.bits.clone(), addresses };
        let value = postcard::to_extend(&value, Vec::new()).map_err(|_| DhtRefusal::Kind)?;
        let place = Some(Subkey::of_owner(key.public()));
        Record::sign(key, name(run_id, manifest), place, value, expires_at)
    }

    /// Reads a record of [`key()`] whose signature was checked; `None` where it is malformed. It may list shards that
    /// the manifest does not have.
    pub fn read(record: &Record) -> Option<Self> {
        let peer = record.subkey.as_ref()?.owner?;
        let HolderValue { shards, addresses } = framing::decode_payload(&record.value).ok()?;
        let is_bounded = addresses.len() <= HOLDER_ADDRESSES_MAX
            && addresses.iter().all(|address| address.len() <= ADDRESS_BYTES_MAX);
        let shards = ShardSet::of_bytes(shards)?;
        is_bounded.then_some(Self { peer, shards, addresses })
    }
}
