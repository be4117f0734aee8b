//! Normalizations, in single precision.

use barnraise_protocol::run::model::operation::GroupNorm;
use burn::tensor::Tensor;
use burn::tensor::module::{batch_norm, batch_norm_train};

use crate::engine::composite::{RowNorm, normalize_rows};

/// Over the last dimension; `weight` and `bias` have its size.
pub(super) fn layer<const D: usize>(
    tensor: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    epsilon: f32,
) -> Tensor<D> {
    let bias = bias.unwrap_or_else(|| without_bias(&weight));
    normalize_rows(tensor, weight, bias, RowNorm { epsilon, centred: true })
}

/// Over the last dimension; `weight` has its size.
pub(super) fn root_mean_square<const D: usize>(
    tensor: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f32,
) -> Tensor<D> {
    let bias = without_bias(&weight);
    normalize_rows(tensor, weight, bias, RowNorm { epsilon, centred: false })
}

fn without_bias(weight: &Tensor<1>) -> Tensor<1> {
    Tensor::zeros(weight.dims(), &weight.device())
}

/// Adds `bias`, which has the size of the last dimension.
pub(super) fn shift<const D: usize>(tensor: Tensor<D>, bias: &Tensor<1>) -> Tensor<D> {
    tensor + bias.clone().unsqueeze()
}

/// Of groups of channels, each over its pixels; `weight` and `bias` are `[channels]`.
pub(super) fn group(maps: Tensor<4>, weight: Tensor<1>, bias: Tensor<1>, options: &GroupNorm) -> Tensor<4> {
    let [n, channels, height, width] = maps.dims();
    let groups = options.groups as usize;
    let rows = maps.reshape([n, groups, channels / groups.max(1) * height * width]);
    let centred = rows.clone() - rows.mean_dim(2);
    let variance = (centred.clone() * centred.clone()).mean_dim(2);
    let normed = (centred / (variance + options.epsilon).sqrt()).reshape([n, channels, height, width]);
    normed * weight.reshape([1, channels, 1, 1]) + bias.reshape([1, channels, 1, 1])
}

/// By the statistics of the pass, over all but the second dimension. Returns besides the means and variances,
/// `[2 * channels]`, and the samples.
pub(super) fn by_batch<const D: usize>(
    tensor: Tensor<D>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    epsilon: f32,
) -> (Tensor<D>, Tensor<1>, usize) {
    let n_samples = tensor.dims()[0];
    let normed = batch_norm_train(tensor, weight, bias, f64::from(epsilon));
    let (mean, variance) = (normed.mean.without_autodiff(), normed.variance.without_autodiff());
    (normed.output, Tensor::cat(vec![mean, variance], 0), n_samples)
}

/// By statistics of before: means and variances `[channels]`.
pub(super) fn by_running<const D: usize>(
    tensor: Tensor<D>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    [mean, variance]: [Tensor<1>; 2],
    epsilon: f32,
) -> Tensor<D> {
    batch_norm(tensor, weight, bias, mean, variance, f64::from(epsilon))
}
