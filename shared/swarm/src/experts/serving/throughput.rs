//! How fast the device computes, from the batches that it has computed.

use std::time::Duration;

use super::request::WAIT_MAX;
use crate::Moment;

/// Weight of what was measured before, at each batch.
const DECAY: f64 = 0.9;
/// Shortest time that a batch counts with.
const BATCH_TIME_MIN: Duration = Duration::from_micros(1);

/// Moving mean, weighted by the time that batches took.
#[derive(Debug, Default)]
pub(super) struct Throughput {
    rows: f64,
    seconds: f64,
    last_end: Moment,
}

impl Throughput {
    /// A batch ended, which the device was given at `given_at`. It computes one after the other.
    pub(super) fn on_batch(&mut self, now: Moment, given_at: Moment, n_rows: u32) {
        let took = now.saturating_sub(given_at.max(self.last_end)).max(BATCH_TIME_MIN);
        self.rows = self.rows * DECAY + f64::from(n_rows);
        self.seconds = self.seconds * DECAY + took.as_secs_f64();
        self.last_end = self.last_end.max(now);
    }

    /// A batch failed: its time is nobody's.
    pub(super) fn on_failed(&mut self, now: Moment) {
        self.last_end = self.last_end.max(now);
    }

    /// 0 until a batch was computed.
    pub(super) fn rows_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.rows / self.seconds } else { 0.0 }
    }

    /// Time that so many rows take, at most [`WAIT_MAX`]; none until a batch was computed.
    pub(super) fn time_of(&self, n_rows: u64) -> Duration {
        if self.rows <= 0.0 {
            return Duration::ZERO;
        }
        let seconds = n_rows as f64 * self.seconds / self.rows;
        Duration::from_secs_f64(seconds.clamp(0.0, WAIT_MAX.as_secs_f64()))
    }
}

/// Rows that were computed in about the last minute: the older, the less they count.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ServedRows {
    rows: f64,
    last: Moment,
}

impl ServedRows {
    /// A batch ended.
    pub(super) fn on_batch(&mut self, now: Moment, n_rows: u32) {
        *self = Self { rows: self.per_minute(now) + f64::from(n_rows), last: now };
    }

    pub(super) fn per_minute(&self, now: Moment) -> f64 {
        self.rows * (-now.saturating_sub(self.last).as_secs_f64() / 60.0).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Moment {
        Duration::from_millis(millis)
    }

    #[test]
    fn staged_batches_count_from_the_end_of_the_one_before() {
        let mut speed = Throughput::default();
        assert_eq!((speed.rows_per_second(), speed.time_of(100)), (0.0, Duration::ZERO));
        speed.on_batch(ms(100), ms(0), 10);
        assert!((speed.rows_per_second() - 100.0).abs() < 1e-9);
        // It was given at 50 ms and waited until 100 ms.
        speed.on_batch(ms(200), ms(50), 10);
        assert!((speed.rows_per_second() - 100.0).abs() < 1e-9, "{}", speed.rows_per_second());
        // A rest is nobody's.
        speed.on_batch(ms(9100), ms(9000), 10);
        assert_eq!(speed.time_of(50), ms(500));
        assert_eq!(speed.time_of(u64::MAX), WAIT_MAX);
    }

    #[test]
    fn the_mean_follows_a_change() {
        let mut speed = Throughput::default();
        (0..20).for_each(|at| speed.on_batch(ms(at * 100 + 100), ms(at * 100), 100));
        (20..80).for_each(|at| speed.on_batch(ms(at * 100 + 100), ms(at * 100), 10));
        assert!((speed.rows_per_second() - 100.0).abs() < 5.0, "{}", speed.rows_per_second());
    }

    #[test]
    fn a_batch_that_failed_takes_its_time_with_it() {
        let mut speed = Throughput::default();
        speed.on_failed(ms(900));
        speed.on_failed(ms(100));
        speed.on_batch(ms(1000), ms(0), 10);
        assert!((speed.rows_per_second() - 100.0).abs() < 1e-9, "{}", speed.rows_per_second());
        // Each batch has nine tenths of the weight of the next one.
        speed.on_batch(ms(1100), ms(1000), 100);
        assert!((speed.rows_per_second() - 109.0 / 0.19).abs() < 1e-6, "{}", speed.rows_per_second());
        assert_eq!(speed.time_of(109), ms(190));
    }

    #[test]
    fn what_is_served_evenly_is_told_by_the_minute_and_forgotten() {
        let mut served = ServedRows::default();
        assert!(served.per_minute(ms(500)) < 1e-9);
        (0..6000).for_each(|at| served.on_batch(ms(at * 100), 5));
        let per_minute = served.per_minute(ms(600_000));
        assert!((2990.0..3010.0).contains(&per_minute), "{per_minute}");
        assert!(served.per_minute(ms(1_200_000)) < 1.0);
    }
}
