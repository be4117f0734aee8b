//! Why a backbone, or a contributor that passes shards on, declines: one enum for all conversations of a contributor.
//! Its `Display` is what the page and the native peer show. What a reader has to act on is a variant, never its text.

mod aggregators;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::aggregators::{
    HelloRefusal, ModelRefusal, OfferRefusal, REDUCER_ADDRESS_BYTES_MAX, REDUCER_ADDRESSES_MAX, ReducerError,
};
use crate::access::AccessRefusal;

/// Longest [`RefusalReason`], in bytes.
pub const REASON_BYTES_MAX: usize = 900;

/// Why a request, or a whole session, is declined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// No work is wanted for now. The session goes on, and tells when the run does.
    #[error("the run is paused: {reason}")]
    Paused {
        /// The operator's, or that of the disk.
        reason: RefusalReason,
    },
    /// The operator of this backbone has banned the peer.
    #[error("the operator of this backbone has blocked this peer: {reason}")]
    Blocked {
        /// The operator's.
        reason: RefusalReason,
    },
    /// The peer has no access: it was never admitted, its token ended, or it was convicted.
    #[error(transparent)]
    Access(#[from] AccessRefusal),
    /// A contribution was computed once more, with another result.
    #[error("this contribution is not the gradient of its samples")]
    Convicted,
    /// Another run than the one that was asked for.
    #[error("the run here is `{here}`, not `{asked}`")]
    OtherRun {
        /// Id of the run here.
        here: RefusalReason,
        /// Id that was asked for.
        asked: RefusalReason,
    },
    /// All seats are taken.
    #[error("this backbone has {n_contributors} contributors and takes no more")]
    Full {
        /// Contributors that have a seat.
        n_contributors: u32,
    },
    /// The peer's seat went to another, from an address with fewer of them.
    #[error("all seats of this backbone are taken, and many of them from your address: try again later")]
    Evicted,
    /// A message before the first one of a session.
    #[error("join the run before reporting")]
    NotJoined,
    /// A device's name that is too long.
    #[error("the device's name is too long")]
    DeviceName,
    /// More samples than one contribution may have.
    #[error("{got} samples reported, one contribution carries at most {max}")]
    TooManySamples {
        /// Limit.
        max: u32,
        /// Reported.
        got: u32,
    },
    /// Parameters of an epoch that are no longer kept.
    #[error("parameters of epoch {epoch} are gone, the run is at {newest}: fetch those")]
    Stale {
        /// Asked for.
        epoch: u64,
        /// Of the run.
        newest: u64,
    },
    /// A shard that the data set does not have, or that this peer does not keep.
    #[error("no such shard")]
    NoShard,
    /// What was asked for cannot be had here, or not now.
    #[error("{reason}")]
    Unavailable {
        /// What is wrong, for people.
        reason: RefusalReason,
    },
}

/// Words within a [`Refusal`]: at most [`REASON_BYTES_MAX`] bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RefusalReason(String);

/// Words that are too long for a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the reason of a refusal has {got} bytes, at most {REASON_BYTES_MAX} are allowed")]
pub struct ReasonTooLong {
    /// Bytes that came.
    pub got: usize,
}

impl RefusalReason {
    /// `words`, cut where they are too long.
    pub fn of(words: impl fmt::Display) -> Self {
        let mut words = words.to_string();
        words.truncate(words.floor_char_boundary(REASON_BYTES_MAX));
        Self(words)
    }

    /// The words.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RefusalReason {
    type Error = ReasonTooLong;

    fn try_from(words: String) -> Result<Self, ReasonTooLong> {
        match words.len() {
            0..=REASON_BYTES_MAX => Ok(Self(words)),
            got => Err(ReasonTooLong { got }),
        }
    }
}

impl From<RefusalReason> for String {
    fn from(reason: RefusalReason) -> Self {
        reason.0
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Refusal {
    /// That something cannot be had, with the reason.
    pub fn unavailable(reason: impl fmt::Display) -> Self {
        Self::Unavailable { reason: RefusalReason::of(reason) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_reason_is_cut_at_a_character_when_made_and_refused_when_read() {
        let long = "é".repeat(REASON_BYTES_MAX);
        assert_eq!(RefusalReason::of(&long).as_str().len(), REASON_BYTES_MAX);
        assert_eq!(RefusalReason::of(format!("a{long}")).as_str().len(), REASON_BYTES_MAX - 1);
        let read =
            |words: &String| postcard::from_bytes::<RefusalReason>(&postcard::to_allocvec(words).unwrap());
        assert!(read(&long).is_err());
        assert_eq!(read(&"full".to_owned()).unwrap(), RefusalReason::of("full"));
    }
}
