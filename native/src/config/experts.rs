//! `[model.experts]`: experts that other peers host.

use barnraise_learning::{OptimizerSpec, ScheduleSpec};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::run::HostedExperts;
use serde::{Deserialize, Serialize};

/// `[model.experts]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExpertsSection {
    /// The optimizer of each expert, at its host.
    pub optimizer: OptimizerSpec,
    /// Its learning rate, over the expert's own steps: a step is a batch of gradients.
    pub schedule: ScheduleSpec,
    /// How what goes to experts and what they give is encoded: `f32`, `f16` or `int8`.
    pub codec: TensorCodec,
    /// Numbers of layers whose experts make no step at any host that asks this backbone for its places.
    pub frozen: Vec<u16>,
}

impl Default for ExpertsSection {
    fn default() -> Self {
        Self {
            optimizer: OptimizerSpec::adam(),
            schedule: ScheduleSpec::constant(0.001),
            codec: TensorCodec::F16,
            frozen: Vec::new(),
        }
    }
}

impl ExpertsSection {
    /// The part of the run's description that contributors and hosts receive; nothing is checked.
    pub(super) fn describe(&self) -> HostedExperts {
        HostedExperts { optimizer: self.optimizer.into(), schedule: self.schedule.into(), codec: self.codec }
    }
}
