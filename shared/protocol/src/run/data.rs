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
    /// How pictures are changed before they are trained on; `None`: not at all.
    pub augmentation: Option<Augmentation>,
}

/// How pictures are changed at random before they are trained on. Held-out pictures stay as they are. A value of 0 or
/// `false` changes nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Augmentation {
    /// Black pixels that are put on each side; the picture's size is then cut out somewhere.
    pub crop_padding: u16,
    /// Whether every other picture is mirrored, left to right.
    pub flip: bool,
    /// All pixels are brighter or darker by up to this share of white.
    pub brightness: f32,
    /// All pixels are multiplied by 1, more or less by up to this share.
    pub contrast: f32,
    /// Side of a square somewhere that is made black, in pixels; at the edge a part of it is outside.
    pub cutout: u16,
}
