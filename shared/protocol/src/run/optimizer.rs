//! Optimizers and their learning rates, as participants get them.
//!
//! Only the data: `barnraise-learning` checks it and makes the steps.

use serde::{Deserialize, Serialize};

/// An optimizer and its hyperparameters. The learning rate is that of a [`ScheduleDescription`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerDescription {
    /// Stochastic gradient descent (Sutskever et al. 2013).
    SgdMomentum {
        /// Share of the velocity that stays, 0 for none.
        momentum: f32,
        /// Whether a step looks ahead along the velocity.
        nesterov: bool,
        /// Strength of the L2 penalty.
        weight_decay: f32,
    },
    /// Adam (Kingma and Ba 2015), with decoupled weight decay.
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
    /// LAMB (You et al. 2020).
    Lamb {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        epsilon: f32,
        /// Added to the step in proportion to the weights.
        weight_decay: f32,
    },
    /// LARS (You et al. 2017; Hydra eq. 7–9).
    Lars {
        /// Share of the velocity that stays.
        momentum: f32,
        /// Trust coefficient.
        trust_coefficient: f32,
        /// Strength of the weight decay.
        weight_decay: f32,
    },
}

/// Learning rate over the epochs of a run: a linear warm-up, then a decay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScheduleDescription {
    /// Learning rate after the warm-up.
    pub peak: f32,
    /// Epochs of the warm-up.
    pub warmup_epochs: u64,
    /// What follows it.
    pub decay: DecayDescription,
}

/// How a learning rate falls.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecayDescription {
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

impl OptimizerDescription {
    /// SGD without momentum or weight decay.
    pub fn plain_sgd() -> Self {
        Self::SgdMomentum { momentum: 0.0, nesterov: false, weight_decay: 0.0 }
    }
}

impl ScheduleDescription {
    /// The same learning rate in every epoch.
    pub fn constant(learning_rate: f32) -> Self {
        Self { peak: learning_rate, warmup_epochs: 0, decay: DecayDescription::Constant }
    }
}
