//! DHT records of the backbones of a run: a dictionary under the run's id, with an entry for each backbone.
//!
//! Any peer may write an entry of its own, so a record does not prove that its peer is a backbone. Its answers
//! do (`crate::run`).

use serde::{Deserialize, Serialize};

use super::record::{DhtRefusal, Record, RecordName, Subkey, UnixMillis, VALUE_BYTES_MAX};
use super::{ADDRESS_BYTES_MAX, RecordKey};
use crate::access::{KeyPair, PublicKey};
use crate::framing;

/// Most addresses of a backbone.
pub const BACKBONE_ADDRESSES_MAX: usize = 16;

const _: () = assert!(BACKBONE_ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 2) + 16 <= VALUE_BYTES_MAX);

/// A backbone's announcement of its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackboneAnnouncement {
    /// The backbone.
    pub peer: PublicKey,
    /// Addresses where it listens: multiaddresses in their binary form.
    pub addresses: Vec<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct BackboneValue {
    addresses: Vec<Vec<u8>>,
}

/// DHT key of the announcements of a run.
pub fn key(run_id: &str) -> RecordKey {
    name(run_id).key()
}

fn name(run_id: &str) -> RecordName {
    RecordName::dictionary(&[b"barnraise backbones of ", run_id.as_bytes()].concat())
}

impl BackboneAnnouncement {
    /// Creates the record of the backbone with this key. Addresses that are too long or too many are left out.
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(
        key: &KeyPair,
        run_id: &str,
        addresses: impl IntoIterator<Item = Vec<u8>>,
        expires_at: UnixMillis,
    ) -> Result<Record, DhtRefusal> {
        let addresses = addresses.into_iter().filter(|address| address.len() <= ADDRESS_BYTES_MAX);
        let value = BackboneValue { addresses: addresses.take(BACKBONE_ADDRESSES_MAX).collect() };
        let value = postcard::to_extend(&value, Vec::new()).map_err(|_| DhtRefusal::Kind)?;
        Record::sign(key, name(run_id), Some(Subkey::of_owner(key.public())), value, expires_at)
    }

    /// Reads a record of [`key()`] whose signature was checked; `None` where it is malformed.
    pub fn read(record: &Record) -> Option<Self> {
        let peer = record.subkey.as_ref()?.owner?;
        let BackboneValue { addresses } = framing::decode_payload(&record.value).ok()?;
        let is_bounded = addresses.len() <= BACKBONE_ADDRESSES_MAX
            && addresses.iter().all(|address| address.len() <= ADDRESS_BYTES_MAX);
        is_bounded.then_some(Self { peer, addresses })
    }
}
