//! Resolves a whole graph: its blocks, and whether its output suits its loss and the data.

use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::run::model::graph::{Graph, LARGE_CROPS, Loss, SwavLoss};
use barnraise_protocol::run::model::operation::{Operation, Route};
use barnraise_protocol::run::model::{Adapters, Size};

use super::data::GraphData;
use super::error::{BlockProblem, GraphError};
use super::expand::{Expansion, expand};
use super::shape::ValueShape;
use super::tensors::Places;
use super::{ACTIVATIONS_MAX, ResolvedGraph, Step, TensorPlace, check};

/// Most small crops of a picture.
const SMALL_CROPS_MAX: u32 = 16;
/// Most values in the queue of a contributor: a quarter of a GiB.
const QUEUE_VALUES_MAX: usize = 64 * 1024 * 1024;

impl ResolvedGraph {
    /// Resolves `graph` on `data`: a pure function of both.
    ///
    /// # Errors
    /// The first thing that is wrong: a bound, a name, or a block with the shape wanted and the shape got.
    pub fn of(graph: &Graph, data: GraphData) -> Result<Self, GraphError> {
        Self::with_options(graph, data, None, false)
    }

    /// The same with weights that are frozen, but for adapters; and with experts that other peers host.
    ///
    /// # Errors
    /// As of [`Self::of`]; adapters that no block has; SwAV with hosted experts, or none to host.
    pub fn with_options(
        graph: &Graph,
        data: GraphData,
        adapters: Option<&Adapters>,
        is_hosted: bool,
    ) -> Result<Self, GraphError> {
        let masks = matches!(graph.loss, Loss::MaskedLanguageModel);
        if masks && matches!(data, GraphData::Tokens { n_masked: 0, .. }) {
            return Err(GraphError::NoMask);
        }
        let expansion = expand(graph, &data, adapters, is_hosted)?;
        let has_experts = expansion.steps.iter().any(|step| step.experts.is_some());
        if is_hosted && (!has_experts || matches!(graph.loss, Loss::Swav(_))) {
            return Err(GraphError::NothingHosted);
        }
        check_output(&graph.loss, &data, &expansion)?;
        if graph.loss == Loss::CausalLanguageModel {
            check_causal(&expansion.steps)?;
        }
        let Expansion { inputs, steps, tensors } = expansion;
        let Places { layout, frozen, statistics } = tensors.finish()?;
        let loss = graph.loss.clone();
        let mut resolved = Self { data, inputs, steps, layout, frozen, statistics, loss, features: None };
        if let Loss::Swav(loss) = &graph.loss {
            resolved.resolve_crops(graph, loss)?;
        }
        let n_activations = resolved.layout.n_activations.saturating_add(resolved.loss_activations());
        if n_activations > ACTIVATIONS_MAX {
            return Err(GraphError::Activations { max: ACTIVATIONS_MAX });
        }
        resolved.layout.n_activations = n_activations;
        Ok(resolved)
    }

    /// Probabilities, and the derivative of the loss.
    fn loss_activations(&self) -> usize {
        self.output().n_values().unwrap_or(usize::MAX).saturating_mul(2)
    }

    /// Checks that features have one shape for crops of both sizes, and that only they are looked at after them.
    fn resolve_crops(&mut self, graph: &Graph, loss: &SwavLoss) -> Result<(), GraphError> {
        let GraphData::Images { shape, n_classes } = self.data else { return Ok(()) };
        let features = self.steps.iter().position(|step| step.name == loss.features);
        let last = self.steps.last();
        let problem = |problem| {
            let block = last.map(|step| step.name.clone()).unwrap_or_default();
            GraphError::Block { block, problem }
        };
        let features =
            features.ok_or_else(|| problem(BlockProblem::UnknownInput { name: loss.features.clone() }))?;
        let side_max = u32::from(shape.height.min(shape.width));
        let option = |holds, option, got, want| check::that(holds, option, got, want).map_err(problem);
        option(loss.small_crops <= SMALL_CROPS_MAX, "small_crops", loss.small_crops, "at most 16")?;
        let want = "at most the picture's height and width";
        option((1..=side_max).contains(&loss.small_side), "small_side", loss.small_side, want)?;
        let is_prototypes = |step: &Step| match step.parameters.as_slice() {
            &[TensorPlace::Trained(weight)] => weight + 1 == self.layout.trained().len(),
            _ => false,
        };
        let has_prototypes =
            last.is_some_and(|step| matches!(step.op, Operation::Cosine(_)) && is_prototypes(step));
        if !has_prototypes {
            return Err(problem(BlockProblem::NoPrototypes));
        }
        let side = u16::try_from(loss.small_side).unwrap_or(u16::MAX);
        let small = ImageShape { height: side, width: side, channels: shape.channels };
        let small = expand(graph, &GraphData::Images { shape: small, n_classes }, None, false)?;
        self.check_features(features, &small)?;
        let crops = LARGE_CROPS.saturating_mul(self.layout.n_activations);
        let small = small.tensors.layout.n_activations.saturating_mul(loss.small_crops as usize);
        self.layout.n_activations = crops.saturating_add(small);
        self.features = Some(self.inputs.len() + features);
        self.check_queue(loss)
    }

    fn check_features(&self, features: usize, small: &Expansion) -> Result<(), GraphError> {
        let step = &self.steps[features];
        let problem = |problem| GraphError::Block { block: step.name.clone(), problem };
        let (large, small_shape) = (&step.shape, &small.steps[features].shape);
        let is_vector = large.dims().len() == 1;
        if large != small_shape || !is_vector || self.layout.trained() != small.tensors.layout.segments {
            let (large, small) = (large.clone(), small_shape.clone());
            return Err(problem(BlockProblem::CropShape { large, small }));
        }
        let first = self.inputs.len() + features;
        for step in &self.steps[features + 1..] {
            if let Some(&before) = step.inputs.iter().find(|&&input| input < first) {
                let name = match before.checked_sub(self.inputs.len()) {
                    Some(index) => self.steps[index].name.clone(),
                    None => self.inputs[before].name.to_owned(),
                };
                let problem = BlockProblem::BeforeFeatures { name };
                return Err(GraphError::Block { block: step.name.clone(), problem });
            }
        }
        Ok(())
    }

    fn check_queue(&self, loss: &SwavLoss) -> Result<(), GraphError> {
        let Some(prototypes) = self.layout.trained().last() else { return Ok(()) };
        // Of each sample its projections are kept, and each of them is compared with the prototypes.
        let widths = prototypes.shape.iter().map(|&size| LARGE_CROPS.saturating_mul(size));
        let of_sample = widths.max().unwrap_or(0);
        let fits = (loss.queue_samples as usize).saturating_mul(of_sample) <= QUEUE_VALUES_MAX;
        let want = "so small that the queue and its comparisons have at most 67,108,864 values";
        let block = self.steps.last().map(|step| step.name.clone()).unwrap_or_default();
        check::that(fits, "queue_samples", loss.queue_samples, want)
            .map_err(|problem| GraphError::Block { block, problem })
    }
}

/// Checks that what is told of a token follows from it and those before it. So a text can be gone on with token by token,
/// and no model predicts what it was shown.
fn check_causal(steps: &[Step]) -> Result<(), GraphError> {
    let looks_ahead = |step: &&Step| match &step.op {
        Operation::Attention(options) => !options.causal,
        Operation::Experts(options) => options.route != Route::Token,
        Operation::Dense(_)
        | Operation::LayerNorm(_)
        | Operation::RmsNorm(_)
        | Operation::Relu
        | Operation::Gelu
        | Operation::GeluTanh
        | Operation::Silu
        | Operation::Tanh
        | Operation::Sigmoid
        | Operation::Softmax
        | Operation::Dropout(_)
        | Operation::Embedding(_)
        | Operation::Unembedding(_)
        | Operation::Positions(_)
        | Operation::Add
        | Operation::Multiply
        | Operation::Concat
        | Operation::DotProduct
        | Operation::Bias
        | Operation::UnitLength
        | Operation::Cosine(_) => false,
        _ => true,
    };
    match steps.iter().find(looks_ahead) {
        Some(step) => Err(GraphError::Block { block: step.name.clone(), problem: BlockProblem::LooksAhead }),
        None => Ok(()),
    }
}

/// Checks that the output is what the loss compares.
fn check_output(loss: &Loss, data: &GraphData, expansion: &Expansion) -> Result<(), GraphError> {
    let unsuited = |loss| GraphError::Loss { loss, data: data.name() };
    let size = |size, loss| data.size(size).ok_or_else(|| unsuited(loss));
    let want = match (loss, data) {
        (Loss::Classification, _) => vec![size(Size::Classes, "classification")?],
        (Loss::Regression, _) => vec![size(Size::Targets, "regression")?],
        (Loss::CausalLanguageModel, &GraphData::Tokens { length, vocabulary, .. }) if length > 1 => {
            vec![length, vocabulary]
        }
        (Loss::CausalLanguageModel, _) => return Err(unsuited("causal-language-model")),
        (Loss::MaskedLanguageModel, &GraphData::Tokens { vocabulary, n_masked, .. }) => {
            vec![n_masked, vocabulary]
        }
        (Loss::MaskedLanguageModel, _) => return Err(unsuited("masked-language-model")),
        (Loss::Swav(_), GraphData::Images { .. }) => return Ok(()),
        (Loss::Swav(_), _) => return Err(unsuited("swav")),
    };
    let Some(last) = expansion.steps.last() else { return Err(GraphError::Empty) };
    let want = ValueShape::Values(want);
    if last.shape == want {
        return Ok(());
    }
    let problem = BlockProblem::Output { want, got: last.shape.clone() };
    Err(GraphError::Block { block: last.name.clone(), problem })
}
