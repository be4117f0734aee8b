//! What the device computes: the rows of a batch on their way there, and what came back to the requests.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use barnraise_protocol::experts::{ExpertPass, ExpertPlace};
use barnraise_swarm::experts::serving::{ExpertRuntime, ServingBatch, ServingLimits};

use super::device::{ComputeError, ExpertJob};
use super::state::{HostState, Inner};

/// Limits of a host that grants half a GiB to requests.
const LIMITS: ServingLimits = ServingLimits {
    rows_max: 4096,
    request_rows_max: 16_384,
    batch_delay: Duration::from_millis(20),
    bytes_max: 512 * 1024 * 1024,
    requests_per_minute: 6000,
};

/// A host without experts.
pub(super) fn idle() -> Inner {
    let (held, experts) = (HashMap::new(), BTreeMap::new());
    Inner { runtime: ExpertRuntime::new(LIMITS), held, experts, n_forward: 0, n_backward: 0 }
}

/// The job of a batch: the rows of its parts one after the other.
pub(super) fn gather_rows(state: &HostState, batch: &ServingBatch) -> ExpertJob {
    let inner = state.lock();
    let (mut inputs, mut gradients) = (Vec::new(), None);
    for (key, _) in &batch.parts {
        let Some(held) = inner.held.get(key) else { continue };
        inputs.extend_from_slice(&held.tensors.inputs);
        if let Some(of_part) = &held.tensors.gradients {
            gradients.get_or_insert_with(Vec::new).extend_from_slice(of_part);
        }
    }
    ExpertJob::Compute { batch: batch.clone(), inputs, gradients }
}

/// Hands out what a batch gave.
pub(super) fn on_computed(
    state: &HostState,
    batch: &ServingBatch,
    place: Option<ExpertPlace>,
    result: Result<(u64, Vec<f32>), ComputeError>,
) {
    let now = state.now();
    let mut inner = state.lock();
    let (n_steps, rows) = match result {
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
        ExpertPass::Backward => {
            inner.n_backward += n_rows;
            if let Some(expert) = place.and_then(|place| inner.experts.get_mut(&place)) {
                expert.n_steps = n_steps + 1;
            }
        }
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
