//! Who keeps which shards of a run's data: a dictionary under the run and the data, a place in it for each peer
//! (DeDLOC appendix H).
//!
//! That a peer says so does not make it so: what it sends is compared with the manifest's hashes
//! (`crate::shard`), and whether it answers at all is seen when it is asked.

use serde::{Deserialize, Serialize};

use super::record::{Name, Record, Refusal, Subkey, UnixMillis, VALUE_BYTES_MAX};
use super::{ADDRESS_BYTES_MAX, Key};
use crate::Sha256Hash;
use crate::access::{KeyPair, PublicKey};
use crate::dataset::{Manifest, SHARDS_MAX};
use crate::framing;

/// Most addresses of a peer that keeps shards.
pub const HOLDER_ADDRESSES_MAX: usize = 8;
/// A bit for each shard that there may be.
const SET_BYTES_MAX: usize = SHARDS_MAX.div_ceil(8);

const _: () = assert!(SET_BYTES_MAX + HOLDER_ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 2) + 16 <= VALUE_BYTES_MAX);

/// Some of the training shards of a manifest, a bit for each; never more than [`SHARDS_MAX`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardSet {
    /// The least significant bit first; the last byte is not zero.
    bits: Vec<u8>,
}

/// A peer that says which shards it passes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Who it is.
    pub peer: PublicKey,
    /// What it keeps.
    pub shards: ShardSet,
    /// Where it listens: multiaddresses in their binary form.
    pub addresses: Vec<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct Value {
    shards: Vec<u8>,
    addresses: Vec<Vec<u8>>,
}

impl ShardSet {
    /// Adds a shard; returns whether it is new. One beyond [`SHARDS_MAX`] is not added.
    pub fn insert(&mut self, shard: u32) -> bool {
        let (byte, bit) = place(shard);
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

    /// Takes a shard out; returns whether it was in.
    pub fn remove(&mut self, shard: u32) -> bool {
        let was_in = self.contains(shard);
        let (byte, bit) = place(shard);
        if let Some(bits) = self.bits.get_mut(byte) {
            *bits &= !bit;
        }
        self.trim();
        was_in
    }

    /// Whether a shard is in.
    pub fn contains(&self, shard: u32) -> bool {
        let (byte, bit) = place(shard);
        self.bits.get(byte).is_some_and(|bits| bits & bit != 0)
    }

    /// How many are in.
    pub fn len(&self) -> usize {
        self.bits.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// Whether none is in.
    pub fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }

    /// Those that are in, in order.
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

fn place(shard: u32) -> (usize, u8) {
    (shard as usize / 8, 1 << (shard % 8))
}

/// Where to ask who keeps shards of this data in a run.
pub fn key(run_id: &str, manifest: &Manifest) -> Key {
    name(run_id, manifest).key()
}

fn name(run_id: &str, manifest: &Manifest) -> Name {
    // What the shards are, whatever the data is called.
    let hashes: Vec<u8> = manifest.shards.iter().flat_map(|entry| entry.sha256.0).collect();
    let data = Sha256Hash::of(&hashes);
    Name::dictionary(&[b"barnraise shards of ", run_id.as_bytes(), b"\0", &data.0].concat())
}

impl Holder {
    /// What the peer with this key has kept. Addresses that are too long or too many are left out.
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(
        key: &KeyPair,
        (run_id, manifest): (&str, &Manifest),
        shards: &ShardSet,
        addresses: impl IntoIterator<Item = Vec<u8>>,
        expires_at: UnixMillis,
    ) -> Result<Record, Refusal> {
        let addresses = addresses.into_iter().filter(|address| address.len() <= ADDRESS_BYTES_MAX);
        let addresses = addresses.take(HOLDER_ADDRESSES_MAX).collect();
        let value = Value { shards: shards.bits.clone(), addresses };
        let value = postcard::to_extend(&value, Vec::new()).map_err(|_| Refusal::Kind)?;
        let place = Some(Subkey::of_owner(key.public()));
        Record::sign(key, name(run_id, manifest), place, value, expires_at)
    }

    /// What a record of [`key`] says, whose signature was checked; `None` where it says something else. Shards
    /// that the manifest does not have may be among them.
    pub fn read(record: &Record) -> Option<Self> {
        let peer = record.subkey.as_ref()?.owner?;
        let Value { shards, addresses } = framing::decode_payload(&record.value).ok()?;
        let is_bounded = addresses.len() <= HOLDER_ADDRESSES_MAX
            && addresses.iter().all(|address| address.len() <= ADDRESS_BYTES_MAX);
        let shards = ShardSet::of_bytes(shards)?;
        is_bounded.then_some(Self { peer, shards, addresses })
    }
}
