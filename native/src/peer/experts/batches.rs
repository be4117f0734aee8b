//! What the device computes: the rows of a batch on their way there, and what came back to the requests.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use barnraise_protocol::experts::{ExpertPass, ExpertPlace, LayerId};
use barnraise_swarm::experts::serving::{ExpertRuntime, ServingBatch, ServingLimits};

use super::device::{ComputeError, ComputedRows, ExpertJob};
use super::state::{HostState, Inner};
use super::view::HostStage;
use crate::host::expert_hosts::layers::HostedLayer;

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
    // Wide experts take fewer rows at once: a batch of more would fail, and its requests be computed one by one.
    let at_once = layers.iter().map(|layer| layer.body.graph.layout().batch_samples_max()).min();
    let at_once = at_once.and_then(|rows| u32::try_from(rows).ok()).unwrap_or(u32::MAX);
    let (rows_max, request_rows_max) = (LIMITS.rows_max.min(at_once), LIMITS.request_rows_max.min(at_once));
    Inner {
        runtime: ExpertRuntime::new(ServingLimits { rows_max, request_rows_max, ..LIMITS }),
        held: HashMap::new(),
        experts: BTreeMap::new(),
        frozen,
        frozen_by_run: BTreeSet::new(),
        stage: HostStage::Serving,
        handed_over: None,
        n_forward: 0,
        n_backward: 0,
    }
}

/// The job of a batch, of an expert of `layer`: the rows of its parts one after the other.
pub(super) fn gather_rows(state: &HostState, batch: &ServingBatch, layer: Option<LayerId>) -> ExpertJob {
    let inner = state.lock();
    let is_frozen = layer.is_some_and(|layer| inner.is_frozen(layer));
    let (mut inputs, mut gradients) = (Vec::new(), None);
    for (key, _) in &batch.parts {
        let Some(held) = inner.held.get(key) else { continue };
        inputs.extend_from_slice(&held.tensors.inputs);
        if let Some(of_part) = &held.tensors.gradients {
            gradients.get_or_insert_with(Vec::new).extend_from_slice(of_part);
        }
    }
    ExpertJob::Compute { batch: batch.clone(), is_frozen, inputs, gradients }
}

/// Hands out what a batch gave.
pub(super) fn on_computed(
    state: &HostState,
    batch: &ServingBatch,
    place: Option<ExpertPlace>,
    result: Result<ComputedRows, ComputeError>,
) {
    let now = state.now();
    let mut inner = state.lock();
    let ComputedRows { n_steps, n_steps_after, rows } = match result {
        Ok(computed) => computed,
        Err(error) => {
            tracing::warn!(%error, "a batch of an expert failed");
            inner.runtime.on_failed(now, batch.id);
            return;
        }
    };
    let n_rows = u64::from(batch.n_rows());
    match batch.pass {
        ExpertPass::Forward => inner.n_forward += n_rows,
        ExpertPass::Backward => inner.n_backward += n_rows,
    }
    if let Some(expert) = place.and_then(|place| inner.experts.get_mut(&place)) {
        expert.n_steps = n_steps_after;
        expert.n_requests += batch.parts.len() as u64;
    }
    inner.runtime.on_computed(now, batch.id);
    let width = rows.len() / batch.n_rows().max(1) as usize;
    for (key, of_part) in &batch.parts {
        let Some(held) = inner.held.remove(key) else { continue };
        let range = of_part.start as usize * width..of_part.end as usize * width;
        let answer = Ok((n_steps, rows.get(range).unwrap_or_default().to_vec()));
        if held.answer.send(answer).is_err() {
            // Nobody waits for it any more.
            inner.runtime.on_answered(now, *key);
        }
    }
}
