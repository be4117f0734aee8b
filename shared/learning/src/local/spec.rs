//! Local steps: from the operator's configuration to the run's description.

use barnraise_protocol::run::{InnerDecay, InnerOptimizer, InnerSchedule, LocalSteps};

use super::LocalStepsError;
use crate::optimizer::OptimizerSpec;
use crate::schedule::{Decay, ScheduleSpec};

/// The local steps of a run's description. Their learning rate changes with the epochs of the run.
///
/// # Errors
/// A number out of its range, or an optimizer that cannot make local steps.
pub fn describe(
    steps: u32,
    optimizer: OptimizerSpec,
    schedule: ScheduleSpec,
) -> Result<LocalSteps, LocalStepsError> {
    let inner = match optimizer {
        OptimizerSpec::SgdMomentum { momentum, nesterov, weight_decay } => {
            InnerOptimizer::Sgd { momentum, nesterov, weight_decay }
        }
        OptimizerSpec::Adam { beta1, beta2, epsilon, weight_decay } => {
            InnerOptimizer::Adam { beta1, beta2, epsilon, weight_decay }
        }
        OptimizerSpec::Lamb { .. } | OptimizerSpec::Lars { .. } => {
            return Err(LocalStepsError::Kind(optimizer));
        }
    };
    let ScheduleSpec { peak, warmup_steps, decay } = schedule;
    let decay = match decay {
        Decay::Constant => InnerDecay::Constant,
        Decay::Cosine { steps, floor } => InnerDecay::Cosine { epochs: steps, floor },
        Decay::Linear { steps, floor } => InnerDecay::Linear { epochs: steps, floor },
        Decay::Step { every, factor } => InnerDecay::Step { every, factor },
    };
    let schedule = InnerSchedule { peak, warmup_epochs: warmup_steps, decay };
    let described = LocalSteps { steps, optimizer: inner, schedule };
    super::check(&described)?;
    Ok(described)
}

impl From<InnerOptimizer> for OptimizerSpec {
    fn from(inner: InnerOptimizer) -> Self {
        match inner {
            InnerOptimizer::Sgd { momentum, nesterov, weight_decay } => {
                Self::SgdMomentum { momentum, nesterov, weight_decay }
            }
            InnerOptimizer::Adam { beta1, beta2, epsilon, weight_decay } => {
                Self::Adam { beta1, beta2, epsilon, weight_decay }
            }
        }
    }
}

impl From<InnerSchedule> for ScheduleSpec {
    fn from(inner: InnerSchedule) -> Self {
        let decay = match inner.decay {
            InnerDecay::Constant => Decay::Constant,
            InnerDecay::Cosine { epochs, floor } => Decay::Cosine { steps: epochs, floor },
            InnerDecay::Linear { epochs, floor } => Decay::Linear { steps: epochs, floor },
            InnerDecay::Step { every, factor } => Decay::Step { every, factor },
        };
        Self { peak: inner.peak, warmup_steps: inner.warmup_epochs, decay }
    }
}
