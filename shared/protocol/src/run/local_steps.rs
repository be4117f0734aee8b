//! Local steps: optimizer steps that contributors make before they contribute (DiLoCo, Douillard et al. 2023).
//!
//! Only the description for contributors; `barnraise-learning` makes the steps.

use serde::{Deserialize, Serialize};

/// How a contributor makes local steps from the parameters of an epoch.
///
/// Each pass over a micro-batch is one step of the inner optimizer. A trajectory ends after `steps` of them, or when the
/// gradient of the epoch is due. The parameters of the epoch minus those at its end are the pseudo-gradient; the next
/// trajectory starts at the parameters of the epoch again. A contribution is the mean over all trajectories of an epoch,
/// weighted by their samples. The run's own optimizer is the outer one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LocalSteps {
    /// Most steps of one trajectory, above 0.
    pub steps: u32,
    /// The inner optimizer. Its state outlasts trajectories and epochs. In a run that recomputes contributions, it is
    /// reset after each contribution.
    pub optimizer: InnerOptimizer,
    /// Its learning rate.
    pub schedule: InnerSchedule,
}

/// The optimizer of local steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum InnerOptimizer {
    /// Stochastic gradient descent.
    Sgd {
        /// Share of the velocity that stays, 0 for none.
        momentum: f32,
        /// Whether a step looks ahead along the velocity.
        nesterov: bool,
        /// Strength of the L2 penalty.
        weight_decay: f32,
    },
    /// Adam, with decoupled weight decay.
    Adam {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        epsilon: f32,
        /// Share of a weight that a step at learning rate 1 takes away.
        weight_decay: f32,
    },
}

/// Learning rate of the local steps of an epoch: a linear warm-up, then a decay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct InnerSchedule {
    /// Learning rate after the warm-up.
    pub peak: f32,
    /// Epochs of the warm-up.
    pub warmup_epochs: u64,
    /// What follows it.
    pub decay: InnerDecay,
}

/// How the learning rate of local steps falls.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum InnerDecay {
    /// It does not.
    Constant,
    /// Half a cosine from the peak to `floor` over `epochs`.
    Cosine {
        /// From the end of the warm-up to the floor.
        epochs: u64,
        /// Learning rate from then on.
        floor: f32,
    },
    /// A straight line from the peak to `floor` over `epochs`.
    Linear {
        /// From the end of the warm-up to the floor.
        epochs: u64,
        /// Learning rate from then on.
        floor: f32,
    },
    /// Multiplied by `factor` every `every` epochs.
    Step {
        /// Epochs between two drops.
        every: u64,
        /// What each drop multiplies with.
        factor: f32,
    },
}
