//! Gradients by burn's autodiff, on whatever device burn runs on.

use barnraise_protocol::dataset::ImageShape;
use burn::tensor::activation::softmax;
use burn::tensor::{Device, ExecutionError, Tensor, TensorData};

use super::arithmetic::Arithmetic;
use super::network::Network;
use super::tensors::FlatTensors;
use super::{LogitsRead, one_hot};
use crate::device::DeviceError;
use crate::layout::ParameterLayout;

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
        let network = Network::of(self.tensors.leaves(arithmetic), &self.layout);
        let tracked = network.logits(images, self.shape, &self.autodiff);
        let logits = tracked.clone().without_autodiff();
        let data = TensorData::new(one_hot(labels, self.n_classes), [labels.len(), self.n_classes]);
        let residual = softmax(logits.clone(), 1) - Tensor::from_data(data, self.tensors.device());
        let is_finite = self.tensors.add_gradient(tracked, residual, 0, arithmetic);
        read(logits, is_finite)
    }

    pub(crate) fn logits(&self, images: &[u8]) -> LogitsRead {
        let network = Network::of(self.tensors.parameters(), &self.layout);
        read(network.logits(images, self.shape, self.tensors.device()), None)
    }

    pub(crate) async fn take(&mut self) -> Result<Vec<f32>, DeviceError> {
        self.tensors.take().await
    }
}

/// What a pass gives, followed by whether its gradient is finite, where that is asked.
pub(super) fn read(given: Tensor<2>, is_finite: Option<Tensor<1>>) -> LogitsRead {
    let given = given.flatten::<1>(0, 1);
    let all = match is_finite {
        Some(flag) => Tensor::cat(vec![given, flag], 0),
        None => given,
    };
    Box::pin(
        async move { Ok(values(&all.into_data_async().await.map_err(|error| failed(&error))?)?.to_vec()) },
    )
}

pub(super) fn values(data: &TensorData) -> Result<&[f32], DeviceError> {
    data.as_slice().map_err(|error| DeviceError::Execution(error.to_string()))
}

pub(super) fn failed(error: &ExecutionError) -> DeviceError {
    DeviceError::Execution(error.to_string())
}
