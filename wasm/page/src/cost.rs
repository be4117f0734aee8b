//! What contributing takes of the visitor's data: from the run's description, from what others gave, and as measured. Pure.

use barnraise_protocol::api::AcceptedTotals;
use barnraise_protocol::run::RunDescription;

/// Contributions of a shorter time say nothing of an hour.
const TOTALS_MIN_S: u64 = 60;
/// The same for what is measured here.
const MEASURED_MIN_MS: f64 = 60_000.0;
/// What is measured forgets what is older than twice this.
const WINDOW_MS: f64 = 150_000.0;
const HOUR_S: u128 = 3600;

/// Data that a run costs a contributor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunCost {
    pub(crate) model_bytes: u64,
    pub(crate) update_bytes: u64,
    pub(crate) gallery_bytes: u64,
    pub(crate) n_shards: u64,
    /// Average size of a shard.
    pub(crate) shard_bytes: u64,
    pub(crate) data_bytes: u64,
}

impl RunCost {
    pub(crate) fn of(run: &RunDescription) -> Self {
        let n_values = usize::try_from(run.n_parameters).unwrap_or(usize::MAX);
        let shards = &run.data.manifest.shards;
        let data_bytes = shards.iter().map(|shard| u64::from(shard.n_bytes)).sum::<u64>();
        let n_shards = shards.len() as u64;
        Self {
            model_bytes: run.synchronous().state_codec.encoded_len(n_values) as u64,
            // Once a warm-up is over.
            update_bytes: *run
                .synchronous()
                .gradient_codec
                .encoding()
                .encoded_len_at(n_values, u64::MAX)
                .end() as u64,
            gallery_bytes: run.data.manifest.gallery.n_bytes.into(),
            n_shards,
            shard_bytes: data_bytes / n_shards.max(1),
            data_bytes,
        }
    }

    /// Bytes of one step: an update up, and the model down.
    pub(crate) fn step_bytes(self) -> u64 {
        self.update_bytes.saturating_add(self.model_bytes)
    }

    /// Bytes of an hour of a contributor's time, as it was for all contributors so far: their gradients, and the model for
    /// each. `None` while too little was given to tell.
    pub(crate) fn hour_bytes(self, so_far: &AcceptedTotals) -> Option<u64> {
        if so_far.seconds < TOTALS_MIN_S {
            return None;
        }
        let models = u128::from(so_far.n_contributions) * u128::from(self.model_bytes);
        let bytes = (u128::from(so_far.n_bytes) + models) * HOUR_S / u128::from(so_far.seconds);
        u64::try_from(bytes).ok()
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

    use super::*;
    use crate::fixture;

    #[test]
    fn an_hour_costs_what_it_did_for_those_before() {
        let cost = RunCost::of(&fixture::run());
        let so_far = AcceptedTotals { n_contributions: 10, n_samples: 1, n_bytes: 1000, seconds: 120 };
        assert_eq!(cost.hour_bytes(&so_far), Some((1000 + 10 * cost.model_bytes) * 30));
        assert_eq!(cost.hour_bytes(&AcceptedTotals { seconds: 59, ..so_far }), None);
        let huge = AcceptedTotals { n_contributions: u64::MAX, n_bytes: u64::MAX, ..so_far };
        assert_eq!(cost.hour_bytes(&huge), None, "no number is better than a wrong one");
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
