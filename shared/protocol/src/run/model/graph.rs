//! A model as data: a graph of named blocks, and the loss of what it gives.
//!
//! A graph crosses the wire and stands in an operator's file. It is not recursive: parts refer to each other by name, so
//! that no nesting that a peer sends can exhaust a stack. `barnraise_learning::graph` checks all of it.

use serde::{Deserialize, Serialize};

use super::operation::{BatchNorm, Experts, Operation};

/// Name of the data in a graph, and in a part of what the part is called on.
pub const INPUT: &str = "input";
/// Name of a user's id, where the data is ratings.
pub const USER: &str = "user";
/// Name of an item's id, where the data is ratings.
pub const ITEM: &str = "item";

/// Blocks in the order of computation.
///
/// The flat parameter vector has the tensors of the blocks in the order of the graph, each block's weight before its
/// bias. A tensor is named after its block, such as `conv1.weight`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// For people, such as `ResNet-18`.
    pub name: String,
    /// Sequences of blocks that blocks call by name. A part may call those before it in this list.
    #[serde(default)]
    pub parts: Vec<Part>,
    /// The blocks; the last one gives the output.
    pub blocks: Vec<Block>,
    /// What the output is to be.
    pub loss: Loss,
}

/// A sequence of blocks with a name, from one input to the output of its last block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// The blocks. They see each other and the input of the part.
    pub blocks: Vec<Block>,
}

/// One operation of a graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// Unique in its part or graph. It may have dots, as the names of tensors have in the field.
    pub name: String,
    /// What it computes.
    pub op: Operation,
    /// Names of blocks before it, or of inputs. Empty: the block just before it, or the input.
    #[serde(default)]
    pub from: Vec<String>,
    /// A block before it whose weights it uses: one of the same part, or one by its full name.
    #[serde(default)]
    pub shares: Option<String>,
}

/// What the output of a graph is compared with. The loss of a sample is the mean over its predictions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// Cross-entropy of the label: output `[classes]`.
    Classification,
    /// Mean squared error of the targets, such as a rating: output `[targets]`.
    Regression,
    /// Cross-entropy of each token after the first: output `[length, vocabulary]`.
    CausalLanguageModel,
    /// Cross-entropy of the masked tokens: output `[masked tokens, vocabulary]`.
    MaskedLanguageModel,
    /// Crops of one picture predict each other's prototypes (SwAV, Caron et al. 2020): output `[prototypes]`, cosines.
    Swav(SwavLoss),
}

/// Large crops of a picture, in SwAV: those whose assignments are predicted.
pub const LARGE_CROPS: usize = 2;

/// How SwAV crops pictures and balances prototypes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwavLoss {
    /// The block that gives a vector of a crop of any size. Up to it crops of each size are computed by themselves,
    /// after it all together.
    pub features: String,
    /// Crops of a picture beside the two large ones.
    pub small_crops: u32,
    /// Height and width of a small crop, in pixels; a large one has those of the picture.
    pub small_side: u32,
    /// Earlier samples of each contributor that help to balance its assignments to prototypes; 0 for none, so that a
    /// gradient depends on the samples of its own pass alone.
    #[serde(default)]
    pub queue_samples: u32,
    /// Passes of a contributor before it uses its queue.
    #[serde(default)]
    pub queue_after: u32,
    /// Epochs in which the prototypes stay as they are.
    #[serde(default)]
    pub frozen_epochs: u32,
}

impl Graph {
    /// Whether a pass gives the sum of what its samples give by themselves. Batch normalization, SwAV, and the balance and
    /// capacity of experts look at all samples of a pass.
    pub fn is_of_samples(&self) -> bool {
        let is_shared = |op: &Operation| match op {
            Operation::BatchNorm(_) => true,
            Operation::Experts(Experts { balance, capacity, .. }) => *balance > 0.0 || *capacity > 0.0,
            _ => false,
        };
        !self.has(is_shared) && !matches!(self.loss, Loss::Swav(_))
    }

    /// Whether batch normalizations keep running statistics, which contributors average.
    pub fn keeps_statistics(&self) -> bool {
        self.has(|op| matches!(op, Operation::BatchNorm(BatchNorm { running: true, .. })))
    }

    fn has(&self, is_wanted: impl Fn(&Operation) -> bool) -> bool {
        let mut blocks = self.parts.iter().flat_map(|part| &part.blocks).chain(&self.blocks);
        blocks.any(|block| is_wanted(&block.op))
    }
}

impl Loss {
    /// Whether it needs no labels, so that the model predicts no classes.
    pub fn is_self_supervised(&self) -> bool {
        match self {
            Self::CausalLanguageModel | Self::MaskedLanguageModel | Self::Swav(_) => true,
            Self::Classification | Self::Regression => false,
        }
    }
}

impl Block {
    /// A block on the output of the one before it.
    pub fn new(name: impl Into<String>, op: Operation) -> Self {
        Self { name: name.into(), op, from: Vec::new(), shares: None }
    }

    /// On the outputs of these blocks instead.
    #[must_use]
    pub fn from(mut self, names: &[&str]) -> Self {
        self.from = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// With the weights of this block.
    #[must_use]
    pub fn sharing(mut self, name: &str) -> Self {
        self.shares = Some(name.to_owned());
        self
    }
}
