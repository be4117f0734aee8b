//! The networks as burn tensors: parameters on a device, and the forward pass.
//!
//! Both architectures are convolutions (none for an MLP), then linear layers with ReLU between
//! them. The same type holds gradients. No loss here, and no optimizer.

use burn::tensor::activation::relu;
use burn::tensor::module::{conv2d, linear, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Gradients, Tensor, TensorData, Transaction};

use barnraise_protocol::dataset::ImageShape;

use crate::batch;
use crate::layout::{LENET_PADDING, ParameterLayout};

/// A convolution, then 2x2 maximum pooling and ReLU.
#[derive(Debug, Clone)]
struct Convolution {
    /// `[out, in, kernel height, kernel width]`
    weight: Tensor<4>,
    /// `[out]`
    bias: Tensor<1>,
}

/// A linear layer.
#[derive(Debug, Clone)]
struct Linear {
    /// `[in, out]`
    weight: Tensor<2>,
    /// `[out]`
    bias: Tensor<1>,
}

/// All parameters of a model, or a gradient of the same shape.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    convolutions: Vec<Convolution>,
    linears: Vec<Linear>,
}

impl Network {
    /// Uploads a flat vector. Its length was compared with the layout.
    pub(crate) fn from_flat(flat: &[f32], layout: &ParameterLayout, device: &Device) -> Self {
        let mut network = Self { convolutions: Vec::new(), linears: Vec::new() };
        for pair in layout.segments().chunks_exact(2) {
            let [weight, bias] = pair else { continue };
            let bias = Tensor::from_data(TensorData::new(flat[bias.range()].to_vec(), [bias.len]), device);
            let values = flat[weight.range()].to_vec();
            match *weight.shape.as_slice() {
                [out, maps, height, width] => {
                    let data = TensorData::new(values, [out, maps, height, width]);
                    network.convolutions.push(Convolution { weight: Tensor::from_data(data, device), bias });
                }
                [n_in, n_out] => {
                    let data = TensorData::new(values, [n_in, n_out]);
                    network.linears.push(Linear { weight: Tensor::from_data(data, device), bias });
                }
                _ => debug_assert!(false, "the layout has weights of two or four dimensions"),
            }
        }
        network
    }

    /// The same parameters as leaves of a graph.
    pub(crate) fn tracked(&self) -> Self {
        self.map(
            |tensor| tensor.clone().autodiff().require_grad(),
            |tensor| tensor.clone().autodiff().require_grad(),
            |tensor| tensor.clone().autodiff().require_grad(),
        )
    }

    /// Takes the gradients of these leaves out of `gradients`; zeros for a leaf without one.
    pub(crate) fn gradients(&self, gradients: &mut Gradients) -> Self {
        let gradients = std::cell::RefCell::new(gradients);
        self.map(
            |leaf| gradient_of(leaf, &mut gradients.borrow_mut()),
            |leaf| gradient_of(leaf, &mut gradients.borrow_mut()),
            |leaf| gradient_of(leaf, &mut gradients.borrow_mut()),
        )
    }

    /// Sum of two gradients.
    pub(crate) fn add(self, other: Self) -> Self {
        let convolutions = self.convolutions.into_iter().zip(other.convolutions);
        let linears = self.linears.into_iter().zip(other.linears);
        Self {
            convolutions: convolutions
                .map(|(a, b)| Convolution { weight: a.weight + b.weight, bias: a.bias + b.bias })
                .collect(),
            linears: linears
                .map(|(a, b)| Linear { weight: a.weight + b.weight, bias: a.bias + b.bias })
                .collect(),
        }
    }

    /// Registers every tensor in the order of the flat vector, to be read back at once.
    pub(crate) fn read(self) -> Transaction {
        let mut transaction = Transaction::default();
        for layer in self.convolutions {
            transaction = transaction.register(layer.weight).register(layer.bias);
        }
        for layer in self.linears {
            transaction = transaction.register(layer.weight).register(layer.bias);
        }
        transaction
    }

    /// Logits of some images.
    ///
    /// # Shapes
    /// - `images`: `[n_samples, height, width, channels]`
    /// - returns `[n_samples, n_classes]`
    pub(crate) fn logits(&self, images: &[u8], shape: ImageShape, device: &Device) -> Tensor<2> {
        let n_samples = images.len() / shape.n_values();
        let mut features = match self.convolutions.is_empty() {
            true => {
                let data = TensorData::new(batch::normalize(images), [n_samples, shape.n_values()]);
                Tensor::from_data(data, device)
            }
            false => self.convolve(images, n_samples, shape, device),
        };
        for (index, layer) in self.linears.iter().enumerate() {
            features = linear(features, layer.weight.clone(), Some(layer.bias.clone()));
            if index + 1 < self.linears.len() {
                features = relu(features);
            }
        }
        features
    }

    fn convolve(&self, images: &[u8], n_samples: usize, shape: ImageShape, device: &Device) -> Tensor<2> {
        let [height, width, channels] = [shape.height, shape.width, shape.channels].map(usize::from);
        let values = batch::normalize_channels_first(images, shape);
        let data = TensorData::new(values, [n_samples, channels, height, width]);
        let mut maps = Tensor::<4>::from_data(data, device);
        for (index, layer) in self.convolutions.iter().enumerate() {
            let padding = if index == 0 { LENET_PADDING } else { 0 };
            let options = ConvOptions::new([1, 1], [padding, padding], [1, 1], 1);
            maps = conv2d(maps, layer.weight.clone(), Some(layer.bias.clone()), options);
            // ReLU keeps the order of values, so it may follow the pooling, on a quarter of them.
            maps = relu(max_pool2d(maps, MaxPoolOptions::new([2, 2])));
        }
        maps.flatten(1, 3)
    }

    fn map(
        &self,
        convolution: impl Fn(&Tensor<4>) -> Tensor<4>,
        matrix: impl Fn(&Tensor<2>) -> Tensor<2>,
        bias: impl Fn(&Tensor<1>) -> Tensor<1>,
    ) -> Self {
        Self {
            convolutions: self
                .convolutions
                .iter()
                .map(|layer| Convolution { weight: convolution(&layer.weight), bias: bias(&layer.bias) })
                .collect(),
            linears: self
                .linears
                .iter()
                .map(|layer| Linear { weight: matrix(&layer.weight), bias: bias(&layer.bias) })
                .collect(),
        }
    }
}

fn gradient_of<const D: usize>(leaf: &Tensor<D>, gradients: &mut Gradients) -> Tensor<D> {
    let gradient = leaf.grad_remove(gradients).unwrap_or_else(|| leaf.zeros_like());
    gradient.without_autodiff()
}
