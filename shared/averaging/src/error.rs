//! Why parts were not averaged, and what members did wrong.

use std::sync::Arc;

use barnraise_protocol::average::ChunkError;
use barnraise_swarm::averaging::ReductionError;

use crate::deliver::DeliverError;
use crate::reduce::ReduceError;

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
