//! What contributing takes of the visitor's data: from the run's description and its pace, from what others gave, and as
//! measured. Pure.

use barnraise_protocol::api::AcceptedTotals;
use barnraise_protocol::contribute::RunProgress;
use barnraise_protocol::dataset::{Manifest, ShardEntry};
use barnraise_protocol::run::{RunDescription, Sampled, Scheme};

/// Contributions of a shorter time say nothing of an hour.
const TOTALS_MIN_S: u64 = 60;
/// The same for what is measured here.
const MEASURED_MIN_MS: f64 = 60_000.0;
/// What is measured forgets what is older than twice this.
const WINDOW_MS: f64 = 150_000.0;
const HOUR_S: u128 = 3600;

/// The run's progress over a shorter time says nothing of its pace.
const PACE_MIN_MS: f64 = 10_000.0;
/// An estimate stands until it is off by this factor: the run's pace changes every second.
const ESTIMATE_OFF_BY: f64 = 1.5;

/// Bytes of an hour of contributing, and how they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HourCost {
    /// As measured in this tab.
    Measured(u64),
    /// As it was for all contributors so far.
    OfOthers(u64),
    /// As it would be at the run's pace; of one digit.
    Estimated(u64),
}

/// Data that a run costs a contributor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunCost {
    pub(crate) model_bytes: u64,
    /// Of a model with adapters the weights beside them, which are kept.
    pub(crate) frozen_bytes: u64,
    /// What a contributor sends for a step.
    pub(crate) update_bytes: u64,
    pub(crate) gallery_bytes: u64,
    pub(crate) n_shards: u64,
    /// Average size of a shard.
    pub(crate) shard_bytes: u64,
    pub(crate) data_bytes: u64,
    /// Of data that come as a stream: bytes and number of samples like them, and the samples of a shard.
    pub(crate) streamed: Option<StreamCost>,
    target_batch_size: u32,
    contribution_samples_max: u32,
    /// Models that come for one step: of several neighbours, where there are any.
    n_models: u16,
    /// Of a run without a server: how many of its peers a round is trained by, where not by all.
    sample_size: Option<u32>,
}

/// What a stream of samples costs, by the held-out ones, which are encoded alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamCost {
    bytes: u64,
    n_samples: u32,
    shard_samples: u32,
}

impl StreamCost {
    fn of(manifest: &Manifest) -> Option<Self> {
        let ShardEntry { n_bytes, n_samples, .. } = manifest.gallery;
        let shard_samples = manifest.stream?.shard_samples;
        Some(Self { bytes: n_bytes.into(), n_samples: n_samples.max(1), shard_samples })
    }

    /// Bytes of so many samples.
    fn sample_bytes(self, n_samples: u64) -> u64 {
        let bytes = u128::from(self.bytes) * u128::from(n_samples) / u128::from(self.n_samples);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Bytes of a shard.
    pub(crate) fn shard_bytes(self) -> u64 {
        self.sample_bytes(self.shard_samples.into())
    }
}

impl RunCost {
    /// Of a run whose model has `n_parameters`.
    pub(crate) fn of(run: &RunDescription, n_parameters: u64) -> Self {
        let n_values = usize::try_from(n_parameters).unwrap_or(usize::MAX);
        let shards = &run.data.manifest.shards;
        let data_bytes = shards.iter().map(|shard| u64::from(shard.n_bytes)).sum::<u64>();
        let n_shards = shards.len() as u64;
        let model_bytes = run.scheme.state_codec().encoded_len(n_values) as u64;
        let update_bytes = match &run.scheme {
            // Once a warm-up is over.
            Scheme::Synchronous(scheme) => {
                *scheme.gradient_codec.encoding().encoded_len_at(n_values, u64::MAX).end() as u64
            }
            // The model, to each of those who average.
            Scheme::Sampled(scheme) => model_bytes.saturating_mul(scheme.n_receivers().into()),
        };
        let n_models = run.sampled().map_or(1, Sampled::n_senders);
        Self {
            model_bytes,
            frozen_bytes: run.data.manifest.frozen.iter().map(|shard| u64::from(shard.n_bytes)).sum(),
            update_bytes,
            gallery_bytes: run.data.manifest.gallery.n_bytes.into(),
            n_shards,
            shard_bytes: data_bytes / n_shards.max(1),
            data_bytes,
            streamed: StreamCost::of(&run.data.manifest),
            target_batch_size: run.scheme.step_samples(),
            contribution_samples_max: run.scheme.contribution_samples_max(),
            n_models,
            sample_size: run
                .sampled()
                .filter(|scheme| !scheme.exchange.is_among_neighbors())
                .map(|scheme| scheme.sample_size.into()),
        }
    }

    /// Bytes of one step: an update up, and the model down.
    pub(crate) fn step_bytes(self) -> u64 {
        self.update_bytes.saturating_add(self.models_bytes())
    }

    /// Bytes that come for one step: the model, or those of several neighbours.
    pub(crate) fn models_bytes(self) -> u64 {
        self.model_bytes.saturating_mul(self.n_models.into())
    }

    /// Bytes of samples that come as a stream: each is fetched once more.
    fn streamed_bytes(self, n_samples: u64) -> u64 {
        self.streamed.map_or(0, |streamed| streamed.sample_bytes(n_samples))
    }

    /// Bytes of an hour of a contributor's time, as it was for all contributors so far: their gradients, the model for each,
    /// and the samples of a stream. `None` while too little was given to tell.
    pub(crate) fn hour_bytes(self, so_far: &AcceptedTotals) -> Option<u64> {
        if so_far.seconds < TOTALS_MIN_S {
            return None;
        }
        let models = u128::from(so_far.n_contributions) * u128::from(self.model_bytes);
        let samples = u128::from(self.streamed_bytes(so_far.n_samples));
        let bytes = (u128::from(so_far.n_bytes) + models + samples) * HOUR_S / u128::from(so_far.seconds);
        u64::try_from(bytes).ok()
    }

    /// Bytes of an hour in a run that takes so many samples a second, for a contributor that gives as many as the others:
    /// for each step the model down, and as many updates up as its samples take, which come down where they are a stream.
    /// Without a server, for each round that it is drawn for.
    fn hour_bytes_at(self, samples_per_second: f64, n_contributors: u32) -> u64 {
        let (n_samples, n_contributors) = (self.target_batch_size.max(1), n_contributors.max(1));
        let n_steps = samples_per_second * HOUR_S as f64 / f64::from(n_samples);
        let own_samples = n_samples.div_ceil(n_contributors);
        let n_updates = own_samples.div_ceil(self.contribution_samples_max.max(1));
        let step_bytes =
            self.models_bytes().saturating_add(self.update_bytes.saturating_mul(n_updates.into()));
        let step_bytes = step_bytes.saturating_add(self.streamed_bytes(own_samples.into()));
        let drawn = self.sample_size.map_or(1.0, |size| f64::from(size) / f64::from(n_contributors));
        (n_steps * drawn.min(1.0) * step_bytes as f64) as u64
    }
}

/// Estimates the bytes of an hour from the pace at which the run makes progress, as a number that stands still.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HourEstimate {
    /// Time and samples of the run at the beginning of the window.
    since: Option<(f64, u64)>,
    hour_bytes: Option<u64>,
}

impl HourEstimate {
    /// The run has got so far. While nobody contributes the last estimate stands.
    pub(crate) fn on_progress(&mut self, now_ms: f64, cost: RunCost, progress: &RunProgress) {
        if progress.n_contributors == 0 {
            self.since = None;
            return;
        }
        let of_steps = progress.epoch.saturating_mul(cost.target_batch_size.into());
        let n_samples = of_steps.saturating_add(progress.n_samples);
        let (since_ms, before) = *self.since.get_or_insert((now_ms, n_samples));
        let elapsed_ms = now_ms - since_ms;
        let Some(n_new) = n_samples.checked_sub(before).filter(|_| elapsed_ms < WINDOW_MS) else {
            self.since = Some((now_ms, n_samples));
            return;
        };
        if elapsed_ms >= PACE_MIN_MS && n_new > 0 {
            let samples_per_second = n_new as f64 * 1000.0 / elapsed_ms;
            self.settle(cost.hour_bytes_at(samples_per_second, progress.n_contributors));
        }
    }

    fn settle(&mut self, now: u64) {
        let is_near = |before: u64| {
            let ratio = now as f64 / before as f64;
            (1.0 / ESTIMATE_OFF_BY..=ESTIMATE_OFF_BY).contains(&ratio)
        };
        if !self.hour_bytes.is_some_and(is_near) {
            self.hour_bytes = Some(now);
        }
    }

    /// Rounded to one digit: it is no more exact.
    pub(crate) fn hour_bytes(self) -> Option<u64> {
        let bytes = self.hour_bytes?;
        let unit = 10_u64.pow(bytes.checked_ilog10()?);
        Some((bytes.saturating_add(unit / 2) / unit).saturating_mul(unit))
    }
}

/// Measures the bytes of an hour while this tab contributes. What is fetched before the first accepted update is not
/// counted: it is fetched once.
#[derive(Debug, Clone, Default)]
pub(crate) struct DataMeter {
    /// Time and bytes of the worker at the beginning of the window, and of the next one.
    marks: Option<[(f64, u64); 2]>,
    hour_bytes: Option<u64>,
}

impl DataMeter {
    /// The worker has sent and received so many bytes since its start.
    pub(crate) fn on_bytes(&mut self, now_ms: f64, bytes: u64) {
        let marks = self.marks.get_or_insert([(now_ms, bytes); 2]);
        if bytes < marks[0].1 {
            // Another worker.
            *marks = [(now_ms, bytes); 2];
        }
        if now_ms - marks[1].0 >= WINDOW_MS {
            *marks = [marks[1], (now_ms, bytes)];
        }
        let elapsed_ms = now_ms - marks[0].0;
        if elapsed_ms >= MEASURED_MIN_MS {
            let per_ms = (bytes - marks[0].1) as f64 / elapsed_ms;
            self.hour_bytes = Some((per_ms * 3_600_000.0) as u64);
        }
    }

    /// The tab pauses or stops: the time until it goes on is not measured.
    pub(crate) fn pause(&mut self) {
        self.marks = None;
    }

    /// What an hour takes, once it was measured.
    pub(crate) fn hour_bytes(&self) -> Option<u64> {
        self.hour_bytes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::dataset::DataStream;

    use super::*;
    use crate::fixture;

    #[test]
    fn an_hour_costs_what_it_did_for_those_before() {
        let cost = RunCost::of(&fixture::run(), fixture::N_PARAMETERS);
        let so_far = AcceptedTotals { n_contributions: 10, n_samples: 1, n_bytes: 1000, seconds: 120 };
        assert_eq!(cost.hour_bytes(&so_far), Some((1000 + 10 * cost.model_bytes) * 30));
        assert_eq!(cost.hour_bytes(&AcceptedTotals { seconds: 59, ..so_far }), None);
        let huge = AcceptedTotals { n_contributions: u64::MAX, n_bytes: u64::MAX, ..so_far };
        assert_eq!(cost.hour_bytes(&huge), None, "no number is better than a wrong one");
    }

    #[test]
    fn a_stream_costs_its_samples_each_hour() {
        let mut run = fixture::run();
        let of_set = RunCost::of(&run, fixture::N_PARAMETERS);
        let manifest = &mut run.data.manifest;
        let sources = manifest.gallery.sha256;
        (manifest.gallery.n_bytes, manifest.gallery.n_samples) = (3000, 10);
        manifest.stream = Some(DataStream { sources, shard_samples: 500, window_shards: 8 });
        let cost = RunCost::of(&run, fixture::N_PARAMETERS);
        assert_eq!(cost.streamed.unwrap().shard_bytes(), 150_000);
        let so_far = AcceptedTotals { n_contributions: 10, n_samples: 1000, n_bytes: 1000, seconds: 3600 };
        assert_eq!(cost.hour_bytes(&so_far), of_set.hour_bytes(&so_far).map(|bytes| bytes + 300_000));
        let more = cost.hour_bytes_at(409.6, 2) - of_set.hour_bytes_at(409.6, 2);
        assert!(more.abs_diff(360 * 2048 * 300) < 1000, "{more}");
    }

    #[test]
    fn an_hour_is_estimated_from_the_progress_of_the_run() {
        let cost = RunCost::of(&fixture::run(), fixture::N_PARAMETERS);
        let near = |bytes: u64, want: u64| bytes.abs_diff(want) <= want / 1000;
        // One step in ten seconds, of one update.
        assert!(near(cost.hour_bytes_at(409.6, 1), 360 * cost.step_bytes()));
        // Each of two contributors gives half of the samples, in two updates.
        let cost = RunCost { contribution_samples_max: 1024, ..cost };
        assert!(near(cost.hour_bytes_at(409.6, 2), 360 * (cost.model_bytes + 2 * cost.update_bytes)));

        // Without a server: a round a second, each by 10 of 40, who get the model once and send it to each aggregator.
        let sampled = fixture::sampled_page().run.unwrap();
        let scheme = sampled.sampled().unwrap();
        let (of_round, drawn) = (scheme.micro_batch_size * u32::from(scheme.sample_size), scheme.sample_size);
        let n_aggregators = u64::from(scheme.n_aggregators);
        let of_sampled = RunCost::of(&sampled, fixture::N_PARAMETERS);
        let hour = of_sampled.hour_bytes_at(of_round.into(), 4 * u32::from(drawn));
        assert!(near(hour, 900 * of_sampled.model_bytes * (1 + n_aggregators)), "{hour}");

        let mut estimate = HourEstimate::default();
        let mut at = |second: u32, epoch, n_samples, n_contributors| {
            let progress = RunProgress { epoch, n_samples, n_contributors, ..fixture::progress() };
            estimate.on_progress(1000.0 * f64::from(second), cost, &progress);
            estimate.hour_bytes()
        };
        assert_eq!([at(0, 5, 0, 1), at(9, 5, 4000, 1)], [None; 2], "too early to tell");
        assert_eq!(at(10, 6, 0, 1), Some(200_000_000), "360 steps of 617 kB");
        assert_eq!([at(11, 6, 500, 1), at(12, 6, 500, 0)], [Some(200_000_000); 2]);
        assert_eq!([at(100, 6, 500, 1), at(120, 8, 500, 1)], [Some(200_000_000); 2]);
        // Another run, or the same from an earlier checkpoint.
        assert_eq!([at(121, 0, 0, 1), at(131, 1, 0, 1)], [Some(200_000_000); 2]);
    }

    #[test]
    fn an_estimate_has_one_digit_and_does_not_flicker() {
        let mut estimate = HourEstimate::default();
        assert_eq!(estimate.hour_bytes(), None);
        let mut at = |hour_bytes| {
            estimate.settle(hour_bytes);
            estimate.hour_bytes()
        };
        assert_eq!([at(244), at(260), at(180)], [Some(200); 3]);
        assert_eq!([at(96), at(7)], [Some(100), Some(7)]);
        assert!(at(u64::MAX).is_some_and(|bytes| bytes > u64::MAX / 2));
    }

    #[test]
    fn what_is_measured_is_of_the_last_minutes_of_work() {
        let mut meter = DataMeter::default();
        meter.on_bytes(0.0, 5_000_000);
        meter.on_bytes(30_000.0, 5_500_000);
        assert_eq!(meter.hour_bytes(), None, "half a minute is too short");
        meter.on_bytes(60_000.0, 6_000_000);
        assert_eq!(meter.hour_bytes(), Some(60_000_000));
        // An hour's pause is no hour of work, and another worker counts from zero.
        meter.pause();
        meter.on_bytes(3_660_000.0, 6_000_000);
        meter.on_bytes(3_661_000.0, 0);
        meter.on_bytes(3_721_000.0, 2_000_000);
        assert_eq!(meter.hour_bytes(), Some(120_000_000));
        // Slower since, for longer than the window.
        for minute in 1..=10_u32 {
            meter.on_bytes(3_721_000.0 + 60_000.0 * f64::from(minute), 2_000_000 + 1000 * u64::from(minute));
        }
        assert_eq!(meter.hour_bytes(), Some(60_000));
    }
}
