//! How a flat tensor becomes bytes: f32, f16, or int8 in blocks with a scale each.
//!
//! Values that are not finite are refused on both ways, so that no peer can pass one on.

use half::f16;
use serde::{Deserialize, Serialize};

/// Values that share a scale in [`TensorCodec::Int8`].
pub const INT8_BLOCK_VALUES: usize = 256;

/// Encoding of the values of a flat tensor, little-endian throughout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TensorCodec {
    /// Four bytes a value, exact.
    F32,
    /// Two bytes a value: IEEE half precision, rounded to nearest even, saturating at ±65504.
    F16,
    /// Blocks of [`INT8_BLOCK_VALUES`]: an f32 scale `s = max|x| / 127`, then a byte `round(x / s)` each.
    /// The error of a value is at most `s / 2`.
    Int8,
}

/// Why values could not be encoded or decoded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CodecError {
    /// A NaN or an infinity, or a scale that would produce one.
    #[error("value {index} is not finite")]
    NotFinite {
        /// Position in the flat tensor.
        index: usize,
    },
    /// Bytes that do not fit the number of values.
    #[error("{got} bytes, {n_values} values need {want}")]
    Length {
        /// Announced.
        n_values: usize,
        /// What they need.
        want: usize,
        /// What came.
        got: usize,
    },
}

impl TensorCodec {
    /// Bytes that `n_values` values take.
    pub fn encoded_len(self, n_values: usize) -> usize {
        match self {
            Self::F32 => n_values.saturating_mul(4),
            Self::F16 => n_values.saturating_mul(2),
            Self::Int8 => n_values.saturating_add(n_values.div_ceil(INT8_BLOCK_VALUES).saturating_mul(4)),
        }
    }

    /// `values`, `[n_values]` and finite, as [`Self::encoded_len`] bytes.
    pub fn encode(self, values: &[f32]) -> Result<Vec<u8>, CodecError> {
        check_finite(values)?;
        let mut bytes = Vec::with_capacity(self.encoded_len(values.len()));
        match self {
            Self::F32 => values.iter().for_each(|value| bytes.extend(value.to_le_bytes())),
            Self::F16 => values.iter().for_each(|value| {
                let value = value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32());
                bytes.extend(f16::from_f32(value).to_le_bytes());
            }),
            Self::Int8 => {
                values.chunks(INT8_BLOCK_VALUES).for_each(|block| encode_int8_block(block, &mut bytes));
            }
        }
        Ok(bytes)
    }

    /// `[n_values]` finite values from exactly the bytes that they take.
    pub fn decode(self, bytes: &[u8], n_values: usize) -> Result<Vec<f32>, CodecError> {
        let want = self.encoded_len(n_values);
        if bytes.len() != want {
            return Err(CodecError::Length { n_values, want, got: bytes.len() });
        }
        let values: Vec<f32> = match self {
            Self::F32 => bytes.as_chunks::<4>().0.iter().map(|&four| f32::from_le_bytes(four)).collect(),
            Self::F16 => {
                bytes.as_chunks::<2>().0.iter().map(|&two| f16::from_le_bytes(two).to_f32()).collect()
            }
            Self::Int8 => {
                let mut values = Vec::with_capacity(n_values);
                bytes.chunks(INT8_BLOCK_VALUES + 4).for_each(|block| decode_int8_block(block, &mut values));
                values
            }
        };
        check_finite(&values)?;
        Ok(values)
    }
}

fn check_finite(values: &[f32]) -> Result<(), CodecError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(CodecError::NotFinite { index }),
        None => Ok(()),
    }
}

fn encode_int8_block(block: &[f32], bytes: &mut Vec<u8>) {
    let scale = block.iter().fold(0f32, |max, value| max.max(value.abs())) / 127.0;
    bytes.extend(scale.to_le_bytes());
    // A block of zeros, or of values so small that their scale underflows, travels as zeros.
    let inverse = if scale.is_normal() { 1.0 / scale } else { 0.0 };
    bytes.extend(block.iter().map(|value| (value * inverse).round().clamp(-127.0, 127.0) as i8 as u8));
}

fn decode_int8_block(block: &[u8], values: &mut Vec<f32>) {
    if let Some((&scale, levels)) = block.split_first_chunk::<4>() {
        let scale = f32::from_le_bytes(scale);
        values.extend(levels.iter().map(|&level| f32::from(level as i8) * scale));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [TensorCodec; 3] = [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8];

    #[test]
    fn golden_bytes() {
        let values = [1.0, -0.5, 0.0];
        assert_eq!(TensorCodec::F32.encode(&values[..2]).unwrap(), [0, 0, 128, 63, 0, 0, 0, 191]);
        assert_eq!(TensorCodec::F16.encode(&values).unwrap(), [0x00, 0x3c, 0x00, 0xb8, 0, 0]);
        let scale = (1.0f32 / 127.0).to_le_bytes();
        let want = [scale.as_slice(), &[127, (-64i8) as u8, 0]].concat();
        assert_eq!(TensorCodec::Int8.encode(&values).unwrap(), want);
    }

    #[test]
    fn what_is_not_finite_is_refused_both_ways() {
        for codec in ALL {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                assert_eq!(codec.encode(&[0.0, bad]), Err(CodecError::NotFinite { index: 1 }));
            }
        }
        let infinity = f32::INFINITY.to_le_bytes();
        assert_eq!(TensorCodec::F32.decode(&infinity, 1), Err(CodecError::NotFinite { index: 0 }));
        assert_eq!(TensorCodec::F16.decode(&[0x00, 0x7c], 1), Err(CodecError::NotFinite { index: 0 }));
        let block = [infinity.as_slice(), &[1]].concat();
        assert_eq!(TensorCodec::Int8.decode(&block, 1), Err(CodecError::NotFinite { index: 0 }));
    }

    #[test]
    fn large_values_saturate_in_half_precision() {
        let bytes = TensorCodec::F16.encode(&[1e9, -1e9]).unwrap();
        assert_eq!(TensorCodec::F16.decode(&bytes, 2).unwrap(), [65504.0, -65504.0]);
    }

    proptest! {
        #[test]
        fn errors_stay_within_their_bounds(
            values in proptest::collection::vec(-1e4f32..1e4, 0..600),
        ) {
            for codec in ALL {
                let bytes = codec.encode(&values).unwrap();
                prop_assert_eq!(bytes.len(), codec.encoded_len(values.len()));
                let decoded = codec.decode(&bytes, values.len()).unwrap();
                for (block, (value, got)) in values.iter().zip(&decoded).enumerate() {
                    let block = block / INT8_BLOCK_VALUES * INT8_BLOCK_VALUES;
                    let block = &values[block..values.len().min(block + INT8_BLOCK_VALUES)];
                    let max = block.iter().fold(0f32, |max, value| max.max(value.abs()));
                    let bound = match codec {
                        TensorCodec::F32 => 0.0,
                        TensorCodec::F16 => value.abs() / 2048.0 + 6e-8,
                        TensorCodec::Int8 => max / 254.0 * 1.001,
                    };
                    prop_assert!((value - got).abs() <= bound, "{:?}: {} became {}", codec, value, got);
                }
            }
        }

        #[test]
        fn any_bytes_decode_to_finite_values_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            n_values in 0usize..700,
        ) {
            for codec in ALL {
                if let Ok(values) = codec.decode(&bytes, n_values) {
                    prop_assert_eq!(values.len(), n_values);
                    prop_assert!(values.iter().all(|value| value.is_finite()));
                }
            }
        }
    }
}
