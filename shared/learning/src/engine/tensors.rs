//! A model as flat burn tensors, one for each segment of the layout: parameters, the same as leaves of a graph, and the
//! gradient that is summed. What the tensors are for is the model's business.

use std::ops::Range;

use burn::tensor::{Device, Gradients, Tensor, TensorData, Transaction};

use super::autodiff::{failed, values};
use crate::device::DeviceError;
use crate::layout::ParameterLayout;

/// Parameters on a device, and the gradient of them.
pub(super) struct FlatTensors {
    layout: ParameterLayout,
    device: Device,
    parameters: Vec<Tensor<1>>,
    leaves: Vec<Tensor<1>>,
    gradient_sum: Option<Vec<Tensor<1>>>,
}

impl FlatTensors {
    pub(super) fn new(layout: &ParameterLayout, device: &Device, flat: &[f32]) -> Self {
        let (layout, device) = (layout.clone(), device.clone());
        let mut tensors =
            Self { layout, device, parameters: Vec::new(), leaves: Vec::new(), gradient_sum: None };
        tensors.load(flat);
        tensors
    }

    /// Replaces the parameters and drops the gradient.
    pub(super) fn load(&mut self, flat: &[f32]) {
        let tensor = |range: Range<usize>| {
            let data = TensorData::new(flat[range.clone()].to_vec(), [range.len()]);
            Tensor::from_data(data, &self.device)
        };
        let segments = self.layout.segments().iter();
        self.parameters = segments.map(|segment| tensor(segment.range())).collect();
        self.leaves = self.parameters.iter().map(|one| one.clone().autodiff().require_grad()).collect();
        self.reset();
    }

    /// Drops the gradient.
    pub(super) fn reset(&mut self) {
        self.gradient_sum = None;
    }

    /// Where it computes, without autodiff.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// To compute without a gradient.
    pub(super) fn parameters(&self) -> Cursor<'_> {
        Cursor { tensors: self.parameters.iter(), device: &self.device }
    }

    /// To compute with one.
    pub(super) fn leaves(&self) -> Cursor<'_> {
        Cursor { tensors: self.leaves.iter(), device: &self.device }
    }

    /// Adds the gradients of the leaves but for the last `n_frozen`, which get none.
    pub(super) fn add(&mut self, mut gradients: Gradients, n_frozen: usize) {
        let n_moving = self.leaves.len().saturating_sub(n_frozen);
        let gradient = self.leaves.iter().enumerate().map(|(index, leaf)| {
            let gradient = leaf.grad_remove(&mut gradients).filter(|_| index < n_moving);
            gradient.unwrap_or_else(|| leaf.zeros_like()).without_autodiff()
        });
        self.gradient_sum = Some(match self.gradient_sum.take() {
            Some(sum) => sum.into_iter().zip(gradient).map(|(sum, gradient)| sum + gradient).collect(),
            None => gradient.collect(),
        });
    }

    /// Reads the gradient sum, `[n_parameters]`, and drops it; empty where there is none.
    pub(super) async fn take(&mut self) -> Result<Vec<f32>, DeviceError> {
        let Some(sum) = self.gradient_sum.take() else {
            return Ok(Vec::new());
        };
        let transaction = sum.into_iter().fold(Transaction::default(), Transaction::register);
        let mut flat = Vec::with_capacity(self.layout.n_parameters());
        for data in transaction.execute_async().await.map_err(|error| failed(&error))? {
            flat.extend_from_slice(values(&data)?);
        }
        Ok(flat)
    }
}

/// Tensors in the order of the layout.
pub(super) struct Cursor<'a> {
    tensors: std::slice::Iter<'a, Tensor<1>>,
    device: &'a Device,
}

impl Cursor<'_> {
    /// The next one. The layout has as many as the forward pass takes: what stands in for one that is missing is
    /// never used.
    pub(super) fn vector(&mut self) -> Tensor<1> {
        let next = self.tensors.next();
        debug_assert!(next.is_some(), "the layout is that of the model");
        next.cloned().unwrap_or_else(|| Tensor::zeros([1], self.device))
    }

    /// Passes over all but the last `n`.
    pub(super) fn skip_to_last(&mut self, n: usize) {
        let n_before = self.tensors.len().saturating_sub(n);
        self.tensors = self.tensors.as_slice()[n_before..].iter();
    }

    /// The next one as a matrix.
    pub(super) fn matrix(&mut self, shape: [usize; 2]) -> Tensor<2> {
        self.vector().reshape(shape)
    }

    /// The next two as a linear layer.
    pub(super) fn linear(&mut self, n_in: usize, n_out: usize) -> Linear {
        Linear { weight: self.matrix([n_in, n_out]), bias: self.vector() }
    }

    /// The next two as what follows a normalization.
    pub(super) fn norm(&mut self) -> Norm {
        Norm { weight: self.vector(), bias: self.vector() }
    }
}

/// A linear layer, its weight `[in, out]`.
pub(super) struct Linear {
    weight: Tensor<2>,
    bias: Tensor<1>,
}

impl Linear {
    pub(super) fn on<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        burn::tensor::module::linear(input, self.weight.clone(), Some(self.bias.clone()))
    }
}

/// Scale and shift of normalized values.
pub(super) struct Norm {
    pub(super) weight: Tensor<1>,
    pub(super) bias: Tensor<1>,
}
