//! What a run learns from.

use serde::{Deserialize, Serialize};

use crate::dataset::Manifest;

/// The training data, and how a contributor draws from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataSpec {
    /// Its shards, and a handful of held-out samples to look at.
    pub manifest: Manifest,
    /// Samples held by a peer's shuffle buffer (DeDLOC §3.3).
    pub shuffle_buffer_samples: u32,
}
