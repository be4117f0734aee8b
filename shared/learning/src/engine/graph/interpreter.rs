//! Computes the steps of a resolved graph one after another. Knows no loss, and counts no samples.

use std::collections::HashMap;
use std::ops::Range;

use barnraise_protocol::run::model::operation::{
    Attention, BatchNorm, Cosine, Dropout, GlobalPool, Operation,
};
use burn::tensor::activation::{relu, sigmoid, softmax};
use burn::tensor::{Device, FloatDType, Int, Tensor};

use super::attention::KeptKeys;
use super::cut::Cut;
use super::value::{PassError, Value, WrongKind, on_each_rank, on_equal_ranks};
use super::{attention, dropout, maps, norm};
use crate::engine::arithmetic::wide;
use crate::engine::composite::{Activation, activate, linear, linear_by_flat, multiply};
use crate::engine::tensors::Cursor;
use crate::experts::ExpertPort;
use crate::graph::{ResolvedGraph, Step, TensorPlace};

/// Tensors of a frozen batch normalization: weight, bias, running means and variances.
const FROZEN_NORM_TENSORS: usize = 4;
/// Added to the square of a length that is divided by.
const LENGTH_EPSILON: f32 = 1e-12;

/// What a pass has besides its inputs.
pub(super) struct GraphPass<'a> {
    pub(super) graph: &'a ResolvedGraph,
    pub(super) parameters: Cursor<'a>,
    /// Where it computes, with autodiff in a pass with a gradient.
    pub(super) device: &'a Device,
    pub(super) mode: Mode<'a>,
    /// Positions of the masked tokens, `[n_masked]` in `[n_samples * length]`.
    pub(super) masked: Option<Tensor<1, Int>>,
    /// For each value the last step that looks at it.
    pub(super) last_uses: &'a [usize],
    /// Where hosted experts are asked for.
    pub(super) experts: Option<&'a ExpertPort>,
}

/// Whether a pass is one of training.
pub(super) enum Mode<'a> {
    /// Batch normalization is over the pass, and values are dropped by the samples' seeds.
    Training {
        /// `[n_samples]`; crops of a picture, which come one sample after another, have its seed and their number.
        seeds: &'a [u64],
        /// What batch normalizations saw.
        observed: Vec<Observed>,
        /// Losses beside that of the output, each summed over the samples, `[1]`.
        balance: Vec<Tensor<1>>,
        /// Where hosted experts cut its graph.
        cuts: Vec<Cut>,
    },
    /// Batch normalization by running statistics `[channels]`: means and variances of each one.
    Evaluation {
        /// In the order of [`ResolvedGraph::statistics`].
        running: &'a [[Tensor<1>; 2]],
    },
    /// Evaluation of tokens that go on from those before.
    Continuation(&'a mut TokenCache),
}

/// What a pass over a beginning leaves for the tokens after it.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenCache {
    n_tokens: usize,
    /// Of each step that is an attention.
    kept: HashMap<usize, Option<KeptKeys>>,
}

impl TokenCache {
    /// Tokens so far.
    pub(crate) fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    pub(super) fn advance(&mut self, n_tokens: usize) {
        self.n_tokens += n_tokens;
    }
}

/// Moments that a batch normalization saw.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    /// Which, of [`ResolvedGraph::statistics`].
    pub(super) index: usize,
    /// `[2 * channels]`: means, then variances.
    pub(super) moments: Tensor<1>,
    /// Samples, or crops, that it saw.
    pub(super) n_samples: usize,
}

impl GraphPass<'_> {
    /// Computes some steps. `values` are those before them, `None` where no step looks at one any more. Waits for the device
    /// only where a step chooses by what is computed.
    pub(super) async fn compute(
        &mut self,
        steps: Range<usize>,
        values: &mut Vec<Option<Value>>,
    ) -> Result<(), PassError> {
        let graph = self.graph;
        for index in steps {
            let step = &graph.steps()[index];
            let mut inputs = Vec::with_capacity(step.inputs.len());
            for &input in &step.inputs {
                inputs.push(values.get(input).cloned().flatten().ok_or(WrongKind)?);
            }
            for &input in &step.inputs {
                if self.last_uses.get(input).is_some_and(|&last| last <= index) {
                    values[input] = None;
                }
            }
            let value = match (&step.op, &step.experts) {
                (Operation::Experts(options), Some(grid)) => {
                    let input = inputs.pop().ok_or(WrongKind)?;
                    Box::pin(self.experts(index, step, (options, grid), input, values)).await?
                }
                _ => self.step(index, step, inputs)?,
            };
            values.push(Some(value));
        }
        Ok(())
    }

    pub(super) fn step(
        &mut self,
        index: usize,
        step: &Step,
        mut inputs: Vec<Value>,
    ) -> Result<Value, WrongKind> {
        if inputs.len() > 1 {
            return self.on_several(index, step, inputs);
        }
        let input = inputs.pop().ok_or(WrongKind)?;
        match &step.op {
            Operation::Dense(_) => self.dense(step, input),
            Operation::Convolution(options) => {
                let (weight, bias) = (self.operand(step, 0), self.bias(step));
                let maps = input.maps()?.cast(self.parameters.dtype());
                let kernel = self.shape(step, 0);
                Ok(Value::Maps(maps::convolution(maps, weight, bias, kernel, options)?))
            }
            Operation::MaxPool(options) => Ok(Value::Maps(maps::max_pool(input.maps()?, options))),
            Operation::AveragePool(options) => Ok(Value::Maps(maps::average_pool(input.maps()?, options))),
            Operation::GlobalPool(GlobalPool::Average) => {
                Ok(Value::Vectors(wide(input.maps()?).mean_dim(3).mean_dim(2).flatten(1, 3)))
            }
            Operation::GlobalPool(GlobalPool::Max) => {
                Ok(Value::Vectors(input.maps()?.max_dim(3).max_dim(2).flatten(1, 3)))
            }
            Operation::BatchNorm(options) => self.batch_norm(step, options, input.wide()?),
            Operation::GroupNorm(options) => {
                let (weight, bias) = (self.vector(step, 0), self.vector(step, 1));
                Ok(Value::Maps(norm::group(wide(input.maps()?), weight, bias, options)))
            }
            Operation::LayerNorm(options) => {
                let (weight, bias) = (self.vector(step, 0), options.bias.then(|| self.vector(step, 1)));
                on_each_rank!(input, tensor => norm::layer(wide(tensor), weight, bias, options.epsilon))
            }
            Operation::RmsNorm(options) => {
                let weight = self.vector(step, 0);
                on_each_rank!(input, tensor => norm::root_mean_square(wide(tensor), weight, options.epsilon))
            }
            Operation::Relu => on_each_rank!(input, tensor => relu(tensor)),
            Operation::Gelu => on_each_rank!(input, tensor => activate(tensor, Activation::Gelu)),
            Operation::GeluTanh => on_each_rank!(input, tensor => activate(tensor, Activation::GeluTanh)),
            Operation::Silu => on_each_rank!(input, tensor => activate(tensor, Activation::Silu)),
            Operation::Tanh => on_each_rank!(input, tensor => tensor.tanh()),
            Operation::Sigmoid => on_each_rank!(input, tensor => sigmoid(tensor)),
            Operation::Softmax => on_each_rank!(input, tensor => softmax_last(wide(tensor))),
            Operation::Dropout(Dropout { rate }) => {
                on_each_rank!(input, tensor => self.dropped(index, *rate, tensor))
            }
            _ => self.on_tokens(index, step, input),
        }
    }

    /// Operations on one input that are about tokens, or change a shape.
    fn on_tokens(&mut self, index: usize, step: &Step, input: Value) -> Result<Value, WrongKind> {
        match &step.op {
            Operation::Embedding(_) => self.embedding(step, input),
            Operation::Unembedding(_) => self.unembedding(step, input),
            Operation::Positions(_) => {
                let states = wide(input.sequences()?);
                let [_, length, width] = states.dims();
                let from = match &self.mode {
                    Mode::Continuation(cache) => cache.n_tokens,
                    Mode::Training { .. } | Mode::Evaluation { .. } => 0,
                };
                let table = self.matrix(step, 0, self.vector(step, 0))?;
                Ok(Value::Sequences(states + table.narrow(0, from, length).reshape([1, length, width])))
            }
            Operation::ClassToken(_) => {
                let states = wide(input.sequences()?);
                let [n, _, width] = states.dims();
                let token = self.vector(step, 0).reshape([1, 1, width]).expand([n, 1, width]);
                Ok(Value::Sequences(Tensor::cat(vec![token, states], 1)))
            }
            Operation::Attention(options) => {
                let states = input.sequences()?.cast(self.parameters.dtype());
                Ok(self.attention(index, options, attention::unpacked(states, options)))
            }
            Operation::Bias => {
                let bias = self.vector(step, 0);
                on_each_rank!(input, tensor => norm::shift(wide(tensor), &bias))
            }
            Operation::Flatten => Ok(Value::Vectors(match input {
                Value::Vectors(tensor) => tensor,
                Value::Sequences(tensor) => tensor.flatten(1, 2),
                Value::Maps(tensor) => tensor.flatten(1, 3),
                Value::Ids { .. } => return Err(WrongKind),
            })),
            Operation::Reshape(_) => Value::of_shape(input.flat()?, step.shape.dims()),
            Operation::ToTokens if matches!(input, Value::Vectors(_)) => Ok(input),
            Operation::ToTokens => {
                let maps: Tensor<3> = input.maps()?.flatten(2, 3);
                Ok(Value::Sequences(maps.swap_dims(1, 2)))
            }
            Operation::MeanTokens => Ok(Value::Vectors(wide(input.sequences()?).mean_dim(1).squeeze_dim(1))),
            Operation::PickToken(options) => {
                let states = input.sequences()?;
                Ok(Value::Vectors(states.narrow(1, options.index as usize, 1).squeeze_dim(1)))
            }
            Operation::PickMasked => {
                let states = input.sequences()?;
                let [n, length, width] = states.dims();
                let masked = self.masked.clone().ok_or(WrongKind)?;
                let n_masked = masked.dims()[0] / n.max(1);
                let picked = states.reshape([n * length, width]).select(0, masked);
                Ok(Value::Sequences(picked.reshape([n, n_masked, width])))
            }
            Operation::UnitLength => on_each_rank!(input, tensor => unit_length(wide(tensor))),
            Operation::Cosine(Cosine { units }) => {
                let vectors = unit_length(self.matrix(step, 0, self.vector(step, 0))?);
                let last = *units as usize;
                on_last(input, last, |rows| multiply(unit_length(wide(rows)), vectors.swap_dims(0, 1)))
            }
            _ => Err(WrongKind),
        }
    }

    fn on_several(&mut self, index: usize, step: &Step, inputs: Vec<Value>) -> Result<Value, WrongKind> {
        if let Operation::Attention(options) = &step.op {
            let dtype = self.parameters.dtype();
            let inputs: Result<Vec<_>, _> = inputs.into_iter().map(Value::sequences).collect();
            let inputs: Vec<_> = inputs?.into_iter().map(|input| input.cast(dtype)).collect();
            let inputs = <[Tensor<3>; 3]>::try_from(inputs).map_err(|_| WrongKind)?;
            return Ok(self.attention(index, options, inputs));
        }
        let mut inputs = inputs.into_iter();
        let mut result = inputs.next().ok_or(WrongKind)?.wide()?;
        for input in inputs {
            let input = input.wide()?;
            result = match &step.op {
                Operation::Add => on_equal_ranks!(result, input, (a, b) => a + b)?,
                Operation::Multiply => on_equal_ranks!(result, input, (a, b) => a * b)?,
                Operation::DotProduct => on_equal_ranks!(result, input, (a, b) => sum_last(a * b))?,
                Operation::Concat => on_equal_ranks!(result, input, (a, b) => concat(a, b))?,
                _ => return Err(WrongKind),
            };
        }
        Ok(result)
    }

    fn attention(&mut self, index: usize, options: &Attention, inputs: [Tensor<3>; 3]) -> Value {
        if let Mode::Continuation(cache) = &mut self.mode {
            let kept = cache.kept.entry(index).or_default();
            return Value::Sequences(attention::attend(inputs, options, Some(kept), |weights| weights));
        }
        let drop = |weights| self.dropped(index, options.dropout, weights);
        Value::Sequences(attention::attend(inputs, options, None, drop))
    }

    fn dense(&self, step: &Step, input: Value) -> Result<Value, WrongKind> {
        let bias = self.bias(step);
        let input = input.cast(self.parameters.dtype())?;
        if let (None, FloatDType::F32, &[n_in, n_out]) =
            (&step.adapter, self.parameters.dtype(), self.shape(step, 0))
        {
            let weight = self.vector(step, 0);
            return on_each_rank!(input, tensor => linear_by_flat(tensor, weight, [n_in, n_out], bias));
        }
        let weight = self.matrix(step, 0, self.operand(step, 0))?;
        let Some(adapter) = &step.adapter else {
            return on_each_rank!(input, tensor => linear(tensor, weight, bias));
        };
        let (a, b) = (self.adapter(adapter.a)?, self.adapter(adapter.b)?);
        on_each_rank!(input, tensor => {
            let added = linear(linear(tensor.clone(), a, None), b, None) * adapter.scale;
            linear(tensor, weight, bias) + added
        })
    }

    /// One of the two matrices of an adapter.
    fn adapter(&self, index: usize) -> Result<Tensor<2>, WrongKind> {
        let place = TensorPlace::Trained(index);
        match *self.graph.segment(place).shape {
            [rows, columns] => {
                Ok(self.parameters.at(place).cast(self.parameters.dtype()).reshape([rows, columns]))
            }
            _ => Err(WrongKind),
        }
    }

    fn embedding(&self, step: &Step, input: Value) -> Result<Value, WrongKind> {
        let Value::Ids { ids, length } = input else { return Err(WrongKind) };
        let table = self.matrix(step, 0, self.vector(step, 0))?;
        let width = table.dims()[1];
        let rows = table.select(0, ids);
        Ok(match length {
            None => Value::Vectors(rows),
            Some(length) => {
                let n = rows.dims()[0] / length.max(1);
                Value::Sequences(rows.reshape([n, length, width]))
            }
        })
    }

    fn unembedding(&self, step: &Step, input: Value) -> Result<Value, WrongKind> {
        let table = self.matrix(step, 0, self.operand(step, 0))?;
        let n_rows = table.dims()[0];
        let dtype = self.parameters.dtype();
        let bias = step.parameters.get(1).map(|_| self.vector(step, 1).reshape([1, n_rows]));
        on_last(input, n_rows, |rows| {
            let logits = wide(multiply(rows.cast(dtype), table.swap_dims(0, 1)));
            match bias {
                Some(bias) => logits + bias,
                None => logits,
            }
        })
    }

    fn batch_norm(&mut self, step: &Step, options: &BatchNorm, input: Value) -> Result<Value, WrongKind> {
        let (weight, bias) = (self.vector(step, 0), self.vector(step, 1));
        let running = match (&self.mode, step.statistics) {
            (Mode::Evaluation { running }, Some(index)) => running.get(index).cloned(),
            _ if step.parameters.len() == FROZEN_NORM_TENSORS => Some([2, 3].map(|at| self.vector(step, at))),
            _ => None,
        };
        if let Some(statistics) = running {
            return on_each_rank!(input, tensor => norm::by_running(tensor, weight, bias, statistics, options.epsilon));
        }
        let (value, moments, n_samples) = match input {
            Value::Vectors(tensor) => {
                let (tensor, moments, n) = norm::by_batch(tensor, weight, bias, options.epsilon);
                (Value::Vectors(tensor), moments, n)
            }
            Value::Maps(tensor) => {
                let (tensor, moments, n) = norm::by_batch(tensor, weight, bias, options.epsilon);
                (Value::Maps(tensor), moments, n)
            }
            _ => return Err(WrongKind),
        };
        if let (Mode::Training { observed, .. }, Some(index)) = (&mut self.mode, step.statistics) {
            observed.push(Observed { index, moments, n_samples });
        }
        Ok(value)
    }

    fn dropped<const D: usize>(&self, index: usize, rate: f32, tensor: Tensor<D>) -> Tensor<D> {
        match &self.mode {
            Mode::Training { seeds, .. } if rate > 0.0 => {
                dropout::drop(tensor, rate, seeds, index, self.device)
            }
            _ => tensor,
        }
    }

    /// A tensor of a step, flat, in single precision.
    pub(super) fn vector(&self, step: &Step, tensor: usize) -> Tensor<1> {
        self.parameters.at(step.parameters[tensor])
    }

    /// A tensor of a step, flat, in the numbers of products.
    fn operand(&self, step: &Step, tensor: usize) -> Tensor<1> {
        self.vector(step, tensor).cast(self.parameters.dtype())
    }

    fn bias(&self, step: &Step) -> Option<Tensor<1>> {
        step.parameters.get(1).map(|_| self.operand(step, 1))
    }

    fn shape(&self, step: &Step, tensor: usize) -> &[usize] {
        &self.graph.segment(step.parameters[tensor]).shape
    }

    pub(super) fn matrix(&self, step: &Step, tensor: usize, flat: Tensor<1>) -> Result<Tensor<2>, WrongKind> {
        match *self.shape(step, tensor) {
            [rows, columns] => Ok(flat.reshape([rows, columns])),
            _ => Err(WrongKind),
        }
    }
}

/// Applies `f` to all vectors along the last dimension; they get `last` values.
fn on_last(input: Value, last: usize, f: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Result<Value, WrongKind> {
    match input {
        Value::Vectors(tensor) => Ok(Value::Vectors(f(tensor))),
        Value::Sequences(tensor) => {
            let [n, length, _] = tensor.dims();
            Ok(Value::Sequences(f(tensor.flatten(0, 1)).reshape([n, length, last])))
        }
        Value::Maps(tensor) => {
            let [n, channels, height, _] = tensor.dims();
            Ok(Value::Maps(f(tensor.flatten(0, 2)).reshape([n, channels, height, last])))
        }
        Value::Ids { .. } => Err(WrongKind),
    }
}

/// Each vector along the last dimension of length 1.
pub(super) fn unit_length<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    let squares = sum_last(tensor.clone() * tensor.clone());
    tensor / (squares + LENGTH_EPSILON).sqrt()
}

fn sum_last<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    tensor.sum_dim(D - 1)
}

fn softmax_last<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    softmax(tensor, D - 1)
}

/// Maps by channels, all else by the last dimension.
fn concat<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    Tensor::cat(vec![a, b], if D == 4 { 1 } else { D - 1 })
}
