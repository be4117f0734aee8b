//! Where hosted experts cut a pass with a gradient in two: what crosses, and how the backward pass goes on before the cut.

use burn::tensor::{Gradients, Tensor, TensorData};

use super::value::PassError;
use crate::engine::readback::on_host;
use crate::experts::{ExpertPort, WayBack};

/// A value that crosses a cut, flat.
#[derive(Debug)]
pub(super) struct Crossing {
    /// In the graph before the cut.
    pub(super) before: Tensor<1>,
    /// The leaf after it.
    pub(super) after: Tensor<1>,
}

/// Where a pass with a gradient is cut.
#[derive(Debug)]
pub(super) struct Cut {
    /// Of the call, for its way back.
    pub(super) call: u64,
    /// Dropped with the pass.
    pub(super) way_back: Option<WayBack>,
    pub(super) crossing: Vec<Crossing>,
    /// What went to experts, in the graph before the cut: `[n_inputs * n_values]`.
    pub(super) inputs: Tensor<1>,
    /// What experts gave, a leaf after the cut: `[n_pairs, n_given]`.
    pub(super) given: Tensor<2>,
    /// Losses of the graph before the cut.
    pub(super) balance: Vec<Tensor<1>>,
}

impl Cut {
    /// The loss of the graph before the cut, whose derivatives are those of the whole pass. `gradients` are of the graph after
    /// it, of the sum over `n_samples`. Experts are told the gradient of the mean, by which they step.
    pub(super) async fn back(
        self,
        gradients: &mut Gradients,
        n_samples: usize,
        port: &ExpertPort,
    ) -> Result<Tensor<1>, PassError> {
        let n_inputs = self.inputs.dims()[0];
        let n_samples = n_samples.max(1) as f32;
        let _way_back = self.way_back;
        let told = match self.given.grad_remove(gradients) {
            Some(given) => {
                let mean = on_host(given.without_autodiff() / n_samples).await?;
                port.backward(self.call, mean, n_inputs).await
            }
            None => None,
        };
        let mut loss = self.balance.into_iter().fold(self.inputs.clone().sum() * 0.0, |sum, loss| sum + loss);
        if let Some(told) = told {
            let told = Tensor::from_data(TensorData::new(told, [n_inputs]), &self.inputs.device());
            loss = loss + (self.inputs * told).sum() * n_samples;
        }
        for Crossing { before, after } in self.crossing {
            if let Some(gradient) = after.grad_remove(gradients) {
                loss = loss + (before * gradient.without_autodiff().autodiff()).sum();
            }
        }
        Ok(loss)
    }
}

pub(super) fn leaf<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    tensor.autodiff().require_grad()
}
