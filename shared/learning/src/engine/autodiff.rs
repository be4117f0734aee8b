//! Gradients by burn's autodiff, on whatever device burn runs on.

use barnraise_protocol::dataset::ImageShape;
use burn::tensor::activation::softmax;
use burn::tensor::{Device, ExecutionError, Tensor, TensorData};

use super::network::Network;
use super::{LogitsRead, one_hot};
use crate::device::DeviceError;
use crate::layout::ParameterLayout;

/// A model as burn tensors.
pub(crate) struct AutodiffEngine {
    layout: ParameterLayout,
    shape: ImageShape,
    n_classes: usize,
    device: Device,
    autodiff: Device,
    parameters: Network,
    /// The same tensors as leaves of a graph.
    leaves: Network,
    gradient_sum: Option<Network>,
}

impl AutodiffEngine {
    pub(crate) fn new(
        layout: &ParameterLayout,
        shape: ImageShape,
        n_classes: usize,
        device: &Device,
        flat: &[f32],
    ) -> Self {
        let parameters = Network::from_flat(flat, layout, device);
        Self {
            layout: layout.clone(),
            shape,
            n_classes,
            device: device.clone(),
            autodiff: device.clone().autodiff(),
            leaves: parameters.tracked(),
            parameters,
            gradient_sum: None,
        }
    }

    pub(crate) fn load(&mut self, flat: &[f32]) {
        self.parameters = Network::from_flat(flat, &self.layout, &self.device);
        self.leaves = self.parameters.tracked();
        self.reset();
    }

    pub(crate) fn reset(&mut self) {
        self.gradient_sum = None;
    }

    /// The derivative of the summed cross-entropy by the logits is `softmax - one_hot`. The graph
    /// starts from the product of the logits with that constant, which spares the device the loss
    /// and its derivative.
    pub(crate) fn step(&mut self, images: &[u8], labels: &[u8]) -> LogitsRead {
        let tracked = self.leaves.logits(images, self.shape, &self.autodiff);
        let logits = tracked.clone().without_autodiff();
        let data = TensorData::new(one_hot(labels, self.n_classes), [labels.len(), self.n_classes]);
        let residual = softmax(logits.clone(), 1) - Tensor::from_data(data, &self.device);
        let mut gradients = (tracked * residual.autodiff()).backward();
        let gradient = self.leaves.gradients(&mut gradients);
        self.gradient_sum = Some(match self.gradient_sum.take() {
            Some(sum) => sum.add(gradient),
            None => gradient,
        });
        read(logits)
    }

    pub(crate) fn logits(&self, images: &[u8]) -> LogitsRead {
        read(self.parameters.logits(images, self.shape, &self.device))
    }

    pub(crate) async fn take(&mut self) -> Result<Vec<f32>, DeviceError> {
        let Some(sum) = self.gradient_sum.take() else {
            return Ok(Vec::new());
        };
        let mut flat = Vec::with_capacity(self.layout.n_parameters());
        for data in sum.read().execute_async().await.map_err(|error| failed(&error))? {
            flat.extend_from_slice(values(&data)?);
        }
        Ok(flat)
    }
}

pub(super) fn read(logits: Tensor<2>) -> LogitsRead {
    Box::pin(
        async move { Ok(values(&logits.into_data_async().await.map_err(|error| failed(&error))?)?.to_vec()) },
    )
}

pub(super) fn values(data: &TensorData) -> Result<&[f32], DeviceError> {
    data.as_slice().map_err(|error| DeviceError::Execution(error.to_string()))
}

pub(super) fn failed(error: &ExecutionError) -> DeviceError {
    DeviceError::Execution(error.to_string())
}
