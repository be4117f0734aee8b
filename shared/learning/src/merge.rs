//! Adapters added to the weights that they are beside: a model that any program computes.

use barnraise_protocol::run::ModelSpec;
use barnraise_protocol::run::model::FirstWeights;

use crate::data_shape::DataShape;
use crate::error::ModelError;
use crate::frozen::{self, FrozenWeights};
use crate::graph::{ResolvedGraph, TensorPlace};

/// The same model with all weights trained, and the flat vector of it that gives the same outputs.
///
/// - `parameters`: `[n_parameters]` of `spec`
///
/// # Errors
/// A model that cannot be computed, or values of another one.
pub fn merged(
    spec: &ModelSpec,
    data: DataShape,
    frozen: &FrozenWeights,
    parameters: &[f32],
) -> Result<(ModelSpec, Vec<f32>), ModelError> {
    let graph = ResolvedGraph::of_model(spec, data)?;
    graph.layout().check_length(parameters.len())?;
    frozen::check(graph.frozen(), Some(frozen))?;
    let whole = ModelSpec { weights: FirstWeights::Drawn, ..spec.clone() };
    let plain = ResolvedGraph::of_model(&whole, data)?;
    let frozen = frozen.values();
    let mut flat = Vec::with_capacity(plain.layout().n_parameters());
    for segment in plain.layout().segments() {
        let trained = graph.layout().segments().iter().find(|own| own.name == segment.name);
        let kept = graph.frozen().segments().iter().find(|own| own.name == segment.name);
        match (trained, kept) {
            (Some(own), _) => flat.extend_from_slice(&parameters[own.range()]),
            (None, Some(own)) => flat.extend_from_slice(&frozen[own.range()]),
            // Both layouts are of one graph.
            (None, None) => flat.resize(segment.range().end, 0.0),
        }
    }
    let mut done = Vec::new();
    for step in graph.steps() {
        let (Some(adapter), Some(&weight)) = (step.adapter, step.parameters.first()) else { continue };
        let name = &graph.segment(weight).name;
        let segment = plain.layout().segments().iter().find(|segment| segment.name == *name);
        let Some(segment) = segment.filter(|_| !done.contains(&adapter.a)) else { continue };
        done.push(adapter.a);
        let of = |index| &parameters[graph.segment(TensorPlace::Trained(index)).range()];
        let rank = graph.segment(TensorPlace::Trained(adapter.b)).shape[0];
        add_product(&mut flat[segment.range()], of(adapter.a), of(adapter.b), rank, adapter.scale);
    }
    Ok((whole, flat))
}

/// Adds `scale * A B` to `weight`: `[in, units]`, `[in, rank]` and `[rank, units]`.
fn add_product(weight: &mut [f32], a: &[f32], b: &[f32], rank: usize, scale: f32) {
    let units = b.len() / rank.max(1);
    for (row, factors) in weight.chunks_exact_mut(units.max(1)).zip(a.chunks_exact(rank.max(1))) {
        for (factor, b) in factors.iter().zip(b.chunks_exact(units.max(1))) {
            row.iter_mut().zip(b).for_each(|(value, b)| *value += scale * factor * b);
        }
    }
}
