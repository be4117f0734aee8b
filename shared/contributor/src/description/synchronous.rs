//! Whether the values of a synchronous run fit each other (DeDLOC §3.1).

use barnraise_learning::{
    LocalStepsError, OptimizerError, OptimizerSpec, ScheduleError, ScheduleSpec, local,
};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::run::model::Graph;
use barnraise_protocol::run::{
    GradientCodec, GradientCodecError, LocalSteps, NotRecomputable, OptimizerDescription, SlowLinksError,
    Synchronous,
};

/// Most samples of an optimizer step.
pub const TARGET_BATCH_SIZE_MAX: u32 = 10_000_000;

/// Why no synchronous run can be trained so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SynchronousError {
    /// A pass without samples, or with too many.
    #[error("1 to {max} samples in a forward and backward pass of this model, not {got}")]
    MicroBatch {
        /// Most possible for this model.
        max: u32,
        /// Announced.
        got: u32,
    },
    /// A step of less than a pass, or of too much.
    #[error("at least the micro batch size, {min}, and at most {TARGET_BATCH_SIZE_MAX}, not {got}")]
    TargetBatch {
        /// Samples of a pass.
        min: u32,
        /// Announced.
        got: u32,
    },
    /// Impossible momentum or clipping.
    #[error(transparent)]
    GradientCodec(#[from] GradientCodecError),
    /// Running statistics in gradients of which only the largest values travel.
    #[error(
        "\"f16\", \"int8\" or another codec that sends all values, for a model whose batch normalizations keep running \
        statistics; or a model that says `running = false` or normalizes by group"
    )]
    Statistics {
        /// Whether it is that of slow links.
        of_slow_links: bool,
    },
    /// Invalid settings for slow links.
    #[error(transparent)]
    SlowLinks(#[from] SlowLinksError),
    /// Impossible hyperparameters of the optimizer.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// A momentum in the optimizer beside that of contributors.
    #[error(
        "{{ kind = \"sgd-momentum\", momentum = 0.0 }}, as contributors apply the momentum of gradient_codec: one of \
        them has it"
    )]
    Momentum,
    /// An impossible learning rate.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Invalid local steps.
    #[error(transparent)]
    LocalSteps(#[from] LocalStepsError),
    /// A trajectory that no single contributor could complete.
    #[error(
        "steps = 1 to {max}, which are {what} of {n_samples} in micro-batches of {micro_batch}, not {got}"
    )]
    Trajectory {
        /// Most steps.
        max: u32,
        /// What limits them.
        what: &'static str,
        /// Its samples.
        n_samples: u32,
        /// Samples of a step.
        micro_batch: u32,
        /// Announced.
        got: u32,
    },
    /// Contributions are recomputed, and cannot be reproduced from their commitments.
    #[error("recomputation cannot be combined with this run: {0}")]
    Recomputed(#[from] NotRecomputable),
    /// A lossy codec for the parameters.
    #[error("\"f32\", \"f16\" or \"int8\" for parameters; {0:?} is for gradients")]
    StateCodec(TensorCodec),
    /// Contributions smaller than a pass, so that nothing could be contributed.
    #[error("at least the micro batch size, {min}, and not {got}")]
    Contribution {
        /// Samples of a pass.
        min: u32,
        /// Announced.
        got: u32,
    },
}

impl SynchronousError {
    /// The value that is wrong, as it is called in a configuration.
    pub fn key(&self) -> &'static str {
        match self {
            Self::MicroBatch { .. } => "scheme.synchronous.micro_batch_size",
            Self::TargetBatch { .. } => "scheme.synchronous.target_batch_size",
            Self::GradientCodec(_) | Self::Statistics { of_slow_links: false } => {
                "scheme.synchronous.gradient_codec"
            }
            Self::SlowLinks(_) | Self::Statistics { of_slow_links: true } => "scheme.synchronous.slow_links",
            Self::Optimizer(_) | Self::Momentum => "scheme.synchronous.optimizer",
            Self::Schedule(_) => "scheme.synchronous.schedule",
            Self::LocalSteps(_) | Self::Trajectory { .. } => "scheme.synchronous.local_steps",
            Self::Recomputed(_) => "scheme.synchronous.recomputation",
            Self::StateCodec(_) => "scheme.synchronous.state_codec",
            Self::Contribution { .. } => "scheme.synchronous.contribution_samples_max",
        }
    }
}

/// Checks the values of the scheme among each other, and with the model, of which a pass has at most so many samples.
///
/// # Errors
/// The first value that is wrong.
pub(super) fn validate(
    scheme: &Synchronous,
    model: &Graph,
    micro_batch_max: u32,
) -> Result<(), SynchronousError> {
    let (min, target) = (scheme.micro_batch_size, scheme.target_batch_size);
    if min == 0 || min > micro_batch_max {
        return Err(SynchronousError::MicroBatch { max: micro_batch_max, got: min });
    }
    if !(min..=TARGET_BATCH_SIZE_MAX).contains(&target) {
        return Err(SynchronousError::TargetBatch { min, got: target });
    }
    let got = scheme.contribution_samples_max;
    if got < min {
        return Err(SynchronousError::Contribution { min, got });
    }
    scheme.gradient_codec.validate()?;
    scheme.slow_links.map_or(Ok(()), |slow| slow.check(scheme.gradient_codec))?;
    if model.keeps_statistics() {
        let is_sparse = |codec| matches!(codec, GradientCodec::TopK(_));
        let of_slow_links = scheme.slow_links.is_some_and(|slow| is_sparse(slow.codec));
        if of_slow_links || is_sparse(scheme.gradient_codec) {
            return Err(SynchronousError::Statistics { of_slow_links });
        }
    }
    if !scheme.state_codec.carries_state() {
        return Err(SynchronousError::StateCodec(scheme.state_codec));
    }
    validate_optimizer(scheme)?;
    scheme.local_steps.as_ref().map_or(Ok(()), |steps| validate_local_steps(scheme, steps))?;
    if scheme.recomputed {
        scheme.check_recomputable(model)?;
    }
    Ok(())
}

fn validate_local_steps(scheme: &Synchronous, local_steps: &LocalSteps) -> Result<(), SynchronousError> {
    local::check(local_steps)?;
    let micro_batch = scheme.micro_batch_size;
    let target = (scheme.target_batch_size, "the target batch size");
    let contribution = (scheme.contribution_samples_max, "a contribution");
    for (n_samples, what) in [target, contribution] {
        let (max, got) = (n_samples / micro_batch, local_steps.steps);
        if got > max {
            return Err(SynchronousError::Trajectory { max, what, n_samples, micro_batch, got });
        }
    }
    Ok(())
}

/// What aggregators make the step with.
fn validate_optimizer(scheme: &Synchronous) -> Result<(), SynchronousError> {
    OptimizerSpec::from(scheme.optimizer).validate()?;
    ScheduleSpec::from(scheme.schedule).validate()?;
    let (of_contributors, _) = scheme.gradient_codec.momentum();
    let is_plain = matches!(scheme.optimizer, OptimizerDescription::SgdMomentum { momentum: 0.0, .. });
    match of_contributors == 0.0 || is_plain {
        true => Ok(()),
        false => Err(SynchronousError::Momentum),
    }
}
