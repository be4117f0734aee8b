//! DHT records of the backbones' progress: a dictionary under the run's id, with an entry for each backbone (DeDLOC
//! §3.1: peers report their progress to the DHT, and read the progress of other peers from it).
//!
//! Any peer may write an entry of its own. A reader trusts the run's authority, and the backbones that the authority
//! lists.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::RecordKey;
use super::record::{DhtRefusal, Record, RecordName, Subkey, UnixMillis, VALUE_BYTES_MAX};
use crate::access::{KeyPair, PublicKey};
use crate::framing;
use crate::hash::Sha256Hash;

/// Time until a record expires.
pub const LIFETIME: Duration = Duration::from_secs(45);
/// Most aggregators that a backbone lists.
pub const AGGREGATORS_MAX: usize = 64;
/// Most bytes of a record beside the list of aggregators.
const STANDING_BYTES_MAX: usize = 128;

const _: () = assert!(AGGREGATORS_MAX * 33 + STANDING_BYTES_MAX <= VALUE_BYTES_MAX);

/// Progress of one backbone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LocalProgress {
    /// Optimizer steps of its model.
    pub epoch: u64,
    /// Samples behind these steps.
    pub n_samples_total: u64,
    /// Hash of parameters and optimizer state; `None` for a backbone that averages with no other.
    pub model: Option<Sha256Hash>,
    /// Samples that its contributors accumulated for the next step.
    pub n_samples: u64,
    /// Its contributors.
    pub n_contributors: u32,
    /// Speed of all of them together; finite, 0 or more.
    pub samples_per_second: f32,
}

/// Progress of a backbone, as announced by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct BackboneProgress {
    /// The backbone.
    pub peer: PublicKey,
    /// Its progress.
    pub progress: LocalProgress,
    /// Bytes per second that it can receive, or send if that is less: its capacity for contributors.
    pub bytes_per_second: u64,
    /// Aggregators that it averages with, and so vouches for.
    pub aggregators: Vec<PublicKey>,
    /// Time of the announcement, by its own clock.
    pub reported_at: UnixMillis,
}

#[derive(Serialize, Deserialize)]
struct ProgressValue {
    progress: LocalProgress,
    bytes_per_second: u64,
    aggregators: Vec<PublicKey>,
}

/// DHT key of the progress records of a run.
pub fn key(run_id: &str) -> RecordKey {
    name(run_id).key()
}

fn name(run_id: &str) -> RecordName {
    RecordName::dictionary(&[b"barnraise progress of ", run_id.as_bytes()].concat())
}

impl BackboneProgress {
    /// Creates the record of the backbone with this key. It expires [`LIFETIME`] after [`Self::reported_at`]. Aggregators
    /// beyond [`AGGREGATORS_MAX`] are left out.
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(&self, key: &KeyPair, run_id: &str) -> Result<Record, DhtRefusal> {
        let value = ProgressValue {
            progress: self.progress,
            bytes_per_second: self.bytes_per_second,
            aggregators: self.aggregators.iter().take(AGGREGATORS_MAX).copied().collect(),
        };
        let value = postcard::to_extend(&value, Vec::new()).map_err(|_| DhtRefusal::Kind)?;
        let expires_at = self.reported_at.after(LIFETIME);
        Record::sign(key, name(run_id), Some(Subkey::of_owner(key.public())), value, expires_at)
    }

    /// Reads a record of [`key()`] whose signature was checked; `None` where it is malformed.
    pub fn read(record: &Record) -> Option<Self> {
        let peer = record.subkey.as_ref()?.owner?;
        let ProgressValue { progress, bytes_per_second, aggregators } =
            framing::decode_payload(&record.value).ok()?;
        let speed = progress.samples_per_second;
        let is_bounded = aggregators.len() <= AGGREGATORS_MAX && speed.is_finite() && speed >= 0.0;
        let reported_at = record.expires_at.before(LIFETIME);
        is_bounded.then_some(Self { peer, progress, bytes_per_second, aggregators, reported_at })
    }
}
