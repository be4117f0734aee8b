//! Two ways to compute the same step: burn's autodiff on any device, and fused kernels on WebGPU.
//!
//! An engine holds parameters and a gradient sum on its device. It knows no optimizer, checks no
//! input and counts no samples: the trainer does.

mod autodiff;
mod fused;
mod network;

use std::pin::Pin;

use barnraise_protocol::dataset::ImageShape;

use crate::device::{ComputeDevice, DeviceError};
use crate::layout::ParameterLayout;
use autodiff::AutodiffEngine;
use fused::FusedEngine;

/// Logits `[n_samples, n_classes]` on their way to the host.
pub(crate) type LogitsRead = Pin<Box<dyn Future<Output = Result<Vec<f32>, DeviceError>> + Send>>;

/// A model on a device.
pub(crate) enum Engine {
    /// Any device.
    Autodiff(Box<AutodiffEngine>),
    /// A wgpu device whose limits hold the model.
    Fused(Box<FusedEngine>),
}

impl Engine {
    /// The fastest engine for the device, with `flat` as its parameters.
    pub(crate) fn new(
        layout: &ParameterLayout,
        shape: ImageShape,
        n_classes: usize,
        device: &ComputeDevice,
        flat: &[f32],
    ) -> Self {
        let fused = device.gpu().and_then(|gpu| FusedEngine::new(layout, shape, n_classes, gpu));
        match fused {
            Some(mut engine) => {
                engine.load(flat);
                Self::Fused(Box::new(engine))
            }
            None => Self::autodiff(layout, shape, n_classes, device, flat),
        }
    }

    /// Burn's own kernels and autodiff.
    pub(crate) fn autodiff(
        layout: &ParameterLayout,
        shape: ImageShape,
        n_classes: usize,
        device: &ComputeDevice,
        flat: &[f32],
    ) -> Self {
        Self::Autodiff(Box::new(AutodiffEngine::new(layout, shape, n_classes, device.burn(), flat)))
    }

    /// Replaces the parameters and drops the gradient sum.
    pub(crate) fn load(&mut self, flat: &[f32]) {
        match self {
            Self::Autodiff(engine) => engine.load(flat),
            Self::Fused(engine) => engine.load(flat),
        }
    }

    /// Drops the gradient sum.
    pub(crate) fn reset(&mut self) {
        match self {
            Self::Autodiff(engine) => engine.reset(),
            Self::Fused(engine) => engine.reset(),
        }
    }

    /// Queues a forward and backward pass; the gradient of the summed cross-entropy is added up.
    ///
    /// # Shapes
    /// - `images`: `[n_samples, height, width, channels]`
    /// - `labels`: `[n_samples]`, each below the number of classes, at least one
    pub(crate) fn step(&mut self, images: &[u8], labels: &[u8]) -> LogitsRead {
        match self {
            Self::Autodiff(engine) => engine.step(images, labels),
            Self::Fused(engine) => engine.step(images, labels),
        }
    }

    /// Queues a forward pass.
    pub(crate) fn logits(&self, images: &[u8], n_samples: usize) -> LogitsRead {
        match self {
            Self::Autodiff(engine) => engine.logits(images),
            Self::Fused(engine) => engine.logits(images, n_samples),
        }
    }

    /// Reads the gradient sum, `[n_parameters]`, and drops it; empty before the first step.
    pub(crate) async fn take(&mut self) -> Result<Vec<f32>, DeviceError> {
        match self {
            Self::Autodiff(engine) => engine.take().await,
            Self::Fused(engine) => engine.take().await,
        }
    }

    /// Most samples of one pass of [`Self::logits`].
    pub(crate) fn logits_samples_max(&self) -> usize {
        match self {
            Self::Autodiff(_) => usize::MAX,
            Self::Fused(engine) => engine.capacity(),
        }
    }
}
