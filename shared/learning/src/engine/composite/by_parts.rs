//! The operations and their derivatives by burn's own operations, on any backend.

use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::backend::{Backend, TensorMetadata, get_device_settings};
use burn::tensor::Shape;

use super::{Activation, RowNorm, Scores};

/// In place of a score that is not seen: its exponential is zero.
const HIDDEN_SCORE: f32 = -1e30;
const SQRT_2_OVER_PI: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

pub(super) fn activate<B: Backend>(values: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
    match activation {
        Activation::Gelu => B::gelu(values),
        Activation::Silu => B::float_mul(values.clone(), B::sigmoid(values)),
        Activation::GeluTanh => {
            let gate = B::float_add_scalar(gelu_tanh::<B>(values.clone()), 1.0.into());
            B::float_mul_scalar(B::float_mul(values, gate), 0.5.into())
        }
    }
}

pub(super) fn activate_backward<B: Backend>(
    values: FloatTensor<B>,
    by_output: FloatTensor<B>,
    activation: Activation,
) -> FloatTensor<B> {
    let slope = match activation {
        Activation::Gelu => return B::gelu_backward(values, by_output),
        Activation::Silu => {
            // s (1 + x (1 - s))
            let gate = B::sigmoid(values.clone());
            let rest = B::float_add_scalar(B::float_neg(gate.clone()), 1.0.into());
            B::float_mul(gate, B::float_add_scalar(B::float_mul(values, rest), 1.0.into()))
        }
        Activation::GeluTanh => {
            // (1 + t + x (1 - t²) u') / 2, with u' = sqrt(2/π) (1 + 3 · 0.044715 x²)
            let tanh = gelu_tanh::<B>(values.clone());
            let squares = B::float_mul(values.clone(), values.clone());
            let inner =
                B::float_add_scalar(B::float_mul_scalar(squares, (3.0 * GELU_CUBE).into()), 1.0.into());
            let inner = B::float_mul_scalar(B::float_mul(values, inner), SQRT_2_OVER_PI.into());
            let rest =
                B::float_add_scalar(B::float_neg(B::float_mul(tanh.clone(), tanh.clone())), 1.0.into());
            let sum = B::float_add(B::float_add_scalar(tanh, 1.0.into()), B::float_mul(inner, rest));
            B::float_mul_scalar(sum, 0.5.into())
        }
    };
    B::float_mul(by_output, slope)
}

/// `tanh(sqrt(2/π) (x + 0.044715 x³))`, without a power of a negative number.
fn gelu_tanh<B: Backend>(values: FloatTensor<B>) -> FloatTensor<B> {
    let squares = B::float_mul(values.clone(), values.clone());
    let inner = B::float_add_scalar(B::float_mul_scalar(squares, GELU_CUBE.into()), 1.0.into());
    B::float_tanh(B::float_mul_scalar(B::float_mul(values, inner), SQRT_2_OVER_PI.into()))
}

pub(super) fn normalize_rows<B: Backend>(
    rows: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: FloatTensor<B>,
    norm: RowNorm,
) -> FloatTensor<B> {
    if norm.centred {
        return B::layer_norm(rows, weight, Some(bias), norm.epsilon.into());
    }
    let shape = rows.shape();
    let (normed, _) = normed::<B>(rows, norm);
    let scaled = B::float_mul(normed, along_last::<B>(weight, &shape));
    B::float_add(scaled, along_last::<B>(bias, &shape))
}

pub(super) fn normalize_rows_backward<B: Backend>(
    rows: FloatTensor<B>,
    weight: FloatTensor<B>,
    by_output: FloatTensor<B>,
    norm: RowNorm,
) -> [FloatTensor<B>; 3] {
    let shape = rows.shape();
    let last = shape.num_dims() - 1;
    let width = shape[last];
    let (normed, inverse) = normed::<B>(rows, norm);
    let by_normed = B::float_mul(by_output.clone(), along_last::<B>(weight, &shape));
    // What would move the length of a row, and its mean, is not in the derivative.
    let along = B::float_mean_dim(B::float_mul(by_normed.clone(), normed.clone()), last);
    let mut by_rows = B::float_sub(by_normed.clone(), B::float_mul(normed.clone(), along));
    if norm.centred {
        by_rows = B::float_sub(by_rows, B::float_mean_dim(by_normed, last));
    }
    let summed = |tensor| {
        let n_rows = shape.num_elements() / width.max(1);
        let sum = B::float_sum_dim(B::float_reshape(tensor, Shape::from([n_rows, width])), 0);
        B::float_reshape(sum, Shape::from([width]))
    };
    let by_weight = summed(B::float_mul(by_output.clone(), normed));
    [B::float_mul(by_rows, inverse), by_weight, summed(by_output)]
}

/// Rows divided by the root of their mean square, and the inverse of that root, `[…, 1]`.
fn normed<B: Backend>(rows: FloatTensor<B>, norm: RowNorm) -> (FloatTensor<B>, FloatTensor<B>) {
    let last = rows.shape().num_dims() - 1;
    let rows = match norm.centred {
        true => B::float_sub(rows.clone(), B::float_mean_dim(rows, last)),
        false => rows,
    };
    let squares = B::float_mean_dim(B::float_mul(rows.clone(), rows.clone()), last);
    let inverse = B::float_recip(B::float_sqrt(B::float_add_scalar(squares, norm.epsilon.into())));
    (B::float_mul(rows, inverse.clone()), inverse)
}

fn along_last<B: Backend>(vector: FloatTensor<B>, shape: &Shape) -> FloatTensor<B> {
    let mut wanted = vec![1; shape.num_dims()];
    if let (Some(last), Some(width)) = (wanted.last_mut(), shape.iter().last()) {
        *last = *width;
    }
    B::float_reshape(vector, Shape::from(wanted))
}

pub(super) fn softmax_rows<B: Backend>(scores: FloatTensor<B>, of: Scores) -> FloatTensor<B> {
    let last = scores.shape().num_dims() - 1;
    let mut scaled = B::float_mul_scalar(scores, of.scale.into());
    if let Some(n_before) = of.n_before {
        let hidden = later::<B>(&scaled, n_before);
        scaled = B::float_mask_fill(scaled, hidden, HIDDEN_SCORE.into());
    }
    B::softmax(scaled, last)
}

pub(super) fn softmax_rows_backward<B: Backend>(
    weights: FloatTensor<B>,
    by_output: FloatTensor<B>,
    of: Scores,
) -> FloatTensor<B> {
    // A weight of zero has a derivative of zero, so that no mask is needed.
    let last = weights.shape().num_dims() - 1;
    let product = B::float_mul(weights.clone(), by_output);
    let along = B::float_sum_dim(product.clone(), last);
    B::float_mul_scalar(B::float_sub(product, B::float_mul(weights, along)), of.scale.into())
}

/// Which of `[…, queries, tokens]` come after their query.
fn later<B: Backend>(scores: &FloatTensor<B>, n_before: usize) -> BoolTensor<B> {
    let (shape, device) = (scores.shape(), scores.device());
    let rank = shape.num_dims();
    let settings = get_device_settings::<B>(&device);
    let positions = |dim: usize, from: usize| {
        let mut along = vec![1; rank];
        along[dim] = shape[dim];
        let range = from as i64..(from + shape[dim]) as i64;
        B::int_reshape(B::int_arange(range, &device, settings.int_dtype), Shape::from(along))
    };
    let mut pairs = vec![1; rank];
    (pairs[rank - 2], pairs[rank - 1]) = (shape[rank - 2], shape[rank - 1]);
    let pairs = Shape::from(pairs);
    let tokens = B::int_expand(positions(rank - 1, 0), pairs.clone());
    let queries = B::int_expand(positions(rank - 2, n_before), pairs);
    B::bool_expand(B::int_greater(tokens, queries, settings.bool_dtype), shape)
}
