//! The numbers that a simulation draws, all from its seed.

use std::ops::Range;
use std::time::Duration;

/// A seeded generator. The same seed gives the same numbers.
#[derive(Debug, Clone)]
pub struct Random(fastrand::Rng);

impl Random {
    /// Starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Uniform over all values.
    pub fn next_u64(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Uniform in `0..n`, 0 for an empty range.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { self.0.usize(..n) }
    }

    /// Uniform in a range of times; its start where the range is empty.
    pub fn duration(&mut self, range: Range<Duration>) -> Duration {
        let nanos = u64::try_from(range.end.saturating_sub(range.start).as_nanos()).unwrap_or(u64::MAX);
        range.start + Duration::from_nanos(if nanos == 0 { 0 } else { self.0.u64(..nanos) })
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.0.f64() < probability
    }

    /// Exponential with this mean.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        let uniform = (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        mean.mul_f64(-(1.0 - uniform).ln())
    }

    /// Normal with mean 0 and variance 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.0.f64(), std::f64::consts::TAU * self.0.f64());
        (-2.0 * radius.ln()).sqrt() * angle.cos()
    }

    /// Random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }
}
