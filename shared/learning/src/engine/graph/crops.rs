//! SwAV on a graph: crops of two sizes up to the features, then all together (Caron et al. 2020).

use barnraise_protocol::run::model::graph::{LARGE_CROPS, SwavLoss};
use burn::tensor::Tensor;

use super::batch::{GraphBatch, GraphTargets};
use super::interpreter::{GraphPass, unit_length};
use super::loss::Judged;
use super::value::{PassError, Value, WrongKind};
use crate::engine::arithmetic::wide;
use crate::engine::composite::multiply;
use crate::engine::swav::{ProjectionQueue, SwappedPrediction, of_each_large, sinkhorn};
use crate::graph::ResolvedGraph;

/// What prototypes are compared with, and the result.
pub(super) struct Heads {
    /// `[n_crops * n_samples, projection]`, each of length 1.
    pub(super) projections: Tensor<2>,
    /// Cosines with the prototypes, `[n_crops * n_samples, prototypes]`.
    pub(super) scores: Tensor<2>,
}

/// Computes all crops of a batch.
pub(super) async fn heads(
    pass: &mut GraphPass<'_>,
    large: Value,
    batch: &GraphBatch,
    loss: &SwavLoss,
) -> Result<Heads, PassError> {
    let mut all = vec![features(pass, large).await?];
    if let GraphTargets::Crops { small, .. } = &batch.targets
        && !small.is_empty()
    {
        let side = loss.small_side as usize;
        let channels = pass.graph.shape_of(0).dims()[0];
        let shape = [channels, side, side];
        let data = burn::tensor::TensorData::new(small.clone(), [small.len()]);
        let small = Value::of_shape(Tensor::from_data(data, pass.device), &shape)?;
        all.push(features(pass, small).await?);
    }
    let (at, n_inputs) = (features_at(pass.graph)?, pass.graph.inputs().len());
    let mut values = vec![None; at];
    values.push(Some(Value::join_vectors(all)?));
    let last = pass.graph.steps().len().saturating_sub(1);
    pass.compute(at - n_inputs + 1..last, &mut values).await?;
    let projection = pass.graph.steps()[last].inputs[0];
    let projections = values.get(projection).cloned().flatten().ok_or(WrongKind)?.vectors()?;
    let projections = unit_length(wide(projections));
    pass.compute(last..last + 1, &mut values).await?;
    let scores = values.pop().flatten().ok_or(WrongKind)?.vectors()?;
    Ok(Heads { projections, scores })
}

/// Features of pictures of one size, `[n, n_features]`.
pub(super) async fn features(pass: &mut GraphPass<'_>, images: Value) -> Result<Value, PassError> {
    let at = features_at(pass.graph)?;
    let mut values = vec![Some(images)];
    pass.compute(0..at + 1 - pass.graph.inputs().len(), &mut values).await?;
    Ok(values.pop().flatten().ok_or(WrongKind)?)
}

fn features_at(graph: &ResolvedGraph) -> Result<usize, WrongKind> {
    graph.features().ok_or(WrongKind)
}

/// The swapped prediction of scores `[n_crops * n_samples, prototypes]`. `prototypes`, `[prototypes, projection]`, are
/// compared with the projections in the queue, where it is used.
pub(super) fn judge(
    scores: Tensor<2>,
    queue: Option<(&ProjectionQueue, &Tensor<2>)>,
    loss: &SwavLoss,
    n_samples: usize,
) -> Judged {
    let assignments = of_each_large(n_samples, |rows| {
        let own = rows.of(&scores);
        let earlier = queue.and_then(|(queue, prototypes)| {
            Some((queue.of_crop(rows.crop)?, unit_length(prototypes.clone()).swap_dims(0, 1)))
        });
        let Some((earlier, prototypes)) = earlier else { return sinkhorn::assign(own) };
        let n_earlier = earlier.dims()[0];
        let all = Tensor::cat(vec![multiply(earlier, prototypes), own], 0);
        sinkhorn::assign(all).narrow(0, n_earlier, n_samples)
    });
    let n_crops = LARGE_CROPS + loss.small_crops as usize;
    let SwappedPrediction { residual, values } =
        SwappedPrediction::of(scores, &assignments, n_crops, n_samples);
    Judged { residual, values }
}
