//! Detects thermal throttling, by which a phone protects itself from heat. Pure.
//!
//! A page cannot read a temperature. On a cool device passes of one size take the same time. If they take much longer
//! than the best time for a while, the device is hot, or busy with the owner's own work, and rests for minutes. The best
//! time is tracked for each size of a pass.

use std::collections::{BTreeMap, VecDeque};

use barnraise_messages::PassTime;

/// Passes per median, which is robust against single interrupted ones.
const WINDOW: usize = 9;
/// The device is suspected of heat when a pass takes so many times the best time,
const SLOW: f32 = 1.8;
/// and no longer suspected when it takes less than so many times.
const BRISK: f32 = 1.4;
/// How long it must be slow before it rests.
const SLOW_FOR_MS: f64 = 10_000.0;
/// First rest; each that follows soon after another is twice as long.
const REST_MS: f64 = 3.0 * 60_000.0;
/// Longest rest.
const REST_MAX_MS: f64 = 24.0 * 60_000.0;
/// A device that was cool for so long after a rest begins with the first one again.
const COOL_AFTER_MS: f64 = 10.0 * 60_000.0;
/// Factor of the time per sample for sizes smaller than any that was timed.
const SMALLER: f32 = 1.25;
/// Most sizes of passes that are tracked; they are powers of two.
const SIZES_MAX: usize = 16;

/// Detector of thermal throttling, from the times of passes.
#[derive(Debug, Default)]
pub(crate) struct Heat {
    /// Milliseconds for a sample, by the samples of a pass.
    best: BTreeMap<u32, f32>,
    n_samples: u32,
    recent: VecDeque<f32>,
    slow_since_ms: Option<f64>,
    rest_until_ms: Option<f64>,
    rest_ms: f64,
}

impl Heat {
    /// Another device computes.
    pub(crate) fn forget(&mut self) {
        *self = Self { rest_until_ms: self.rest_until_ms, rest_ms: self.rest_ms, ..Self::default() };
    }

    /// Continues a rest after the page was reloaded, for so many milliseconds.
    pub(crate) fn go_on_resting(&mut self, now_ms: f64, left_ms: f64) {
        if left_ms > 0.0 {
            (self.rest_until_ms, self.rest_ms) = (Some(now_ms + left_ms.min(REST_MAX_MS)), REST_MS);
        }
    }

    /// Takes the time of a pass.
    pub(crate) fn on_pass(&mut self, now_ms: f64, pass: PassTime) {
        let per_sample = pass.milliseconds / pass.n_samples.max(1) as f32;
        // A pass that was in progress when the rest began does not count.
        if !per_sample.is_finite() || per_sample <= 0.0 || self.is_resting(now_ms) {
            return;
        }
        if pass.n_samples != self.n_samples {
            self.n_samples = pass.n_samples;
            self.recent.clear();
        }
        if self.recent.len() == WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(per_sample);
        if self.recent.len() == WINDOW {
            let median = self.median();
            self.judge(now_ms, median);
        }
    }

    fn median(&self) -> f32 {
        let mut sorted: Vec<f32> = self.recent.iter().copied().collect();
        sorted.sort_by(f32::total_cmp);
        sorted.get(WINDOW / 2).copied().unwrap_or_default()
    }

    fn judge(&mut self, now_ms: f64, median: f32) {
        let slowness = median / self.baseline().unwrap_or(median);
        if self.best.len() < SIZES_MAX || self.best.contains_key(&self.n_samples) {
            let best = self.best.entry(self.n_samples).or_insert(f32::INFINITY);
            if slowness <= SLOW {
                *best = best.min(median);
            }
        }
        if slowness < BRISK {
            self.slow_since_ms = None;
        } else if slowness > SLOW {
            let since_ms = *self.slow_since_ms.get_or_insert(now_ms);
            if now_ms - since_ms >= SLOW_FOR_MS {
                self.rest(now_ms);
            }
        }
    }

    /// Best known time per sample for this size of a pass.
    fn baseline(&self) -> Option<f32> {
        let known = self.best.get(&self.n_samples).copied().filter(|best| best.is_finite());
        let larger =
            || self.best.range(self.n_samples..).map(|(_, best)| *best).find(|best| best.is_finite());
        known.or_else(|| larger().map(|best| best * SMALLER))
    }

    fn rest(&mut self, now_ms: f64) {
        let is_soon = self.rest_until_ms.is_some_and(|until_ms| now_ms - until_ms < COOL_AFTER_MS);
        self.rest_ms = if is_soon { (2.0 * self.rest_ms).min(REST_MAX_MS) } else { REST_MS };
        self.rest_until_ms = Some(now_ms + self.rest_ms);
        self.slow_since_ms = None;
        self.recent.clear();
    }

    fn is_resting(&self, now_ms: f64) -> bool {
        self.rest_until_ms.is_some_and(|until_ms| now_ms < until_ms)
    }

    /// Remaining rest in milliseconds.
    pub(crate) fn rests_for(&self, now_ms: f64) -> Option<f64> {
        self.rest_until_ms.map(|until_ms| until_ms - now_ms).filter(|left_ms| *left_ms > 0.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Passes of so many samples, each of which takes so long, five a second for some seconds.
    fn run(heat: &mut Heat, now_ms: &mut f64, seconds: u32, n_samples: u32, per_sample_ms: f32) {
        for _ in 0..5 * seconds {
            *now_ms += 200.0;
            let milliseconds = per_sample_ms * n_samples as f32;
            heat.on_pass(*now_ms, PassTime { n_samples, milliseconds });
        }
    }

    #[test]
    fn a_device_that_slows_down_rests_and_longer_when_it_does_so_again() {
        let (mut heat, mut now_ms) = (Heat::default(), 0.0);
        run(&mut heat, &mut now_ms, 60, 16, 1.0);
        run(&mut heat, &mut now_ms, 5, 16, 2.5);
        assert_eq!(heat.rests_for(now_ms), None, "a moment is nothing");
        run(&mut heat, &mut now_ms, 10, 16, 2.5);
        let first = heat.rests_for(now_ms).unwrap();
        assert!(first > REST_MS - 10_000.0 && first <= REST_MS, "{first}");
        now_ms += first;
        assert_eq!(heat.rests_for(now_ms), None);
        run(&mut heat, &mut now_ms, 20, 16, 2.5);
        assert!(heat.rests_for(now_ms).unwrap() > 1.5 * REST_MS, "it is still hot");
        now_ms += heat.rests_for(now_ms).unwrap();
        run(&mut heat, &mut now_ms, 900, 16, 1.1);
        assert_eq!(heat.rests_for(now_ms), None);
        run(&mut heat, &mut now_ms, 20, 16, 2.5);
        assert!(heat.rests_for(now_ms).unwrap() <= REST_MS);
    }

    #[test]
    fn a_rest_goes_on_in_the_next_page_and_nonsense_is_none() {
        let rests = |left_ms| {
            let mut heat = Heat::default();
            heat.go_on_resting(50.0, left_ms);
            heat.rests_for(50.0)
        };
        assert_eq!([rests(1000.0), rests(f64::INFINITY)], [Some(1000.0), Some(REST_MAX_MS)]);
        assert_eq!([rests(0.0), rests(-1.0), rests(f64::NAN)], [None; 3]);
        let (mut heat, mut now_ms) = (Heat::default(), 1000.0);
        heat.go_on_resting(0.0, 1000.0);
        run(&mut heat, &mut now_ms, 60, 16, 1.0);
        run(&mut heat, &mut now_ms, 20, 16, 2.5);
        assert!(heat.rests_for(now_ms).unwrap() > 1.5 * REST_MS, "it is hot again soon after");
    }

    #[test]
    fn between_the_thresholds_nothing_changes() {
        let (mut heat, mut now_ms) = (Heat::default(), 0.0);
        run(&mut heat, &mut now_ms, 10, 16, 1.0);
        run(&mut heat, &mut now_ms, 600, 16, 1.7);
        assert_eq!(heat.rests_for(now_ms), None);
        // Suspected, and not cleared of it by becoming a little faster.
        run(&mut heat, &mut now_ms, 6, 16, 2.0);
        run(&mut heat, &mut now_ms, 3, 16, 1.6);
        run(&mut heat, &mut now_ms, 6, 16, 2.0);
        assert!(heat.rests_for(now_ms).is_some());
    }

    #[test]
    fn single_slow_passes_and_other_sizes_are_no_heat() {
        let (mut heat, mut now_ms) = (Heat::default(), 0.0);
        for _ in 0..200 {
            run(&mut heat, &mut now_ms, 1, 16, 1.0);
            heat.on_pass(now_ms, PassTime { n_samples: 16, milliseconds: 900.0 });
        }
        run(&mut heat, &mut now_ms, 60, 4, 1.5);
        run(&mut heat, &mut now_ms, 60, 1, 2.0);
        assert_eq!(heat.rests_for(now_ms), None);
        for milliseconds in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
            heat.on_pass(now_ms, PassTime { n_samples: 0, milliseconds });
        }
        assert_eq!(heat.rests_for(now_ms), None);
    }

    /// A hot device makes smaller passes, as each takes too long: that does not hide that it is hot.
    #[test]
    fn smaller_passes_hide_nothing() {
        let (mut heat, mut now_ms) = (Heat::default(), 0.0);
        run(&mut heat, &mut now_ms, 30, 16, 1.0);
        run(&mut heat, &mut now_ms, 30, 8, 3.0);
        assert!(heat.rests_for(now_ms).is_some());
    }
}
