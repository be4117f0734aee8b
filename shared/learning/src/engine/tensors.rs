//! A model as flat burn tensors, one for each trained segment of the layout: parameters, the same as leaves of a graph, and the
//! gradient sum; and one for each frozen segment. Knows nothing of the model.

use std::ops::Range;

use barnraise_protocol::codec::joined;
use burn::tensor::{Device, FloatDType, Gradients, Tensor, TensorData, Transaction};

use super::arithmetic::{Arithmetic, all_finite, where_finite};
use super::composite::summing;
use super::readback::{failed, not_values};
use crate::device::DeviceError;
use crate::graph::TensorPlace;
use crate::parameters::{ParameterLayout, ParameterSource};

/// Parameters on a device, and the gradient of them.
pub(super) struct FlatTensors {
    layout: ParameterLayout,
    device: Device,
    parameters: Vec<Tensor<1>>,
    leaves: Vec<Tensor<1>>,
    frozen: Vec<Tensor<1>>,
    gradient_sum: Option<Vec<Tensor<1>>>,
}

impl FlatTensors {
    pub(super) fn new(
        layout: &ParameterLayout,
        device: &Device,
        flat: &[f32],
        frozen: Vec<Tensor<1>>,
    ) -> Self {
        let (layout, device) = (layout.clone(), device.clone());
        let (parameters, leaves) = (Vec::new(), Vec::new());
        let mut tensors = Self { layout, device, parameters, leaves, frozen, gradient_sum: None };
        tensors.load(flat.into());
        tensors
    }

    /// Replaces the parameters and drops the gradient.
    pub(super) fn load(&mut self, source: ParameterSource<'_>) {
        // First, so that the device never holds both.
        self.reset();
        self.leaves.clear();
        self.parameters.clear();
        let tensor = |range: Range<usize>| {
            let shape = [range.len()];
            Tensor::from_data(TensorData::new(source.range(range), shape), &self.device)
        };
        let segments = self.layout.trained().iter();
        self.parameters.extend(segments.map(|segment| tensor(segment.range())));
        self.leaves.extend(self.parameters.iter().map(|one| one.clone().autodiff().require_grad()));
    }

    /// Drops the gradient.
    pub(super) fn reset(&mut self) {
        self.gradient_sum = None;
    }

    /// Where it computes, without autodiff.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// The parameters, to compute without a gradient.
    pub(super) fn parameters(&self) -> Cursor<'_> {
        self.cursor(&self.parameters, false, FloatDType::F32)
    }

    /// The parameters as leaves of a graph, to compute with a gradient.
    pub(super) fn leaves(&self, arithmetic: Arithmetic) -> Cursor<'_> {
        self.cursor(&self.leaves, true, arithmetic.dtype())
    }

    /// The leaves and the frozen tensors, to compute a gradient with while others are computed.
    pub(super) fn shared(&self) -> SharedTensors {
        let (leaves, frozen, device) = (self.leaves.clone(), self.frozen.clone(), self.device.clone());
        SharedTensors { leaves, frozen, device }
    }

    fn cursor<'a>(&'a self, trained: &'a [Tensor<1>], has_gradient: bool, dtype: FloatDType) -> Cursor<'a> {
        Cursor { trained, frozen: &self.frozen, has_gradient, device: &self.device, dtype }
    }

    /// Adds the gradient of a loss whose derivative by `outputs`, in single precision, is `residual`: the graph starts
    /// from the product of the two, which spares the device the loss and its derivative. `losses`, `[1]` each, are added to
    /// that loss. The last `n_frozen` leaves get none.
    ///
    /// Returns, of mixed arithmetic, `[1]`: whether the gradient is finite; nothing is added where it is not.
    pub(super) fn add_gradient(
        &mut self,
        outputs: Tensor<2>,
        residual: Tensor<2>,
        losses: Vec<Tensor<1>>,
        n_frozen: usize,
        arithmetic: Arithmetic,
    ) -> Option<Tensor<1>> {
        let scale = match arithmetic {
            Arithmetic::Single => None,
            Arithmetic::Mixed { scale, .. } => Some(scale),
        };
        let scaled = |loss: Tensor<1>| scale.map_or(loss.clone(), |scale| loss * scale);
        let residual = scale.map_or(residual.clone(), |scale| residual * scale);
        let mut product = outputs * residual.autodiff();
        // A tensor's gradient goes into the sum when it is there, and not beside it until all are. Of mixed arithmetic it is not
        // known before the end whether it counts, and frozen leaves have one that does not.
        if let Some(sum) = self.gradient_sum.take_if(|_| scale.is_none() && n_frozen == 0) {
            for (leaf, sum) in self.leaves.iter().zip(sum) {
                product = summing(product, leaf.clone(), sum);
            }
        }
        let mut gradients = match losses.into_iter().map(scaled).reduce(|sum, loss| sum + loss) {
            Some(losses) => (product.sum() + losses).backward(),
            None => product.backward(),
        };
        let mut gradient = self.gradient(&mut gradients, n_frozen);
        let mut is_finite = None;
        if let Arithmetic::Mixed { scale, .. } = arithmetic {
            is_finite = all_finite(&gradient);
            if let Some(flag) = &is_finite {
                gradient = gradient.into_iter().map(|one| where_finite(one, flag) / scale).collect();
            }
        }
        self.add(gradient);
        is_finite
    }

    /// Adds to the gradient sum.
    pub(super) fn add(&mut self, gradient: Vec<Tensor<1>>) {
        self.gradient_sum = Some(added(self.gradient_sum.take(), gradient));
    }

    /// The gradient of each leaf; of the last `n_frozen` zeros.
    pub(super) fn gradient(&self, gradients: &mut Gradients, n_frozen: usize) -> Vec<Tensor<1>> {
        let n_moving = self.leaves.len().saturating_sub(n_frozen);
        of_leaves(&self.leaves, n_moving, gradients)
    }

    /// Reads the gradient sum, a part for each tensor, and drops it; empty where there is none.
    pub(super) async fn take(&mut self) -> Result<Vec<Vec<f32>>, DeviceError> {
        read(self.gradient_sum.take().unwrap_or_default()).await
    }

    /// Reads the parameters, `[n_trained]`.
    pub(super) async fn read_parameters(&self) -> Result<Vec<f32>, DeviceError> {
        Ok(joined(read(self.parameters.clone()).await?))
    }
}

/// The values of each tensor. Where they are on the host already and nobody else has the tensor, they are not copied.
async fn read(tensors: Vec<Tensor<1>>) -> Result<Vec<Vec<f32>>, DeviceError> {
    if tensors.is_empty() {
        return Ok(Vec::new());
    }
    let transaction = tensors.into_iter().fold(Transaction::default(), Transaction::register);
    let read = transaction.execute_async().await.map_err(|error| failed(&error))?;
    read.into_iter().map(|data| data.try_into_vec().map_err(|error| not_values(&error))).collect()
}

/// Leaves and frozen tensors of a pass that outlives a call.
pub(super) struct SharedTensors {
    pub(super) leaves: Vec<Tensor<1>>,
    frozen: Vec<Tensor<1>>,
    device: Device,
}

impl SharedTensors {
    pub(super) fn cursor(&self) -> Cursor<'_> {
        let (trained, frozen, device) = (&self.leaves, &self.frozen, &self.device);
        Cursor { trained, frozen, has_gradient: true, device, dtype: FloatDType::F32 }
    }
}

/// The sum of two gradients.
pub(super) fn added(sum: Option<Vec<Tensor<1>>>, gradient: Vec<Tensor<1>>) -> Vec<Tensor<1>> {
    match sum {
        Some(sum) => sum.into_iter().zip(gradient).map(|(sum, gradient)| sum + gradient).collect(),
        None => gradient,
    }
}

/// The gradient of each leaf; zeros of those that are no more than looked at, and of those after the first `n_moving`.
pub(super) fn of_leaves(leaves: &[Tensor<1>], n_moving: usize, gradients: &mut Gradients) -> Vec<Tensor<1>> {
    let gradient = leaves.iter().enumerate().map(|(index, leaf)| {
        let gradient = leaf.grad_remove(gradients).filter(|_| index < n_moving);
        gradient.unwrap_or_else(|| leaf.zeros_like()).without_autodiff()
    });
    gradient.collect()
}

/// Tensors by their places.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    trained: &'a [Tensor<1>],
    frozen: &'a [Tensor<1>],
    /// Whether it is for a pass with a gradient.
    has_gradient: bool,
    device: &'a Device,
    dtype: FloatDType,
}

impl Cursor<'_> {
    /// The one at a place, in single precision.
    pub(super) fn at(&self, place: TensorPlace) -> Tensor<1> {
        let tensor = match place {
            TensorPlace::Trained(index) => self.trained.get(index).cloned(),
            TensorPlace::Frozen(index) => {
                let frozen = self.frozen.get(index).cloned();
                frozen.map(|tensor| if self.has_gradient { tensor.autodiff() } else { tensor })
            }
        };
        debug_assert!(tensor.is_some(), "the layout is that of the model");
        tensor.unwrap_or_else(|| Tensor::zeros([1], self.device))
    }

    /// Of products and convolutions.
    pub(super) fn dtype(&self) -> FloatDType {
        self.dtype
    }
}
