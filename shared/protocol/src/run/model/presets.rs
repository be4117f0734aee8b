//! Well-known networks as values of a graph: the short form of a model in an operator's file.
//!
//! Blocks are named as in the libraries that the networks come from (torchvision, timm, transformers), so that a tensor
//! of the flat vector has the name that those give it. Nothing computes a preset otherwise than the graph that it stands
//! for.

mod ratings;
mod text;
mod vision;

use crate::run::model::Size;
use crate::run::model::graph::{Block, Graph};
use crate::run::model::operation::{Dense, GroupNorm, Initial, LayerNorm, Operation, RotaryScaling};
use serde::{Deserialize, Serialize};

use super::{FirstWeights, ModelSpec};

/// A network by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Convolutions and pooling after LeCun et al. 1998, with ReLU and maximum pooling.
    LeNet,
    /// Fully connected layers with ReLU between them.
    Mlp {
        /// Units of each hidden layer.
        hidden: Vec<u32>,
    },
    /// 18 layers (He et al. 2015), as torchvision's `resnet18`.
    #[serde(rename = "resnet-18")]
    ResNet18(ResNet),
    /// 50 layers with bottlenecks (He et al. 2015), as torchvision's `resnet50`.
    #[serde(rename = "resnet-50")]
    ResNet50(ResNet),
    /// Vision transformer (Dosovitskiy et al. 2020), as timm's `VisionTransformer`.
    Vit(Vit),
    /// ALBERT (Lan et al. 2020): layers that share their parameters, and a factorized embedding.
    Albert(Albert),
    /// A causal language model.
    Gpt(Gpt),
    /// Matrix factorization with biases (Koren et al. 2009).
    MatrixFactorization {
        /// Values of a user and of an item.
        factors: u32,
    },
    /// SwAV (Caron et al. 2020).
    Swav(Swav),
    /// A graph that is written out.
    Graph(Graph),
}

/// How a residual network normalizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// Over the pass. Its statistics are averaged beside the gradient.
    #[default]
    Batch,
    /// Over groups of channels of one sample (Wu and He 2018), so that a gradient depends on its samples alone.
    Group(u32),
}

/// A residual network.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResNet {
    /// How it normalizes.
    pub norm: Norm,
    /// For pictures of some dozen pixels: it begins with a 3x3 convolution and without pooling.
    pub small_pictures: bool,
    /// Maps of the first stage.
    pub width: u32,
}

/// A vision transformer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vit {
    /// Height and width of a patch, which divide those of the pictures.
    pub patch: u32,
    /// Width of the layers.
    pub width: u32,
    /// Layers.
    pub layers: u32,
    /// Attention heads.
    pub heads: u32,
}

/// An ALBERT.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Albert {
    /// Width of a token's embedding.
    pub embedding: u32,
    /// Width of the layers, a multiple of the heads.
    pub hidden: u32,
    /// Attention heads of a layer.
    pub heads: u32,
    /// Units between the two maps of a layer's feed-forward part.
    pub inner: u32,
    /// Times that the one layer is applied.
    pub layers: u32,
}

/// A causal language model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpt {
    /// Its layers.
    #[serde(default)]
    pub family: GptFamily,
    /// Width of the layers, a multiple of the heads.
    pub width: u32,
    /// Layers.
    pub layers: u32,
    /// Attention heads.
    pub heads: u32,
    /// Heads of keys and values; 0 for as many.
    #[serde(default)]
    pub key_value_heads: u32,
    /// Units of the feed-forward part; 0 for four times the width.
    #[serde(default)]
    pub inner: u32,
    /// Of the weights of attention, and in GPT-2 of embeddings and residuals, too.
    #[serde(default)]
    pub dropout: f32,
    /// Added to what normalizations divide by.
    #[serde(default = "epsilon")]
    pub epsilon: f32,
    /// Of Llama: base of the wave lengths of its rotary embedding.
    #[serde(default = "theta")]
    pub theta: f32,
    /// Of Llama: longer waves than those, as in Llama 3.1.
    #[serde(default)]
    pub rotary_scaling: Option<RotaryScaling>,
    /// Of Llama: biases of queries, keys and values, as in Qwen 2.
    #[serde(default)]
    pub attention_bias: bool,
    /// Of Llama: whether the last layer has weights of its own, and not those of the embedding.
    #[serde(default)]
    pub untied: bool,
    /// Experts in place of each feed-forward part, which are such parts.
    #[serde(default)]
    pub experts: Option<GptExperts>,
}

/// The experts of each layer. Of Llama, with one dimension, as transformers' `MixtralForCausalLM`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GptExperts {
    /// Places along each dimension of the grid.
    pub side: u32,
    /// Dimensions of the grid.
    #[serde(default = "one")]
    pub dimensions: u32,
    /// Experts that compute a token.
    pub active: u32,
}

/// Whose layers a causal language model has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GptFamily {
    /// Layer norm, learned positions, GELU (Radford et al. 2019), as transformers' `GPT2LMHeadModel`.
    #[default]
    Gpt2,
    /// RMS norm, rotary embedding, SwiGLU, grouped heads (Touvron et al. 2023), as transformers' `LlamaForCausalLM`.
    Llama,
}

/// A SwAV model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Swav {
    /// What gives features of a crop.
    pub trunk: SwavTrunk,
    /// Units between trunk and projection.
    pub hidden: u32,
    /// Values of a projection, which prototypes are compared with.
    pub projection: u32,
    /// Prototypes.
    pub prototypes: u32,
    /// Crops of a picture beside the two large ones.
    pub small_crops: u32,
    /// Height and width of a small crop, in pixels.
    pub small_side: u32,
    /// Earlier samples that help to balance assignments.
    #[serde(default)]
    pub queue_samples: u32,
    /// Passes before the queue is used.
    #[serde(default)]
    pub queue_after: u32,
    /// Epochs in which the prototypes stay as they are.
    #[serde(default)]
    pub frozen_epochs: u32,
}

/// What gives SwAV features of a crop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwavTrunk {
    /// 3x3 convolutions with so many maps, each of which halves height and width.
    Convolutions(Vec<u32>),
    /// The layers of `resnet-18` before its last one.
    #[serde(rename = "resnet-18")]
    ResNet18(ResNet),
    /// The layers of `resnet-50` before its last one.
    #[serde(rename = "resnet-50")]
    ResNet50(ResNet),
}

fn one() -> u32 {
    1
}

fn epsilon() -> f32 {
    1e-5
}

fn theta() -> f32 {
    10_000.0
}

impl Gpt {
    /// GPT-2 or Llama of some width, with the other options as they are by default.
    pub fn new(family: GptFamily, width: u32, layers: u32, heads: u32) -> Self {
        Self {
            family,
            width,
            layers,
            heads,
            key_value_heads: 0,
            inner: 0,
            dropout: 0.0,
            epsilon: epsilon(),
            theta: theta(),
            rotary_scaling: None,
            attention_bias: false,
            untied: false,
            experts: None,
        }
    }
}

impl Default for ResNet {
    fn default() -> Self {
        Self { norm: Norm::Batch, small_pictures: false, width: 64 }
    }
}

impl Preset {
    /// The graph that it stands for. Its sizes are as bad as those of the preset: resolving says so.
    pub fn graph(&self) -> Graph {
        match self {
            Self::LeNet => vision::le_net(),
            Self::Mlp { hidden } => vision::mlp(hidden),
            Self::ResNet18(options) => vision::resnet_18(*options),
            Self::ResNet50(options) => vision::resnet_50(*options),
            Self::Vit(options) => vision::vit(*options),
            Self::Albert(options) => text::albert(*options),
            Self::Gpt(options) => match options.family {
                GptFamily::Gpt2 => text::gpt2(*options),
                GptFamily::Llama => text::llama(*options),
            },
            Self::MatrixFactorization { factors } => ratings::matrix_factorization(*factors),
            Self::Swav(options) => vision::swav(options),
            Self::Graph(graph) => graph.clone(),
        }
    }

    /// Its graph, with the seed of the first weights.
    pub fn model(&self, seed: u64) -> ModelSpec {
        ModelSpec { graph: self.graph(), seed, weights: FirstWeights::Drawn, hosted: None }
    }
}

/// Name of a transformer, for people.
fn layers_of(family: &str, layers: u32, width: u32) -> String {
    format!("{family}, {layers} layers of {width} units")
}

fn dense(name: &str, units: impl Into<Size>, bias: bool, initial: Initial) -> Block {
    Block::new(name, Operation::Dense(Dense { units: units.into(), bias, initial }))
}

fn layer_norm(name: &str, epsilon: f32) -> Block {
    Block::new(name, Operation::LayerNorm(LayerNorm { epsilon, bias: true }))
}

fn group_norm(name: &str, groups: u32) -> Block {
    Block::new(name, Operation::GroupNorm(GroupNorm { groups, epsilon: 1e-5 }))
}
