//! A step to measure, and what its measurement gives.

use serde::{Deserialize, Serialize};

/// A contender's measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ContenderAnswer {
    pub(crate) ms_per_step: f64,
    /// Mean loss of the batch with the initial parameters.
    pub(crate) loss: f64,
    /// What it computed on.
    pub(crate) device: String,
}

/// The step to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepTask<'a> {
    pub(crate) model: &'a str,
    pub(crate) n_rounds: usize,
}
