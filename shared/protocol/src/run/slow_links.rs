//! Another codec for the gradients of contributors whose uplink is slow.

use serde::{Deserialize, Serialize};

use super::{GradientCodec, GradientCodecError};

/// Values of a gradient by which codecs are compared.
const COMPARED_VALUES: usize = 1 << 20;

/// The codec for gradients over slow links.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowLinks {
    /// An uplink that carries fewer bytes per second is slow; so is one that was not measured yet.
    pub below_bytes_per_second: u64,
    /// Codec of gradients over it.
    pub codec: GradientCodec,
}

/// Why a codec for slow links is invalid.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum SlowLinksError {
    /// A threshold of 0: no link is slower.
    #[error("no link carries less than 0 bytes per second; a number above 0 is wanted")]
    NoneIsSlow,
    /// The codec saves no bytes.
    #[error(
        "a gradient takes as many bytes as {slow:?} as it does as {other:?}; fewer are wanted over slow links"
    )]
    NotShorter {
        /// Over slow links.
        slow: GradientCodec,
        /// Over all others.
        other: GradientCodec,
    },
    /// Impossible by itself.
    #[error(transparent)]
    Codec(#[from] GradientCodecError),
    /// A momentum that only some contributors apply: the optimizer has none then, or one too many.
    #[error(
        "momentum and masking of {slow:?} over slow links, {other:?} over others: the same are wanted over both"
    )]
    Momentum {
        /// Over slow links.
        slow: (f32, bool),
        /// Over all others.
        other: (f32, bool),
    },
}

impl SlowLinks {
    /// Checks that the codec saves bytes against `other`, the run's codec, and has the same momentum.
    ///
    /// # Errors
    /// A threshold of 0, a codec that saves nothing, or another momentum.
    pub fn check(&self, other: GradientCodec) -> Result<(), SlowLinksError> {
        if self.below_bytes_per_second == 0 {
            return Err(SlowLinksError::NoneIsSlow);
        }
        self.codec.validate()?;
        let n_bytes =
            |codec: GradientCodec| *codec.encoding().encoded_len_at(COMPARED_VALUES, u64::MAX).end();
        if n_bytes(self.codec) >= n_bytes(other) {
            return Err(SlowLinksError::NotShorter { slow: self.codec, other });
        }
        let (slow, other) = (self.codec.momentum(), other.momentum());
        if slow == other { Ok(()) } else { Err(SlowLinksError::Momentum { slow, other }) }
    }
}
