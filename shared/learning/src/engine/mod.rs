//! Two ways to compute the same step on labelled pictures: burn's autodiff on any device, and fused kernels on WebGPU.
//! Text, and pictures without labels, go through burn's autodiff.
//!
//! An engine holds parameters and a gradient sum on its device. It knows no optimizer, checks no
//! input and counts no samples: the trainer does.

mod albert;
mod arithmetic;
mod autodiff;
#[cfg(feature = "wgpu")]
mod fused;
#[allow(dead_code, reason = "the trainer computes graphs once a run's description has one")]
pub(crate) mod graph;
mod network;
mod readback;
mod swav;
mod tensors;

use std::pin::Pin;

use barnraise_protocol::dataset::ImageShape;

pub(crate) use crate::batch::one_hot;
use crate::crops::Crops;
#[cfg(feature = "wgpu")]
use crate::device::Precision;
use crate::device::{ComputeDevice, DeviceError};
use crate::layout::{AlbertSizes, SwavSizes};
use crate::masking::MaskedTokens;
use crate::parameters::ParameterLayout;
use albert::AlbertEngine;
pub(crate) use arithmetic::Arithmetic;
use autodiff::AutodiffEngine;
#[cfg(feature = "wgpu")]
use fused::FusedEngine;
use swav::SwavEngine;

/// Logits `[n_samples, n_classes]`, or the losses of a pass, on their way to the host.
pub(crate) type LogitsRead = Pin<Box<dyn Future<Output = Result<Vec<f32>, DeviceError>> + Send>>;

/// What a pass is over.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Input<'a> {
    /// `[n_samples, height, width, channels]` and `[n_samples]`: labels below the number of classes, which a pass
    /// without a gradient does not look at.
    Images { images: &'a [u8], labels: &'a [u8] },
    /// Text with masked tokens.
    Masked(&'a MaskedTokens),
    /// Crops of pictures, for SwAV. A pass returns `[2, n_samples]`: losses, and 1 where the top-1 prediction was
    /// correct.
    Crops {
        crops: &'a Crops,
        /// Whether the prototypes get no gradient.
        is_frozen: bool,
    },
}

/// An [`Input`] that owns its data, to repeat a pass with.
#[derive(Debug, Clone)]
pub(crate) enum OwnedInput {
    Images { images: Vec<u8>, labels: Vec<u8> },
    Masked(MaskedTokens),
    Crops { crops: Crops, is_frozen: bool },
}

impl OwnedInput {
    pub(crate) fn of(input: Input<'_>) -> Self {
        match input {
            Input::Images { images, labels } => {
                Self::Images { images: images.to_vec(), labels: labels.to_vec() }
            }
            Input::Masked(masked) => Self::Masked(masked.clone()),
            Input::Crops { crops, is_frozen } => Self::Crops { crops: crops.clone(), is_frozen },
        }
    }

    pub(crate) fn as_input(&self) -> Input<'_> {
        match self {
            Self::Images { images, labels } => Input::Images { images, labels },
            Self::Masked(masked) => Input::Masked(masked),
            Self::Crops { crops, is_frozen } => Input::Crops { crops, is_frozen: *is_frozen },
        }
    }
}

/// A model on a device.
pub(crate) enum Engine {
    /// Pictures, any device.
    Autodiff(Box<AutodiffEngine>),
    /// Pictures, a wgpu device whose limits hold the model.
    #[cfg(feature = "wgpu")]
    Fused(Box<FusedEngine>),
    /// Text, any device.
    Albert(Box<AlbertEngine>),
    /// Pictures without labels, any device.
    Swav(Box<SwavEngine>),
}

impl Engine {
    /// The fastest engine for pictures on the device, with `flat` as its parameters. The fused kernels compute in single
    /// precision.
    pub(crate) fn new(
        layout: &ParameterLayout,
        shape: ImageShape,
        n_classes: usize,
        device: &ComputeDevice,
        flat: &[f32],
    ) -> Self {
        #[cfg(feature = "wgpu")]
        {
            let gpu = device.gpu().filter(|_| device.precision() == Precision::Single);
            if let Some(mut engine) = gpu.and_then(|gpu| FusedEngine::new(layout, shape, n_classes, gpu)) {
                engine.load(flat);
                return Self::Fused(Box::new(engine));
            }
        }
        Self::autodiff(layout, shape, n_classes, device, flat)
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

    /// For text.
    pub(crate) fn albert(
        layout: &ParameterLayout,
        sizes: AlbertSizes,
        device: &ComputeDevice,
        flat: &[f32],
    ) -> Self {
        Self::Albert(Box::new(AlbertEngine::new(layout, sizes, device.burn(), flat)))
    }

    /// For pictures without labels.
    pub(crate) fn swav(
        layout: &ParameterLayout,
        sizes: SwavSizes,
        device: &ComputeDevice,
        flat: &[f32],
    ) -> Self {
        Self::Swav(Box::new(SwavEngine::new(layout, sizes, device.burn(), flat)))
    }

    /// Replaces the parameters and drops the gradient sum.
    pub(crate) fn load(&mut self, flat: &[f32]) {
        match self {
            Self::Autodiff(engine) => engine.load(flat),
            #[cfg(feature = "wgpu")]
            Self::Fused(engine) => engine.load(flat),
            Self::Albert(engine) => engine.load(flat),
            Self::Swav(engine) => engine.load(flat),
        }
    }

    /// Drops the gradient sum.
    pub(crate) fn reset(&mut self) {
        match self {
            Self::Autodiff(engine) => engine.reset(),
            #[cfg(feature = "wgpu")]
            Self::Fused(engine) => engine.reset(),
            Self::Albert(engine) => engine.reset(),
            Self::Swav(engine) => engine.reset(),
        }
    }

    /// Empties SwAV's queue of projections.
    pub(crate) fn clear_queue(&mut self) {
        if let Self::Swav(engine) = self {
            engine.clear_queue();
        }
    }

    /// Queues a forward and backward pass over at least one sample. Adds up the gradient of the samples' summed
    /// losses: the cross-entropy of a picture, or its mean over a sequence's predictions or a picture's crops.
    ///
    /// The fused kernels are not asked for another arithmetic than single precision.
    pub(crate) fn step(&mut self, input: Input<'_>, arithmetic: Arithmetic) -> LogitsRead {
        match (self, input) {
            (Self::Autodiff(engine), Input::Images { images, labels }) => {
                engine.step(images, labels, arithmetic)
            }
            #[cfg(feature = "wgpu")]
            (Self::Fused(engine), Input::Images { images, labels }) => engine.step(images, labels),
            (Self::Albert(engine), Input::Masked(masked)) => engine.step(masked, arithmetic),
            (Self::Swav(engine), Input::Crops { crops, is_frozen }) => {
                engine.step(crops, is_frozen, arithmetic)
            }
            _ => unsuited(),
        }
    }

    /// Queues a forward pass over `n_samples`. Of pictures, a model that learns without labels gives features.
    #[cfg_attr(not(feature = "wgpu"), allow(unused_variables))]
    pub(crate) fn logits(&self, input: Input<'_>, n_samples: usize) -> LogitsRead {
        match (self, input) {
            (Self::Autodiff(engine), Input::Images { images, .. }) => engine.logits(images),
            #[cfg(feature = "wgpu")]
            (Self::Fused(engine), Input::Images { images, .. }) => engine.logits(images, n_samples),
            (Self::Albert(engine), Input::Masked(masked)) => engine.logits(masked),
            (Self::Swav(engine), Input::Crops { crops, .. }) => engine.losses(crops),
            (Self::Swav(engine), Input::Images { images, .. }) => engine.features(images),
            _ => unsuited(),
        }
    }

    /// Reads the gradient sum, `[n_parameters]`, and drops it; empty before the first step.
    pub(crate) async fn take(&mut self) -> Result<Vec<f32>, DeviceError> {
        match self {
            Self::Autodiff(engine) => engine.take().await,
            #[cfg(feature = "wgpu")]
            Self::Fused(engine) => engine.take().await,
            Self::Albert(engine) => engine.take().await,
            Self::Swav(engine) => engine.take().await,
        }
    }

    /// Most samples of one pass of [`Self::logits`].
    pub(crate) fn logits_samples_max(&self) -> usize {
        match self {
            #[cfg(feature = "wgpu")]
            Self::Fused(engine) => engine.capacity(),
            Self::Autodiff(_) | Self::Albert(_) | Self::Swav(_) => usize::MAX,
        }
    }
}

/// The trainer checks samples against the model first: only a bug of ours gets here.
fn unsuited() -> LogitsRead {
    debug_assert!(false, "the trainer looks at the kind of its samples");
    Box::pin(async { Err(DeviceError::Execution("the model is for samples of another kind".into())) })
}
