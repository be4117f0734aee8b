//! Metrics of a run of any scheme: its status, its disk, its database and the data that it hands out.
//!
//! They are in one registry with those of its scheme. Counters are incremented where something happens; the state of the
//! run is read at each scrape.

use std::fmt;
use std::sync::{Arc, OnceLock};

use barnraise_protocol::api::RunStatus;
use barnraise_relay::MetricsRegistry;
use barnraise_swarm::experts::leases::LeaseStanding;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;

use super::contributions::CaughtUp;
use crate::storage::disk_space::DiskSpace;

/// Prefix of each metric's name.
const PREFIX: &str = "barnraise";

/// What may come of an audit.
const AUDIT_OUTCOMES: [&str; 6] = ["same", "wrong", "near", "far", "unknown", "nothing"];

/// The counters of a run; cheap to clone.
#[derive(Debug, Clone)]
pub struct RunMetrics {
    shards: Counter,
    shard_bytes: Counter,
    audits: Family<[(&'static str, &'static str); 1], Counter>,
    caught_up: CaughtUp,
    experts: HostedExperts,
}

impl RunMetrics {
    /// Returns them with their registry, in which a scheme registers its own. The state of the run is read from `status`,
    /// that of its disk from `disk_space`.
    #[must_use]
    pub fn new(status: watch::Receiver<RunStatus>, disk_space: Option<DiskSpace>) -> (Self, MetricsRegistry) {
        let mut registry = MetricsRegistry::with_prefix(PREFIX);
        let shards = Counter::default();
        registry.register(
            "shards_sent",
            "Shards of the data that were asked for and are here",
            shards.clone(),
        );
        let shard_bytes = Counter::default();
        registry.register("shard_bytes_sent", "Bytes of those shards", shard_bytes.clone());
        registry.register_collector(Box::new(RunCollector(status)));
        if let Some(disk_space) = disk_space {
            registry.register_collector(Box::new(disk_space));
        }
        let caught_up = CaughtUp::default();
        registry.register_collector(Box::new(Database(caught_up.clone())));
        let audits = Family::default();
        for outcome in AUDIT_OUTCOMES {
            drop(audits.get_or_create(&[("outcome", outcome)]));
        }
        registry.register(
            "expert_audits",
            "Answers of experts that were computed once more, by outcome",
            audits.clone(),
        );
        let experts = HostedExperts::default();
        registry.register_collector(Box::new(experts.clone()));
        (Self { shards, shard_bytes, audits, caught_up, experts }, registry)
    }

    /// For the task that writes the counts into the database.
    #[must_use]
    pub fn caught_up(&self) -> CaughtUp {
        self.caught_up.clone()
    }

    /// The run's model has experts that peers host: how they stand.
    pub fn set_experts(&self, standing: impl Fn() -> LeaseStanding + Send + Sync + 'static) {
        self.experts.0.get_or_init(|| Box::new(standing));
    }

    /// An answer of an expert was computed once more: `same` or `wrong` by its very step, `near` or `far` by the steps around it, or
    /// `unknown`; or `nothing` could be checked of what a trainer has.
    pub fn on_audited(&self, outcome: &'static str) {
        self.audits.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// A shard of `n_bytes` bytes was sent.
    pub fn on_shard(&self, n_bytes: u64) {
        self.shards.inc();
        self.shard_bytes.inc_by(n_bytes);
    }
}

/// Reads the state of the run at each scrape.
#[derive(Debug)]
struct RunCollector(watch::Receiver<RunStatus>);

impl Collector for RunCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let progress = self.0.borrow().progress;
        let gauges = [
            ("epoch", "Optimizer steps so far", Some(progress.epoch as f64)),
            ("round_samples", "Samples reported for the next step", Some(progress.n_samples as f64)),
            ("contributors", "Contributors at present", Some(f64::from(progress.n_contributors))),
            ("samples_per_second", "Of all contributors together", Some(progress.samples_per_second.into())),
            ("train_loss", "Of the last step", progress.train_loss.map(f64::from)),
            ("test_accuracy", "Of the last evaluation", progress.test_accuracy.map(f64::from)),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            encode(&mut encoder, name, help, value)?;
        }
        Ok(())
    }
}

type StandingOfExperts = Box<dyn Fn() -> LeaseStanding + Send + Sync>;

/// Reads how the experts stand at each scrape; nothing where there are none.
#[derive(Clone, Default)]
struct HostedExperts(Arc<OnceLock<StandingOfExperts>>);

impl fmt::Debug for HostedExperts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostedExperts").field(&self.0.get().map(|standing| standing())).finish()
    }
}

impl Collector for HostedExperts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(standing) = self.0.get().map(|standing| standing()) else { return Ok(()) };
        let LeaseStanding { n_places, n_held, n_copies, n_hosts, n_rows_waiting } = standing;
        for (name, help, value) in [
            ("expert_places", "Experts of the model that peers host", n_places),
            ("experts_hosted", "Experts that have a host", n_held),
            (
                "expert_copies",
                "Further copies of experts that many rows wait for, each with a host",
                n_copies,
            ),
            ("expert_hosts", "Hosts of experts", n_hosts),
            ("expert_rows_waiting", "Rows that wait for experts, as their hosts said last", n_rows_waiting),
        ] {
            encode(&mut encoder, name, help, value as f64)?;
        }
        Ok(())
    }
}

/// Reads how far the database of contributions is behind at each scrape; it rises also while a query hangs.
#[derive(Debug)]
struct Database(CaughtUp);

impl Collector for Database {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help =
            "Seconds since the database of contributions last had everything: under one while it is at hand";
        encode(&mut encoder, "database_lag_seconds", help, self.0.last().elapsed().as_secs_f64())
    }
}

fn encode(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> Result<(), fmt::Error> {
    let gauge = ConstGauge::new(value);
    let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
    gauge.encode(metric)
}
