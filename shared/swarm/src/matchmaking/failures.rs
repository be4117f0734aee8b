//! How often peers fail that average: of the times that others should have been in an averaging, how often they were not.
//! The size of groups follows from it.
//!
//! The last rounds count most. Before there are any, one in a hundred is believed, as much as twenty times would tell.

use barnraise_protocol::average::MemberSet;

/// What is believed before anything is known, and so many times are worth as much.
const PRIOR: (f64, f64) = (0.01, 20.0);
/// With each averaging the earlier ones count by so much.
const KEPT: f64 = 0.95;

/// The share of failures, lately.
#[derive(Debug, Clone, Copy, Default)]
pub struct FailureRate {
    n_failed: f64,
    n_expected: f64,
}

impl FailureRate {
    /// An averaging is over, in which these were expected, and these came with all that they had. Of one from which nobody
    /// came it is not known who failed: it counts for nobody.
    pub fn on_averaged(&mut self, expected: MemberSet, came: MemberSet) {
        let both = came.intersection(expected);
        if both.is_empty() {
            return;
        }
        let (n_expected, n_came) = (f64::from(expected.n_members()), f64::from(both.n_members()));
        self.n_failed = KEPT * self.n_failed + n_expected - n_came;
        self.n_expected = KEPT * self.n_expected + n_expected;
    }

    /// How often a peer fails, above 0 and below 1.
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
    fn the_first_rounds_say_little_and_many_say_all() {
        let mut rate = FailureRate::default();
        assert!((rate.rate() - 0.01).abs() < 1e-9);
        rate.on_averaged(set(2), set(1));
        assert!(rate.rate() < 0.1, "{rate:?}");
        for round in 0..200 {
            rate.on_averaged(set(10), set(if round % 2 == 0 { 10 } else { 6 }));
        }
        assert!((rate.rate() - 0.2).abs() < 0.03, "{rate:?}");
        for _ in 0..200 {
            rate.on_averaged(set(10), set(10));
        }
        assert!(rate.rate() < 0.002, "what was long ago is forgotten: {rate:?}");
    }

    #[test]
    fn it_stays_a_rate_whatever_is_said() {
        let mut rate = FailureRate::default();
        for _ in 0..1000 {
            rate.on_averaged(set(256), set(1));
            // Nobody came, or nobody who was expected.
            rate.on_averaged(set(256), MemberSet::default());
            rate.on_averaged(MemberSet::default(), set(9));
        }
        assert!((0.9..1.0).contains(&rate.rate()), "{rate:?}");
    }
}
