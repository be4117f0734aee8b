//! Operations that burn computes by several of its own, and differentiates one by one: activations, normalizations, softmax as
//! attention needs it, and cross-entropy. Here each is one operation with its derivative in closed form.
//!
//! On a processor they are loops over rows that stay in its cache ([`loops`]), on a graphics card kernels of a dispatch or few
//! (`kernels`), which CubeCL writes in the card's language. All are in single precision; activations in half are burn's
//! operations ([`by_parts`]), fewer than its automatic derivative needs. Products of matrices are burn's, but where a processor
//! plays a graphics card (`tiles`).

mod autodiff;
mod by_parts;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod kernels;
mod loops;
mod math;
#[cfg(test)]
mod tests;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod tiles;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::{DType, Tensor};

/// A function of each value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// The operations, of a backend with or without automatic derivatives. All but products and activations are in single precision.
#[backend_extension(Flex, Cube: cfg(any(feature = "wgpu", feature = "cuda")), Autodiff)]
pub(super) trait Composite: Backend {
    /// Of each value, in any precision.
    fn activate(values: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self>;

    /// Of `[…, width]` over the last dimension, times `weight` plus `bias`, both `[width]`.
    fn normalize_rows(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        norm: RowNorm,
    ) -> FloatTensor<Self>;

    /// Softmax over the last dimension of `[…, queries, tokens]`; zero where a score is not seen.
    fn softmax_rows(scores: FloatTensor<Self>, of: Scores) -> FloatTensor<Self>;

    /// Products of `[…, m, k]` and `[…, k, n]`, of as many matrices.
    fn multiply(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        by_parts::multiply::<Self>(lhs, rhs)
    }

    /// [`Self::multiply`] by a matrix that is flat. So is its derivative, which is there as soon as the operation's turn comes in a
    /// backward pass; that of a change of shape would come with all others at the end.
    fn multiply_by_flat(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        shape: [usize; 2],
    ) -> FloatTensor<Self> {
        Self::multiply(lhs, Self::float_reshape(rhs, shape.into()))
    }

    /// Gives `through`. A backward pass that comes here adds `sum` to the gradient of `leaf`.
    fn summing(
        through: FloatTensor<Self>,
        leaf: FloatTensor<Self>,
        sum: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let _ = (leaf, sum);
        through
    }

    /// Cross-entropy of logits `[n_rows, width]`: its derivative by the logits times `scale`, as those; and `[2, n_rows]`: the losses,
    /// and 1 where the class of a row is its first largest, 0 elsewhere. Neither has a derivative.
    fn cross_entropy(
        logits: FloatTensor<Self>,
        classes: Vec<u32>,
        scale: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Derivatives of [`Composite`]: by the inputs, from that by the output.
pub(super) trait Derivatives: Composite {
    /// By the values.
    fn activate_backward(
        values: FloatTensor<Self>,
        by_output: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self>;

    /// By the rows, the weight and the bias.
    fn normalize_rows_backward(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        by_output: FloatTensor<Self>,
        norm: RowNorm,
    ) -> [FloatTensor<Self>; 3];

    /// By the scores.
    fn softmax_rows_backward(
        weights: FloatTensor<Self>,
        by_output: FloatTensor<Self>,
        of: Scores,
    ) -> FloatTensor<Self>;
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

/// Cross-entropy of logits `[n_rows, width]`: its derivative times `scale`; and `[2, n_rows]`: losses, and 1 where the class of a
/// row is its first largest. Neither has a derivative.
pub(super) fn cross_entropy(logits: Tensor<2>, classes: Vec<u32>, scale: f32) -> (Tensor<2>, Tensor<2>) {
    let (residual, values) = Dispatch::cross_entropy(logits.into_dispatch(), classes, scale);
    (Tensor::from_dispatch(residual), Tensor::from_dispatch(values))
}

/// Products of `[…, m, k]` and `[…, k, n]`, of as many matrices.
pub(super) fn multiply<const D: usize>(lhs: Tensor<D>, rhs: Tensor<D>) -> Tensor<D> {
    let (left, right) = (lhs.dims(), rhs.dims());
    debug_assert!(left[D - 1] == right[D - 2] && left[..D - 2] == right[..D - 2], "{left:?} by {right:?}");
    Tensor::from_dispatch(Dispatch::multiply(lhs.into_dispatch(), rhs.into_dispatch()))
}

/// The sum of the gradients of passes before, `sum`, is added to the gradient of `leaf` by the backward pass of what is made of the
/// result, which has the values of `through`: first, where nothing is made of it but the end of a pass.
pub(super) fn summing<const D: usize>(through: Tensor<D>, leaf: Tensor<1>, sum: Tensor<1>) -> Tensor<D> {
    let (leaf, sum) = (leaf.into_dispatch(), sum.autodiff().into_dispatch());
    Tensor::from_dispatch(Dispatch::summing(through.into_dispatch(), leaf, sum))
}

/// `[…, n_in]` by `weight` `[n_in, n_out]`, plus `bias` `[n_out]`.
pub(super) fn linear<const D: usize>(
    input: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let shape = weight.dims();
    linear_of(input, shape, bias, |rows| multiply(rows, weight))
}

/// The same with a weight of `shape` that is flat, in single precision.
pub(super) fn linear_by_flat<const D: usize>(
    input: Tensor<D>,
    weight: Tensor<1>,
    shape: [usize; 2],
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    debug_assert!(weight.dims() == [shape[0] * shape[1]], "{:?} for {shape:?}", weight.dims());
    linear_of(input, shape, bias, |rows| {
        let (rows, weight) = (rows.into_dispatch(), weight.into_dispatch());
        Tensor::from_dispatch(Dispatch::multiply_by_flat(rows, weight, shape))
    })
}

fn linear_of<const D: usize>(
    input: Tensor<D>,
    [n_in, n_out]: [usize; 2],
    bias: Option<Tensor<1>>,
    multiply: impl FnOnce(Tensor<2>) -> Tensor<2>,
) -> Tensor<D> {
    let mut shape = input.dims();
    let n_rows = shape.iter().take(D.saturating_sub(1)).product();
    let mut output = multiply(input.reshape([n_rows, n_in]));
    if let Some(bias) = bias {
        output = output + bias.reshape([1, n_out]);
    }
    shape[D - 1] = n_out;
    output.reshape(shape)
}

/// Softmax of the scores that are seen, `[…, queries, tokens]`.
pub(super) fn softmax_rows<const D: usize>(scores: Tensor<D>, of: Scores) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::softmax_rows(scores.into_dispatch(), of))
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl Composite for Cube {
    fn multiply(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        let is_single = lhs.dtype() == DType::F32 && rhs.dtype() == DType::F32;
        let by_tiles = if is_single && kernels::is_played(&lhs) { tiles::multiply(&lhs, &rhs) } else { None };
        by_tiles.unwrap_or_else(|| by_parts::multiply::<Self>(lhs, rhs))
    }

    fn activate(values: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        match values.dtype() {
            DType::F32 => kernels::activate(values, activation),
            _ => by_parts::activate::<Self>(values, activation),
        }
    }

    fn normalize_rows(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        norm: RowNorm,
    ) -> FloatTensor<Self> {
        let units = kernels::units(&rows);
        kernels::normalize_rows(rows, weight, bias, norm, units)
    }

    fn softmax_rows(scores: FloatTensor<Self>, of: Scores) -> FloatTensor<Self> {
        let units = kernels::units(&scores);
        kernels::softmax_rows(scores, of, units)
    }

    fn cross_entropy(
        logits: FloatTensor<Self>,
        classes: Vec<u32>,
        scale: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let units = kernels::units(&logits);
        kernels::cross_entropy(logits, &classes, scale, units)
    }
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl Derivatives for Cube {
    fn activate_backward(
        values: FloatTensor<Self>,
        by_output: FloatTensor<Self>,
        activation: Activation,
    ) -> FloatTensor<Self> {
        match values.dtype() {
            DType::F32 => kernels::activate_backward(values, by_output, activation),
            _ => by_parts::activate_backward::<Self>(values, by_output, activation),
        }
    }

    fn normalize_rows_backward(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        by_output: FloatTensor<Self>,
        norm: RowNorm,
    ) -> [FloatTensor<Self>; 3] {
        let units = kernels::units(&rows);
        kernels::normalize_rows_backward(rows, weight, by_output, norm, units)
    }

    fn softmax_rows_backward(
        weights: FloatTensor<Self>,
        by_output: FloatTensor<Self>,
        of: Scores,
    ) -> FloatTensor<Self> {
        let units = kernels::units(&weights);
        kernels::softmax_rows_backward(weights, by_output, of, units)
    }
}

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
        loops::normalize_rows(&rows, &weight, &bias, norm)
    }

    fn softmax_rows(scores: FloatTensor<Self>, of: Scores) -> FloatTensor<Self> {
        loops::softmax_rows(scores, of)
    }

    fn cross_entropy(
        logits: FloatTensor<Self>,
        classes: Vec<u32>,
        scale: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        loops::cross_entropy(logits, &classes, scale)
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
        loops::normalize_rows_backward(&rows, &weight, by_output, norm)
    }

    fn softmax_rows_backward(
        weights: FloatTensor<Self>,
        by_output: FloatTensor<Self>,
        of: Scores,
    ) -> FloatTensor<Self> {
        loops::softmax_rows_backward(&weights, by_output, of)
    }
}
