//! Metrics of a backbone for its operator, in one registry with those of every scheme ([`crate::host::metrics`]).
//!
//! Counters are incremented where something happens. It decides nothing, and serves nothing: the operator's page is that of `barnraise-relay`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use barnraise_protocol::api::RunStatus;
use barnraise_protocol::gradient::ContributionRefusal;
use barnraise_relay::MetricsRegistry;
use barnraise_swarm::bandwidth::MeasuredBandwidth;
use barnraise_swarm::robust::{ClipVerdict, PeerOutcome};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;

use crate::host::metrics::RunMetrics;
use crate::storage::disk_space::DiskSpace;

/// A counter for each value of one label; the values are ours, so there are few.
type ByReason = Family<[(&'static str, &'static str); 1], Counter>;
/// A gauge for each direction.
type ByDirection = Family<[(&'static str, &'static str); 1], Gauge>;

/// The counters of a backbone; cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<MetricsRegistry>,
    contributions: Counter,
    samples: Counter,
    contributions_refused: ByReason,
    /// The same counts, which can be read.
    refused: Arc<Mutex<BTreeMap<&'static str, u64>>>,
    aggregated: ByReason,
    outliers: Gauge,
    averagings: ByReason,
    averaging_bytes: ByReason,
    group_rounds: Counter,
    failure_rate: Gauge<f64, AtomicU64>,
    link_speed: ByDirection,
    reduced: ByReason,
    epochs_behind: Gauge,
    /// Epochs by which aggregators without a link are ahead, according to the DHT.
    cut_off: Arc<AtomicU64>,
    followed: ByReason,
    recomputed: ByReason,
    recomputations_waiting: Gauge,
    recomputed_share: Gauge<f64, AtomicU64>,
    recomputed_share_wanted: Gauge<f64, AtomicU64>,
    of_run: RunMetrics,
}

impl Metrics {
    /// All counters at zero. The state of the run is read from `status`, that of its disk from `disk_space`.
    #[must_use]
    pub fn new(status: watch::Receiver<RunStatus>, disk_space: Option<DiskSpace>) -> Self {
        let (of_run, mut registry) = RunMetrics::new(status, disk_space);
        let contributions = Counter::default();
        registry.register(
            "contributions_accepted",
            "Contributions that were counted, stored and acknowledged",
            contributions.clone(),
        );
        let samples = Counter::default();
        registry.register("samples_accepted", "Samples behind those contributions", samples.clone());
        let contributions_refused = ByReason::default();
        registry.register(
            "contributions_refused",
            "Contributions that were not counted, by reason",
            contributions_refused.clone(),
        );
        let aggregated = ByReason::default();
        registry.register(
            "peers_aggregated",
            "Peers of each step, by what a robust aggregation made of their share",
            aggregated.clone(),
        );
        let outliers = Gauge::default();
        registry.register(
            "outlier_peers",
            "Peers whose gradients, far from those of others, were left out of several steps in a row",
            outliers.clone(),
        );
        let averagings = ByReason::default();
        registry.register("averagings", "Averagings with other aggregators, by outcome", averagings.clone());
        let averaging_bytes = ByReason::default();
        registry.register(
            "averaging_bytes",
            "Encoded values of averagings that gave a mean, by direction",
            averaging_bytes.clone(),
        );
        let group_rounds = Counter::default();
        registry.register(
            "averaging_group_rounds",
            "Rounds of averagings in groups that gave a mean",
            group_rounds.clone(),
        );
        let failure_rate = Gauge::default();
        registry.register(
            "averaging_failure_rate",
            "How often another aggregator fails an averaging, which the size of groups follows from",
            failure_rate.clone(),
        );
        let link_speed = ByDirection::default();
        registry.register(
            "link_bytes_per_second",
            "Speed of this backbone's link as measured by averagings, by direction; absent before the first that was \
             large enough",
            link_speed.clone(),
        );
        let reduced = ByReason::default();
        registry.register(
            "reducer_parts",
            "Parts of averagings that native peers were asked to reduce, by outcome",
            reduced.clone(),
        );
        let epochs_behind = Gauge::default();
        registry.register(
            "epochs_behind",
            "Epochs that the aggregator furthest ahead is ahead, as it says, or the DHT where no link leads to it",
            epochs_behind.clone(),
        );
        let followed = ByReason::default();
        registry.register(
            "models_followed",
            "Steps and checkpoints of other aggregators that this backbone took",
            followed.clone(),
        );
        let recomputed = ByReason::default();
        registry.register(
            "contributions_recomputed",
            "Contributions that were recomputed, by outcome; put_off: refused until the queue has a free slot",
            recomputed.clone(),
        );
        let recomputations_waiting = Gauge::default();
        registry.register(
            "recomputations_waiting",
            "Contributions that wait for recomputation",
            recomputations_waiting.clone(),
        );
        let (recomputed_share, recomputed_share_wanted) = (Gauge::default(), Gauge::default());
        registry.register(
            "recomputed_share",
            "Share of unsuspected contributions that is recomputed at present",
            recomputed_share.clone(),
        );
        registry.register(
            "recomputed_share_wanted",
            "The configured share, from which the present one falls short while the device does not keep up",
            recomputed_share_wanted.clone(),
        );
        Self {
            registry: Arc::new(registry),
            contributions,
            samples,
            contributions_refused,
            refused: Arc::default(),
            aggregated,
            outliers,
            averagings,
            averaging_bytes,
            group_rounds,
            failure_rate,
            link_speed,
            reduced,
            epochs_behind,
            cut_off: Arc::default(),
            followed,
            recomputed,
            recomputations_waiting,
            recomputed_share,
            recomputed_share_wanted,
            of_run,
        }
    }

    /// Those of every scheme.
    #[must_use]
    pub fn of_run(&self) -> &RunMetrics {
        &self.of_run
    }

    /// For the operator's page.
    #[must_use]
    pub fn registry(&self) -> Arc<MetricsRegistry> {
        Arc::clone(&self.registry)
    }

    /// A step was made of the shares of these peers; `n_outliers` peers were left out of several steps in a row.
    pub fn on_aggregated(&self, outcomes: &[PeerOutcome], n_outliers: usize) {
        for PeerOutcome { outcome, .. } in outcomes {
            self.aggregated.get_or_create(&[("outcome", verdict(outcome.verdict))]).inc();
        }
        self.outliers.set(n_outliers.try_into().unwrap_or(i64::MAX));
    }

    /// An averaging with other aggregators is over: `averaged`, `incomplete` or `failed`.
    pub fn on_averaged(&self, outcome: &'static str) {
        self.averagings.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Bytes of encoded values that an averaging sent and received.
    pub fn on_averaging_bytes(&self, n_sent: u64, n_received: u64) {
        for (direction, n_bytes) in [("sent", n_sent), ("received", n_received)] {
            self.averaging_bytes.get_or_create(&[("direction", direction)]).inc_by(n_bytes);
        }
    }

    /// An averaging in groups took `n_rounds` rounds.
    pub fn on_groups(&self, n_rounds: usize) {
        self.group_rounds.inc_by(n_rounds as u64);
    }

    /// Sets how often another aggregator fails an averaging, 0 to 1.
    pub fn on_failure_rate(&self, rate: f64) {
        self.failure_rate.set(rate);
    }

    /// Sets the measured speed of the link.
    pub fn on_link_measured(&self, measured: MeasuredBandwidth) {
        for (direction, speed) in [("sent", measured.sent), ("received", measured.received)] {
            if let Some(speed) = speed {
                let speed = i64::try_from(speed).unwrap_or(i64::MAX);
                self.link_speed.get_or_create(&[("direction", direction)]).set(speed);
            }
        }
    }

    /// A part that a native peer was to average was `averaged`, `replaced`, `wrong`, or is of an averaging that `failed`.
    pub fn on_reduced(&self, outcome: &'static str) {
        self.reduced.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Sets the epochs by which aggregators without a link are ahead at most.
    pub fn on_cut_off(&self, n_epochs: u64) {
        self.cut_off.store(n_epochs, Ordering::Relaxed);
        let n_epochs = n_epochs.try_into().unwrap_or(i64::MAX);
        if n_epochs > self.epochs_behind.get() {
            self.epochs_behind.set(n_epochs);
        }
    }

    /// Sets the epochs by which linked aggregators are ahead at most; those without a link count as well.
    pub fn on_heard_of(&self, n_epochs: u64) {
        let n_epochs = n_epochs.max(self.cut_off.load(Ordering::Relaxed));
        self.epochs_behind.set(n_epochs.try_into().unwrap_or(i64::MAX));
    }

    /// Another aggregator's `step` or `checkpoint` was taken.
    pub fn on_followed(&self, what: &'static str) {
        self.followed.get_or_create(&[("what", what)]).inc();
    }

    /// Sets the number of contributions that wait for recomputation.
    pub fn on_waiting(&self, n: usize) {
        self.recomputations_waiting.set(n.try_into().unwrap_or(i64::MAX));
    }

    /// Sets the share of unsuspected contributions that is recomputed at present, and the configured one.
    pub fn on_share(&self, share: f64, wanted: f64) {
        self.recomputed_share.set(share);
        self.recomputed_share_wanted.set(wanted);
    }

    /// A contribution was recomputed: `same`, `wrong` or `unknown`; or it was `put_off`.
    pub fn on_recomputed(&self, outcome: &'static str) {
        self.recomputed.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// A contribution of `n_samples` samples was counted.
    pub fn on_accepted(&self, n_samples: u32) {
        self.contributions.inc();
        self.samples.inc_by(n_samples.into());
    }

    /// A contribution was not counted.
    pub fn on_refused(&self, refusal: &ContributionRefusal) {
        let reason = refusal.kind();
        self.contributions_refused.get_or_create(&[("reason", reason)]).inc();
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }

    /// Contributions that were not counted since the start, by reason.
    #[must_use]
    pub fn refused(&self) -> BTreeMap<&'static str, u64> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// As a label.
fn verdict(verdict: ClipVerdict) -> &'static str {
    match verdict {
        ClipVerdict::Unclipped => "kept",
        ClipVerdict::Clipped => "clipped",
        ClipVerdict::LeftOut => "left_out",
    }
}
