//! Local steps: a contributor runs an inner optimizer before it contributes (DiLoCo, Douillard et al. 2023).
//!
//! A *trajectory* starts at the parameters of an epoch and makes a fixed number of inner steps, one for each
//! micro-batch. The parameters of the epoch minus those at its end are a pseudo-gradient. With it the run's optimizer,
//! the outer one, makes the step of the epoch. A fast contributor follows several trajectories before that is due, each
//! from the parameters of the epoch, as if it were several contributors. So the length of a trajectory, and what a run
//! learns, depend little on the speed of its peers. A trajectory that is cut short counts with the samples that it has.
//! A contribution is the mean of all its trajectories, weighted by their samples. Aggregators average contributions the
//! same way, so the division of trajectories into contributions does not matter either.
//!
//! With one step of plain SGD, the pseudo-gradient is the learning rate times the mean gradient.
//!
//! In a run that recomputes contributions, the inner optimizer is reset after each of them
//! ([`LocalSteps::stateless`]): the same samples then give the same pseudo-gradient.
//!
//! Plain loops over flat vectors. No gradient is computed here, nothing is sent, and no device is touched.

#[cfg(test)]
mod tests;

use barnraise_protocol::run;

use crate::optimizer::{Optimizer, OptimizerError, OptimizerSpec};
use crate::parameters::{ParameterLayout, STATISTICS_UNIT};
use crate::schedule::{ScheduleError, ScheduleSpec};

/// Most steps of a trajectory.
pub const STEPS_MAX: u32 = 100_000;

/// Why a configuration of local steps is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LocalStepsError {
    /// Trajectories of no steps, or of too many.
    #[error("{got} local steps are wanted, 1 to {max} are possible")]
    Steps {
        /// Most possible.
        max: u32,
        /// What came.
        got: u32,
    },
    /// An optimizer that scales its steps by the norms of whole layers: only the aggregator uses those.
    #[error("local steps are made by sgd-momentum or adam, not by {0:?}")]
    Kind(OptimizerSpec),
    /// The inner optimizer is invalid.
    #[error("of the local steps' optimizer, {0}")]
    Optimizer(#[from] OptimizerError),
    /// Its learning-rate schedule is invalid.
    #[error("of the local steps' schedule, {0}")]
    Schedule(#[from] ScheduleError),
}

/// The trajectories of one epoch, and an inner optimizer whose state outlasts them.
#[derive(Debug, Clone)]
pub struct LocalSteps {
    steps: u32,
    n_trained: usize,
    schedule: ScheduleSpec,
    optimizer: Optimizer,
    /// Whether the inner optimizer is reset after each contribution.
    is_stateless: bool,
    learning_rate: f32,
    /// The parameters of the epoch, `[n_parameters]`.
    epoch_start: Vec<f32>,
    /// Parameters at the end of the current trajectory so far, `[n_parameters]`.
    current: Vec<f32>,
    trajectory: Trajectory,
    /// Sum of the finished trajectories' pseudo-gradients, each times its samples, `[n_parameters]`.
    sum: Vec<f32>,
    n_samples: u64,
    /// Index of a value that is not finite: it spoils every trajectory since the last take.
    not_finite: Option<usize>,
}

/// Length of the current trajectory.
#[derive(Debug, Clone, Copy, Default)]
struct Trajectory {
    n_steps: u32,
    n_samples: u64,
}

impl LocalSteps {
    /// Local steps of a model of `layout`, starting at the parameters `flat`.
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
            n_trained: layout.n_trained(),
            schedule,
            optimizer: Optimizer::new(OptimizerSpec::from(described.optimizer), layout)?,
            is_stateless: false,
            learning_rate: schedule.learning_rate(0),
            epoch_start: Vec::new(),
            current: Vec::new(),
            trajectory: Trajectory::default(),
            sum: Vec::new(),
            n_samples: 0,
            not_finite: None,
        };
        steps.begin(flat);
        Ok(steps)
    }

    /// Makes each contribution depend on its own samples alone: [`Self::take`] and [`Self::begin`] reset the inner
    /// optimizer.
    #[must_use]
    pub fn stateless(self) -> Self {
        Self { is_stateless: true, ..self }
    }

    /// Starts an epoch at `flat`, `[n_parameters]`, and drops the trajectories before. The inner optimizer is reset only
    /// where it is [stateless](Self::stateless).
    pub fn begin(&mut self, flat: &[f32]) {
        self.reset_if_stateless();
        self.epoch_start.clear();
        self.epoch_start.extend_from_slice(flat);
        self.current.clone_from(&self.epoch_start);
        self.clear();
    }

    /// Sets the learning rate to that of `epoch`.
    pub fn on_epoch(&mut self, epoch: u64) {
        self.learning_rate = self.schedule.learning_rate(epoch);
    }

    /// Drops the trajectories and the state of the inner optimizer.
    pub fn reset(&mut self) {
        self.optimizer.reset();
        self.clear();
    }

    /// The parameters of the epoch, `[n_parameters]`.
    pub fn epoch_parameters(&self) -> &[f32] {
        &self.epoch_start
    }

    /// The parameters at which [`Self::step`] expects the next gradient, `[n_parameters]`.
    pub fn parameters(&self) -> &[f32] {
        &self.current
    }

    /// Makes one step with the mean gradient of `n_samples` at [`Self::parameters`], `[n_parameters]`.
    ///
    /// [`Self::take`] reports a gradient, or parameters after it, that are not finite.
    pub fn step(&mut self, mean_gradient: &[f32], n_samples: u32) {
        self.trajectory.n_samples += u64::from(n_samples);
        self.trajectory.n_steps += 1;
        if self.not_finite.is_none() {
            let stepped = self.optimizer.step(&mut self.current, mean_gradient, self.learning_rate);
            self.not_finite = stepped.err().map(|error| match error {
                OptimizerError::NotFinite { index } | OptimizerError::Diverged { index } => index,
                // Another model or learning rate than was checked: does not happen.
                _ => self.current.len(),
            });
        }
        if self.trajectory.n_steps >= self.steps {
            self.finish_trajectory();
        }
    }

    /// The mean pseudo-gradient over the samples of all trajectories since the last take, `[n_parameters]`. The next
    /// trajectory starts at the parameters of the epoch. `None` where no step was made.
    ///
    /// # Errors
    /// The index of a value that is not finite. The inner optimizer is reset then.
    pub fn take(&mut self) -> Result<Option<Vec<f32>>, usize> {
        if self.trajectory.n_steps > 0 {
            self.finish_trajectory();
        }
        if let Some(index) = self.not_finite {
            self.reset();
            return Err(index);
        }
        let n_samples = self.n_samples;
        let mut mean: Vec<f32> = self.sum.iter().map(|sum| sum / n_samples as f32).collect();
        mean.iter_mut().skip(self.n_trained).for_each(|statistic| *statistic /= STATISTICS_UNIT);
        self.reset_if_stateless();
        self.clear();
        Ok((n_samples > 0).then_some(mean))
    }

    fn reset_if_stateless(&mut self) {
        if self.is_stateless {
            self.optimizer.reset();
        }
    }

    fn finish_trajectory(&mut self) {
        let Trajectory { n_samples, .. } = std::mem::take(&mut self.trajectory);
        self.n_samples += n_samples;
        let weight = n_samples as f32;
        self.sum.resize(self.epoch_start.len(), 0.0);
        let ends = self.epoch_start.iter().zip(&mut self.current);
        for (sum, (start, end)) in self.sum.iter_mut().zip(ends) {
            *sum += weight * (start - *end);
            *end = *start;
        }
    }

    fn clear(&mut self) {
        self.current.copy_from_slice(&self.epoch_start);
        self.trajectory = Trajectory::default();
        self.sum.clear();
        self.n_samples = 0;
        self.not_finite = None;
    }
}

/// Checks local steps of a run's description, such as those from another peer.
///
/// # Errors
/// The first number that is out of its range, or an optimizer that cannot make local steps.
pub fn check(described: &run::LocalSteps) -> Result<(), LocalStepsError> {
    let got = described.steps;
    if got == 0 || got > STEPS_MAX {
        return Err(LocalStepsError::Steps { max: STEPS_MAX, got });
    }
    let optimizer = OptimizerSpec::from(described.optimizer);
    if matches!(optimizer, OptimizerSpec::Lamb { .. } | OptimizerSpec::Lars { .. }) {
        return Err(LocalStepsError::Kind(optimizer));
    }
    optimizer.validate()?;
    Ok(ScheduleSpec::from(described.schedule).validate()?)
}
