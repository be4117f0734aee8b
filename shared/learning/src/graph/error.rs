//! Why a graph is refused: which block, what was wanted, what came.

use std::fmt;

use barnraise_protocol::run::model::Size;

use super::shape::{ShapeText, ValueShape};

/// Why a graph cannot be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// Nothing to compute.
    #[error("the graph has no blocks")]
    Empty,
    /// A model that guesses masked tokens, on a vocabulary that masks none.
    #[error(
        "a masked-language-model needs a mask token, such as [MASK] or <mask>, and the tokenizer has none"
    )]
    NoMask,
    /// No name that a page can show.
    #[error("the graph's name must be one line of 1 to {max} bytes")]
    Title {
        /// Longest, in bytes.
        max: usize,
    },
    /// More blocks than this crate agrees to compute, those of repeated parts counted each time.
    #[error("the graph has more than {max} blocks, those of repeated parts included")]
    TooManyBlocks {
        /// Most allowed.
        max: usize,
    },
    /// More parts than allowed.
    #[error("the graph has {got} parts, at most {max} are allowed")]
    TooManyParts {
        /// Most allowed.
        max: usize,
        /// In the graph.
        got: usize,
    },
    /// Two parts of one name.
    #[error("there are two parts `{name}`")]
    DuplicatePart {
        /// Of both.
        name: String,
    },
    /// A part without blocks.
    #[error("part `{name}` has no blocks")]
    EmptyPart {
        /// Of the part.
        name: String,
    },
    /// A name that no file of tensors can have.
    #[error("`{name}` is no name: 1 to {max} letters, digits, dots, hyphens and underscores are allowed")]
    Name {
        /// What came, cut to the length that is allowed.
        name: String,
        /// Longest, in bytes.
        max: usize,
    },
    /// More values than a flat vector can have.
    #[error("the graph has more than {max} parameters")]
    TooManyParameters {
        /// Most allowed.
        max: usize,
    },
    /// More values than a forward pass can keep.
    #[error("the graph keeps more than {max} values for one sample")]
    Activations {
        /// Most allowed.
        max: usize,
    },
    /// A loss for other data.
    #[error("the loss {loss} is not for {data}")]
    Loss {
        /// Its name in a file.
        loss: &'static str,
        /// What the data is.
        data: &'static str,
    },
    /// Hosted experts of a model that has none, or of SwAV.
    #[error("hosted experts are for a model with a block of experts, and another loss than SwAV's")]
    NothingHosted,
    /// Data without content.
    #[error("the data has no {0}")]
    Data(&'static str),
    /// Frozen weights in an encoding that leaves some out.
    #[error("frozen weights are f32, f16, int8 or int4")]
    FrozenCodec,
    /// Adapters out of their bounds.
    #[error("{option} of the adapters must be {want}, it is {got}")]
    Adapters {
        /// Name of the option.
        option: &'static str,
        /// The range in words.
        want: &'static str,
        /// What came.
        got: f64,
    },
    /// A name in the adapters that means no block.
    #[error("`{name}` of the adapters is no {wanted} of the model, and no end of one's name; there are {}", names.join(", "))]
    NoTarget {
        /// What came.
        name: String,
        /// Which blocks can be meant.
        wanted: &'static str,
        /// Some of them.
        names: Vec<String>,
    },
    /// A block that cannot be computed.
    #[error("block `{block}`: {problem}")]
    Block {
        /// Its full name.
        block: String,
        /// What is wrong.
        problem: BlockProblem,
    },
}

impl GraphError {
    /// Whether the adapters are wrong, and not the graph.
    pub fn is_of_adapters(&self) -> bool {
        matches!(self, Self::FrozenCodec | Self::Adapters { .. } | Self::NoTarget { .. })
    }
}

/// What is wrong with a block.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BlockProblem {
    /// Two blocks of one name.
    #[error("there are two blocks of this name")]
    Duplicate,
    /// An input that is not before the block.
    #[error("`{name}` is neither an input nor a block before it")]
    UnknownInput {
        /// What came.
        name: String,
    },
    /// A part that is not there, or not before the one that calls it.
    #[error("`{name}` is no part, or none before the one that calls it")]
    UnknownPart {
        /// What came.
        name: String,
    },
    /// Weights of a block that is not before it.
    #[error("`{name}`, whose weights it shares, is no block before it")]
    UnknownShared {
        /// What came.
        name: String,
    },
    /// Weights of another shape.
    #[error(
        "its {tensor} is to have the shape {}, the one that it shares has {}",
        ShapeText(want),
        ShapeText(got)
    )]
    SharedShape {
        /// Such as `weight`.
        tensor: &'static str,
        /// Of the block.
        want: Vec<usize>,
        /// Of the block that it shares with.
        got: Vec<usize>,
    },
    /// A block of a causal language model that looks ahead.
    #[error(
        "it lets a token see those after it, which are to be predicted; attention is to have `causal = true`"
    )]
    LooksAhead,
    /// A block that has no weights of its own.
    #[error("it needs an embedding in `shares`")]
    NothingShared,
    /// A block of an expert that looks at more than one input of the expert, or draws random numbers.
    #[error(
        "no part of experts may have `{name}`, which is a batch norm, a dropout, masked tokens or experts again"
    )]
    NotInExperts {
        /// The block.
        name: String,
    },
    /// Experts that are to have the weights of another block.
    #[error("experts have no `shares`; a part that has them can be repeated with `share = true`")]
    ExpertsShare,
    /// Too few or too many inputs.
    #[error("it has {got} inputs, {want} are wanted")]
    InputCount {
        /// The number in words.
        want: &'static str,
        /// What came.
        got: usize,
    },
    /// An input of another shape.
    #[error("{want} wanted, the input is {got}")]
    Shape {
        /// What is wanted.
        want: WantedShape,
        /// What came.
        got: ValueShape,
    },
    /// An output of another shape than the loss needs.
    #[error("{want} wanted for the loss, the output is {got}")]
    Output {
        /// What is wanted.
        want: ValueShape,
        /// What came.
        got: ValueShape,
    },
    /// An option out of its bounds.
    #[error("its {option} must be {want}, it is {got}")]
    Option {
        /// Its name.
        option: &'static str,
        /// The range in words.
        want: &'static str,
        /// What came.
        got: f64,
    },
    /// A size that the data does not have.
    #[error("the data has no {size}")]
    NoSuchSize {
        /// What came.
        size: Size,
    },
    /// Shapes whose number of values no machine can count.
    #[error("its shape has too many values")]
    Overflow,
    /// A block after SwAV's features that looks at one before.
    #[error("it is after the features, and `{name}` is before them")]
    BeforeFeatures {
        /// The input.
        name: String,
    },
    /// SwAV without prototypes.
    #[error("the last block must be `cosine` with weights of its own, which are the prototypes")]
    NoPrototypes,
    /// A shape that follows from the size of the picture, where crops have several.
    #[error("it gives {large} for a large crop and {small} for a small one")]
    CropShape {
        /// For the one.
        large: ValueShape,
        /// For the other.
        small: ValueShape,
    },
}

/// The shape that an operation wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WantedShape {
    /// Ids of at most so many rows.
    Ids(usize),
    /// Values in any shape.
    Values,
    /// `[width]`.
    Vector,
    /// `[channels, height, width]`.
    Maps,
    /// `[length, width]`.
    Sequence,
    /// `[width]`, or maps.
    VectorOrMaps,
    /// This shape, that of another input.
    Same(Vec<usize>),
    /// This shape.
    Exactly(Vec<usize>),
    /// The same as another input but for this dimension.
    SameBut(Vec<usize>, usize),
    /// Maps at least as high and wide as a window.
    Window([usize; 2]),
    /// So many values.
    Count(usize),
}

impl fmt::Display for WantedShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ids(rows) => write!(f, "ids below {rows}"),
            Self::Values => f.write_str("values"),
            Self::Vector => f.write_str("a vector [width]"),
            Self::Maps => f.write_str("maps [channels, height, width]"),
            Self::Sequence => f.write_str("a sequence [length, width]"),
            Self::VectorOrMaps => f.write_str("a vector [width] or maps [channels, height, width]"),
            Self::Same(shape) => write!(f, "{}, as of the first input,", ShapeText(shape)),
            Self::Exactly(shape) => ShapeText(shape).fmt(f),
            Self::SameBut(shape, at) => {
                write!(f, "{}, as of the first input, but for dimension {at},", ShapeText(shape))
            }
            Self::Window([height, width]) => {
                write!(f, "padded maps of at least {height} by {width} pixels")
            }
            Self::Count(n) => write!(f, "a shape of {n} values"),
        }
    }
}
