//! Pacing of a contributor: its duty cycle and the size of its passes.
//!
//! A visitor's computer is to stay responsive, and a phone cool. After each pass the device rests according to its
//! duty cycle. A gentle contributor makes passes so small that none of them keeps the device busy for longer than
//! [`PASS_TIME_MAX`]. Gradients are sums weighted by samples, so neither changes the model. Pure: the driver reports
//! when a pass began and how long it took.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Moment;

/// Longest pass of a gentle contributor, unless a single sample takes longer: a delay of two frames is not visible on
/// a display.
pub const PASS_TIME_MAX: Duration = Duration::from_millis(30);
/// Samples of a gentle contributor's first pass, before it is known how long one takes.
const FIRST_PASS_SAMPLES: u32 = 8;
/// After this many passes in a row that were short enough for twice the samples, passes become larger.
const SHORT_PASSES_MIN: u32 = 8;
/// Longest rest after a pass. The slowest device at the lowest duty still does something every minute.
const REST_MAX: Duration = Duration::from_secs(60);

/// Share of the time in which a contributor computes, in percent: [`Duty::MIN`] to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Duty(u8);

/// The percentage is outside the allowed range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("want {min} to 100 percent, got {0}", min = Duty::MIN.0)]
pub struct DutyError(u8);

impl Duty {
    /// A lower share is hardly worth the connection.
    pub const MIN: Self = Self(5);
    /// Without a rest.
    pub const FULL: Self = Self(100);

    /// In percent.
    ///
    /// # Errors
    /// Below [`Self::MIN`] or above 100.
    pub fn of_percent(percent: u8) -> Result<Self, DutyError> {
        let is_one = (Self::MIN.0..=Self::FULL.0).contains(&percent);
        if is_one { Ok(Self(percent)) } else { Err(DutyError(percent)) }
    }

    /// 5 to 100.
    pub fn percent(self) -> u8 {
        self.0
    }

    /// How long to rest after computing for `took`.
    pub fn rest_after(self, took: Duration) -> Duration {
        let idle = u32::from(Self::FULL.0 - self.0);
        (took.saturating_mul(idle) / u32::from(self.0)).min(REST_MAX)
    }
}

impl TryFrom<u8> for Duty {
    type Error = DutyError;

    fn try_from(percent: u8) -> Result<Self, DutyError> {
        Self::of_percent(percent)
    }
}

impl From<Duty> for u8 {
    fn from(duty: Duty) -> Self {
        duty.0
    }
}

/// Pacing of a contributor, as its user or operator sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacingSettings {
    /// Share of the time in which it computes.
    pub duty: Duty,
    /// Whether passes are limited to [`PASS_TIME_MAX`].
    pub is_gentle: bool,
    /// Most samples of a pass, on a device with too little memory for the run's micro-batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_samples_max: Option<u32>,
    /// Megabytes that it may move in a day; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day_mb: Option<u32>,
}

impl Default for PacingSettings {
    fn default() -> Self {
        Self { duty: Duty::FULL, is_gentle: false, pass_samples_max: None, day_mb: None }
    }
}

/// Measured duration of a pass; unknown for a pass that was only queued.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PassTime {
    /// Its samples.
    pub n_samples: u32,
    /// From its beginning to its last kernel.
    pub milliseconds: f32,
}

/// Decides when the next pass may begin, and its size.
#[derive(Debug, Default)]
pub struct Pacer {
    settings: PacingSettings,
    rest_until: Moment,
    /// Samples of a gentle contributor's next pass.
    n_samples: Option<u32>,
    n_short: u32,
}

impl Pacer {
    /// Changes the settings from now on.
    pub fn set(&mut self, settings: PacingSettings) {
        if self.settings != settings {
            // A user who raises the duty does not want to wait for the end of a long rest.
            self.rest_until = Moment::ZERO;
            self.settings = settings;
        }
    }

    /// As they were set last.
    pub fn settings(&self) -> PacingSettings {
        self.settings
    }

    /// Whether the driver must wait for the end of each pass. Where passes are queued their duration is unknown
    /// otherwise, and the next one would be queued already. A device short of memory has none for queued passes.
    pub fn wants_ends(&self) -> bool {
        PacingSettings { day_mb: None, ..self.settings } != PacingSettings::default()
    }

    /// End of the current rest; `None` where a pass may begin.
    pub fn rests_until(&self, now: Moment) -> Option<Moment> {
        (now < self.rest_until).then_some(self.rest_until)
    }

    /// Samples of the next pass, at most `micro_batch`.
    pub fn pass_samples(&self, micro_batch: u32) -> u32 {
        let gentle = self.n_samples.unwrap_or(FIRST_PASS_SAMPLES);
        let wanted = if self.settings.is_gentle { gentle.min(micro_batch).max(1) } else { micro_batch };
        self.within_memory(wanted)
    }

    /// `n_samples`, or as many as the device has memory for.
    pub fn within_memory(&self, n_samples: u32) -> u32 {
        self.settings.pass_samples_max.map_or(n_samples, |most| n_samples.min(most.max(1)))
    }

    /// The device or the model has changed.
    pub fn on_change(&mut self) {
        self.n_samples = None;
        self.n_short = 0;
    }

    /// The device was busy for `took` until `now`. Returns how long it rests.
    pub fn on_busy(&mut self, now: Moment, took: Duration) -> Duration {
        let rest = self.settings.duty.rest_after(took);
        self.rest_until = now.saturating_add(rest);
        rest
    }

    /// A pass over `n_samples` took `took`: the size of the next one is adapted.
    pub fn on_pass(&mut self, n_samples: u32, took: Duration) {
        if !self.settings.is_gentle {
            return;
        }
        if took > PASS_TIME_MAX {
            self.n_samples = Some((n_samples / 2).max(1));
            self.n_short = 0;
        } else if took.saturating_mul(3) < PASS_TIME_MAX {
            // Twice the samples take at most twice the time, which is within the limit: the size does not oscillate.
            self.n_short += 1;
            if self.n_short >= SHORT_PASSES_MIN {
                self.n_samples = Some(n_samples.saturating_mul(2));
                self.n_short = 0;
            }
        } else {
            self.n_samples = Some(n_samples);
            self.n_short = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pacer(percent: u8, is_gentle: bool) -> Pacer {
        let mut pacer = Pacer::default();
        pacer.set(PacingSettings {
            duty: Duty::of_percent(percent).unwrap(),
            is_gentle,
            ..PacingSettings::default()
        });
        pacer
    }

    #[test]
    fn a_duty_is_a_share_of_the_time() {
        for percent in [0, 4, 101, 255] {
            assert_eq!(Duty::of_percent(percent), Err(DutyError(percent)));
        }
        assert_eq!(Duty::FULL.rest_after(100 * MS), Duration::ZERO);
        assert_eq!(Duty::of_percent(50).unwrap().rest_after(100 * MS), 100 * MS);
        assert_eq!(Duty::of_percent(20).unwrap().rest_after(100 * MS), 400 * MS);
        assert_eq!(Duty::MIN.rest_after(100 * MS), 1900 * MS);
        assert_eq!(Duty::MIN.rest_after(Duration::MAX), REST_MAX);
    }

    /// Passes of various lengths in virtual time: the busy share is the duty.
    #[test]
    fn the_device_is_busy_for_its_share() {
        for percent in [5, 20, 50, 75, 100] {
            let mut pacer = pacer(percent, false);
            let (mut now, mut busy) = (Moment::ZERO, Duration::ZERO);
            for pass in 0..200 {
                now = pacer.rests_until(now).unwrap_or(now);
                let took = (1 + pass % 17) * MS;
                now += took;
                busy += took;
                pacer.on_busy(now, took);
            }
            let share = busy.as_secs_f64() / pacer.rests_until(now).unwrap_or(now).as_secs_f64();
            assert!((share - f64::from(percent) / 100.0).abs() < 0.01, "{percent} %: {share}");
        }
    }

    #[test]
    fn another_duty_ends_the_rest_and_the_same_one_does_not() {
        let mut pacer = pacer(5, false);
        pacer.on_busy(Moment::ZERO, 1000 * MS);
        pacer.set(pacer.settings);
        assert_eq!(pacer.rests_until(Moment::ZERO), Some(19_000 * MS));
        pacer.set(PacingSettings::default());
        assert_eq!(pacer.rests_until(Moment::ZERO), None);
        assert!(!pacer.wants_ends());
    }

    #[test]
    fn only_a_gentle_contributor_makes_small_passes() {
        let mut brisk = pacer(20, false);
        brisk.on_pass(64, 500 * MS);
        assert_eq!(brisk.pass_samples(64), 64);
        let gentle = pacer(100, true);
        assert_eq!((gentle.pass_samples(64), gentle.pass_samples(2)), (FIRST_PASS_SAMPLES, 2));
    }

    #[test]
    fn no_pass_is_larger_than_the_memory_allows() {
        for is_gentle in [false, true] {
            let mut pacer = pacer(100, is_gentle);
            let settings = PacingSettings { pass_samples_max: Some(12), ..pacer.settings };
            pacer.set(settings);
            assert!(pacer.wants_ends());
            for _ in 0..100 {
                let n_samples = pacer.pass_samples(64);
                assert!((1..=12).contains(&n_samples), "{n_samples}");
                pacer.on_pass(n_samples, MS);
            }
            assert_eq!((pacer.pass_samples(64), pacer.pass_samples(4), pacer.within_memory(64)), (12, 4, 12));
            pacer.set(PacingSettings { pass_samples_max: Some(0), ..settings });
            assert_eq!(pacer.pass_samples(64), 1, "none at all is no pass");
        }
    }

    /// Pass sizes: they settle where a pass is short enough, and are reset with another device.
    fn settle(per_sample: Duration, micro_batch: u32) -> Vec<u32> {
        let mut pacer = pacer(100, true);
        let mut sizes = Vec::new();
        for _ in 0..400 {
            let n_samples = pacer.pass_samples(micro_batch);
            sizes.push(n_samples);
            pacer.on_pass(n_samples, per_sample * n_samples);
        }
        pacer.on_change();
        assert_eq!(pacer.pass_samples(micro_batch), FIRST_PASS_SAMPLES.min(micro_batch));
        sizes
    }

    #[test]
    fn a_duty_is_shown_and_stored_in_percent() {
        for percent in [5, 20, 100] {
            let duty = Duty::try_from(percent).unwrap();
            assert_eq!((duty.percent(), u8::from(duty)), (percent, percent));
        }
    }

    #[test]
    fn a_rest_ends_when_it_is_over() {
        let mut pacer = pacer(50, false);
        assert_eq!(pacer.on_busy(1000 * MS, 100 * MS), 100 * MS);
        assert_eq!(pacer.rests_until(1099 * MS), Some(1100 * MS));
        assert_eq!(pacer.rests_until(1100 * MS), None);
    }

    /// The size of the next pass after some of 8 samples that took so long.
    fn after(took: &[Duration]) -> u32 {
        let mut pacer = pacer(100, true);
        took.iter().for_each(|took| pacer.on_pass(8, *took));
        pacer.pass_samples(64)
    }

    #[test]
    fn a_pass_is_too_long_beyond_its_limit_and_too_short_below_a_third_of_it() {
        assert_eq!(after(&[PASS_TIME_MAX + MS]), 4);
        assert_eq!(after(&[PASS_TIME_MAX]), 8, "as long as it may be");
        let short = PASS_TIME_MAX / 3 - MS;
        let times = |took: Duration, n: u32| vec![took; n as usize];
        assert_eq!(after(&times(short, SHORT_PASSES_MIN - 1)), 8);
        assert_eq!(after(&times(short, SHORT_PASSES_MIN)), 16);
        assert_eq!(after(&times(PASS_TIME_MAX / 3, 2 * SHORT_PASSES_MIN)), 8);
        // One that was longer than they were: it begins anew.
        let mixed = [times(short, SHORT_PASSES_MIN - 1), vec![PASS_TIME_MAX / 2], times(short, 1)].concat();
        assert_eq!(after(&mixed), 8);
        let mut slow = pacer(100, true);
        slow.on_pass(1, 10 * PASS_TIME_MAX);
        assert_eq!(slow.pass_samples(64), 1, "no pass has fewer than one sample");
    }

    proptest! {
        #[test]
        fn gentle_passes_find_their_size_and_keep_it(micros in 1_u64..40_000, micro_batch in 1_u32..512) {
            let per_sample = Duration::from_micros(micros);
            let sizes = settle(per_sample, micro_batch);
            let last = sizes[sizes.len() - 1];
            prop_assert!(last >= 1 && last <= micro_batch);
            prop_assert!(last == 1 || per_sample * last <= PASS_TIME_MAX);
            // No back and forth.
            prop_assert!(sizes[200..].iter().all(|size| *size == last), "{:?}", &sizes[200..]);
        }
    }
}
