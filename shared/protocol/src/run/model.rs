//! What a run computes.

pub mod graph;
pub mod operation;
mod size;

use serde::{Deserialize, Serialize};

pub use self::graph::Graph;
pub use self::size::Size;

/// The network to train, and the seed of its first weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Architecture.
    pub kind: ModelKind,
    /// The same seed gives the same initial weights on every platform.
    pub seed: u64,
}

/// Architectures that `barnraise-learning` implements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelKind {
    /// Convolutions and pooling after LeCun et al. 1998, sized by the data's shape.
    LeNet,
    /// Fully connected layers with ReLU between them.
    Mlp {
        /// Units of each hidden layer.
        hidden: Vec<u32>,
    },
    /// A transformer that predicts masked tokens of text: ALBERT (Lan et al. 2020), whose layers share their
    /// parameters and whose embedding is narrower than its layers.
    Albert {
        /// Width of a token's embedding.
        embedding: u32,
        /// Width of the layers, a multiple of the heads.
        hidden: u32,
        /// Attention heads of a layer.
        heads: u32,
        /// Units between the two maps of a layer's feed-forward part.
        inner: u32,
        /// Times that the one layer is applied.
        layers: u32,
    },
    /// Convolutions that learn from pictures without their labels: crops of one picture are to have the same
    /// prototype (SwAV, Caron et al. 2020). Labels serve for evaluation only.
    Swav {
        /// Feature maps of each convolution of the trunk, which halves height and width.
        maps: Vec<u32>,
        /// Units between trunk and projection.
        hidden: u32,
        /// Values of a projection, which prototypes are compared with.
        projection: u32,
        /// Prototypes.
        prototypes: u32,
        /// Crops of a picture beside the two large ones.
        small_crops: u32,
        /// Height and width of a small crop, in pixels; a large one has those of the picture.
        small_side: u32,
        /// Earlier samples of each contributor that help to balance its assignments to prototypes; 0 for none, so
        /// that a gradient depends on the samples of its own pass alone.
        queue_samples: u32,
        /// Passes of a contributor before it uses its queue.
        queue_after: u32,
        /// Epochs in which the prototypes stay as they are.
        frozen_epochs: u32,
    },
}

impl ModelKind {
    /// Whether it learns without labels, and so predicts no classes.
    pub fn is_self_supervised(&self) -> bool {
        matches!(self, Self::Albert { .. } | Self::Swav { .. })
    }
}
