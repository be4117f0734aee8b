//! Local steps: optimizer steps that contributors make before they contribute (DiLoCo, Douillard et al. 2023).
//!
//! Only the description for contributors; `barnraise-learning` makes the steps.

use serde::{Deserialize, Serialize};

use super::{OptimizerDescription, ScheduleDescription};

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
    /// The inner optimizer, sgd-momentum or adam. Its state outlasts trajectories and epochs. In a run that recomputes
    /// contributions, it is reset after each contribution.
    pub optimizer: OptimizerDescription,
    /// Its learning rate.
    pub schedule: ScheduleDescription,
}
