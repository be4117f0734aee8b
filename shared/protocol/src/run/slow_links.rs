//! Gradients that travel otherwise where a contributor's uplink is slow.

use serde::{Deserialize, Serialize};

use super::RunDescription;
use crate::codec::TensorCodec;

/// Values of a gradient by which codecs are compared.
const COMPARED_VALUES: usize = 1 << 20;

/// How gradients travel over slow links.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowLinks {
    /// An uplink that carries fewer bytes per second is slow, and so is one of which nothing is known yet.
    pub below_bytes_per_second: u64,
    /// How gradients travel over it.
    pub codec: TensorCodec,
}

/// Why gradients cannot travel so over slow links.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum SlowLinksError {
    /// No link is as slow.
    #[error("no link carries less than 0 bytes per second; a number above 0 is wanted")]
    NoneIsSlow,
    /// Slow links would have more to carry, or as much.
    #[error(
        "a gradient takes as many bytes as {slow:?} as it does as {other:?}; fewer are wanted over slow links"
    )]
    NotShorter {
        /// Over slow links.
        slow: TensorCodec,
        /// Over all others.
        other: TensorCodec,
    },
}

impl SlowLinks {
    /// Whether it helps that gradients travel so which travel as `other` elsewhere.
    ///
    /// # Errors
    /// Why it does not.
    pub fn check(&self, other: TensorCodec) -> Result<(), SlowLinksError> {
        if self.below_bytes_per_second == 0 {
            return Err(SlowLinksError::NoneIsSlow);
        }
        let n_bytes = |codec: TensorCodec| *codec.encoded_len_at(COMPARED_VALUES, u64::MAX).end();
        if n_bytes(self.codec) >= n_bytes(other) {
            return Err(SlowLinksError::NotShorter { slow: self.codec, other });
        }
        Ok(())
    }
}

impl RunDescription {
    /// Whether gradients may travel so.
    pub fn takes(&self, codec: TensorCodec) -> bool {
        codec == self.gradient_codec || self.slow_links.is_some_and(|slow| slow.codec == codec)
    }

    /// How the gradients of a contributor travel whose uplink was seen to carry so many bytes per second.
    pub fn codec_of_link(&self, bytes_per_second: Option<f64>) -> TensorCodec {
        let is_slow = |slow: &SlowLinks| {
            bytes_per_second.is_none_or(|measured| measured < slow.below_bytes_per_second as f64)
        };
        self.slow_links.filter(is_slow).map_or(self.gradient_codec, |slow| slow.codec)
    }
}
