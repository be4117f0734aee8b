//! Normalizations and softmax, and their derivatives, by burn's own operations, on any backend.

use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::backend::{Backend, TensorMetadata, get_device_settings};
use burn::tensor::Shape;

use super::super::{RowNorm, Scores};

/// In place of a score that is not seen: its exponential is zero.
const HIDDEN_SCORE: f32 = -1e30;

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
    let by_weight = sum_of_rows::<B>(B::float_mul(by_output.clone(), normed), width);
    [B::float_mul(by_rows, inverse), by_weight, sum_of_rows::<B>(by_output, width)]
}

/// Of `[…, width]`; `[width]`.
fn sum_of_rows<B: Backend>(rows: FloatTensor<B>, width: usize) -> FloatTensor<B> {
    let n_rows = rows.shape().num_elements() / width.max(1);
    let sum = B::float_sum_dim(B::float_reshape(rows, Shape::from([n_rows, width])), 0);
    B::float_reshape(sum, Shape::from([width]))
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
