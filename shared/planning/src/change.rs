//! Hysteresis of plans: when a new plan replaces the current one.
//!
//! Measurements move with every round, and every change of plan costs: peers open connections to new reducers
//! and one round may mix two plans. So a plan is replaced only for a minimum gain, or when one of its peers
//! is gone. It never counts rounds or looks at a clock.

use crate::{AveragingPlan, PlanError, PlanningProblem};

/// Whether a plan of `candidate` steps per second should replace one of `current`. `gain_min` is the
/// minimum gain, as a fraction: 0.1 for a tenth more. A plan that is not feasible any more (`None`) is always replaced.
///
/// # Errors
/// [`PlanError::BadGain`] for a gain that is negative or not finite.
pub fn is_worth_changing(current: Option<f64>, candidate: f64, gain_min: f64) -> Result<bool, PlanError> {
    if !gain_min.is_finite() || gain_min < 0.0 {
        return Err(PlanError::BadGain { value: gain_min });
    }
    Ok(current.is_none_or(|current| candidate > current * (1.0 + gain_min)))
}

impl PlanningProblem {
    /// The best plan for this problem if it should replace the current one; `None` to keep the current one. Both are rated
    /// with the measurements of this problem.
    ///
    /// # Errors
    /// As [`PlanningProblem::plan`] and [`is_worth_changing`].
    pub fn replan(
        &self,
        current: Option<&AveragingPlan>,
        gain_min: f64,
    ) -> Result<Option<AveragingPlan>, PlanError> {
        let candidate = self.plan()?;
        let steps_per_s = current.and_then(|plan| self.steps_per_s_of(plan));
        Ok(is_worth_changing(steps_per_s, candidate.steps_per_s, gain_min)?.then_some(candidate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_below_the_least_changes_nothing() {
        assert!(!is_worth_changing(Some(1.0), 1.05, 0.1).unwrap());
        assert!(!is_worth_changing(Some(1.0), 0.5, 0.0).unwrap());
        assert!(is_worth_changing(Some(1.0), 1.2, 0.1).unwrap());
    }

    #[test]
    fn a_plan_without_its_peers_is_left_for_a_slower_one() {
        assert!(is_worth_changing(None, 0.01, 0.5).unwrap());
    }

    #[test]
    fn a_gain_that_is_not_finite_is_refused() {
        for gain in [f64::NAN, -0.1, f64::INFINITY] {
            assert!(matches!(is_worth_changing(None, 1.0, gain), Err(PlanError::BadGain { .. })));
        }
    }
}
