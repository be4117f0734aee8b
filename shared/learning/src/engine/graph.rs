//! A model that is described as a graph, as burn tensors: forward, and backward by burn's autodiff, on any device.
//!
//! Every device and every platform computes a graph here. No optimizer, and no sample is checked: the trainer does.

mod attention;
mod batch;
mod crops;
mod cut;
mod dropout;
mod experts;
mod interpreter;
mod loss;
mod maps;
mod norm;
mod statistics;
#[cfg(test)]
mod tests;
mod value;

use std::sync::Arc;

#[cfg(test)]
use barnraise_protocol::codec::joined;
use barnraise_protocol::run::model::graph::{Loss, SwavLoss};
use burn::tensor::{Device, Int, Tensor, TensorData};

pub(crate) use self::batch::{GraphBatch, GraphTargets, InputValues};
use self::crops::Heads;
pub(crate) use self::experts::ExpertEngine;
use self::experts::{Found, HostedPass};
pub(crate) use self::interpreter::TokenCache;
use self::interpreter::{GraphPass, Mode};
use self::loss::{Judged, judge, predictions};
use self::statistics::DeviceStatistics;
use self::value::{PassError, Value, WrongKind};
use super::arithmetic::{Arithmetic, where_finite};
use super::readback::read;
use super::swav::{PROTOTYPE_TENSORS, ProjectionQueue};
use super::tensors::{Cursor, FlatTensors};
use super::{Input, PassRead};
use crate::device::DeviceError;
use crate::experts::ExpertPort;
use crate::frozen::FrozenWeights;
use crate::graph::{GraphData, ResolvedGraph, TensorPlace, ValueShape};
use crate::parameters::ParameterSource;

/// A graph on a device, the gradient that it sums, and the statistics that it observes.
pub(crate) struct GraphEngine {
    graph: Arc<ResolvedGraph>,
    last_uses: Arc<[usize]>,
    autodiff: Device,
    tensors: FlatTensors,
    statistics: DeviceStatistics,
    /// Of SwAV.
    queue: ProjectionQueue,
    /// Where hosted experts are asked for.
    experts: Option<ExpertPort>,
    found: Found,
}

impl GraphEngine {
    /// `frozen` is for a graph that has frozen weights; without it they are zero.
    pub(crate) fn new(
        graph: Arc<ResolvedGraph>,
        device: &Device,
        flat: &[f32],
        frozen: Option<&FrozenWeights>,
    ) -> Self {
        let frozen = frozen.map_or_else(Vec::new, |frozen| frozen.tensors(graph.frozen(), device));
        let tensors = FlatTensors::new(graph.layout(), device, flat, frozen);
        let statistics = DeviceStatistics::new(graph.clone(), flat, device);
        let (last_uses, queue) = (last_uses(&graph).into(), queue_of(graph.loss()));
        let (autodiff, found) = (device.clone().autodiff(), Found::default());
        Self { graph, last_uses, autodiff, tensors, statistics, queue, experts: None, found }
    }

    /// Replaces the parameters and drops the gradient sum and what was observed. SwAV's queue stays: it is of parameters
    /// of before, as the method has it.
    pub(crate) fn load<'a>(&mut self, source: impl Into<ParameterSource<'a>>) {
        let source = source.into();
        self.tensors.load(source);
        self.statistics.load(source, self.tensors.device());
        self.found.take();
    }

    /// Reads the parameters that are trained.
    pub(crate) async fn parameters(&self) -> Result<Vec<f32>, DeviceError> {
        self.tensors.read_parameters().await
    }

    pub(crate) fn reset(&mut self) {
        self.tensors.reset();
        self.statistics.reset();
        self.found.take();
    }

    /// From now on hosted experts are asked for here.
    pub(crate) fn ask_experts(&mut self, port: ExpertPort) {
        self.experts = Some(port);
    }

    /// Empties SwAV's queue.
    pub(crate) fn clear_queue(&mut self) {
        self.queue = queue_of(self.graph.loss());
    }

    /// `input` as the graph takes it.
    pub(crate) fn batch(&self, input: Input<'_>) -> GraphBatch {
        match (input, self.graph.data()) {
            (Input::Images { images, labels }, GraphData::Images { shape, .. }) => {
                GraphBatch::images(images, labels, shape)
            }
            (Input::Tokens(ids), GraphData::Tokens { length, .. }) => GraphBatch::text(ids, length),
            (Input::Masked(masked), GraphData::Tokens { length, .. }) => GraphBatch::masked(masked, length),
            (Input::Rows(rows), GraphData::Rows { .. }) => GraphBatch::rows(rows),
            (Input::Ratings(ratings), GraphData::Ratings { .. }) => GraphBatch::ratings(ratings),
            (Input::Crops { crops, is_frozen }, GraphData::Images { .. }) => {
                GraphBatch::crops(crops, is_frozen)
            }
            // The trainer checks samples against the model first.
            _ => GraphBatch::none(),
        }
    }

    /// Queues a pass. Adds up the gradient of the sum of the samples' losses.
    ///
    /// # Shapes
    /// - returns `[2, n_predictions]`: losses, and 1 where the top-1 prediction was correct
    pub(crate) async fn step(&mut self, batch: GraphBatch, arithmetic: Arithmetic) -> PassRead {
        if let Some(port) = self.experts.clone() {
            let pass = HostedPass {
                graph: self.graph.clone(),
                last_uses: self.last_uses.clone(),
                tensors: self.tensors.shared(),
                autodiff: self.autodiff.clone(),
                batch,
                port,
                found: self.found.clone(),
            };
            return pass.run();
        }
        Box::pin(self.try_step(&batch, arithmetic)).await.unwrap_or_else(no_result)
    }

    async fn try_step(&mut self, batch: &GraphBatch, arithmetic: Arithmetic) -> Result<PassRead, PassError> {
        let mode = Mode::Training {
            seeds: &batch.seeds,
            observed: Vec::new(),
            balance: Vec::new(),
            cuts: Vec::new(),
        };
        let (graph, autodiff) = (self.graph.clone(), self.autodiff.clone());
        let mut pass = self.pass(self.tensors.leaves(arithmetic), &autodiff, mode, batch);
        let inputs = inputs(&graph, batch, &autodiff)?;
        let (tracked, judged, projections) = match graph.loss() {
            Loss::Swav(loss) => {
                let large = inputs.into_iter().next().ok_or(WrongKind)?;
                let Heads { projections, scores } = crops::heads(&mut pass, large, batch, loss).await?;
                let prototypes = self.prototypes()?;
                let detached = scores.clone().without_autodiff();
                let judged = crops::judge(detached, Some((&self.queue, &prototypes)), loss, batch.n_samples);
                (scores, judged, Some(projections.without_autodiff()))
            }
            loss => {
                let rows = predictions(output(&mut pass, inputs).await?, loss)?;
                let judged = judge(rows.clone().without_autodiff(), &batch.targets, batch.n_samples)?;
                (rows, judged, None)
            }
        };
        let Mode::Training { observed, balance, .. } = pass.mode else { return Err(WrongKind.into()) };
        let is_frozen = matches!(batch.targets, GraphTargets::Crops { is_frozen: true, .. });
        let n_frozen = if is_frozen { PROTOTYPE_TENSORS } else { 0 };
        let Judged { residual, values } = judged;
        let is_finite = self.tensors.add_gradient(tracked, residual, balance, n_frozen, arithmetic);
        self.statistics.add(observed, is_finite.as_ref());
        if let Some(mut projections) = projections {
            if let Some(flag) = &is_finite {
                // A NaN would stay in the queue. Zeros are as near to every prototype.
                projections = where_finite(projections, flag);
            }
            self.queue.push(projections, batch.n_samples);
        }
        Ok(read(values, is_finite))
    }

    /// Losses without a gradient, by the running statistics, as of [`Self::step`].
    pub(crate) async fn losses(&self, batch: &GraphBatch) -> PassRead {
        let losses = async {
            let (mut pass, inputs) = self.evaluation(batch)?;
            let judged = match self.graph.loss() {
                Loss::Swav(loss) => {
                    let large = inputs.into_iter().next().ok_or(WrongKind)?;
                    let scores = crops::heads(&mut pass, large, batch, loss).await?.scores;
                    crops::judge(scores, None, loss, batch.n_samples)
                }
                loss => {
                    let rows = predictions(output(&mut pass, inputs).await?, loss)?;
                    judge(rows, &batch.targets, batch.n_samples)?
                }
            };
            Ok(read(judged.values, None))
        };
        Box::pin(losses).await.unwrap_or_else(no_result)
    }

    /// What the last block gives, flat: `[n_samples, ...]`. Of SwAV the features of pictures.
    pub(crate) async fn outputs(&self, batch: &GraphBatch) -> PassRead {
        let outputs = async {
            let (mut pass, inputs) = self.evaluation(batch)?;
            let value = match self.graph.loss() {
                Loss::Swav(_) => {
                    crops::features(&mut pass, inputs.into_iter().next().ok_or(WrongKind)?).await?
                }
                _ => output(&mut pass, inputs).await?,
            };
            Ok(read(value.wide()?.rows()?, None))
        };
        Box::pin(outputs).await.unwrap_or_else(no_result)
    }

    /// Goes on with one text: the logits `[vocabulary]` of the token after `ids`, which follow those in the cache.
    pub(crate) async fn next(&self, ids: &[u32], cache: &mut TokenCache) -> PassRead {
        let logits = async {
            let device = self.tensors.device();
            let n_tokens = ids.len();
            let values = ids.iter().map(|&id| id as i32).collect();
            let input = Value::Ids { ids: self::ids(values, device), length: Some(n_tokens) };
            let mut pass = GraphPass {
                graph: &self.graph,
                parameters: self.tensors.parameters(),
                device,
                mode: Mode::Continuation(&mut *cache),
                masked: None,
                last_uses: &self.last_uses,
                experts: self.experts.as_ref(),
            };
            let rows = output(&mut pass, vec![input]).await?.wide()?.rows()?;
            cache.advance(n_tokens);
            Ok(read(rows.narrow(0, n_tokens.saturating_sub(1), 1), None))
        };
        Box::pin(logits).await.unwrap_or_else(no_result)
    }

    /// As [`Self::take_parts`], in one place.
    #[cfg(test)]
    pub(crate) async fn take(&mut self) -> Result<Vec<f32>, DeviceError> {
        Ok(joined(self.take_parts().await?))
    }

    /// Reads the gradient sum, a part for each tensor, and, after it, what running statistics move by in the mean:
    /// `[n_parameters]` together. Drops both. Empty before the first step.
    pub(crate) async fn take_parts(&mut self) -> Result<Vec<Vec<f32>>, DeviceError> {
        let (gradient, observed) = self.found.take();
        if let Some(gradient) = gradient {
            self.tensors.add(gradient);
            self.statistics.add(observed, None);
        }
        let mut parts = self.tensors.take().await?;
        if !parts.is_empty() {
            parts.push(self.statistics.take().await?);
        }
        Ok(parts)
    }

    fn evaluation(&self, batch: &GraphBatch) -> Result<(GraphPass<'_>, Vec<Value>), WrongKind> {
        let (device, mode) = (self.tensors.device(), Mode::Evaluation { running: &self.statistics.running });
        let inputs = inputs(&self.graph, batch, device)?;
        Ok((self.pass(self.tensors.parameters(), device, mode, batch), inputs))
    }

    fn pass<'a>(
        &'a self,
        parameters: Cursor<'a>,
        device: &'a Device,
        mode: Mode<'a>,
        batch: &GraphBatch,
    ) -> GraphPass<'a> {
        let (masked, experts) = (batch.masked_positions(device), self.experts.as_ref());
        GraphPass {
            graph: &self.graph,
            parameters,
            device,
            mode,
            masked,
            last_uses: &self.last_uses,
            experts,
        }
    }

    /// `[prototypes, projection]`, without a gradient.
    fn prototypes(&self) -> Result<Tensor<2>, WrongKind> {
        let segments = self.graph.layout().trained();
        let last = segments.len().checked_sub(PROTOTYPE_TENSORS).ok_or(WrongKind)?;
        let [rows, columns] =
            <[usize; 2]>::try_from(segments[last].shape.as_slice()).map_err(|_| WrongKind)?;
        Ok(self.tensors.parameters().at(TensorPlace::Trained(last)).reshape([rows, columns]))
    }
}

impl GraphBatch {
    /// Positions of masked tokens on a device.
    fn masked_positions(&self, device: &Device) -> Option<Tensor<1, Int>> {
        let positions = || self.masked.iter().map(|&at| at.cast_signed()).collect();
        (!self.masked.is_empty()).then(|| ids(positions(), device))
    }
}

/// The output of the last step.
async fn output(pass: &mut GraphPass<'_>, inputs: Vec<Value>) -> Result<Value, PassError> {
    let mut values: Vec<Option<Value>> = inputs.into_iter().map(Some).collect();
    pass.compute(0..pass.graph.steps().len(), &mut values).await?;
    Ok(values.pop().flatten().ok_or(WrongKind)?)
}

/// The inputs of a batch on the device.
fn inputs(graph: &ResolvedGraph, batch: &GraphBatch, device: &Device) -> Result<Vec<Value>, WrongKind> {
    let value = |(input, values): (&crate::graph::GraphInput, &InputValues)| match (&input.shape, values) {
        (ValueShape::Values(shape), InputValues::Values(values)) => {
            debug_assert_eq!(values.len(), batch.n_rows() * shape.iter().product::<usize>());
            let data = TensorData::new(values.clone(), [values.len()]);
            Value::of_shape(Tensor::from_data(data, device), shape)
        }
        (ValueShape::Ids { shape, .. }, InputValues::Ids(values)) => {
            let values = values.iter().map(|&id| id.cast_signed()).collect();
            Ok(Value::Ids { ids: ids(values, device), length: shape.first().copied() })
        }
        _ => Err(WrongKind),
    };
    graph.inputs().iter().zip(&batch.inputs).map(value).collect()
}

fn ids(values: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let n = values.len();
    Tensor::from_ints(TensorData::new(values, [n]), device)
}

/// For each value the last step that looks at it. Features of crops are joined, so they have no last use before.
fn last_uses(graph: &ResolvedGraph) -> Vec<usize> {
    let mut last = vec![0; graph.inputs().len() + graph.steps().len()];
    for (index, step) in graph.steps().iter().enumerate() {
        step.inputs.iter().for_each(|&input| last[input] = index);
    }
    last
}

fn queue_of(loss: &Loss) -> ProjectionQueue {
    match loss {
        Loss::Swav(SwavLoss { queue_samples, queue_after, .. }) => {
            ProjectionQueue::new(*queue_samples as usize, *queue_after)
        }
        _ => ProjectionQueue::new(0, 0),
    }
}

/// A device that failed; or a bug of ours: a resolved graph says which values its blocks take.
fn no_result(error: PassError) -> PassRead {
    debug_assert!(!matches!(error, PassError::WrongKind(_)), "{error}");
    let error = match error {
        PassError::Device(error) => error,
        PassError::WrongKind(error) => DeviceError::Execution(error.to_string()),
    };
    Box::pin(async move { Err(error) })
}
