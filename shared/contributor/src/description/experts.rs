//! Whether experts that peers host can be trained as a run says.

use barnraise_learning::{OptimizerError, OptimizerSpec, ScheduleError, ScheduleSpec};
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::run::{RunDescription, Scheme};

/// Why hosted experts cannot be trained so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HostedExpertsError {
    /// A hyperparameter.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// The learning rate.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// An encoding that leaves values out, or too much of them.
    #[error("\"f32\", \"f16\" or \"int8\" for the rows of experts, not {0:?}")]
    Codec(TensorCodec),
    /// Experts change between a contribution and its recomputation.
    #[error("contributions to a model with hosted experts cannot be recomputed: `recomputation` must be off")]
    Recomputed,
    /// A sample of participants would each train them alone.
    #[error("hosted experts are for the synchronous scheme")]
    Scheme,
}

pub(super) fn validate(run: &RunDescription) -> Result<(), HostedExpertsError> {
    let Some(hosted) = &run.model.hosted else { return Ok(()) };
    OptimizerSpec::from(hosted.optimizer).validate()?;
    ScheduleSpec::from(hosted.schedule).validate()?;
    if !matches!(hosted.codec, TensorCodec::F32 | TensorCodec::F16 | TensorCodec::Int8) {
        return Err(HostedExpertsError::Codec(hosted.codec));
    }
    match &run.scheme {
        Scheme::Synchronous(scheme) if scheme.recomputed => Err(HostedExpertsError::Recomputed),
        Scheme::Synchronous(_) => Ok(()),
        Scheme::Sampled(_) => Err(HostedExpertsError::Scheme),
    }
}
