//! Data that a backbone reads while its run trains, as in DeDLOC §3.3: shards with absolute numbers, of which a window is
//! there.
//!
//! The manifest says what the stream is ([`DataStream`]), and lists no shard. Which bytes a number has follows from the
//! sources, so it is the same on each backbone with the same ones. A contributor asks its backbone for the
//! [`StreamWindow`] and draws from that. A commitment names the hashes of its shards, since the run's description does
//! not ([`crate::commitment`]).
//!
//! A backbone keeps shards for a while after they left the window ([`DataStream::grace_shards`]), so that contributions on
//! their way count, and can be recomputed. How far the window moves in a step is bounded by it
//! ([`DataStream::step_shards_max`]).

use serde::{Deserialize, Serialize};

use crate::dataset::{DataStream, SHARD_BYTES_MAX, ShardEntry, WINDOW_SHARDS_MAX};

/// Fewest shards that are kept after they left the window: a small window moves on in few steps.
pub const GRACE_SHARDS_MIN: u32 = 64;
/// Most shards that are kept, those of the window included.
pub const SHARDS_KEPT_MAX: u32 = WINDOW_SHARDS_MAX * 2;
/// Steps in which the grace is over.
const GRACE_STEPS: u32 = 4;
/// Steps for which samples are drawn by the same window. Those that it drops are in the first half of the grace, and what is
/// drawn has half of it to be computed and delivered.
pub const WINDOW_STEPS_MAX: u64 = GRACE_STEPS as u64 / 2;
/// Most bytes of a window that comes.
pub const WINDOW_BYTES_MAX: u64 = 1024 * 1024;

const _: () = assert!(GRACE_SHARDS_MIN >= GRACE_STEPS && GRACE_SHARDS_MIN <= WINDOW_SHARDS_MAX);
// A shard takes 5 + 5 + 5 + 32 bytes at most.
const _: () = assert!(SHARDS_KEPT_MAX as u64 * 47 + 16 <= WINDOW_BYTES_MAX);

impl DataStream {
    /// Shards that are kept after they left the window.
    pub fn grace_shards(&self) -> u32 {
        self.window_shards.max(GRACE_SHARDS_MIN)
    }

    /// Shards that are kept in all.
    pub fn shards_kept(&self) -> u32 {
        self.window_shards.saturating_add(self.grace_shards())
    }

    /// Most shards by which the window moves in a step.
    pub fn step_shards_max(&self) -> u32 {
        self.grace_shards() / GRACE_STEPS
    }

    /// Fewest shards of a window that moves by `step_shards` in a step.
    pub fn window_shards_min(step_shards: u32) -> u32 {
        let grace = step_shards.saturating_mul(GRACE_STEPS);
        if grace <= GRACE_SHARDS_MIN { 1 } else { grace }
    }
}

/// A shard of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamedShard {
    /// Absolute number, from 0.
    pub number: u32,
    /// Length and hash.
    pub entry: ShardEntry,
}

/// Shards of a stream that a backbone keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamWindow {
    /// Those from this number on are drawn from.
    pub first_drawn: u32,
    /// By their numbers, which rise.
    pub shards: Vec<StreamedShard>,
}

/// Why a window is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// It does not decode.
    #[error("the window of the stream cannot be read: {0}")]
    Decode(#[from] postcard::Error),
    /// A bound is violated.
    #[error("the window of the stream is not usable: {0}")]
    Invalid(&'static str),
}

impl StreamWindow {
    /// Its encoding.
    ///
    /// # Errors
    /// Does not happen.
    pub fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_allocvec(self)
    }

    /// Decodes and checks a window of `stream`.
    ///
    /// # Errors
    /// Other bytes, or a violated bound.
    pub fn decode(bytes: &[u8], stream: &DataStream) -> Result<Self, WindowError> {
        let window: Self = postcard::from_bytes(bytes)?;
        let fail = |why| Err(WindowError::Invalid(why));
        if window.shards.len() > stream.shards_kept() as usize {
            return fail("it lists more shards than are kept");
        }
        if !window.shards.is_sorted_by(|a, b| a.number < b.number) {
            return fail("its numbers do not rise");
        }
        if window.drawn().next().is_none() {
            return fail("there is nothing to draw from");
        }
        let is_wrong = |shard: &StreamedShard| {
            let ShardEntry { n_samples, n_bytes, .. } = shard.entry;
            n_samples != stream.shard_samples || n_bytes == 0 || n_bytes > SHARD_BYTES_MAX
        };
        match window.shards.iter().any(is_wrong) {
            true => fail("a shard has another number of samples, or more than 16 MiB"),
            false => Ok(window),
        }
    }

    /// Number of the oldest shard that is kept.
    pub fn oldest(&self) -> u32 {
        self.shards.first().map_or(self.first_drawn, |shard| shard.number)
    }

    /// The number after the newest shard.
    pub fn end(&self) -> u32 {
        self.shards.last().map_or(self.first_drawn, |shard| shard.number.saturating_add(1))
    }

    /// Numbers of the shards that are drawn from.
    pub fn drawn(&self) -> impl Iterator<Item = u32> {
        self.shards.iter().map(|shard| shard.number).filter(|&number| number >= self.first_drawn)
    }

    /// The first number under which `other` keeps another shard than this one.
    pub fn first_difference(&self, other: &Self) -> Option<u32> {
        let differs = |shard: &&StreamedShard| {
            other.entry(shard.number).is_some_and(|entry| entry.sha256 != shard.entry.sha256)
        };
        self.shards.iter().find(differs).map(|shard| shard.number)
    }

    /// The entry of a shard, if it is kept.
    pub fn entry(&self, number: u32) -> Option<&ShardEntry> {
        let place = self.shards.binary_search_by_key(&number, |shard| shard.number).ok()?;
        self.shards.get(place).map(|shard| &shard.entry)
    }
}
