//! Which optimizer a run uses, with its hyperparameters, as an operator writes it. Participants get it as an
//! [`OptimizerDescription`], which has no tags in its encoding.

use barnraise_protocol::run::OptimizerDescription;
use serde::{Deserialize, Serialize};

use super::OptimizerError;

/// An optimizer and its hyperparameters. The learning rate comes from the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum OptimizerSpec {
    /// `v = momentum v + g + weight_decay w`, `w -= rate v` (Sutskever et al. 2013); with Nesterov's momentum
    /// `w -= rate (g + weight_decay w + momentum v)`, the step that looks ahead, in the same symbols.
    SgdMomentum {
        /// Share of the velocity that stays, 0 for plain SGD.
        #[serde(default = "momentum")]
        momentum: f32,
        /// Whether the momentum is Nesterov's.
        #[serde(default)]
        nesterov: bool,
        /// Strength of the L2 penalty.
        #[serde(default)]
        weight_decay: f32,
    },
    /// Adam (Kingma and Ba 2015, algorithm 1), with decoupled weight decay where that is above
    /// zero (AdamW, Loshchilov and Hutter 2019, algorithm 2).
    Adam {
        /// Decay of the first moment.
        #[serde(default = "beta1")]
        beta1: f32,
        /// Decay of the second moment.
        #[serde(default = "beta2")]
        beta2: f32,
        /// Added to the root of the second moment.
        #[serde(default = "adam_epsilon")]
        epsilon: f32,
        /// Share of a weight that a step at learning rate 1 takes away.
        #[serde(default)]
        weight_decay: f32,
    },
    /// LAMB (You et al. 2020, algorithm 2, the optimizer of DeDLOC §4): Adam's step, scaled layer
    /// by layer to the norm of the weights.
    Lamb {
        /// Decay of the first moment.
        #[serde(default = "beta1")]
        beta1: f32,
        /// Decay of the second moment.
        #[serde(default = "beta2")]
        beta2: f32,
        /// Added to the root of the second moment.
        #[serde(default = "lamb_epsilon")]
        epsilon: f32,
        /// Added to the step in proportion to the weights.
        #[serde(default)]
        weight_decay: f32,
    },
    /// LARS (Hydra eq. 7–9; the momentum of You et al. 2017, algorithm 1).
    Lars {
        /// Share of the velocity that stays.
        #[serde(default = "momentum")]
        momentum: f32,
        /// Trust coefficient, the η of Hydra eq. 8.
        #[serde(default = "trust_coefficient")]
        trust_coefficient: f32,
        /// The β of Hydra eq. 9.
        #[serde(default)]
        weight_decay: f32,
    },
}

fn momentum() -> f32 {
    0.9
}

fn beta1() -> f32 {
    0.9
}

fn beta2() -> f32 {
    0.999
}

fn adam_epsilon() -> f32 {
    1e-8
}

fn lamb_epsilon() -> f32 {
    1e-6
}

fn trust_coefficient() -> f32 {
    0.001
}

impl OptimizerSpec {
    /// SGD with momentum 0.9 and no weight decay.
    pub fn sgd_momentum() -> Self {
        Self::SgdMomentum { momentum: momentum(), nesterov: false, weight_decay: 0.0 }
    }

    /// SGD without momentum or weight decay.
    pub fn plain_sgd() -> Self {
        Self::SgdMomentum { momentum: 0.0, nesterov: false, weight_decay: 0.0 }
    }

    /// Adam with its published hyperparameters and no weight decay.
    pub fn adam() -> Self {
        Self::Adam { beta1: beta1(), beta2: beta2(), epsilon: adam_epsilon(), weight_decay: 0.0 }
    }

    /// LAMB with its published hyperparameters and no weight decay.
    pub fn lamb() -> Self {
        Self::Lamb { beta1: beta1(), beta2: beta2(), epsilon: lamb_epsilon(), weight_decay: 0.0 }
    }

    /// LARS with momentum 0.9, trust coefficient 0.001 and no weight decay.
    pub fn lars() -> Self {
        Self::Lars { momentum: momentum(), trust_coefficient: trust_coefficient(), weight_decay: 0.0 }
    }

    /// Vectors of the model's size that the optimizer keeps.
    pub fn n_moments(&self) -> usize {
        match self {
            Self::SgdMomentum { .. } | Self::Lars { .. } => 1,
            Self::Adam { .. } | Self::Lamb { .. } => 2,
        }
    }

    /// Checks every hyperparameter.
    pub fn validate(&self) -> Result<(), OptimizerError> {
        let weight_decay = match *self {
            Self::SgdMomentum { momentum, weight_decay, .. } => {
                share("momentum", momentum)?;
                weight_decay
            }
            Self::Adam { beta1, beta2, epsilon, weight_decay }
            | Self::Lamb { beta1, beta2, epsilon, weight_decay } => {
                share("beta1", beta1)?;
                share("beta2", beta2)?;
                positive("epsilon", epsilon)?;
                weight_decay
            }
            Self::Lars { momentum, trust_coefficient, weight_decay } => {
                share("momentum", momentum)?;
                positive("trust_coefficient", trust_coefficient)?;
                weight_decay
            }
        };
        check(weight_decay.is_finite() && weight_decay >= 0.0, "weight_decay", "zero or more", weight_decay)
    }
}

impl From<OptimizerSpec> for OptimizerDescription {
    fn from(spec: OptimizerSpec) -> Self {
        match spec {
            OptimizerSpec::SgdMomentum { momentum, nesterov, weight_decay } => {
                Self::SgdMomentum { momentum, nesterov, weight_decay }
            }
            OptimizerSpec::Adam { beta1, beta2, epsilon, weight_decay } => {
                Self::Adam { beta1, beta2, epsilon, weight_decay }
            }
            OptimizerSpec::Lamb { beta1, beta2, epsilon, weight_decay } => {
                Self::Lamb { beta1, beta2, epsilon, weight_decay }
            }
            OptimizerSpec::Lars { momentum, trust_coefficient, weight_decay } => {
                Self::Lars { momentum, trust_coefficient, weight_decay }
            }
        }
    }
}

impl From<OptimizerDescription> for OptimizerSpec {
    fn from(described: OptimizerDescription) -> Self {
        match described {
            OptimizerDescription::SgdMomentum { momentum, nesterov, weight_decay } => {
                Self::SgdMomentum { momentum, nesterov, weight_decay }
            }
            OptimizerDescription::Adam { beta1, beta2, epsilon, weight_decay } => {
                Self::Adam { beta1, beta2, epsilon, weight_decay }
            }
            OptimizerDescription::Lamb { beta1, beta2, epsilon, weight_decay } => {
                Self::Lamb { beta1, beta2, epsilon, weight_decay }
            }
            OptimizerDescription::Lars { momentum, trust_coefficient, weight_decay } => {
                Self::Lars { momentum, trust_coefficient, weight_decay }
            }
        }
    }
}

fn share(name: &'static str, got: f32) -> Result<(), OptimizerError> {
    check((0.0..1.0).contains(&got), name, "at least 0 and below 1", got)
}

fn positive(name: &'static str, got: f32) -> Result<(), OptimizerError> {
    check(got.is_finite() && got > 0.0, name, "above 0", got)
}

fn check(good: bool, name: &'static str, want: &'static str, got: f32) -> Result<(), OptimizerError> {
    match good {
        true => Ok(()),
        false => Err(OptimizerError::Hyperparameter { name, want, got }),
    }
}
