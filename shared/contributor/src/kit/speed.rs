//! Samples per second over the last seconds of computing. Rests of a throttled contributor count, as the backbone plans
//! with its real rate; waits do not count.

use barnraise_swarm::Moment;

/// Time constant of the average: a sample this many seconds of computing ago counts a third.
const MEMORY_SECONDS: f64 = 3.0;

/// The speed is 0 until so many seconds were measured: the first passes on a GPU are only queued, which takes no
/// time.
const SECONDS_MIN: f64 = 0.2;

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
}
