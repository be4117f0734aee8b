//! What the device computes: the limits of a batch, and what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_contributor::hosting::{ComputeError, ComputedRows, HeldRequests};
use barnraise_learning::hosted::HostedLayer;
use barnraise_protocol::experts::{ExpertPlace, LayerId};
use barnraise_swarm::experts::serving::{ServingBatch, ServingLimits};

use super::state::{HostState, Inner};
use super::view::HostStage;

/// Limits of a host that grants half a GiB to requests.
const LIMITS: ServingLimits = ServingLimits {
    rows_max: 4096,
    request_rows_max: 16_384,
    batch_delay: Duration::from_millis(20),
    bytes_max: 512 * 1024 * 1024,
    requests_per_minute: 6000,
};

/// A host without experts, of a model with these layers. Experts of those that are `frozen` will make no step.
pub(super) fn idle(frozen: BTreeSet<LayerId>, layers: &[HostedLayer]) -> Inner {
    Inner {
        requests: HeldRequests::new(LIMITS, layers),
        experts: BTreeMap::new(),
        frozen,
        frozen_by_run: BTreeSet::new(),
        stage: HostStage::Serving,
        handed_over: None,
    }
}

/// Hands out what a batch gave.
pub(super) fn on_computed(
    state: &HostState,
    batch: &ServingBatch,
    place: Option<ExpertPlace>,
    result: Result<ComputedRows, ComputeError>,
) {
    let mut inner = state.lock();
    match inner.requests.on_computed(state.now(), batch, result) {
        Ok(n_steps) => {
            if let Some(expert) = place.and_then(|place| inner.experts.get_mut(&place)) {
                expert.n_steps = n_steps;
                expert.n_requests += batch.parts.len() as u64;
            }
        }
        Err(error) => tracing::warn!(%error, "a batch of an expert failed"),
    }
}
