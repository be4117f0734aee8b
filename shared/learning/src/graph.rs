//! A model as data, checked before anything runs: from a [`Graph`] and the sizes of the data to every shape, tensor and
//! parameter of it.
//!
//! A graph comes from a peer. [`ResolvedGraph::of`] is pure: it counts blocks before it expands them, values before
//! anything has them, and refuses with the name of the block, the shape wanted and the shape got. Knows no tensor
//! library; `engine::graph` computes what is resolved here.

mod check;
mod data;
mod error;
mod expand;
mod loss;
mod operation;
mod shape;
mod tensors;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use barnraise_protocol::run::model::Graph;
use barnraise_protocol::run::model::graph::Loss;
use barnraise_protocol::run::model::operation::Operation;

pub use self::data::{GraphData, GraphInput};
pub use self::error::{BlockProblem, GraphError, WantedShape};
pub use self::shape::ValueShape;
use crate::parameters::{ParameterLayout, ParameterSegment};

/// Most blocks of a graph, those of repeated parts counted each time.
pub const BLOCKS_MAX: usize = 4096;
/// Most parts of a graph.
pub const PARTS_MAX: usize = 64;
/// Most inputs of a block.
pub const INPUTS_MAX: usize = 16;
/// Longest name of a block or part, in bytes; a full name has at most [`FULL_NAME_BYTES_MAX`].
pub const NAME_BYTES_MAX: usize = 64;
/// Longest name of a graph, in bytes.
pub const TITLE_BYTES_MAX: usize = 128;
/// Longest full name of a block, in bytes.
pub const FULL_NAME_BYTES_MAX: usize = 256;
/// Most values of a flat vector: 4 GiB in single precision, the address space of a tab. What a device can hold is the
/// device's to say.
pub const PARAMETERS_MAX: usize = 1 << 30;
/// Most classes of pictures: a label is one byte.
pub const CLASSES_MAX: usize = 256;
/// Most values that a forward pass keeps for one sample.
pub const ACTIVATIONS_MAX: usize = 1 << 31;

/// A graph with all shapes, ready to be computed.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedGraph {
    /// What it computes on.
    data: GraphData,
    inputs: Vec<GraphInput>,
    steps: Vec<Step>,
    layout: ParameterLayout,
    frozen: ParameterLayout,
    statistics: Vec<RunningStatistics>,
    loss: Loss,
    /// Of SwAV: the value at which crops are joined.
    features: Option<usize>,
}

/// One operation of a resolved graph. Values are numbered: first the inputs, then what each step gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Full name of the block.
    pub name: String,
    /// What it computes, never a call of a part.
    pub op: Operation,
    /// Values that it computes on.
    pub inputs: Vec<usize>,
    /// What it gives, for one sample.
    pub shape: ValueShape,
    /// Its tensors: weight, then bias. Of a frozen batch normalization its running means and variances, too.
    pub parameters: Vec<TensorPlace>,
    /// The adapter of a dense block.
    pub adapter: Option<Adapter>,
    /// Its running statistics, as a position in [`ResolvedGraph::statistics`].
    pub statistics: Option<usize>,
    /// The experts of a mixture.
    pub experts: Option<ExpertGrid>,
}

/// The experts of a mixture, on their grid.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertGrid {
    /// Places along a dimension.
    pub side: usize,
    /// Dimensions.
    pub n_dimensions: usize,
    /// Shape of what goes to an expert.
    pub input: Vec<usize>,
    /// Inputs of a sample that each go to experts of their own.
    pub n_routed: usize,
    /// What the experts compute.
    pub bodies: ExpertBodies,
}

/// What experts compute. Value 0 is the input, value `i + 1` what step `i` gives.
#[derive(Debug, Clone, PartialEq)]
pub enum ExpertBodies {
    /// Of each one, whose tensors are the model's; the last dimension of the grid is the fastest.
    Here(Vec<Vec<Step>>),
    /// Of any one: they differ by their parameters, which their hosts have.
    Hosted(Arc<HostedBody>),
}

/// An expert that is a model of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct HostedBody {
    /// Number of the layer, in the order of the graph.
    pub layer: usize,
    /// Experts of the layer.
    pub n_experts: usize,
    /// Its blocks, from one input to the output of the last one. It has no loss of its own.
    pub graph: ResolvedGraph,
}

/// Where a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TensorPlace {
    /// Position in the segments of [`ResolvedGraph::layout`].
    Trained(usize),
    /// Position in the segments of [`ResolvedGraph::frozen`].
    Frozen(usize),
}

/// A low-rank adapter (Hu et al. 2021): positions of `A` `[in, rank]` and `B` `[rank, units]` in the layout's segments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adapter {
    /// What the input is multiplied with.
    pub a: usize,
    /// What that is multiplied with.
    pub b: usize,
    /// Scale of the result.
    pub scale: f32,
}

/// The running statistics of a batch normalization, as positions in the layout's segments: `[channels]` each.
///
/// A pass moves them to the moments of its own samples by `momentum`, as PyTorch does; the variance is that of the
/// samples, without PyTorch's factor of `n / (n - 1)`. What a pass moves them by is averaged over samples, passes and
/// peers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunningStatistics {
    /// Of the means.
    pub mean: usize,
    /// Of the variances.
    pub variance: usize,
    /// Share of the newest statistics.
    pub momentum: f32,
}

impl HostedBody {
    /// Values of an input.
    pub fn n_values(&self) -> usize {
        self.graph.shape_of(0).dims().iter().product()
    }

    /// Values of an output.
    pub fn n_given(&self) -> usize {
        self.graph.output().dims().iter().product()
    }
}

impl ResolvedGraph {
    /// What it computes on.
    pub fn data(&self) -> GraphData {
        self.data
    }

    /// Inputs, in the order in which a batch has them.
    pub fn inputs(&self) -> &[GraphInput] {
        &self.inputs
    }

    /// Operations in the order of computation.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Order of the flat parameter vector.
    pub fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    /// The weights that are not trained, in the order of their values.
    pub fn frozen(&self) -> &ParameterLayout {
        &self.frozen
    }

    /// The tensor at a place.
    pub fn segment(&self, place: TensorPlace) -> &ParameterSegment {
        match place {
            TensorPlace::Trained(index) => &self.layout.segments()[index],
            TensorPlace::Frozen(index) => &self.frozen.segments()[index],
        }
    }

    /// The running statistics of each normalization that keeps them.
    pub fn statistics(&self) -> &[RunningStatistics] {
        &self.statistics
    }

    /// The layers of hosted experts, by their numbers.
    pub fn hosted(&self) -> Vec<(&ExpertGrid, &Arc<HostedBody>)> {
        let mut hosted: Vec<(&ExpertGrid, &Arc<HostedBody>)> = Vec::new();
        for grid in self.steps.iter().filter_map(|step| step.experts.as_ref()) {
            if let ExpertBodies::Hosted(body) = &grid.bodies
                && body.layer == hosted.len()
            {
                hosted.push((grid, body));
            }
        }
        hosted
    }

    /// What the output is to be.
    pub fn loss(&self) -> &Loss {
        &self.loss
    }

    /// What the last block gives, for one sample.
    pub fn output(&self) -> &ValueShape {
        self.shape_of((self.inputs.len() + self.steps.len()).saturating_sub(1))
    }

    /// Shape of a value by its number.
    pub fn shape_of(&self, value: usize) -> &ValueShape {
        match self.inputs.get(value) {
            Some(input) => &input.shape,
            None => &self.steps[value - self.inputs.len()].shape,
        }
    }

    /// Of SwAV: the number of the value at which crops are joined.
    pub fn features(&self) -> Option<usize> {
        self.features
    }

    /// Whether a pass with a gradient draws random numbers, so that it needs a seed for each sample.
    pub fn draws_numbers(&self) -> bool {
        self.steps.iter().any(|step| match &step.op {
            Operation::Dropout(_) => true,
            Operation::Attention(options) => options.dropout > 0.0,
            Operation::Experts(options) => options.jitter > 0.0,
            _ => false,
        })
    }
}
