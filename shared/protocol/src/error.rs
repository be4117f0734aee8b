//! Errors of a conversation, on the side that asks.

use crate::access::{AccessError, AccessRefusal};
use crate::bulk::BulkError;
use crate::codec::CodecError;
use crate::dataset::DatasetError;
use crate::framing::FrameError;
use crate::refusal::Refusal;

/// Prefix of the reason why an older contributor is refused.
pub const OLDER_VERSION: &str = "this page or program is older than the run";

/// Why a conversation ended without an answer.
#[derive(Debug, thiserror::Error)]
pub enum ConversationError {
    /// A message failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A transfer failed; the bytes that arrived are kept, and it can be resumed.
    #[error(transparent)]
    Bulk(#[from] BulkError),
    /// The other side declined.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// An aggregator declined, with its reason.
    #[error("{0}")]
    Declined(String),
    /// A message that this conversation does not have at this place.
    #[error("{0}")]
    Unexpected(&'static str),
    /// The other side speaks a newer protocol version than this peer.
    #[error(
        "{OLDER_VERSION}: it speaks {ours}, the run {theirs}; reload the page, or install the newest barnraise"
    )]
    Older {
        /// Protocol name of this build.
        ours: &'static str,
        /// Protocol name of the other side.
        theirs: String,
    },
    /// The other side refuses access.
    #[error(transparent)]
    Access(#[from] AccessRefusal),
    /// The other side's tensor is invalid.
    #[error("tensor: {0}")]
    Codec(#[from] CodecError),
    /// The other side's data is invalid.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The other side announced a value that contradicts the run's description.
    #[error("the backbone announced {got} {what}, the run has {want}")]
    Mismatch {
        /// Name of the value.
        what: &'static str,
        /// From the description of the run.
        want: u64,
        /// Announced.
        got: u64,
    },
}

impl From<AccessError> for ConversationError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Frame(error) => Self::Frame(error),
            AccessError::Refused(refusal) => Self::Access(refusal),
        }
    }
}
