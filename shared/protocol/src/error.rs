//! Why a conversation with another peer ended without its answer.

use crate::access;
use crate::bulk::BulkError;
use crate::codec::CodecError;
use crate::dataset::DatasetError;
use crate::framing::FrameError;

/// Ends a conversation on the asking side.
#[derive(Debug, thiserror::Error)]
pub enum ConversationError {
    /// A message failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A transfer failed; what arrived of it is kept and can go on.
    #[error(transparent)]
    Bulk(#[from] BulkError),
    /// The other side declined, with its reason.
    #[error("{0}")]
    Refused(String),
    /// The other side speaks a version of all conversations that is newer than this peer's.
    #[error("{}", crate::run::older(ours, theirs))]
    Older {
        /// Of this build.
        ours: &'static str,
        /// As the other side calls it.
        theirs: String,
    },
    /// The other side does not let this peer in.
    #[error(transparent)]
    Access(#[from] access::Refusal),
    /// The other side's tensor is not usable.
    #[error("tensor: {0}")]
    Codec(#[from] CodecError),
    /// The other side's data is not usable.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The other side announced what its own description rules out.
    #[error("the backbone announced {got} {what}, the run has {want}")]
    Mismatch {
        /// Of what.
        what: &'static str,
        /// From the description of the run.
        want: u64,
        /// Announced.
        got: u64,
    },
}
