//! How a run stands, as each of its backbones says for itself: a dictionary under the run's id, a place in it for each
//! (DeDLOC §3.1: peers report their progress to the DHT, and read from it what the others have).
//!
//! Anybody may take a place of their own in it. Whose word counts is decided by who reads it: the run's authority, and
//! those that the authority names.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Key;
use super::record::{Name, Record, Refusal, Subkey, UnixMillis, VALUE_BYTES_MAX};
use crate::access::{KeyPair, PublicKey};
use crate::framing;
use crate::hash::Sha256Hash;

/// For how long it is believed.
pub const LIFETIME: Duration = Duration::from_secs(45);
/// Most others that a backbone names.
pub const AGGREGATORS_MAX: usize = 64;
/// All but the others.
const STANDING_BYTES_MAX: usize = 128;

const _: () = assert!(AGGREGATORS_MAX * 33 + STANDING_BYTES_MAX <= VALUE_BYTES_MAX);

/// How far a backbone is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Optimizer steps behind its model.
    pub epoch: u64,
    /// Samples behind them.
    pub n_samples_total: u64,
    /// Hash of parameters and optimizer state, where it is known: backbones that average with nobody need none.
    pub model: Option<Sha256Hash>,
    /// Samples that its contributors have for the coming step.
    pub n_samples: u64,
    /// Its contributors.
    pub n_contributors: u32,
    /// All of them together; finite, 0 or more.
    pub samples_per_second: f32,
}

/// What a backbone says of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct BackboneProgress {
    /// Who says it.
    pub peer: PublicKey,
    /// How far it is.
    pub progress: Progress,
    /// Bytes per second that it can receive, or send if that is less: how many contributors it is good for.
    pub bytes_per_second: u64,
    /// Those that it averages with, and so vouches for.
    pub aggregators: Vec<PublicKey>,
    /// When it said so, by its own clock.
    pub said_at: UnixMillis,
}

#[derive(Serialize, Deserialize)]
struct Value {
    progress: Progress,
    bytes_per_second: u64,
    aggregators: Vec<PublicKey>,
}

/// Where to ask how a run stands.
pub fn key(run_id: &str) -> Key {
    name(run_id).key()
}

fn name(run_id: &str) -> Name {
    Name::dictionary(&[b"barnraise progress of ", run_id.as_bytes()].concat())
}

impl BackboneProgress {
    /// What the backbone with this key has kept until [`LIFETIME`] after [`Self::said_at`]. Others beyond
    /// [`AGGREGATORS_MAX`] are left out.
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(&self, key: &KeyPair, run_id: &str) -> Result<Record, Refusal> {
        let value = Value {
            progress: self.progress,
            bytes_per_second: self.bytes_per_second,
            aggregators: self.aggregators.iter().take(AGGREGATORS_MAX).copied().collect(),
        };
        let value = postcard::to_extend(&value, Vec::new()).map_err(|_| Refusal::Kind)?;
        let expires_at = self.said_at.after(LIFETIME);
        Record::sign(key, name(run_id), Some(Subkey::of_owner(key.public())), value, expires_at)
    }

    /// What a record of [`key`] says, whose signature was checked; `None` where it says something else.
    pub fn read(record: &Record) -> Option<Self> {
        let peer = record.subkey.as_ref()?.owner?;
        let Value { progress, bytes_per_second, aggregators } =
            framing::decode_payload(&record.value).ok()?;
        let speed = progress.samples_per_second;
        let is_bounded = aggregators.len() <= AGGREGATORS_MAX && speed.is_finite() && speed >= 0.0;
        let said_at = record.expires_at.before(LIFETIME);
        is_bounded.then_some(Self { peer, progress, bytes_per_second, aggregators, said_at })
    }
}
