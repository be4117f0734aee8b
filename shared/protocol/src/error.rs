//! Errors of a conversation, on the side that asks.

use serde::{Deserialize, Serialize};

use crate::access::{AccessError, AccessRefusal};
use crate::bulk::BulkError;
use crate::codec::CodecError;
use crate::dataset::DatasetError;
use crate::framing::FrameError;
use crate::refusal::{HelloRefusal, ModelRefusal, OfferRefusal, Refusal};
use crate::streamed::WindowError;

/// The run speaks a newer protocol version than this build, which has to be replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "this page or program is older than the run: it speaks {ours}, the run {theirs}; reload the page, or install the newest barnraise"
)]
pub struct OlderThanRun {
    /// Protocol name of this build.
    pub ours: String,
    /// Protocol name of the run.
    pub theirs: String,
}

/// The run speaks an older protocol version than this build, until its operator updates it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "this page or program is newer than the run: it speaks {ours}, the run {theirs}; the run's operator has to update it"
)]
pub struct NewerThanRun {
    /// Protocol name of this build.
    pub ours: String,
    /// Protocol name of the run.
    pub theirs: String,
}

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
    /// An aggregator refused a link.
    #[error(transparent)]
    Hello(#[from] HelloRefusal),
    /// A backbone refused a reducer.
    #[error(transparent)]
    Offer(#[from] OfferRefusal),
    /// An aggregator did not send its model.
    #[error(transparent)]
    Model(#[from] ModelRefusal),
    /// A message that this conversation does not have at this place.
    #[error("{0}")]
    Unexpected(&'static str),
    /// The other side speaks a newer protocol version than this peer.
    #[error(transparent)]
    Older(#[from] OlderThanRun),
    /// The other side refuses access.
    #[error(transparent)]
    Access(#[from] AccessRefusal),
    /// The other side's tensor is invalid.
    #[error("tensor: {0}")]
    Codec(#[from] CodecError),
    /// The other side's data is invalid.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The other side's window of a stream is invalid.
    #[error(transparent)]
    Window(#[from] WindowError),
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
