//! Two ways to compute the same step: any graph by burn's autodiff on any device, and fused kernels on WebGPU for the
//! graphs that they are written for.
//!
//! An engine holds parameters and a gradient sum on its device. It knows no optimizer, checks no
//! input and counts no samples: the trainer does.

mod arithmetic;
mod composite;
#[cfg(feature = "wgpu")]
mod fused;
pub(crate) mod graph;
mod readback;
mod swav;
mod tensors;

use std::pin::Pin;
use std::sync::Arc;

use barnraise_protocol::codec::joined;
use barnraise_protocol::dataset::{Ratings, TableRows};
use serde::{Deserialize, Serialize};

use self::graph::GraphEngine;
pub(crate) use self::graph::{ExpertEngine, TokenCache};
use crate::crops::Crops;
#[cfg(feature = "wgpu")]
use crate::device::Precision;
use crate::device::{ComputeDevice, DeviceError};
use crate::experts::ExpertPort;
use crate::frozen::FrozenWeights;
use crate::graph::ResolvedGraph;
use crate::masking::MaskedTokens;
use crate::parameters::ParameterSource;
pub(crate) use arithmetic::Arithmetic;
#[cfg(feature = "wgpu")]
use fused::FusedEngine;

/// What a pass gives, flat, on its way to the host.
pub(crate) type PassRead = Pin<Box<dyn Future<Output = Result<Vec<f32>, DeviceError>> + Send>>;

/// What a pass is over.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Input<'a> {
    /// `[n_samples, height, width, channels]` and `[n_samples]`: labels below the number of classes, which a pass
    /// without a loss does not look at.
    Images { images: &'a [u8], labels: &'a [u8] },
    /// `[n_samples, length]`: each token after the first of a sequence is predicted from those before it.
    Tokens(&'a [u32]),
    /// Text with masked tokens.
    Masked(&'a MaskedTokens),
    /// Rows of a table.
    Rows(&'a TableRows),
    /// Ratings.
    Ratings(&'a Ratings),
    /// Crops of pictures, for SwAV.
    Crops {
        crops: &'a Crops,
        /// Whether the prototypes get no gradient.
        is_frozen: bool,
    },
}

/// An [`Input`] that owns its data, to repeat a pass with, or to have another thread make it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum OwnedInput {
    Images { images: Vec<u8>, labels: Vec<u8> },
    Tokens(Vec<u32>),
    Masked(MaskedTokens),
    Rows(TableRows),
    Ratings(Ratings),
    Crops { crops: Crops, is_frozen: bool },
}

impl OwnedInput {
    pub(crate) fn of(input: Input<'_>) -> Self {
        match input {
            Input::Images { images, labels } => {
                Self::Images { images: images.to_vec(), labels: labels.to_vec() }
            }
            Input::Tokens(ids) => Self::Tokens(ids.to_vec()),
            Input::Masked(masked) => Self::Masked(masked.clone()),
            Input::Rows(rows) => Self::Rows(rows.clone()),
            Input::Ratings(ratings) => Self::Ratings(ratings.clone()),
            Input::Crops { crops, is_frozen } => Self::Crops { crops: crops.clone(), is_frozen },
        }
    }

    pub(crate) fn as_input(&self) -> Input<'_> {
        match self {
            Self::Images { images, labels } => Input::Images { images, labels },
            Self::Tokens(ids) => Input::Tokens(ids),
            Self::Masked(masked) => Input::Masked(masked),
            Self::Rows(rows) => Input::Rows(rows),
            Self::Ratings(ratings) => Input::Ratings(ratings),
            Self::Crops { crops, is_frozen } => Input::Crops { crops, is_frozen: *is_frozen },
        }
    }
}

/// A model on a device.
pub(crate) enum Engine {
    /// Any graph, any device.
    Graph(Box<GraphEngine>),
    /// `le-net` and `mlp`, on a wgpu device whose limits hold the model.
    #[cfg(feature = "wgpu")]
    Fused(Box<FusedEngine>),
}

impl Engine {
    /// The fastest engine for the graph on the device, with `flat` as its parameters. The fused kernels compute in single
    /// precision.
    pub(crate) fn new(
        graph: &Arc<ResolvedGraph>,
        device: &ComputeDevice,
        flat: &[f32],
        frozen: Option<&FrozenWeights>,
    ) -> Self {
        #[cfg(feature = "wgpu")]
        {
            let gpu = device.gpu().filter(|_| device.precision() == Precision::Single);
            if let Some(mut engine) = gpu.and_then(|gpu| FusedEngine::new(graph, gpu)) {
                engine.load(flat);
                return Self::Fused(Box::new(engine));
            }
        }
        Self::Graph(Box::new(GraphEngine::new(graph.clone(), device.burn(), flat, frozen)))
    }

    /// Replaces the parameters and drops the gradient sum.
    pub(crate) fn load<'a>(&mut self, source: impl Into<ParameterSource<'a>>) {
        match self {
            Self::Graph(engine) => engine.load(source),
            #[cfg(feature = "wgpu")]
            Self::Fused(engine) => engine.load(&source.into().flat()),
        }
    }

    /// Reads the parameters that are trained, `[n_trained]`. The fused kernels do not tell theirs.
    pub(crate) async fn parameters(&self) -> Result<Vec<f32>, DeviceError> {
        match self {
            Self::Graph(engine) => engine.parameters().await,
            #[cfg(feature = "wgpu")]
            Self::Fused(_) => Err(DeviceError::Execution("the parameters are not read back".into())),
        }
    }

    /// Drops the gradient sum.
    pub(crate) fn reset(&mut self) {
        match self {
            Self::Graph(engine) => engine.reset(),
            #[cfg(feature = "wgpu")]
            Self::Fused(engine) => engine.reset(),
        }
    }

    /// From now on hosted experts are asked for here. The fused kernels have none.
    pub(crate) fn ask_experts(&mut self, port: ExpertPort) {
        match self {
            Self::Graph(engine) => engine.ask_experts(port),
            #[cfg(feature = "wgpu")]
            Self::Fused(_) => {}
        }
    }

    /// Empties SwAV's queue of projections.
    pub(crate) fn clear_queue(&mut self) {
        match self {
            Self::Graph(engine) => engine.clear_queue(),
            #[cfg(feature = "wgpu")]
            Self::Fused(_) => {}
        }
    }

    /// Queues a forward and backward pass over at least one sample. Adds up the gradient of the sum of the samples'
    /// losses, each the mean over the predictions of the sample. `seeds` `[n_samples]` are for dropout.
    ///
    /// The fused kernels are not asked for another arithmetic than single precision.
    ///
    /// # Shapes
    /// - returns `[2, n_predictions]`: losses, and 1 where the top-1 prediction was correct; and in mixed precision
    ///   whether the gradient is finite
    pub(crate) async fn step(
        &mut self,
        input: Input<'_>,
        seeds: Vec<u64>,
        arithmetic: Arithmetic,
    ) -> PassRead {
        match self {
            Self::Graph(engine) => {
                let batch = engine.batch(input).with_seeds(seeds);
                engine.step(batch, arithmetic).await
            }
            #[cfg(feature = "wgpu")]
            Self::Fused(engine) => match input {
                Input::Images { images, labels } => fused::losses(engine.step(images, labels), labels),
                _ => unsuited(),
            },
        }
    }

    /// Queues a forward pass.
    ///
    /// # Shapes
    /// - returns `[2, n_predictions]` as of [`Self::step`]
    pub(crate) async fn losses(&self, input: Input<'_>) -> PassRead {
        match self {
            Self::Graph(engine) => engine.losses(&engine.batch(input)).await,
            #[cfg(feature = "wgpu")]
            Self::Fused(engine) => match input {
                Input::Images { images, labels } => {
                    fused::losses(engine.logits(images, labels.len()), labels)
                }
                _ => unsuited(),
            },
        }
    }

    /// Queues a forward pass over `n_samples`; the result is what the last block gives, such as logits. Of SwAV the
    /// features of pictures.
    #[cfg_attr(not(feature = "wgpu"), allow(unused_variables))]
    pub(crate) async fn outputs(&self, input: Input<'_>, n_samples: usize) -> PassRead {
        match self {
            Self::Graph(engine) => engine.outputs(&engine.batch(input)).await,
            #[cfg(feature = "wgpu")]
            Self::Fused(engine) => match input {
                Input::Images { images, .. } => engine.logits(images, n_samples),
                _ => unsuited(),
            },
        }
    }

    /// Goes on with one text: the logits `[vocabulary]` of the token after `ids`, which follow those in the cache.
    pub(crate) async fn next(&self, ids: &[u32], cache: &mut TokenCache) -> PassRead {
        match self {
            Self::Graph(engine) => engine.next(ids, cache).await,
            #[cfg(feature = "wgpu")]
            Self::Fused(_) => unsuited(),
        }
    }

    /// Reads the gradient sum, `[n_trained]`, and what running statistics move by in the mean after it, and drops them;
    /// empty before the first step.
    pub(crate) async fn take(&mut self) -> Result<Vec<f32>, DeviceError> {
        Ok(joined(self.take_parts().await?))
    }

    /// As [`Self::take`], in parts: a device that is the host's memory gives its tensors, and copies none.
    pub(crate) async fn take_parts(&mut self) -> Result<Vec<Vec<f32>>, DeviceError> {
        match self {
            Self::Graph(engine) => engine.take_parts().await,
            #[cfg(feature = "wgpu")]
            Self::Fused(engine) => Ok(vec![engine.take().await?]),
        }
    }

    /// Most samples of one pass without a gradient.
    pub(crate) fn samples_max(&self) -> usize {
        match self {
            Self::Graph(_) => usize::MAX,
            #[cfg(feature = "wgpu")]
            Self::Fused(engine) => engine.capacity(),
        }
    }
}

/// The trainer checks samples against the model first: only a bug of ours gets here.
#[cfg(feature = "wgpu")]
fn unsuited() -> PassRead {
    debug_assert!(false, "the trainer looks at the kind of its samples");
    Box::pin(async { Err(DeviceError::Execution("the model is for samples of another kind".into())) })
}
