//! Operations that burn computes by several of its own, and differentiates one by one: activations, normalizations, and
//! softmax as attention needs it. Here each is one operation with its derivative in closed form.
//!
//! On a processor they are loops over rows that stay in its cache ([`loops`]); on a graphics card they are burn's operations
//! ([`by_parts`]), fewer than its automatic derivative needs.

mod autodiff;
mod by_parts;
mod loops;
mod math;
#[cfg(test)]
mod tests;

#[cfg(any(feature = "wgpu", feature = "cuda"))]
use burn::backend::Cube;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{DType, Tensor};

/// A function of each value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    /// `x Φ(x)` (Hendrycks and Gimpel 2016).
    Gelu,
    /// `x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))`, as in the same paper.
    GeluTanh,
    /// `x sigmoid(x)`.
    Silu,
}

/// How rows are normalized.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowNorm {
    /// Added to the mean of squares before its root is taken.
    pub epsilon: f32,
    /// By the deviations from the mean (Ba et al. 2016), or by the values themselves (Zhang and Sennrich 2019).
    pub centred: bool,
}

/// What softmax is taken of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scores {
    /// Multiplies the scores.
    pub scale: f32,
    /// Tokens before the first query, if a query sees those and the ones up to itself, and not all tokens.
    pub n_before: Option<usize>,
}

/// The operations, of a backend with or without automatic derivatives; by its own operations unless it has better ones.
#[backend_extension(Flex, Cube: cfg(any(feature = "wgpu", feature = "cuda")), Autodiff)]
pub(super) trait Composite: Backend {
    /// Of each value.
    fn activate(values: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        by_parts::activate::<Self>(values, activation)
    }

    /// Of `[…, width]` over the last dimension, times `weight` plus `bias`, both `[width]`.
    fn normalize_rows(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        norm: RowNorm,
    ) -> FloatTensor<Self> {
        by_parts::normalize_rows::<Self>(rows, weight, bias, norm)
    }

    /// Softmax over the last dimension of `[…, queries, tokens]`; zero where a score is not seen.
    fn softmax_rows(scores: FloatTensor<Self>, of: Scores) -> FloatTensor<Self> {
        by_parts::softmax_rows::<Self>(scores, of)
    }
}

/// Derivatives of [`Composite`]: by the inputs, from that by the output.
pub(super) trait Derivatives: Composite {
    /// By the values.
    fn activate_backward(
        values: FloatTensor<Self>,
        by_output: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        by_parts::activate_backward::<Self>(values, by_output, activation)
    }

    /// By the rows, the weight and the bias.
    fn normalize_rows_backward(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        by_output: FloatTensor<Self>,
        norm: RowNorm,
    ) -> [FloatTensor<Self>; 3] {
        by_parts::normalize_rows_backward::<Self>(rows, weight, by_output, norm)
    }

    /// By the scores.
    fn softmax_rows_backward(
        weights: FloatTensor<Self>,
        by_output: FloatTensor<Self>,
        of: Scores,
    ) -> FloatTensor<Self> {
        by_parts::softmax_rows_backward::<Self>(weights, by_output, of)
    }
}

/// A function of each value.
pub(super) fn activate<const D: usize>(values: Tensor<D>, activation: Activation) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::activate(values.into_dispatch(), activation))
}

/// Normalizes over the last dimension, times `weight` plus `bias`, both of its size.
pub(super) fn normalize_rows<const D: usize>(
    rows: Tensor<D>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    norm: RowNorm,
) -> Tensor<D> {
    let (weight, bias) = (weight.into_dispatch(), bias.into_dispatch());
    Tensor::from_dispatch(Dispatch::normalize_rows(rows.into_dispatch(), weight, bias, norm))
}

/// Softmax of the scores that are seen, `[…, queries, tokens]`.
pub(super) fn softmax_rows<const D: usize>(scores: Tensor<D>, of: Scores) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::softmax_rows(scores.into_dispatch(), of))
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl Composite for Cube {}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl Derivatives for Cube {}

impl Composite for Flex {
    fn activate(values: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        match values.dtype() {
            DType::F32 => loops::activate(values, activation),
            _ => by_parts::activate::<Self>(values, activation),
        }
    }

    fn normalize_rows(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        norm: RowNorm,
    ) -> FloatTensor<Self> {
        match rows.dtype() {
            DType::F32 => loops::normalize_rows(&rows, &weight, &bias, norm),
            _ => by_parts::normalize_rows::<Self>(rows, weight, bias, norm),
        }
    }

    fn softmax_rows(scores: FloatTensor<Self>, of: Scores) -> FloatTensor<Self> {
        match scores.dtype() {
            DType::F32 => loops::softmax_rows(scores, of),
            _ => by_parts::softmax_rows::<Self>(scores, of),
        }
    }
}

impl Derivatives for Flex {
    fn activate_backward(
        values: FloatTensor<Self>,
        by_output: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        match values.dtype() {
            DType::F32 => loops::activate_backward(&values, by_output, activation),
            _ => by_parts::activate_backward::<Self>(values, by_output, activation),
        }
    }

    fn normalize_rows_backward(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        by_output: FloatTensor<Self>,
        norm: RowNorm,
    ) -> [FloatTensor<Self>; 3] {
        match rows.dtype() {
            DType::F32 => loops::normalize_rows_backward(&rows, &weight, by_output, norm),
            _ => by_parts::normalize_rows_backward::<Self>(rows, weight, by_output, norm),
        }
    }

    fn softmax_rows_backward(
        weights: FloatTensor<Self>,
        by_output: FloatTensor<Self>,
        of: Scores,
    ) -> FloatTensor<Self> {
        match weights.dtype() {
            DType::F32 => loops::softmax_rows_backward(&weights, by_output, of),
            _ => by_parts::softmax_rows_backward::<Self>(weights, by_output, of),
        }
    }
}
