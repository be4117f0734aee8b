//! DHT records of experts' checkpoints: who keeps the newest state of an expert (Learning@home §3.3).
//!
//! A record is an entry of the expert's dictionary, owned and signed by the host that made the checkpoint. It carries the lease
//! of that host, signed by a majority of the run's backbones, so that nobody else can publish one that readers believe
//! ([`CheckpointRecord::verify`]). It lives for a day: the host may be gone since.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::RecordKey;
use super::record::{DhtRefusal, Record, RecordName, Subkey, UnixMillis, VALUE_BYTES_MAX};
use crate::access::{KeyPair, PublicKey};
use crate::experts::ExpertPlace;
use crate::experts::checkpoints::ExpertCheckpoint;
use crate::experts::leases::{GRANTORS_MAX, Grantors, HOST_ADDRESS_BYTES_MAX, HOST_ADDRESSES_MAX, KnownHost};
use crate::framing;

/// A record expires so long after the checkpoint was made.
pub const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Most keepers in a record.
pub const RECORD_KEEPERS_MAX: usize = 3;

const _: () = assert!(
    RECORD_KEEPERS_MAX * (34 + HOST_ADDRESSES_MAX * (HOST_ADDRESS_BYTES_MAX + 2))
        + GRANTORS_MAX * (32 + 10 + 64)
        + 320
        <= VALUE_BYTES_MAX
);

/// A checkpoint of an expert, and who keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRecord {
    /// What is kept.
    pub checkpoint: ExpertCheckpoint,
    /// Peers that have said that they keep it; at most [`RECORD_KEEPERS_MAX`].
    pub keepers: Vec<KnownHost>,
}

/// DHT key of the checkpoints of an expert.
pub fn key(run_id: &str, place: ExpertPlace) -> RecordKey {
    name(run_id, place).key()
}

fn name(run_id: &str, (layer, uid): ExpertPlace) -> RecordName {
    let indices: Vec<u8> = uid.indices().iter().flat_map(|index| index.to_le_bytes()).collect();
    let place = [&layer.0.to_le_bytes()[..], &indices].concat();
    RecordName::dictionary(&[b"barnraise expert checkpoints of ", run_id.as_bytes(), b"\0", &place].concat())
}

impl CheckpointRecord {
    /// The record of the host with this key, the holder of the checkpoint's lease.
    ///
    /// # Errors
    /// A key that is not the holder's, or too many keepers.
    pub fn sign(&self, key: &KeyPair, run_id: &str, expires_at: UnixMillis) -> Result<Record, DhtRefusal> {
        let value = postcard::to_extend(self, Vec::new()).map_err(|_| DhtRefusal::Kind)?;
        let lease = &self.checkpoint.lease;
        let owner = Some(Subkey::of_owner(lease.holder));
        Record::sign(key, name(run_id, lease.place), owner, value, expires_at)
    }

    /// Reads a record of [`key()`] whose signature was checked; `None` where it is malformed, or of another holder than its
    /// lease.
    pub fn read(record: &Record) -> Option<Self> {
        let owner: PublicKey = record.subkey.as_ref()?.owner?;
        let read: Self = framing::decode_payload(&record.value).ok()?;
        let is_bounded = read.keepers.len() <= RECORD_KEEPERS_MAX
            && read.keepers.iter().all(|keeper| {
                keeper.addresses.len() <= HOST_ADDRESSES_MAX
                    && keeper.addresses.iter().all(|address| address.len() <= HOST_ADDRESS_BYTES_MAX)
            });
        (is_bounded && read.checkpoint.lease.holder == owner).then_some(read)
    }

    /// Whether it is of this expert, and of a host that the run's backbones have made its host.
    #[must_use]
    pub fn verify(&self, run_id: &str, place: ExpertPlace, grantors: &Grantors) -> bool {
        self.checkpoint.lease.place == place && self.checkpoint.is_valid(run_id, grantors)
    }
}
