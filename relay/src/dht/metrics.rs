//! The DHT's counters as metrics, collected at each scrape.

use std::fmt;
use std::sync::Weak;

use libp2p::metrics::Registry;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::DhtState;

/// Exports nothing once the DHT has ended.
#[derive(Debug)]
struct DhtCollector(Weak<DhtState>);

pub(super) fn register(registry: &mut Registry, shared: Weak<DhtState>) {
    registry.sub_registry_with_prefix("barnraise_dht").register_collector(Box::new(DhtCollector(shared)));
}

impl Collector for DhtCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(shared) = self.0.upgrade() else { return Ok(()) };
        let counters = shared.counters();
        for (name, n) in counters.totals() {
            let counter = ConstCounter::new(n);
            let help = format!("Since the start: {}", name.replace('_', " "));
            counter.encode(encoder.encode_descriptor(name, &help, None, counter.metric_type())?)?;
        }
        for (name, help, n) in [
            ("stored_records", "Records kept for others now", counters.stored_records),
            ("stored_bytes", "Their bytes", counters.stored_bytes),
            ("cached_records", "Records remembered of what was found", counters.cached_records),
        ] {
            let gauge = ConstGauge::new(i64::try_from(n).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}
