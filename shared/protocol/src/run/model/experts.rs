//! Experts that are not among the parameters of the model: peers host them, and each trains where it is (Learning@home §3.3).

use serde::{Deserialize, Serialize};

use crate::codec::TensorCodec;
use crate::run::{OptimizerDescription, ScheduleDescription};

/// How an expert trains. Its first weights follow from the seed of the model and its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostedExperts {
    /// Its optimizer, whose state is the expert's own.
    pub optimizer: OptimizerDescription,
    /// Its learning rate. An epoch is a step of the expert: one batch of gradients.
    pub schedule: ScheduleDescription,
    /// Encoding of what travels between trainers and hosts, both ways: one that is dense.
    pub codec: TensorCodec,
}
