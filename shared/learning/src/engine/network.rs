//! The networks as burn tensors: parameters on a device, and the forward pass.
//!
//! Both architectures are convolutions (none for an MLP), then linear layers with ReLU between
//! them. No loss here, and no optimizer.

use burn::tensor::activation::relu;
use burn::tensor::module::{conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use barnraise_protocol::dataset::ImageShape;

use super::arithmetic::wide;
use super::tensors::{Cursor, Linear};
use crate::batch;
use crate::layout::LENET_PADDING;
use crate::parameters::ParameterLayout;

/// A convolution, then 2x2 maximum pooling and ReLU.
struct Convolution {
    /// `[out, in, kernel height, kernel width]`
    weight: Tensor<4>,
    /// `[out]`
    bias: Tensor<1>,
}

/// All parameters of a LeNet or MLP.
pub(super) struct FeedForwardNetwork {
    convolutions: Vec<Convolution>,
    linears: Vec<Linear>,
    dtype: FloatDType,
}

impl FeedForwardNetwork {
    /// Of the tensors of `layout`.
    pub(super) fn of(mut cursor: Cursor<'_>, layout: &ParameterLayout) -> Self {
        let mut network = Self { convolutions: Vec::new(), linears: Vec::new(), dtype: cursor.dtype() };
        for pair in layout.segments().chunks_exact(2) {
            let [weight, _bias] = pair else { continue };
            match *weight.shape.as_slice() {
                [out, maps, height, width] => {
                    let weight = cursor.operand().reshape([out, maps, height, width]);
                    network.convolutions.push(Convolution { weight, bias: cursor.operand() });
                }
                [n_in, n_out] => network.linears.push(cursor.linear(n_in, n_out)),
                _ => debug_assert!(false, "the layout has weights of two or four dimensions"),
            }
        }
        network
    }

    /// Logits of some images, in single precision.
    ///
    /// # Shapes
    /// - `images`: `[n_samples, height, width, channels]`
    /// - returns `[n_samples, n_classes]`
    pub(super) fn logits(&self, images: &[u8], shape: ImageShape, device: &Device) -> Tensor<2> {
        let n_samples = images.len() / shape.n_values();
        let mut features = match self.convolutions.is_empty() {
            true => {
                let data = TensorData::new(batch::normalize(images), [n_samples, shape.n_values()]);
                Tensor::from_data(data, device)
            }
            false => self.convolve(images, n_samples, shape, device),
        };
        for (index, layer) in self.linears.iter().enumerate() {
            features = layer.on(features);
            if index + 1 < self.linears.len() {
                features = relu(features);
            }
        }
        wide(features)
    }

    fn convolve(&self, images: &[u8], n_samples: usize, shape: ImageShape, device: &Device) -> Tensor<2> {
        let [height, width, channels] = [shape.height, shape.width, shape.channels].map(usize::from);
        let values = batch::normalize_channels_first(images, shape);
        let data = TensorData::new(values, [n_samples, channels, height, width]);
        let mut maps = Tensor::<4>::from_data(data, device).cast(self.dtype);
        for (index, layer) in self.convolutions.iter().enumerate() {
            let padding = if index == 0 { LENET_PADDING } else { 0 };
            let options = ConvOptions::new([1, 1], [padding, padding], [1, 1], 1);
            maps = conv2d(maps, layer.weight.clone(), Some(layer.bias.clone()), options);
            // ReLU keeps the order of values, so it may follow the pooling, on a quarter of them.
            maps = relu(max_pool2d(maps, MaxPoolOptions::new([2, 2])));
        }
        maps.flatten(1, 3)
    }
}
