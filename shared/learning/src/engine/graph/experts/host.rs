//! An expert on its host's device: forward, and backward with the forward computed once more.

use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};

use super::super::interpreter::{GraphPass, Mode};
use super::super::value::{PassError, Value, WrongKind};
use super::super::{last_uses, output};
use crate::device::DeviceError;
use crate::engine::arithmetic::Arithmetic;
use crate::engine::readback::on_host;
use crate::engine::tensors::{Cursor, FlatTensors};
use crate::graph::HostedBody;

/// An expert's parameters on a device.
pub(crate) struct ExpertEngine {
    body: Arc<HostedBody>,
    last_uses: Vec<usize>,
    autodiff: Device,
    tensors: FlatTensors,
}

impl ExpertEngine {
    pub(crate) fn new(body: Arc<HostedBody>, device: &Device, flat: &[f32]) -> Self {
        let tensors = FlatTensors::new(body.graph.layout(), device, flat, Vec::new());
        let last_uses = last_uses(&body.graph);
        Self { body, last_uses, autodiff: device.clone().autodiff(), tensors }
    }

    pub(crate) fn load(&mut self, flat: &[f32]) {
        self.tensors.load(flat.into());
    }

    /// `[n_inputs * n_values]` to `[n_inputs * n_given]`.
    pub(crate) async fn forward(&self, inputs: &[f32]) -> Result<Vec<f32>, DeviceError> {
        let input = flat(inputs, self.tensors.device());
        let mode = Mode::Evaluation { running: &[] };
        let given = self.compute(input, self.tensors.parameters(), self.tensors.device(), mode).await?;
        on_host(given).await
    }

    /// Gradients by the parameters, a part for each tensor, and by the inputs, of the sum of the products of what the expert gives and
    /// `gradients`.
    pub(crate) async fn backward(
        &mut self,
        inputs: &[f32],
        gradients: &[f32],
    ) -> Result<(Vec<Vec<f32>>, Vec<f32>), DeviceError> {
        let input = flat(inputs, self.tensors.device()).autodiff().require_grad();
        let mode = Mode::Training { seeds: &[], observed: Vec::new(), balance: Vec::new(), cuts: Vec::new() };
        let leaves = self.tensors.leaves(Arithmetic::Single);
        let given = self.compute(input.clone(), leaves, &self.autodiff, mode).await?;
        let residual = flat(gradients, self.tensors.device()).autodiff();
        let mut found = (given * residual).sum().backward();
        let of_inputs = input.grad_remove(&mut found).unwrap_or_else(|| input.zeros_like());
        let of_inputs = on_host(of_inputs.without_autodiff()).await?;
        self.tensors.add(self.tensors.gradient(&mut found, 0));
        Ok((self.tensors.take().await?, of_inputs))
    }

    async fn compute(
        &self,
        input: Tensor<1>,
        parameters: Cursor<'_>,
        device: &Device,
        mode: Mode<'_>,
    ) -> Result<Tensor<1>, DeviceError> {
        let graph = &self.body.graph;
        let (masked, last_uses, experts) = (None, self.last_uses.as_slice(), None);
        let mut pass = GraphPass { graph, parameters, device, mode, masked, last_uses, experts };
        let given = async {
            let input = Value::of_shape(input, graph.shape_of(0).dims())?;
            Ok(output(&mut pass, vec![input]).await?.wide()?.flat()?)
        };
        given.await.map_err(|error: PassError| match error {
            PassError::Device(error) => error,
            PassError::WrongKind(WrongKind) => DeviceError::Execution(WrongKind.to_string()),
        })
    }
}

fn flat(values: &[f32], device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), device)
}
