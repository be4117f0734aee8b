//! Learning rate over the steps of a run: a linear warm-up, then constant or one of three decays.
//!
//! Pure functions of the step; only the aggregator evaluates them, so their last bit may differ
//! between platforms without harm.

use barnraise_protocol::run::{DecayDescription, ScheduleDescription};
use serde::{Deserialize, Serialize};

/// Learning rate as a function of the optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// Learning rate after the warm-up.
    pub peak: f32,
    /// Steps of the linear warm-up: step 0 has `peak / warmup_steps`, 0 means none.
    #[serde(default)]
    pub warmup_steps: u64,
    /// What follows the warm-up.
    #[serde(default)]
    pub decay: Decay,
}

/// How the learning rate falls after the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Decay {
    /// It does not.
    #[default]
    Constant,
    /// Half a cosine from the peak to `floor` over `steps` (Loshchilov and Hutter 2017, eq. 5).
    Cosine {
        /// Steps from the end of the warm-up to the floor.
        steps: u64,
        /// Learning rate from then on.
        floor: f32,
    },
    /// A straight line from the peak to `floor` over `steps`.
    Linear {
        /// Steps from the end of the warm-up to the floor.
        steps: u64,
        /// Learning rate from then on.
        floor: f32,
    },
    /// Multiplied by `factor` every `every` steps.
    Step {
        /// Steps between two drops.
        every: u64,
        /// What each drop multiplies with.
        factor: f32,
    },
}

/// Why a schedule cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// Zero, negative or not finite.
    #[error("the peak learning rate must be above zero, it is {0}")]
    Peak(f32),
    /// Negative, above the peak, or not finite.
    #[error("the learning rate's floor must lie between 0 and its peak {peak}, it is {floor}")]
    Floor {
        /// Of the schedule.
        peak: f32,
        /// Of the decay.
        floor: f32,
    },
    /// A decay over no steps.
    #[error("the learning rate must decay over at least one step")]
    NoSteps,
    /// A factor that does not shrink.
    #[error("the learning rate's factor must lie between 0 and 1, it is {0}")]
    Factor(f32),
}

impl ScheduleSpec {
    /// The same learning rate at every step.
    pub fn constant(learning_rate: f32) -> Self {
        Self { peak: learning_rate, warmup_steps: 0, decay: Decay::Constant }
    }

    /// Checks what [`Self::learning_rate`] relies on.
    pub fn validate(&self) -> Result<(), ScheduleError> {
        if !(self.peak.is_finite() && self.peak > 0.0) {
            return Err(ScheduleError::Peak(self.peak));
        }
        match self.decay {
            Decay::Constant => Ok(()),
            Decay::Cosine { steps: 0, .. }
            | Decay::Linear { steps: 0, .. }
            | Decay::Step { every: 0, .. } => Err(ScheduleError::NoSteps),
            Decay::Cosine { floor, .. } | Decay::Linear { floor, .. } => {
                match (0.0..=self.peak).contains(&floor) {
                    true => Ok(()),
                    false => Err(ScheduleError::Floor { peak: self.peak, floor }),
                }
            }
            Decay::Step { factor, .. } => match factor > 0.0 && factor <= 1.0 {
                true => Ok(()),
                false => Err(ScheduleError::Factor(factor)),
            },
        }
    }

    /// Learning rate of optimizer step `step`, counted from 0.
    pub fn learning_rate(&self, step: u64) -> f32 {
        let peak = f64::from(self.peak);
        if step < self.warmup_steps {
            return (peak * (step + 1) as f64 / self.warmup_steps as f64) as f32;
        }
        let after = step - self.warmup_steps;
        let rate = match self.decay {
            Decay::Constant => peak,
            Decay::Cosine { steps, floor } => {
                let half_wave = (1.0 + (std::f64::consts::PI * progress(after, steps)).cos()) / 2.0;
                f64::from(floor) + (peak - f64::from(floor)) * half_wave
            }
            Decay::Linear { steps, floor } => {
                f64::from(floor) + (peak - f64::from(floor)) * (1.0 - progress(after, steps))
            }
            Decay::Step { every, factor } => {
                let n_drops = i32::try_from(after / every.max(1)).unwrap_or(i32::MAX);
                peak * f64::from(factor).powi(n_drops)
            }
        };
        rate as f32
    }
}

/// An optimizer step is an epoch of the run.
impl From<ScheduleSpec> for ScheduleDescription {
    fn from(spec: ScheduleSpec) -> Self {
        let decay = match spec.decay {
            Decay::Constant => DecayDescription::Constant,
            Decay::Cosine { steps, floor } => DecayDescription::Cosine { epochs: steps, floor },
            Decay::Linear { steps, floor } => DecayDescription::Linear { epochs: steps, floor },
            Decay::Step { every, factor } => DecayDescription::Step { every, factor },
        };
        Self { peak: spec.peak, warmup_epochs: spec.warmup_steps, decay }
    }
}

impl From<ScheduleDescription> for ScheduleSpec {
    fn from(described: ScheduleDescription) -> Self {
        let decay = match described.decay {
            DecayDescription::Constant => Decay::Constant,
            DecayDescription::Cosine { epochs, floor } => Decay::Cosine { steps: epochs, floor },
            DecayDescription::Linear { epochs, floor } => Decay::Linear { steps: epochs, floor },
            DecayDescription::Step { every, factor } => Decay::Step { every, factor },
        };
        Self { peak: described.peak, warmup_steps: described.warmup_epochs, decay }
    }
}

/// Share of the decay that is over, 0 to 1.
fn progress(after: u64, steps: u64) -> f64 {
    (after.min(steps) as f64) / (steps.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(decay: Decay) -> ScheduleSpec {
        ScheduleSpec { peak: 0.4, warmup_steps: 4, decay }
    }

    fn assert_rates(spec: ScheduleSpec, known: &[(u64, f32)]) {
        assert_eq!(spec.validate(), Ok(()));
        for &(step, want) in known {
            let got = spec.learning_rate(step);
            assert!((got - want).abs() < 1e-7, "step {step}: got {got}, want {want}");
        }
    }

    #[test]
    fn warm_up_is_linear_and_ends_at_the_peak() {
        let known = [(0, 0.1), (1, 0.2), (2, 0.3), (3, 0.4), (4, 0.4), (1_000_000, 0.4)];
        assert_rates(schedule(Decay::Constant), &known);
        assert_rates(ScheduleSpec::constant(0.01), &[(0, 0.01), (9, 0.01)]);
    }

    #[test]
    fn cosine_falls_to_its_floor() {
        // cos(pi/3) = 1/2, so a third of the way leaves three quarters of the distance.
        let spec = schedule(Decay::Cosine { steps: 12, floor: 0.04 });
        assert_rates(spec, &[(4, 0.4), (8, 0.31), (10, 0.22), (12, 0.13), (16, 0.04), (99, 0.04)]);
    }

    #[test]
    fn linear_and_step_fall_as_their_formulas_say() {
        assert_rates(
            schedule(Decay::Linear { steps: 10, floor: 0.1 }),
            &[(4, 0.4), (9, 0.25), (14, 0.1), (u64::MAX, 0.1)],
        );
        assert_rates(
            schedule(Decay::Step { every: 10, factor: 0.5 }),
            &[(13, 0.4), (14, 0.2), (23, 0.2), (24, 0.1)],
        );
    }

    #[test]
    fn an_operator_writes_a_schedule_in_a_few_lines() {
        let parsed = toml::from_str(
            "peak = 0.4\nwarmup_steps = 4\ndecay = { kind = 'linear', steps = 10, floor = 0.1 }",
        );
        assert_eq!(parsed, Ok(schedule(Decay::Linear { steps: 10, floor: 0.1 })));
        assert_eq!(toml::from_str("peak = 0.01"), Ok(ScheduleSpec::constant(0.01)));
        assert!(toml::from_str::<ScheduleSpec>("peak = 0.01\nwarm_up = 4").is_err());
    }

    #[test]
    fn unusable_schedules_are_named() {
        assert_eq!(ScheduleSpec::constant(0.0).validate(), Err(ScheduleError::Peak(0.0)));
        assert!(ScheduleSpec::constant(f32::NAN).validate().is_err());
        let above = schedule(Decay::Linear { steps: 1, floor: 0.5 });
        assert_eq!(above.validate(), Err(ScheduleError::Floor { peak: 0.4, floor: 0.5 }));
        assert_eq!(schedule(Decay::Cosine { steps: 0, floor: 0.0 }).validate(), Err(ScheduleError::NoSteps));
        let growing = schedule(Decay::Step { every: 1, factor: 2.0 });
        assert_eq!(growing.validate(), Err(ScheduleError::Factor(2.0)));
    }
}
