//! `[run.local_steps]`: optimizer steps that contributors make by themselves.

use barnraise_learning::{LocalStepsError, OptimizerSpec, ScheduleSpec, local};
use barnraise_protocol::run::LocalSteps;
use serde::{Deserialize, Serialize};

use super::{Invalid, RunConfig};

const KEY: &str = "run.local_steps";

/// `[run.local_steps]`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalStepsSection {
    /// Most steps, of a micro-batch each, before the next ones begin at the parameters of the epoch again.
    pub steps: u32,
    /// Makes them.
    pub optimizer: OptimizerSpec,
    /// Its learning rate, over the epochs of the run.
    pub schedule: ScheduleSpec,
}

impl LocalStepsSection {
    /// As contributors are told.
    ///
    /// # Errors
    /// Steps that cannot be made.
    pub fn describe(&self) -> Result<LocalSteps, LocalStepsError> {
        local::describe(self.steps, self.optimizer, self.schedule)
    }
}

/// Every way must have a chance to be gone to its end, even if it is by one peer alone.
pub(super) fn validate(config: &RunConfig) -> Result<(), Invalid> {
    let Some(section) = &config.run.local_steps else { return Ok(()) };
    section.describe().map_err(|error| Invalid::new(KEY, error, format!("{section:?}")))?;
    let micro = config.run.micro_batch_size.max(1);
    for (name, n_samples) in [
        ("the target batch size", config.run.target_batch_size),
        ("averaging.contribution_samples_max", config.averaging.contribution_samples_max),
    ] {
        let max = n_samples / micro;
        let want = format!("steps = 1 to {max}, which are {name} of {n_samples} in micro-batches of {micro}");
        Invalid::check(KEY, section.steps <= max, want, section.steps)?;
    }
    Ok(())
}
