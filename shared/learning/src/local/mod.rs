//! Local steps: what a contributor makes of its gradients before it contributes (DiLoCo, Douillard et al. 2023).
//!
//! From the parameters of an epoch it goes a *way*: so many steps of an inner optimizer, one for each micro-batch. The
//! parameters of the epoch less those that were reached are a pseudo-gradient, with which the run's optimizer, the
//! outer one, makes the step of the epoch. Whoever has time for more before that is due goes further ways, each from
//! the parameters of the epoch, as if it were several contributors: how long ways are, and so what a run learns,
//! depends little on how fast its peers are. A way that is cut short, because its pseudo-gradient is due, counts with
//! the samples that it has. What is contributed is the mean of all ways, weighted by their samples, the very mean that
//! aggregators make of contributions: so it does not matter where ways were divided among contributions either.
//!
//! Ways of one step, of plain SGD at a learning rate, are that rate times the mean gradient.
//!
//! Where somebody else is to find the same from the same samples, the inner optimizer begins anew with each
//! contribution ([`LocalSteps::forgetful`]).
//!
//! Plain loops over flat vectors. No gradient is computed here, nothing is sent, and no device is touched.

mod spec;
#[cfg(test)]
mod tests;

use barnraise_protocol::run;

use crate::layout::ParameterLayout;
use crate::optimizer::{Optimizer, OptimizerError, OptimizerSpec};
use crate::schedule::{ScheduleError, ScheduleSpec};
pub use spec::describe;

/// Most steps of a way.
pub const STEPS_MAX: u32 = 100_000;

/// Why there cannot be such local steps.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LocalStepsError {
    /// Ways of no steps, or of too many.
    #[error("{got} local steps are wanted, 1 to {max} are possible")]
    Steps {
        /// Most possible.
        max: u32,
        /// What came.
        got: u32,
    },
    /// An optimizer that scales its steps by the norms of whole layers: such steps are the aggregator's.
    #[error("local steps are made by sgd-momentum or adam, not by {0:?}")]
    Kind(OptimizerSpec),
    /// The inner optimizer cannot work.
    #[error("of the local steps' optimizer, {0}")]
    Optimizer(#[from] OptimizerError),
    /// Its learning rate cannot be had.
    #[error("of the local steps' schedule, {0}")]
    Schedule(#[from] ScheduleError),
}

/// The ways of one epoch, and an inner optimizer that lasts.
#[derive(Debug, Clone)]
pub struct LocalSteps {
    steps: u32,
    schedule: ScheduleSpec,
    optimizer: Optimizer,
    /// Whether each contribution begins with an optimizer that has seen nothing.
    is_forgetful: bool,
    learning_rate: f32,
    /// The parameters of the epoch, `[n_parameters]`.
    epoch: Vec<f32>,
    /// Where this way has led to, `[n_parameters]`.
    here: Vec<f32>,
    way: Way,
    /// Sum over the samples of the ways that ended, `[n_parameters]`.
    sum: Vec<f32>,
    n_samples: u64,
    /// A value that was no number: then no way since the last take is worth anything.
    not_finite: Option<usize>,
}

/// How long the current way is.
#[derive(Debug, Clone, Copy, Default)]
struct Way {
    n_steps: u32,
    n_samples: u64,
}

impl LocalSteps {
    /// Of a model of `layout`, which begins at its parameters `flat`.
    ///
    /// # Errors
    /// A number that is out of its range.
    pub fn new(
        described: &run::LocalSteps,
        layout: &ParameterLayout,
        flat: &[f32],
    ) -> Result<Self, LocalStepsError> {
        check(described)?;
        let schedule = ScheduleSpec::from(described.schedule);
        let mut steps = Self {
            steps: described.steps,
            schedule,
            optimizer: Optimizer::new(OptimizerSpec::from(described.optimizer), layout)?,
            is_forgetful: false,
            learning_rate: schedule.learning_rate(0),
            epoch: Vec::new(),
            here: Vec::new(),
            way: Way::default(),
            sum: Vec::new(),
            n_samples: 0,
            not_finite: None,
        };
        steps.begin(flat);
        Ok(steps)
    }

    /// What is taken depends on its own samples alone: the state of the inner optimizer does not outlast a take, or the
    /// parameters of an epoch.
    #[must_use]
    pub fn forgetful(self) -> Self {
        Self { is_forgetful: true, ..self }
    }

    /// From now on ways begin at `flat`, `[n_parameters]`. What was gone before is forgotten, the state of the inner
    /// optimizer only where it is [forgetful](Self::forgetful).
    pub fn begin(&mut self, flat: &[f32]) {
        self.end_memory();
        self.epoch.clear();
        self.epoch.extend_from_slice(flat);
        self.here.clone_from(&self.epoch);
        self.clear();
    }

    /// From now on steps have the learning rate of `epoch`.
    pub fn on_epoch(&mut self, epoch: u64) {
        self.learning_rate = self.schedule.learning_rate(epoch);
    }

    /// Forgets the ways and the state of the inner optimizer.
    pub fn forget(&mut self) {
        self.optimizer.reset();
        self.clear();
    }

    /// The parameters of the epoch, `[n_parameters]`.
    pub fn epoch_parameters(&self) -> &[f32] {
        &self.epoch
    }

    /// The parameters whose gradient [`Self::step`] wants next, `[n_parameters]`.
    pub fn parameters(&self) -> &[f32] {
        &self.here
    }

    /// One step against the mean gradient of `n_samples` at [`Self::parameters`], `[n_parameters]`.
    ///
    /// Where that is no number, or leads to none, [`Self::take`] says so.
    pub fn step(&mut self, mean_gradient: &[f32], n_samples: u32) {
        self.way.n_samples += u64::from(n_samples);
        self.way.n_steps += 1;
        if self.not_finite.is_none() {
            let stepped = self.optimizer.step(&mut self.here, mean_gradient, self.learning_rate);
            self.not_finite = stepped.err().map(|error| match error {
                OptimizerError::NotFinite { index } | OptimizerError::Diverged { index } => index,
                // Of another model, or at another rate, than was checked.
                _ => self.here.len(),
            });
        }
        if self.way.n_steps >= self.steps {
            self.end_way();
        }
    }

    /// The mean pseudo-gradient over the samples of all ways since the last take, `[n_parameters]`; the next way begins
    /// at the parameters of the epoch. `None` where no step was made.
    ///
    /// # Errors
    /// The position of a value that is no number. The inner optimizer begins anew then.
    pub fn take(&mut self) -> Result<Option<Vec<f32>>, usize> {
        if self.way.n_steps > 0 {
            self.end_way();
        }
        if let Some(index) = self.not_finite {
            self.forget();
            return Err(index);
        }
        let n_samples = self.n_samples;
        let mean = self.sum.iter().map(|sum| sum / n_samples as f32).collect();
        self.end_memory();
        self.clear();
        Ok((n_samples > 0).then_some(mean))
    }

    fn end_memory(&mut self) {
        if self.is_forgetful {
            self.optimizer.reset();
        }
    }

    fn end_way(&mut self) {
        let Way { n_samples, .. } = std::mem::take(&mut self.way);
        self.n_samples += n_samples;
        let weight = n_samples as f32;
        self.sum.resize(self.epoch.len(), 0.0);
        let ends = self.epoch.iter().zip(&mut self.here);
        for (sum, (epoch, here)) in self.sum.iter_mut().zip(ends) {
            *sum += weight * (epoch - *here);
            *here = *epoch;
        }
    }

    fn clear(&mut self) {
        self.here.copy_from_slice(&self.epoch);
        self.way = Way::default();
        self.sum.clear();
        self.n_samples = 0;
        self.not_finite = None;
    }
}

/// Checks what somebody else described.
///
/// # Errors
/// The first number that is out of its range.
pub fn check(described: &run::LocalSteps) -> Result<(), LocalStepsError> {
    let got = described.steps;
    if got == 0 || got > STEPS_MAX {
        return Err(LocalStepsError::Steps { max: STEPS_MAX, got });
    }
    OptimizerSpec::from(described.optimizer).validate()?;
    Ok(ScheduleSpec::from(described.schedule).validate()?)
}
