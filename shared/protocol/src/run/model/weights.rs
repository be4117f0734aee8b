//! Which weights a run begins with, and which of them it trains.

use serde::{Deserialize, Serialize};

use crate::codec::TensorCodec;
use crate::hash::Sha256Hash;

/// Values in a shard of frozen weights; the last shard may have fewer. A multiple of the blocks of each codec.
pub const FROZEN_SHARD_VALUES: usize = 1 << 21;

/// The weights that a run begins with.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub enum FirstWeights {
    /// Drawn by the seed.
    #[default]
    Drawn,
    /// Those of an earlier model: SHA-256 of the flat vector, f32 in little-endian order. All are trained.
    Given(Sha256Hash),
    /// Those of an earlier model, which stay as they are. What is trained beside them is the flat vector. The
    /// manifest's frozen shards have their values.
    Frozen(Adapters),
}

/// Low-rank adapters (LoRA, Hu et al. 2021): a dense block gives `x W + b + alpha / rank * (x A) B`, and only `A` and `B`
/// are trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Adapters {
    /// Encoding of the frozen weights.
    pub codec: TensorCodec,
    /// Columns of `A`, `[in, rank]`, and rows of `B`, `[rank, units]`, which begins at zero.
    pub rank: u32,
    /// Scale of what they add, times the rank.
    pub alpha: f32,
    /// Dense blocks that have adapters: by their full name, or by its end after a dot.
    pub targets: Vec<String>,
    /// Blocks that are trained whole, such as a new head; named in the same way.
    pub trained: Vec<String>,
}

impl Adapters {
    /// Whether a block has an adapter, if it is a dense one.
    pub fn adapts(&self, block: &str) -> bool {
        !self.trains(block) && self.targets.iter().any(|name| is_meant(name, block))
    }

    /// Whether a block is trained whole.
    pub fn trains(&self, block: &str) -> bool {
        self.trained.iter().any(|name| is_meant(name, block))
    }
}

impl FirstWeights {
    /// The adapters, where the rest is frozen.
    pub fn adapters(&self) -> Option<&Adapters> {
        match self {
            Self::Frozen(adapters) => Some(adapters),
            Self::Drawn | Self::Given(_) => None,
        }
    }
}

/// Whether `name` means `block`: it is its full name, or the end of it after a dot.
pub fn is_meant(name: &str, block: &str) -> bool {
    block.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_a_block_by_its_end_after_a_dot() {
        for (name, is_so) in
            [("h.0.attn.c_attn", true), ("c_attn", true), ("attn.c_attn", true), ("attn", false)]
        {
            assert_eq!(is_meant(name, "h.0.attn.c_attn"), is_so, "{name}");
        }
        assert!(!is_meant("_attn", "h.0.attn.c_attn"));
    }

    #[test]
    fn what_is_trained_whole_has_no_adapter() {
        let adapters = Adapters {
            codec: TensorCodec::F16,
            rank: 4,
            alpha: 8.0,
            targets: vec!["c_attn".to_owned(), "head".to_owned()],
            trained: vec!["head".to_owned()],
        };
        for (block, adapts, trains) in
            [("h.0.c_attn", true, false), ("head", false, true), ("h.0.c_fc", false, false)]
        {
            assert_eq!((adapters.adapts(block), adapters.trains(block)), (adapts, trains), "{block}");
        }
        assert_eq!(FirstWeights::Frozen(adapters.clone()).adapters(), Some(&adapters));
        assert_eq!(FirstWeights::Drawn.adapters(), None);
    }
}
