//! `[contributions]`: the memory that contributions take on this machine, and the database of their totals.

use std::ops::RangeInclusive;

use barnraise_protocol::access::AccessMode;
use barnraise_swarm::robust::Aggregation;
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use super::{AggregationKind, Invalid};

const MEMORY: RangeInclusive<ByteSize> = ByteSize::mib(1)..=ByteSize::tib(1);

/// `[contributions]`
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContributionsSection {
    /// Most bytes of encoded gradients in memory at a time.
    pub in_flight_bytes_max: ByteSize,
    /// Memory for separate gradient sums: one for each address in an open run, one for each peer with
    /// [`AggregationKind::CenteredClip`]; the others share one sum.
    pub aggregation_bytes_max: ByteSize,
    /// Address of a PostgreSQL server and its database, `postgres://user:password@host/database`. Not set: a
    /// file in the run's folder.
    pub database: Option<String>,
}

impl Default for ContributionsSection {
    fn default() -> Self {
        Self {
            in_flight_bytes_max: ByteSize::mib(256),
            aggregation_bytes_max: ByteSize::gib(1),
            database: None,
        }
    }
}

impl std::fmt::Debug for ContributionsSection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The address may contain a password.
        f.debug_struct("ContributionsSection")
            .field("in_flight_bytes_max", &self.in_flight_bytes_max)
            .field("aggregation_bytes_max", &self.aggregation_bytes_max)
            .field("is_on_a_server", &self.database.is_some())
            .finish()
    }
}

impl ContributionsSection {
    /// The aggregation of a collection round, for a model of `n_parameters`.
    pub fn aggregation(&self, kind: AggregationKind, n_parameters: usize, access: AccessMode) -> Aggregation {
        let n_bytes = (n_parameters.max(1) * size_of::<f32>()) as u64;
        // With fewer than three there is no majority to compare with.
        let fit = (self.aggregation_bytes_max.as_u64() / n_bytes).clamp(3, u64::from(u32::MAX));
        let places = fit as u32;
        match (kind, access) {
            (AggregationKind::CenteredClip, _) => Aggregation::CenteredClip { places },
            (AggregationKind::Mean, AccessMode::Open) => Aggregation::MeanOfAddresses { places },
            (AggregationKind::Mean, AccessMode::Invitation | AccessMode::Allowlist) => Aggregation::Mean,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        Invalid::check_range("contributions.in_flight_bytes_max", self.in_flight_bytes_max, MEMORY)?;
        Invalid::check_range("contributions.aggregation_bytes_max", self.aggregation_bytes_max, MEMORY)?;
        let Some(url) = &self.database else { return Ok(()) };
        let is_good = url.starts_with("postgres://") || url.starts_with("postgresql://");
        // The error shows the scheme only: the rest may have a password.
        let got = url.split_once("://").map_or("(something else)", |(scheme, _)| scheme);
        Invalid::check("contributions.database", is_good, "begins with postgres://", got)
    }
}
