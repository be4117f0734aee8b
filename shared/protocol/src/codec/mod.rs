//! Codecs of flat tensors: floats, block-quantized integers, or the largest values only (top-k; Lin et al. 2018, §3).
//!
//! Values that are not finite are refused by encoder and decoder, so that no peer can pass one on. The compiler
//! vectorizes the loops over values with the instructions of the baseline target.

mod blocks;
mod floats;
mod sparse;
mod sparsity;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

pub use self::blocks::{INT4_BLOCK_VALUES, INT8_BLOCK_VALUES, INT8_LEVEL_MAX, int8_scale};
use self::blocks::{Int4, Int8};
pub use self::sparsity::{Density, Sparsity, WARMUP_DENSITY};

/// Encoding of the values of a flat tensor, little-endian throughout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TensorCodec {
    /// Four bytes a value, exact.
    F32,
    /// Two bytes a value: IEEE half precision, rounded to nearest even, saturating at ±65504.
    F16,
    /// Blocks of [`INT8_BLOCK_VALUES`]: an f32 scale `s = max|x| / 127`, then a byte `round(x / s)` each.
    /// The error of a value is at most `s / 2`, rounding of `s` aside.
    Int8,
    /// Blocks of [`INT4_BLOCK_VALUES`]: an f32 scale `s = max|x| / 7`, then `round(x / s)` in half a byte each.
    /// The error of a value is at most `s / 2`, that is `max|x| / 14`, rounding of `s` aside. That is so much that
    /// gradients need error feedback.
    Int4,
    /// The values that are not zero, as [`Self::Int8`], and their positions: 8 bits a value, and at a density of 1 %
    /// about 8 more for its position. The sender selects the values and sets all others to zero.
    TopK(Sparsity),
}

/// Values of the longest block of a dense codec, which those of the others divide.
const BLOCK_VALUES_MAX: usize = INT8_BLOCK_VALUES;

const _: () = assert!(BLOCK_VALUES_MAX.is_multiple_of(INT4_BLOCK_VALUES));

/// The values of all parts in one place. A part goes when it is copied.
pub fn joined(mut parts: Vec<Vec<f32>>) -> Vec<f32> {
    if parts.len() < 2 {
        return parts.pop().unwrap_or_default();
    }
    let mut values = Vec::with_capacity(parts.iter().map(Vec::len).sum());
    parts.into_iter().for_each(|part| values.extend_from_slice(&part));
    values
}

/// Why values could not be encoded or decoded.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum CodecError {
    /// A NaN or an infinity, or a scale that would produce one.
    #[error("value {index} is not finite")]
    NotFinite {
        /// Position in the flat tensor.
        index: usize,
    },
    /// A number of bytes that does not fit the number of values.
    #[error("{got} bytes, {n_values} values take {min} to {max}")]
    Length {
        /// Number of values.
        n_values: usize,
        /// Fewest bytes that they take.
        min: usize,
        /// Most bytes that they take.
        max: usize,
        /// Bytes that came.
        got: usize,
    },
    /// More values that are not zero than the codec sends.
    #[error("{got} values are not zero, at most {max} are sent")]
    TooDense {
        /// Most.
        max: usize,
        /// What came.
        got: usize,
    },
    /// A position past the last value.
    #[error("a value stands past the last of {n_values}")]
    Position {
        /// Announced.
        n_values: usize,
    },
    /// Positions for fewer or more values than are sent.
    #[error("the positions of {n_sent} values end elsewhere")]
    Positions {
        /// Values that are sent.
        n_sent: usize,
    },
}

impl TensorCodec {
    /// Bytes that `n_values` values take, at any epoch: exact for a dense codec, otherwise the most.
    pub fn encoded_len(self, n_values: usize) -> usize {
        *self.encoded_len_at(n_values, 0).end()
    }

    /// Bytes that `n_values` values of a gradient of `epoch` may take; a dense codec leaves no choice.
    pub fn encoded_len_at(self, n_values: usize, epoch: u64) -> RangeInclusive<usize> {
        let exact = match self {
            Self::F32 => n_values.saturating_mul(4),
            Self::F16 => n_values.saturating_mul(2),
            Self::Int8 => blocks::encoded_len::<Int8>(n_values),
            Self::Int4 => blocks::encoded_len::<Int4>(n_values),
            Self::TopK(sparsity) => {
                let n_sent_max = sparsity.n_sent_max(n_values, epoch);
                return sparse::COUNT_BYTES..=sparse::encoded_len_max(n_values, n_sent_max);
            }
        };
        exact..=exact
    }

    /// Whether it is dense and precise enough for parameters.
    pub fn carries_state(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Int8)
    }

    /// Encodes `values`, `[n_values]` and finite, into [`Self::encoded_len`] bytes or fewer.
    pub fn encode(self, values: &[f32]) -> Result<Vec<u8>, CodecError> {
        let mut bytes = Vec::new();
        self.encode_into(values, &mut bytes)?;
        Ok(bytes)
    }

    /// [`Self::encode`] into `bytes`, replacing its content and reusing its memory. After an error it is invalid.
    pub fn encode_into(self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        if let Self::TopK(sparsity) = self {
            return sparse::encode(values, sparsity.n_sent_max(values.len(), 0), bytes);
        }
        // No value of what was there stays: each is written over.
        bytes.resize(self.encoded_len(values.len()), 0);
        self.encode_dense(values, bytes)
    }

    /// [`Self::encode`] of the values of all parts, one after the other. A part goes when it is encoded.
    ///
    /// # Errors
    /// As of [`Self::encode`], about the values of all parts.
    pub fn encode_parts(self, parts: Vec<Vec<f32>>) -> Result<Vec<u8>, CodecError> {
        if let Self::TopK(_) = self {
            return self.encode(&joined(parts));
        }
        let n_values = parts.iter().map(Vec::len).sum();
        let mut bytes = vec![0; self.encoded_len(n_values)];
        let mut n_encoded = 0;
        let mut encode = |values: &[f32]| {
            let from = self.encoded_len(n_encoded);
            let to = self.encoded_len(n_encoded + values.len());
            self.encode_dense(values, &mut bytes[from..to]).map_err(|error| match error {
                CodecError::NotFinite { index } => CodecError::NotFinite { index: n_encoded + index },
                error => error,
            })?;
            n_encoded += values.len();
            Ok(())
        };
        // Values of a block that goes on in the next part.
        let mut begun = Vec::with_capacity(BLOCK_VALUES_MAX);
        for part in parts {
            let n_missing = (BLOCK_VALUES_MAX - begun.len()) % BLOCK_VALUES_MAX;
            let (end, rest) = part.split_at(n_missing.min(part.len()));
            begun.extend_from_slice(end);
            if begun.len() == BLOCK_VALUES_MAX {
                encode(&begun)?;
                begun.clear();
            }
            let (whole, rest) = rest.split_at(rest.len() - rest.len() % BLOCK_VALUES_MAX);
            encode(whole)?;
            begun.extend_from_slice(rest);
        }
        encode(&begun)?;
        Ok(bytes)
    }

    /// [`Self::encode`] of a dense codec into exactly the bytes that the values take.
    pub(crate) fn encode_dense(self, values: &[f32], bytes: &mut [u8]) -> Result<(), CodecError> {
        self.check_len(bytes, values.len())?;
        let is_finite = match self {
            Self::F32 => floats::encode_f32(values, bytes),
            Self::F16 => floats::encode_f16(values, bytes),
            Self::Int8 => blocks::encode::<Int8>(values, bytes),
            Self::Int4 => blocks::encode::<Int4>(values, bytes),
            Self::TopK(_) => return Err(CodecError::TooDense { max: 0, got: values.len() }),
        };
        if is_finite { Ok(()) } else { Err(not_finite(values)) }
    }

    /// Decodes `[n_values]` finite values from all of `bytes`. `n_values` is allocated: it must come from the caller,
    /// not from the sender.
    pub fn decode(self, bytes: &[u8], n_values: usize) -> Result<Vec<f32>, CodecError> {
        self.check_len(bytes, n_values)?;
        let mut values = vec![0.0; n_values];
        self.decode_into(bytes, &mut values)?;
        Ok(values)
    }

    /// [`Self::decode`] into `values`, replacing its content. After an error it is invalid.
    pub fn decode_into(self, bytes: &[u8], values: &mut [f32]) -> Result<(), CodecError> {
        self.check_len(bytes, values.len())?;
        let is_finite = match self {
            Self::F32 => floats::decode_f32(bytes, values),
            Self::F16 => floats::decode_f16(bytes, values),
            Self::Int8 => blocks::decode::<Int8>(bytes, values),
            Self::Int4 => blocks::decode::<Int4>(bytes, values),
            Self::TopK(_) => return sparse::decode(bytes, values),
        };
        if is_finite { Ok(()) } else { Err(not_finite(values)) }
    }

    fn check_len(self, bytes: &[u8], n_values: usize) -> Result<(), CodecError> {
        let (wanted, got) = (self.encoded_len_at(n_values, 0), bytes.len());
        if wanted.contains(&got) {
            return Ok(());
        }
        Err(CodecError::Length { n_values, min: *wanted.start(), max: *wanted.end(), got })
    }
}

/// Bits of an f32 without its sign: they are ordered as its magnitude is.
const MAGNITUDE: u32 = 0x7fff_ffff;
/// The smallest [`MAGNITUDE`] that is not finite.
const INFINITY: u32 = 0x7f80_0000;

/// Bits of the largest magnitude, of a NaN where there is one; 0 of nothing.
fn max_magnitude(values: &[f32]) -> u32 {
    // Signed, because the baseline of x86-64 compares only those.
    values.iter().fold(0i32, |max, value| max.max((value.to_bits() & MAGNITUDE) as i32)) as u32
}

/// Index of the first NaN or infinity. One vectorized pass over all values takes a quarter of the time of a search that
/// stops at the first.
pub fn first_not_finite(values: &[f32]) -> Option<usize> {
    let are_finite = values.iter().fold(true, |all, value| all & value.is_finite());
    if are_finite { None } else { values.iter().position(|value| !value.is_finite()) }
}

/// The error for values of which one is not finite.
fn not_finite(values: &[f32]) -> CodecError {
    CodecError::NotFinite { index: first_not_finite(values).unwrap_or(values.len()) }
}

#[cfg(test)]
mod tests;
