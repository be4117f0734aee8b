//! What can be wrong with a model, its input or the device it runs on. Only data, no behaviour.

use barnraise_protocol::codec::CodecError;

use crate::augmentation::AugmentationError;
use crate::device::DeviceError;
use crate::graph::GraphError;
use crate::local::LocalStepsError;

/// Why a model was not built, or a step not computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A graph that cannot be computed on the run's data.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A model that cannot be hashed: does not happen.
    #[error("the model cannot be encoded: {0}")]
    Encoding(#[from] postcard::Error),
    /// Changes of pictures that do not fit them.
    #[error(transparent)]
    Augmentation(#[from] AugmentationError),
    /// Labels are one byte.
    #[error("the data has {got} classes, 1 to {max} are allowed")]
    Classes {
        /// Most allowed.
        max: usize,
        /// In the data set.
        got: usize,
    },
    /// Mixed precision in a run whose contributions are recomputed.
    #[error(
        "this run recomputes contributions, and the results of mixed precision differ from one machine to another: \
         compute in single precision (f32)"
    )]
    MixedPrecision,
    /// Hosted experts, which this peer cannot reach: without them it would train another model.
    #[error("the experts of this model are on other machines, which are not reached from here yet")]
    UnreachableExperts,
    /// A model whose passes cannot be divided among threads that know its description alone.
    #[error("a pass of this model cannot be divided among threads")]
    Indivisible,
    /// A flat vector of another model.
    #[error("{got} values given, the model has {want} parameters")]
    ParameterCount {
        /// Of the model.
        want: usize,
        /// What came.
        got: usize,
    },
    /// A micro-batch without samples, or with too many.
    #[error("a batch has {got} samples, 1 to {max} are allowed")]
    BatchSize {
        /// Most allowed.
        max: usize,
        /// What came.
        got: usize,
    },
    /// Images and labels do not belong together.
    #[error("a batch of {n_samples} samples needs {want} image bytes, {got} came")]
    ImageBytes {
        /// Labels, or the announced number.
        n_samples: usize,
        /// Bytes of that many images.
        want: usize,
        /// What came.
        got: usize,
    },
    /// A label without a class.
    #[error("sample {sample} has label {label}, the model has {n_classes} classes")]
    Label {
        /// Index in the batch.
        sample: usize,
        /// What came.
        label: u8,
        /// Of the model.
        n_classes: usize,
    },
    /// A model for samples of another kind.
    #[error("the model does not learn from {got}")]
    WrongData {
        /// What the samples are.
        got: &'static str,
    },
    /// Another number of tokens than that of whole sequences.
    #[error("{got} tokens, which is not a whole number of sequences of {length}")]
    TokenCount {
        /// Tokens of a sequence.
        length: usize,
        /// What came.
        got: usize,
    },
    /// A token without an embedding.
    #[error("token {index} is {token}, the vocabulary has {vocabulary}")]
    Token {
        /// Index in the batch.
        index: usize,
        /// What came.
        token: u32,
        /// Of the model.
        vocabulary: u32,
    },
    /// More samples than a gradient can be weighted with.
    #[error("more than {max} samples accumulated")]
    TooManySamples {
        /// Most allowed.
        max: u32,
    },
    /// The computation diverged, or the device miscomputed.
    #[error("value {index} of the gradient is not finite")]
    NotFinite {
        /// Position in the flat gradient.
        index: usize,
    },
    /// Frozen weights that are not here, or not those of the model.
    #[error(transparent)]
    Frozen(#[from] FrozenError),
    /// Local steps that cannot be made.
    #[error(transparent)]
    LocalSteps(#[from] LocalStepsError),
    /// The device failed or is gone.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why weights are not those of a model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FrozenError {
    /// A model with frozen weights, without them.
    #[error("the model has {n_values} frozen weights, which are not here")]
    Missing {
        /// In its frozen layout.
        n_values: usize,
    },
    /// Too few or too many shards.
    #[error("{got} shards of frozen weights, the model has {want}")]
    Shards {
        /// Of the model.
        want: usize,
        /// What came.
        got: usize,
    },
    /// A shard of another length.
    #[error("shard {shard} of the frozen weights is to have {} values in {} bytes, it has {} in {}", want[0], want[1], got[0], got[1])]
    Entry {
        /// Which.
        shard: usize,
        /// Values and bytes, of the model.
        want: [usize; 2],
        /// What the manifest says.
        got: [usize; 2],
    },
    /// A shard that cannot be decoded.
    #[error("shard {shard} of the frozen weights: {source}")]
    Shard {
        /// Which.
        shard: usize,
        /// What is wrong with it.
        source: CodecError,
    },
}
