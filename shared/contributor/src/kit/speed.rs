//! Samples per second over the last seconds of computing. Rests of a throttled contributor count, as the backbone plans
//! with its real rate; waits do not count.

use barnraise_swarm::Moment;

/// Time constant of the average: a sample this many seconds of computing ago counts a third.
const MEMORY_SECONDS: f64 = 3.0;

/// The speed is 0 until so many seconds were measured: the first passes on a GPU are only queued, which takes no
/// time.
const SECONDS_MIN: f64 = 0.2;

/// A shorter pass is computed by one thread, in seconds.
const UNDIVIDED_MIN: f32 = 0.008;
/// Likewise where several compute it.
const DIVIDED_MIN: f32 = UNDIVIDED_MIN / 8.0;

/// Exponentially weighted sums of samples and seconds; their quotient needs no warm-up.
#[derive(Debug, Default)]
pub(crate) struct Speed {
    samples: f64,
    seconds: f64,
}

impl Speed {
    /// Adds `n_samples` that took `took`.
    pub(crate) fn add(&mut self, n_samples: u32, took: Moment) {
        let seconds = took.as_secs_f64();
        let keep = (-seconds / MEMORY_SECONDS).exp();
        self.samples = self.samples * keep + f64::from(n_samples);
        self.seconds = self.seconds * keep + seconds;
    }

    /// Whether a pass takes so long that threads gain more than what they say to each other costs. Of those that take part already a
    /// shorter one is enough.
    pub(crate) fn is_worth_dividing(&self, n_samples: u32, is_divided: bool) -> bool {
        let seconds = n_samples as f32 / self.samples_per_second().max(f32::MIN_POSITIVE);
        self.seconds >= SECONDS_MIN && seconds >= if is_divided { DIVIDED_MIN } else { UNDIVIDED_MIN }
    }

    /// The average; 0 before [`SECONDS_MIN`].
    pub(crate) fn samples_per_second(&self) -> f32 {
        if self.seconds >= SECONDS_MIN { (self.samples / self.seconds) as f32 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_seconds_count_most() {
        let mut speed = Speed::default();
        speed.add(100, Moment::from_micros(10));
        assert_eq!(speed.samples_per_second(), 0.0);
        (0..10).for_each(|_| speed.add(100, Moment::from_secs(1)));
        assert!((speed.samples_per_second() - 100.0).abs() < 5.0);
        (0..20).for_each(|_| speed.add(10, Moment::from_secs(1)));
        assert!((speed.samples_per_second() - 10.0).abs() < 1.0);
    }

    #[test]
    fn threads_take_part_in_passes_that_are_long() {
        let mut speed = Speed::default();
        assert!(!speed.is_worth_dividing(64, false) && !speed.is_worth_dividing(64, true), "unknown");
        speed.add(1000, Moment::from_secs(1));
        assert!(speed.is_worth_dividing(8, false));
        assert!(!speed.is_worth_dividing(7, false) && speed.is_worth_dividing(7, true));
        assert!(!speed.is_worth_dividing(0, true));
    }
}
