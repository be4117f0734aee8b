//! The group size by the failure rate (DeDLOC appendix C).
//!
//! Small groups fail seldom but need `ceil(log_m n)` rounds. The paper chooses the size that minimizes the
//! expected number of iterations until the global average, restarts and rounds together, and gives no
//! formula. This is one, exact under its assumptions:
//!
//! - a peer fails an iteration with probability `p`, independently of others and of other iterations;
//! - a group of `m` succeeds in an iteration if none of its peers fails, with probability `(1 - p)^m`, and
//!   tries again otherwise, while other groups need not;
//! - a round is over when all its `n / m` groups have succeeded, since the next one mixes them. The number of
//!   iterations of a round is then the greatest of `n / m` geometric variables, with the expectation
//!   `sum over t >= 0 of 1 - (1 - q^t)^(n/m)`, where `q = 1 - (1 - p)^m`.
//!
//! It agrees with the paper: one group of all for few peers that hardly fail, and pairs for any
//! collaboration with a sufficiently high failure rate.
//!
//! It never measures failures: the rate is given. All peers must use the same rate to get the same groups.

use thiserror::Error;

use super::{GROUP_SIZE_MIN, Grid, full_sides, n_dimensions, side};

/// Why there is no group size.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum GroupSizeError {
    /// Not a number from 0 up to but not including 1: a peer that always fails never averages.
    #[error("a failure rate of {rate}, wanted at least 0 and below 1")]
    BadRate {
        /// The rate.
        rate: f64,
    },
    /// Groups of fewer than two, or of more than all peers.
    #[error("groups of {size} among {n_peers} peers")]
    BadSize {
        /// The group size.
        size: usize,
        /// The number of peers.
        n_peers: usize,
    },
}

/// A group size and its expected cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupSize {
    /// `m`; `n` where one group of all is best.
    pub size: usize,
    /// Rounds of a full averaging, `ceil(log_m n)`.
    pub n_rounds: usize,
    /// Expected iterations of all rounds together.
    pub iterations: f64,
}

/// Below this, the terms of a sum no longer count.
const NEGLIGIBLE: f64 = 1e-12;
/// Below this success rate of a group the sum is long, and its limit for small rates is exact enough.
const RARE: f64 = 1e-3;
/// Penalty factor on the iterations of a grid with empty cells.
const RAGGED: f64 = 1.25;

/// The group size with the fewest expected iterations, of equals the one with fewer rounds.
///
/// For each number of rounds only the smallest size that allows it is compared: a larger group, split in two
/// that restart by themselves, is never slower. With fewer than two peers there is nothing to average: the
/// size is `n_peers` and there are no rounds.
///
/// # Errors
/// [`GroupSizeError::BadRate`].
pub fn best_group_size(n_peers: usize, failure_rate: f64) -> Result<GroupSize, GroupSizeError> {
    check(failure_rate)?;
    let mut best = GroupSize { size: n_peers, n_rounds: 0, iterations: 0.0 };
    if n_peers < 2 {
        return Ok(best);
    }
    best.iterations = f64::INFINITY;
    for n_rounds in 1..=n_dimensions(n_peers, 2) {
        let size = side(n_peers, n_rounds);
        let iterations = n_rounds as f64 * round_iterations(n_peers, size, failure_rate);
        if iterations < best.iterations * (1.0 - 1e-9) {
            best = GroupSize { size, n_rounds, iterations };
        }
    }
    Ok(best)
}

/// The group size that a run uses: as [`best_group_size`], but at most `size_max`. A grid with empty cells is chosen only
/// where it takes a fifth fewer iterations than full ones. In such a grid some peers lack the mean of all after the last
/// round; they download a whole vector from a peer that has it.
///
/// A `size_max` below [`GROUP_SIZE_MIN`] counts as that.
///
/// # Errors
/// [`GroupSizeError::BadRate`].
pub fn group_size_up_to(
    n_peers: usize,
    failure_rate: f64,
    size_max: usize,
) -> Result<GroupSize, GroupSizeError> {
    check(failure_rate)?;
    if n_peers < 2 {
        return Ok(GroupSize { size: n_peers, n_rounds: 0, iterations: 0.0 });
    }
    let size_max = size_max.max(GROUP_SIZE_MIN);
    let size = n_peers.min(size_max);
    let mut best = GroupSize { size, n_rounds: n_dimensions(n_peers, size), iterations: f64::INFINITY };
    let mut least = f64::INFINITY;
    for n_rounds in 1..=n_dimensions(n_peers, GROUP_SIZE_MIN) {
        let full = full_sides(n_peers, n_rounds, size_max).and_then(|sides| sides.first().copied());
        let sizes = [Some(side(n_peers, n_rounds)), full].into_iter().flatten();
        let sizes = sizes.filter(|&size| {
            (GROUP_SIZE_MIN..=size_max).contains(&size) && n_dimensions(n_peers, size) == n_rounds
        });
        for size in sizes {
            let iterations = n_rounds as f64 * round_iterations(n_peers, size, failure_rate);
            let is_full = Grid::new(n_peers, size).is_full();
            let weighed = if is_full { iterations } else { RAGGED * iterations };
            if weighed < least * (1.0 - 1e-9) {
                least = weighed;
                best = GroupSize { size, n_rounds, iterations };
            }
        }
    }
    Ok(best)
}

/// Expected iterations until the global average of `n_peers` in groups of `size`.
///
/// # Errors
/// [`GroupSizeError`].
pub fn expected_iterations(n_peers: usize, size: usize, failure_rate: f64) -> Result<f64, GroupSizeError> {
    check(failure_rate)?;
    if size < 2 || size > n_peers {
        return Err(GroupSizeError::BadSize { size, n_peers });
    }
    Ok(n_dimensions(n_peers, size) as f64 * round_iterations(n_peers, size, failure_rate))
}

fn check(rate: f64) -> Result<(), GroupSizeError> {
    if (0.0..1.0).contains(&rate) { Ok(()) } else { Err(GroupSizeError::BadRate { rate }) }
}

/// Expected iterations of one round. Products and sums only: the same on every machine.
fn round_iterations(n_peers: usize, size: usize, failure_rate: f64) -> f64 {
    let n_groups = n_peers.div_ceil(size);
    let success = power(1.0 - failure_rate, size);
    if success == 0.0 {
        return f64::INFINITY;
    }
    if success < RARE {
        // The greatest of k exponential variables has the mean 1 + 1/2 + ... + 1/k; rounding up adds a half.
        let harmonic: f64 = (1..=n_groups).map(|k| 1.0 / k as f64).sum();
        return harmonic / (success * (1.0 + 0.5 * success)) + 0.5;
    }
    let (mut sum, mut all_failed) = (0.0, 1.0);
    loop {
        let is_any_left = 1.0 - power(1.0 - all_failed, n_groups);
        sum += is_any_left;
        if is_any_left < NEGLIGIBLE {
            return sum;
        }
        all_failed *= 1.0 - success;
    }
}

fn power(base: f64, exponent: usize) -> f64 {
    (0..exponent).fold(1.0, |product, _| product * base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_groups_of_two_by_hand() {
        // q = 1/2 a round: the greater of two geometric variables has the mean 8/3.
        let failure_rate = 1.0 - 0.5_f64.sqrt();
        let iterations = expected_iterations(4, 2, failure_rate).unwrap();
        assert!((iterations - 2.0 * 8.0 / 3.0).abs() < 1e-9, "{iterations}");
        let one_group = expected_iterations(4, 4, failure_rate).unwrap();
        assert!((one_group - 4.0).abs() < 1e-9, "{one_group}");
    }

    #[test]
    fn the_limit_for_rare_success_joins_the_sum() {
        for n_groups in [1, 2, 7, 40] {
            let round = |failure_rate| round_iterations(n_groups * 2, 2, failure_rate);
            // Success rates just above and just below where the formula changes.
            let above = round(1.0 - (RARE * 1.000_001).sqrt());
            let below = round(1.0 - (RARE * 0.999_999).sqrt());
            assert!((above / below - 1.0).abs() < 1e-4, "{above} {below}");
        }
    }

    #[test]
    fn impossible_rates_and_sizes_are_refused() {
        for rate in [1.0, -0.1, f64::NAN, f64::INFINITY] {
            assert!(matches!(best_group_size(8, rate), Err(GroupSizeError::BadRate { .. })));
        }
        assert!(matches!(expected_iterations(8, 1, 0.1), Err(GroupSizeError::BadSize { size: 1, .. })));
        assert!(matches!(expected_iterations(8, 9, 0.1), Err(GroupSizeError::BadSize { size: 9, .. })));
        assert_eq!(best_group_size(1, 0.1).unwrap(), GroupSize { size: 1, n_rounds: 0, iterations: 0.0 });
    }
}
