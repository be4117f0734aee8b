//! The shape rules: what an operation gives for inputs of some shapes, which tensors it has, and what it keeps.

mod maps;
mod tokens;

use barnraise_protocol::run::model::Size;
use barnraise_protocol::run::model::operation::{
    Cosine, Dense, Dropout, Initial, LayerNorm, Operation, RmsNorm,
};

use super::check;
use super::data::GraphData;
use super::error::{BlockProblem, WantedShape};
use super::shape::{ValueShape, count};
use super::tensors::TensorPlan;
use crate::parameters::Initialization;

/// Largest size of a layer: units, maps, rows of a table.
const SIZE_MAX: u32 = 1 << 24;

/// What an operation gives.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// Of one sample.
    pub(super) shape: Vec<usize>,
    /// Its tensors.
    pub(super) tensors: Vec<TensorPlan>,
    /// Channels and momentum of its running statistics.
    pub(super) statistics: Option<(usize, f32)>,
    /// Values that it keeps for each of those that it gives.
    pub(super) kept: usize,
    /// Values that it keeps besides.
    pub(super) kept_besides: usize,
}

impl Outcome {
    fn of(shape: Vec<usize>) -> Self {
        Self { shape, tensors: Vec::new(), statistics: None, kept: 1, kept_besides: 0 }
    }

    fn with(mut self, tensors: Vec<TensorPlan>) -> Self {
        self.tensors = tensors;
        self
    }

    fn keeping(mut self, kept: usize) -> Self {
        self.kept = kept;
        self
    }
}

/// The inputs of a block, and the sizes of the data.
pub(super) struct Context<'a> {
    pub(super) inputs: &'a [ValueShape],
    pub(super) data: &'a GraphData,
}

/// Applies the rule of an operation that is no call of a part.
pub(super) fn outcome(op: &Operation, context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    match op {
        // Expanded before.
        Operation::Part(_) | Operation::Repeat(_) | Operation::Experts(_) => Err(BlockProblem::Overflow),
        Operation::Dense(options) => dense(options, context),
        Operation::Convolution(options) => maps::convolution(options, context),
        Operation::MaxPool(options) | Operation::AveragePool(options) => maps::pool(options, context),
        Operation::GlobalPool(_) => Ok(Outcome::of(vec![context.maps()?[0]])),
        Operation::BatchNorm(options) => maps::batch_norm(options, context),
        Operation::GroupNorm(options) => maps::group_norm(options, context),
        Operation::LayerNorm(LayerNorm { epsilon, bias }) => norm(*epsilon, *bias, context),
        Operation::RmsNorm(RmsNorm { epsilon }) => norm(*epsilon, false, context),
        Operation::Relu
        | Operation::Gelu
        | Operation::GeluTanh
        | Operation::Silu
        | Operation::Tanh
        | Operation::Sigmoid => Ok(Outcome::of(context.values()?.to_vec())),
        Operation::Softmax => Ok(Outcome::of(context.last()?.0.to_vec())),
        Operation::Dropout(Dropout { rate }) => {
            check::dropped("rate", *rate)?;
            Ok(Outcome::of(context.values()?.to_vec()).keeping(2))
        }
        Operation::Embedding(options) => tokens::embedding(options, context),
        Operation::Unembedding(options) => tokens::unembedding(options, context),
        Operation::Positions(options) => tokens::positions(options, context),
        Operation::ClassToken(options) => tokens::class_token(options, context),
        Operation::Attention(options) => tokens::attention(options, context),
        Operation::Add | Operation::Multiply => Ok(Outcome::of(context.same()?.to_vec())),
        Operation::Concat => concat(context),
        Operation::DotProduct => dot_product(context),
        Operation::Bias => {
            let (shape, width) = context.last()?;
            let bias = TensorPlan::bias(width, Initialization::Constant(0.0));
            Ok(Outcome::of(shape.to_vec()).with(vec![bias]))
        }
        Operation::Flatten => Ok(Outcome::of(vec![context.n_values()?])),
        Operation::Reshape(options) => reshape(&options.shape, context),
        Operation::ToTokens if context.values()?.len() == 1 => Ok(Outcome::of(context.values()?.to_vec())),
        Operation::ToTokens => {
            let [channels, height, width] = context.maps()?;
            let length = height.checked_mul(width).ok_or(BlockProblem::Overflow)?;
            Ok(Outcome::of(vec![length, channels]))
        }
        Operation::MeanTokens => Ok(Outcome::of(vec![context.sequence()?[1]])),
        Operation::PickToken(options) => {
            let [length, width] = context.sequence()?;
            let is_there = (options.index as usize) < length;
            check::that(is_there, "index", options.index, "below the length of the sequence")?;
            Ok(Outcome::of(vec![width]))
        }
        Operation::PickMasked => tokens::pick_masked(context),
        Operation::UnitLength => Ok(Outcome::of(context.last()?.0.to_vec()).keeping(2)),
        Operation::Cosine(Cosine { units }) => cosine(*units, context),
    }
}

impl Context<'_> {
    fn size(&self, option: &'static str, size: Size) -> Result<usize, BlockProblem> {
        let got = self.data.size(size).ok_or(BlockProblem::NoSuchSize { size })?;
        let got = u32::try_from(got).unwrap_or(u32::MAX);
        check::integers(option, &[got], 1..=SIZE_MAX, "1 to 16,777,216")?;
        Ok(got as usize)
    }

    fn only(&self) -> Result<&ValueShape, BlockProblem> {
        match self.inputs {
            [input] => Ok(input),
            inputs => Err(BlockProblem::InputCount { want: "1", got: inputs.len() }),
        }
    }

    /// The only input, of any shape.
    fn values(&self) -> Result<&[usize], BlockProblem> {
        match self.only()? {
            ValueShape::Values(shape) => Ok(shape),
            got => Err(shape(WantedShape::Values, got)),
        }
    }

    /// The only input, maps.
    fn maps(&self) -> Result<[usize; 3], BlockProblem> {
        <[usize; 3]>::try_from(self.values()?).map_err(|_| shape(WantedShape::Maps, &self.inputs[0]))
    }

    /// The only input, a sequence.
    fn sequence(&self) -> Result<[usize; 2], BlockProblem> {
        <[usize; 2]>::try_from(self.values()?).map_err(|_| shape(WantedShape::Sequence, &self.inputs[0]))
    }

    /// The only input, and the size of its last dimension.
    fn last(&self) -> Result<(&[usize], usize), BlockProblem> {
        let dims = self.values()?;
        match dims.last() {
            Some(&last) => Ok((dims, last)),
            None => Err(shape(WantedShape::Values, &self.inputs[0])),
        }
    }

    fn n_values(&self) -> Result<usize, BlockProblem> {
        count(self.values()?).ok_or(BlockProblem::Overflow)
    }

    /// Two inputs or more, all of values and of one shape.
    fn same(&self) -> Result<&[usize], BlockProblem> {
        let first = self.several()?;
        match self.inputs[1..].iter().find(|input| **input != self.inputs[0]) {
            Some(got) => Err(shape(WantedShape::Same(first.to_vec()), got)),
            None => Ok(first),
        }
    }

    /// The first of two inputs or more.
    fn several(&self) -> Result<&[usize], BlockProblem> {
        match self.inputs {
            [] | [_] => Err(BlockProblem::InputCount { want: "2 or more", got: self.inputs.len() }),
            [ValueShape::Values(first), ..] => Ok(first),
            [first, ..] => Err(shape(WantedShape::Values, first)),
        }
    }
}

fn shape(want: WantedShape, got: &ValueShape) -> BlockProblem {
    BlockProblem::Shape { want, got: got.clone() }
}

/// Weights of a layer that sums over `fan_in` values, and its bias.
fn layer_tensors(
    weight: Vec<usize>,
    fan_in: usize,
    bias: Option<usize>,
    initial: Initial,
) -> Result<Vec<TensorPlan>, BlockProblem> {
    let (of_weight, of_bias) = initialization(initial, fan_in)?;
    let mut tensors = vec![TensorPlan::weight(weight, of_weight)];
    tensors.extend(bias.map(|n| TensorPlan::bias(n, of_bias)));
    Ok(tensors)
}

/// The weight of a layer that sums over `fan_in` values, without a bias.
pub(super) fn layer(shape: Vec<usize>, fan_in: usize) -> TensorPlan {
    TensorPlan::weight(shape, Initialization::Layer { fan_in, before_relu: false })
}

/// Of a weight and of a bias.
fn initialization(initial: Initial, fan_in: usize) -> Result<(Initialization, Initialization), BlockProblem> {
    let layer = |before_relu| Initialization::Layer { fan_in, before_relu };
    Ok(match initial {
        Initial::Lecun => (layer(false), layer(false)),
        Initial::He => (layer(true), layer(true)),
        Initial::Uniform(bound) => {
            check::number("initial bound", bound, 0.0..=100.0, "0 to 100")?;
            (Initialization::Uniform { bound }, Initialization::Constant(0.0))
        }
    })
}

fn dense(options: &Dense, context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    let (dims, n_in) = context.last()?;
    let units = context.size("units", options.units)?;
    let tensors = layer_tensors(vec![n_in, units], n_in, options.bias.then_some(units), options.initial)?;
    Ok(Outcome::of(replace_last(dims, units)).with(tensors))
}

fn replace_last(dims: &[usize], last: usize) -> Vec<usize> {
    let before = dims.len().saturating_sub(1);
    dims[..before].iter().copied().chain([last]).collect()
}

fn norm(epsilon: f32, bias: bool, context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    check::epsilon(epsilon)?;
    let (dims, width) = context.last()?;
    let mut tensors = scale_and_shift(width);
    tensors.truncate(if bias { 2 } else { 1 });
    Ok(Outcome::of(dims.to_vec()).with(tensors).keeping(2))
}

/// What follows a normalization.
fn scale_and_shift(n: usize) -> Vec<TensorPlan> {
    vec![
        TensorPlan::weight(vec![n], Initialization::Constant(1.0)),
        TensorPlan::bias(n, Initialization::Constant(0.0)),
    ]
}

fn concat(context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    let first = context.several()?.to_vec();
    let axis = if first.len() == 3 { 0 } else { first.len().saturating_sub(1) };
    let mut joined = first.clone();
    for input in &context.inputs[1..] {
        let fits = match input {
            ValueShape::Values(dims) if dims.len() == first.len() => {
                dims.iter().zip(&first).enumerate().all(|(at, (got, want))| at == axis || got == want)
            }
            _ => false,
        };
        if !fits || first.is_empty() {
            return Err(shape(WantedShape::SameBut(first, axis), input));
        }
        joined[axis] = joined[axis].checked_add(input.dims()[axis]).ok_or(BlockProblem::Overflow)?;
    }
    Ok(Outcome::of(joined))
}

fn dot_product(context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    if context.inputs.len() != 2 {
        return Err(BlockProblem::InputCount { want: "2", got: context.inputs.len() });
    }
    let dims = context.same()?;
    if dims.is_empty() {
        return Err(shape(WantedShape::Values, &context.inputs[0]));
    }
    Ok(Outcome::of(replace_last(dims, 1)))
}

fn reshape(sizes: &[u32], context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    let n = context.n_values()?;
    let rank = u32::try_from(sizes.len()).unwrap_or(u32::MAX);
    check::integers("shape", &[rank], 1..=3, "of 1 to 3 sizes")?;
    let dims: Vec<usize> = sizes.iter().map(|&size| size as usize).collect();
    match count(&dims) {
        Some(got) if got == n => Ok(Outcome::of(dims)),
        _ => Err(shape(WantedShape::Count(n), &ValueShape::Values(dims))),
    }
}

fn cosine(units: u32, context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    check::integers("units", &[units], 1..=SIZE_MAX, "1 to 16,777,216")?;
    let (dims, width) = context.last()?;
    let tensors = layer_tensors(vec![units as usize, width], width, None, Initial::Lecun)?;
    Ok(Outcome::of(replace_last(dims, units as usize)).with(tensors).keeping(2))
}
