//! Gradients by burn's autodiff, on any device that burn supports.

use barnraise_protocol::dataset::ImageShape;
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor, TensorData};

use super::arithmetic::Arithmetic;
use super::network::FeedForwardNetwork;
use super::readback::read;
use super::tensors::FlatTensors;
use super::{LogitsRead, one_hot};
use crate::device::DeviceError;
use crate::parameters::ParameterLayout;

/// A model as burn tensors.
pub(crate) struct AutodiffEngine {
    layout: ParameterLayout,
    shape: ImageShape,
    n_classes: usize,
    autodiff: Device,
    tensors: FlatTensors,
}

impl AutodiffEngine {
    pub(crate) fn new(
        layout: &ParameterLayout,
        shape: ImageShape,
        n_classes: usize,
        device: &Device,
        flat: &[f32],
    ) -> Self {
        let (tensors, autodiff) = (FlatTensors::new(layout, device, flat), device.clone().autodiff());
        Self { layout: layout.clone(), shape, n_classes, autodiff, tensors }
    }

    pub(crate) fn load(&mut self, flat: &[f32]) {
        self.tensors.load(flat);
    }

    pub(crate) fn reset(&mut self) {
        self.tensors.reset();
    }

    /// The derivative of the summed cross-entropy by the logits is `softmax - one_hot`.
    pub(crate) fn step(&mut self, images: &[u8], labels: &[u8], arithmetic: Arithmetic) -> LogitsRead {
        let network = FeedForwardNetwork::of(self.tensors.leaves(arithmetic), &self.layout);
        let tracked = network.logits(images, self.shape, &self.autodiff);
        let logits = tracked.clone().without_autodiff();
        let data = TensorData::new(one_hot(labels, self.n_classes), [labels.len(), self.n_classes]);
        let residual = softmax(logits.clone(), 1) - Tensor::from_data(data, self.tensors.device());
        let is_finite = self.tensors.add_gradient(tracked, residual, 0, arithmetic);
        read(logits, is_finite)
    }

    pub(crate) fn logits(&self, images: &[u8]) -> LogitsRead {
        let network = FeedForwardNetwork::of(self.tensors.parameters(), &self.layout);
        read(network.logits(images, self.shape, self.tensors.device()), None)
    }

    pub(crate) async fn take(&mut self) -> Result<Vec<f32>, DeviceError> {
        self.tensors.take().await
    }
}
