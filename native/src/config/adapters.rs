//! `[model.adapters]`: low-rank adapters on frozen weights.

use barnraise_protocol::TensorCodec;
use barnraise_protocol::run::model::Adapters;
use barnraise_protocol::run::model::graph::{Block, Graph};
use serde::{Deserialize, Serialize};

/// Blocks that have adapters where the file does not name any: those of GPT-2 and Llama that PEFT takes as well.
const TARGETS: [&[&str]; 2] = [&["attn.c_attn"], &["self_attn.q_proj", "self_attn.v_proj"]];

/// `[model.adapters]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptersSection {
    /// Columns of the first matrix of an adapter, and rows of the second.
    pub rank: u32,
    /// Scale of what an adapter adds, times the rank.
    pub alpha: f32,
    /// Dense blocks that have an adapter, by the end of their names; of GPT-2 `attn.c_attn` and of Llama
    /// `self_attn.q_proj` and `self_attn.v_proj` by default.
    pub targets: Option<Vec<String>>,
    /// Blocks that are trained whole beside the adapters, such as a new last layer.
    pub trained: Vec<String>,
    /// How the frozen weights are stored and sent.
    pub codec: TensorCodec,
}

impl Default for AdaptersSection {
    fn default() -> Self {
        Self { rank: 8, alpha: 16.0, targets: None, trained: Vec::new(), codec: TensorCodec::Int8 }
    }
}

impl AdaptersSection {
    /// The adapters of a graph.
    pub(super) fn describe(&self, graph: &Graph) -> Adapters {
        let has = |name: &str| blocks(graph).any(|block| block.name == name);
        let known = || TARGETS.iter().find(|names| names.iter().all(|name| has(name)));
        let of_graph = || known().map(|names| names.iter().map(|&name| name.to_owned()).collect());
        Adapters {
            codec: self.codec,
            rank: self.rank,
            alpha: self.alpha,
            targets: self.targets.clone().or_else(of_graph).unwrap_or_default(),
            trained: self.trained.clone(),
        }
    }
}

fn blocks(graph: &Graph) -> impl Iterator<Item = &Block> {
    graph.parts.iter().flat_map(|part| &part.blocks).chain(&graph.blocks)
}
