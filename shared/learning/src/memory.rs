//! How much memory a run takes, by rule of thumb: so that people hear of it before anything is downloaded.
//!
//! The bytes of a parameter are those that `cargo xtask bench memory` measured (benches/RESULTS.md), at their most.

use barnraise_protocol::run::RunDescription;

use crate::data_shape::DataShape;
use crate::error::ModelError;
use crate::graph::ResolvedGraph;

/// What a process takes without a model.
const PROCESS_BYTES: u64 = 105 << 20;
/// Of a trained parameter at a backbone, with the moments of Adam.
const BACKBONE_BYTES: u64 = 30;
/// Of a trained parameter at a contributor.
const CONTRIBUTOR_BYTES: u64 = 17;
/// Of a frozen weight that computes, beside its encoded bytes.
const FROZEN_BYTES: u64 = 4;
/// Of a value that a pass keeps.
const ACTIVATION_BYTES: u64 = 4;

/// Bytes that a run takes at most, about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Of a backbone, without the training data.
    pub backbone: u64,
    /// Of a tab or a native peer, with passes of the run's micro-batch.
    pub contributor: u64,
}

impl MemoryEstimate {
    /// Of a run.
    ///
    /// # Errors
    /// A model that cannot be computed on the run's data.
    pub fn of_run(run: &RunDescription) -> Result<Self, ModelError> {
        let graph = ResolvedGraph::of_model(&run.model, DataShape::of(&run.data.manifest.samples))?;
        let (n_trained, n_frozen) =
            (graph.layout().n_parameters() as u64, graph.frozen().n_parameters() as u64);
        let encoded: u64 = run.data.manifest.frozen.iter().map(|entry| u64::from(entry.n_bytes)).sum();
        let frozen = encoded + n_frozen * FROZEN_BYTES;
        let n_activations = graph.layout().n_activations as u64 * u64::from(run.scheme.micro_batch_size());
        Ok(Self {
            backbone: PROCESS_BYTES + n_trained * BACKBONE_BYTES + frozen,
            contributor: PROCESS_BYTES
                + n_trained * CONTRIBUTOR_BYTES
                + frozen
                + n_activations * ACTIVATION_BYTES,
        })
    }
}
