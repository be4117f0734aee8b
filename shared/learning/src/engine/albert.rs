//! ALBERT (Lan et al. 2020) as burn tensors: forward pass, and gradients by burn's autodiff, on any device.
//!
//! Post-norm as in the paper: each half of a layer adds its input and normalizes. No dropout: the same samples give
//! the same gradient on every peer. No loss here, and no optimizer.

use burn::tensor::activation::{gelu, softmax};
use burn::tensor::module::layer_norm;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::arithmetic::{Arithmetic, wide};
use super::readback::read;
use super::tensors::{Cursor, FlatTensors, Linear, Norm};
use super::{LogitsRead, one_hot};
use crate::device::DeviceError;
use crate::layout::AlbertSizes;
use crate::masking::{MaskedTokens, masked_per_sequence};
use crate::parameters::ParameterLayout;

/// Added to the variance that a normalization divides by. The paper has 1e-12, which single precision does not see.
const NORM_EPSILON: f64 = 1e-6;

/// An ALBERT on a device, and the gradient that it sums.
pub(crate) struct AlbertEngine {
    sizes: AlbertSizes,
    autodiff: Device,
    tensors: FlatTensors,
}

impl AlbertEngine {
    pub(crate) fn new(layout: &ParameterLayout, sizes: AlbertSizes, device: &Device, flat: &[f32]) -> Self {
        let tensors = FlatTensors::new(layout, device, flat);
        Self { sizes, autodiff: device.clone().autodiff(), tensors }
    }

    pub(crate) fn load(&mut self, flat: &[f32]) {
        self.tensors.load(flat);
    }

    pub(crate) fn reset(&mut self) {
        self.tensors.reset();
    }

    /// Queues a pass. Adds up the gradient of the sum over sequences of the mean cross-entropy of a sequence's
    /// predictions, whose derivative by their logits is `(softmax - one_hot) / masked_per_sequence`.
    ///
    /// # Shapes
    /// - returns logits `[n_sequences * masked_per_sequence, vocabulary]`
    pub(crate) fn step(&mut self, masked: &MaskedTokens, arithmetic: Arithmetic) -> LogitsRead {
        let tracked = forward(self.tensors.leaves(arithmetic), self.sizes, masked, &self.autodiff);
        let logits = tracked.clone().without_autodiff();
        let shape = [masked.targets.len(), self.sizes.vocabulary];
        let targets = TensorData::new(one_hot(&masked.targets, self.sizes.vocabulary), shape);
        let residual = softmax(logits.clone(), 1) - Tensor::from_data(targets, self.tensors.device());
        let residual = residual / masked_per_sequence(self.sizes.length) as f32;
        let is_finite = self.tensors.add_gradient(tracked, residual, 0, arithmetic);
        read(logits, is_finite)
    }

    pub(crate) fn logits(&self, masked: &MaskedTokens) -> LogitsRead {
        read(forward(self.tensors.parameters(), self.sizes, masked, self.tensors.device()), None)
    }

    pub(crate) async fn take(&mut self) -> Result<Vec<f32>, DeviceError> {
        self.tensors.take().await
    }
}

impl Norm {
    fn on<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        layer_norm(wide(input), self.weight.clone(), Some(self.bias.clone()), NORM_EPSILON)
    }
}

/// The one layer.
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    attention_norm: Norm,
    inner: Linear,
    outer: Linear,
    norm: Norm,
}

/// Logits of the masked tokens, `[n_masked, vocabulary]`. They and the values between layers are in single precision.
fn forward(mut cursor: Cursor<'_>, sizes: AlbertSizes, masked: &MaskedTokens, device: &Device) -> Tensor<2> {
    let AlbertSizes { length, vocabulary, embedding, hidden, inner, .. } = sizes;
    let n = masked.inputs.len() / length.max(1);
    let table = cursor.vector().reshape([vocabulary, embedding]);
    let positions = cursor.vector().reshape([1, length, embedding]);
    let norm = cursor.norm();
    let projection = cursor.linear(embedding, hidden);

    let ids = indices(masked.inputs.iter().map(|&id| id.into()), masked.inputs.len(), device);
    let embedded = table.clone().select(0, ids).reshape([n, length, embedding]) + positions;
    let mut states = wide(projection.on(norm.on(embedded)));

    let [query, key, value, output] = std::array::from_fn(|_| cursor.linear(hidden, hidden));
    let attention_norm = cursor.norm();
    let (inner, outer) = (cursor.linear(hidden, inner), cursor.linear(inner, hidden));
    let layer = Layer { query, key, value, output, attention_norm, inner, outer, norm: cursor.norm() };
    for _ in 0..sizes.layers {
        states = layer.on(states, n, sizes);
    }

    let guessed =
        indices(masked.positions.iter().map(|&at| at.cast_signed()), masked.positions.len(), device);
    let guessed = states.reshape([n * length, hidden]).select(0, guessed);
    let transform = cursor.linear(hidden, embedding);
    let features = cursor.norm().on(gelu(transform.on(guessed))).cast(cursor.dtype());
    let bias = cursor.vector().reshape([1, vocabulary]);
    wide(features.matmul(table.cast(cursor.dtype()).swap_dims(0, 1))) + bias
}

impl Layer {
    /// `[n, length, hidden]` to the same.
    fn on(&self, input: Tensor<3>, n: usize, sizes: AlbertSizes) -> Tensor<3> {
        let AlbertSizes { length, hidden, heads, .. } = sizes;
        let width = hidden / heads;
        let split = |tensor: Tensor<3>| tensor.reshape([n, length, heads, width]).swap_dims(1, 2);
        let query = split(self.query.on(input.clone()));
        let key = split(self.key.on(input.clone()));
        let value = split(self.value.on(input.clone()));
        let scores = query.matmul(key.swap_dims(2, 3)) / (width as f32).sqrt();
        let mixed = softmax(wide(scores), 3)
            .cast(self.value.dtype())
            .matmul(value)
            .swap_dims(1, 2)
            .reshape([n, length, hidden]);
        let attended = self.attention_norm.on(input + wide(self.output.on(mixed)));
        let fed = self.outer.on(gelu(self.inner.on(attended.clone())));
        self.norm.on(attended + wide(fed))
    }
}

fn indices(values: impl Iterator<Item = i32>, n: usize, device: &Device) -> Tensor<1, Int> {
    Tensor::from_ints(TensorData::new(values.collect::<Vec<i32>>(), [n]), device)
}
