//! The failure rate of members of an averaging, from which the group size follows (DeDLOC appendix C).
//!
//! It is an exponentially weighted average over rounds. The prior is a rate of 0.01 with the weight of twenty
//! observations.

use barnraise_protocol::average::MemberSet;

/// Rate before the first observation, and its weight in observations.
const PRIOR: (f64, f64) = (0.01, 20.0);
/// Factor by which each averaging reduces the weight of the earlier ones.
const DECAY: f64 = 0.95;

/// Failures and expected members of recent rounds, weighted.
#[derive(Debug, Clone, Copy, Default)]
pub struct FailureRate {
    n_failed: f64,
    n_expected: f64,
}

impl FailureRate {
    /// Counts an averaging: the members whose values were expected, and those whose values all arrived. An averaging in
    /// which no values arrived is not counted, since the failure may be this peer's own.
    pub fn update(&mut self, expected: MemberSet, came: MemberSet) {
        let both = came.intersection(expected);
        if both.is_empty() {
            return;
        }
        let (n_expected, n_came) = (f64::from(expected.n_members()), f64::from(both.n_members()));
        self.n_failed = DECAY * self.n_failed + n_expected - n_came;
        self.n_expected = DECAY * self.n_expected + n_expected;
    }

    /// Probability that a member fails, above 0 and below 1.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let (rate, weight) = PRIOR;
        (self.n_failed + rate * weight) / (self.n_expected + weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(n_members: usize) -> MemberSet {
        (0..n_members).collect()
    }

    #[test]
    fn the_first_rounds_weigh_little_and_many_outweigh_the_prior() {
        let mut rate = FailureRate::default();
        assert!((rate.rate() - 0.01).abs() < 1e-9);
        rate.update(set(2), set(1));
        assert!(rate.rate() < 0.1, "{rate:?}");
        for round in 0..200 {
            rate.update(set(10), set(if round % 2 == 0 { 10 } else { 6 }));
        }
        assert!((rate.rate() - 0.2).abs() < 0.03, "{rate:?}");
        for _ in 0..200 {
            rate.update(set(10), set(10));
        }
        assert!(rate.rate() < 0.002, "old rounds are forgotten: {rate:?}");
    }

    #[test]
    fn the_rate_stays_below_one_for_any_rounds() {
        let mut rate = FailureRate::default();
        for _ in 0..1000 {
            rate.update(set(256), set(1));
            // No values came, or none that were expected.
            rate.update(set(256), MemberSet::default());
            rate.update(MemberSet::default(), set(9));
        }
        assert!((0.9..1.0).contains(&rate.rate()), "{rate:?}");
    }

    #[test]
    fn each_round_weighs_a_little_less_than_the_next() {
        let mut rate = FailureRate::default();
        rate.update(set(10), set(4));
        assert!((rate.rate() - 6.2 / 30.0).abs() < 1e-12, "{rate:?}");
        rate.update(set(8), set(6));
        assert!((rate.rate() - (0.95 * 6.0 + 2.2) / (0.95 * 10.0 + 28.0)).abs() < 1e-12, "{rate:?}");
    }
}
