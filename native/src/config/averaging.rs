//! `[averaging]`: limits of a contribution, and how contributions become one gradient.

use std::ops::RangeInclusive;
use std::time::Duration;

use barnraise_protocol::access::AccessMode;
use barnraise_swarm::robust::Aggregation;
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use super::Invalid;

const COLLECT_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// Largest limit of the norm: with it, weighted by the most samples, the sum of all contributions of a step stays
/// finite.
const GRADIENT_NORM_MAX: f32 = 1e20;
const MEMORY: RangeInclusive<ByteSize> = ByteSize::mib(1)..=ByteSize::tib(1);

/// `[averaging]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AveragingSection {
    /// Longest wait of a step for gradients that were reported and are due.
    #[serde(with = "humantime_serde")]
    pub collect_timeout: Duration,
    /// Most samples of one contribution; never more than the target batch size.
    pub contribution_samples_max: u32,
    /// Most samples of a peer per second since its last contribution, while other peers contribute too.
    pub samples_per_second_max: u32,
    /// Largest Euclidean norm of a gradient.
    pub gradient_norm_max: f32,
    /// Most contributions that are received at a time.
    pub contributions_in_flight_max: u32,
    /// Most bytes of encoded gradients in memory at a time.
    pub in_flight_bytes_max: ByteSize,
    /// How contributions become one gradient.
    pub aggregation: AggregationKind,
    /// Memory for separate gradient sums: one for each address in an open run, one for each peer with
    /// [`AggregationKind::CenteredClip`]; the others share one sum.
    pub aggregation_bytes_max: ByteSize,
}

/// How contributions become one gradient.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AggregationKind {
    /// The mean over samples. In an open run no address has more weight than all others together.
    #[default]
    Mean,
    /// CenteredClip, which tolerates a minority of Byzantine peers.
    CenteredClip,
}

impl Default for AveragingSection {
    fn default() -> Self {
        Self {
            collect_timeout: Duration::from_secs(5),
            contribution_samples_max: 8192,
            samples_per_second_max: 20_000,
            gradient_norm_max: 1000.0,
            contributions_in_flight_max: 64,
            in_flight_bytes_max: ByteSize::mib(256),
            aggregation: AggregationKind::Mean,
            aggregation_bytes_max: ByteSize::gib(1),
        }
    }
}

impl AveragingSection {
    /// The aggregation of a collection round, for a model of `n_parameters`.
    pub fn aggregation(&self, n_parameters: usize, access: AccessMode) -> Aggregation {
        let n_bytes = (n_parameters.max(1) * size_of::<f32>()) as u64;
        // With fewer than three there is no majority to compare with.
        let fit = (self.aggregation_bytes_max.as_u64() / n_bytes).clamp(3, u64::from(u32::MAX));
        let places = fit as u32;
        match (self.aggregation, access) {
            (AggregationKind::CenteredClip, _) => Aggregation::CenteredClip { places },
            (AggregationKind::Mean, AccessMode::Open) => Aggregation::MeanOfAddresses { places },
            (AggregationKind::Mean, AccessMode::Invitation | AccessMode::Allowlist) => Aggregation::Mean,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        Invalid::check_duration("averaging.collect_timeout", self.collect_timeout, COLLECT_TIMEOUT)?;
        Invalid::check_range("averaging.samples_per_second_max", self.samples_per_second_max, 1..=u32::MAX)?;
        let norm = self.gradient_norm_max;
        let good = norm > 0.0 && norm <= GRADIENT_NORM_MAX;
        let want = format!("above 0 and at most {GRADIENT_NORM_MAX:e}");
        Invalid::check("averaging.gradient_norm_max", good, want, norm)?;
        Invalid::check_range(
            "averaging.contributions_in_flight_max",
            self.contributions_in_flight_max,
            1..=100_000,
        )?;
        Invalid::check_range("averaging.in_flight_bytes_max", self.in_flight_bytes_max, MEMORY)?;
        Invalid::check_range("averaging.aggregation_bytes_max", self.aggregation_bytes_max, MEMORY)
    }
}
