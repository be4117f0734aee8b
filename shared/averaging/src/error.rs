//! Why parts were not averaged, and what members did wrong.

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::average::{self, ChunkError};
use barnraise_protocol::codec::CodecError;
use barnraise_protocol::framing::FrameError;
use barnraise_swarm::averaging::ReductionError;

use crate::platform::OpenError;

/// Why a part was not averaged. Cheap to clone.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PartError {
    /// Its average would be the values of one member.
    #[error("only the values of one member came in time")]
    OneMember,
    /// The round was over.
    #[error("the deadline of the round passed")]
    Deadline,
    /// Its reducer failed, and so did the standby reducer; the error of each.
    #[error("{}", joined(.0))]
    Attempts(Arc<Vec<AttemptError>>),
}

/// Why one attempt at a part failed.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// Another member was to reduce it.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
    /// This member was to reduce it.
    #[error(transparent)]
    Reduce(#[from] ReduceError),
}

/// Why a reducer gave no average.
#[derive(Debug, thiserror::Error)]
pub enum DeliverError {
    /// A group of one member has none.
    #[error("this part has no standby reducer")]
    NoReducer,
    /// There is no stream to it.
    #[error("the reducer cannot be reached: {0}")]
    Unreachable(#[source] OpenError),
    /// It sent nothing for too long.
    #[error("the reducer was silent for {} s", .0.as_secs_f32())]
    Silent(Duration),
    /// It does not take this member's values.
    #[error(transparent)]
    Join(#[from] average::JoinError),
    /// A message failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The average cannot be read.
    #[error("the average: {0}")]
    Chunk(#[from] average::ChunkError),
    /// A message that does not belong there.
    #[error("the reducer sent another message than that it has finished")]
    Unexpected,
}

/// Why a part could not be averaged here.
#[derive(Debug, thiserror::Error)]
pub enum ReduceError {
    /// All others have left.
    #[error("no member is left that could send the rest of the part")]
    NobodyLeft,
    /// The average cannot be encoded.
    #[error("the average: {0}")]
    Codec(#[from] CodecError),
}

/// What a member did that no honest one does. Cheap to clone.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FaultError {
    /// A chunk that it may not send, or not any more.
    #[error(transparent)]
    Reduction(#[from] ReductionError),
    /// A chunk that cannot be read.
    #[error(transparent)]
    Chunk(Arc<ChunkError>),
}

impl From<ChunkError> for FaultError {
    fn from(error: ChunkError) -> Self {
        Self::Chunk(Arc::new(error))
    }
}

impl From<Vec<AttemptError>> for PartError {
    fn from(errors: Vec<AttemptError>) -> Self {
        Self::Attempts(Arc::new(errors))
    }
}

/// Errors in a row.
pub(crate) fn joined<T: ToString>(errors: &[T]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
