//! Convolution and pooling of maps `[n_samples, channels, height, width]`.

use barnraise_protocol::run::model::operation::{Convolution, Pool};
use burn::tensor::Tensor;
use burn::tensor::module::{avg_pool2d, conv2d, max_pool2d};
use burn::tensor::ops::{AvgPoolOptions, ConvOptions, MaxPoolOptions};

use super::value::WrongKind;

/// `kernel` is the shape of the flat `weight`: `[maps, channels / groups, kernel height, kernel width]`.
pub(super) fn convolution(
    maps: Tensor<4>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    kernel: &[usize],
    options: &Convolution,
) -> Result<Tensor<4>, WrongKind> {
    let kernel = <[usize; 4]>::try_from(kernel).map_err(|_| WrongKind)?;
    let [stride, padding, dilation] = [options.stride, options.padding, options.dilation].map(sizes);
    let options = ConvOptions::new(stride, padding, dilation, options.groups as usize);
    Ok(conv2d(maps, weight.reshape(kernel), bias, options))
}

pub(super) fn max_pool(maps: Tensor<4>, options: &Pool) -> Tensor<4> {
    let [kernel, stride, padding] = [options.kernel, options.stride, options.padding].map(sizes);
    max_pool2d(maps, MaxPoolOptions::new(kernel).with_stride(stride).with_padding(padding))
}

pub(super) fn average_pool(maps: Tensor<4>, options: &Pool) -> Tensor<4> {
    let [kernel, stride, padding] = [options.kernel, options.stride, options.padding].map(sizes);
    let options = AvgPoolOptions::new(kernel).with_stride(stride).with_padding(padding);
    avg_pool2d(maps, options.with_count_include_pad(true))
}

fn sizes(pair: [u32; 2]) -> [usize; 2] {
    pair.map(|size| size as usize)
}
