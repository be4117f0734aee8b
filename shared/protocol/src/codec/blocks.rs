//! Block quantization: small integers in blocks that share a scale. Each function returns whether all values are
//! finite.

use super::{INFINITY, max_magnitude};

/// Values that share a scale in `TensorCodec::Int8`.
pub const INT8_BLOCK_VALUES: usize = 256;
/// Level of the value with the largest magnitude of a block of `TensorCodec::Int8`.
pub const INT8_LEVEL_MAX: f32 = 127.0;
/// Values that share a scale in `TensorCodec::Int4`: fewer, because the largest of them sets the step of all.
pub const INT4_BLOCK_VALUES: usize = 64;

const SCALE_BYTES: usize = 4;
/// 1.5 × 2²³, where the unit in the last place is 1. Adding it rounds to the nearest integer, ties to even, and leaves
/// that in the low bits, in two's complement.
const ROUND: f32 = 12_582_912.0;

/// Layout of the levels of a block.
pub(super) trait Levels {
    /// Values of a block; the last block of a tensor may have fewer.
    const BLOCK_VALUES: usize;
    /// Level of the value with the largest magnitude.
    const LARGEST: f32;
    /// Bytes of `n_levels`.
    fn n_bytes(n_levels: usize) -> usize;
    /// `round(value × inverse)` of each.
    fn pack(values: &[f32], inverse: f32, bytes: &mut [u8]);
    /// `level × scale` of each.
    fn unpack(bytes: &[u8], scale: f32, values: &mut [f32]);
}

/// −127 to 127, a byte each.
pub(super) struct Int8;

impl Levels for Int8 {
    const BLOCK_VALUES: usize = INT8_BLOCK_VALUES;
    const LARGEST: f32 = INT8_LEVEL_MAX;

    fn n_bytes(n_levels: usize) -> usize {
        n_levels
    }

    fn pack(values: &[f32], inverse: f32, bytes: &mut [u8]) {
        for (byte, value) in bytes.iter_mut().zip(values) {
            *byte = (value * inverse + ROUND).to_bits() as u8;
        }
    }

    fn unpack(bytes: &[u8], scale: f32, values: &mut [f32]) {
        for (value, &byte) in values.iter_mut().zip(bytes) {
            *value = f32::from(byte as i8) * scale;
        }
    }
}

/// −7 to 7, two a byte: the low half of the bytes holds the first half of the block, the high half the second.
pub(super) struct Int4;

impl Levels for Int4 {
    const BLOCK_VALUES: usize = INT4_BLOCK_VALUES;
    const LARGEST: f32 = 7.0;

    fn n_bytes(n_levels: usize) -> usize {
        n_levels.div_ceil(2)
    }

    fn pack(values: &[f32], inverse: f32, bytes: &mut [u8]) {
        let (first, second) = values.split_at(bytes.len().min(values.len()));
        for (byte, value) in bytes.iter_mut().zip(first) {
            *byte = (value * inverse + ROUND).to_bits() as u8 & 0xf;
        }
        for (byte, value) in bytes.iter_mut().zip(second) {
            *byte |= ((value * inverse + ROUND).to_bits() << 4) as u8;
        }
    }

    fn unpack(bytes: &[u8], scale: f32, values: &mut [f32]) {
        let (first, second) = values.split_at_mut(bytes.len().min(values.len()));
        for (value, &byte) in first.iter_mut().zip(bytes) {
            *value = f32::from((byte << 4) as i8 >> 4) * scale;
        }
        for (value, &byte) in second.iter_mut().zip(bytes) {
            *value = f32::from(byte as i8 >> 4) * scale;
        }
    }
}

pub(super) fn encoded_len<L: Levels>(n_values: usize) -> usize {
    let (n_full, n_rest) = (n_values / L::BLOCK_VALUES, n_values % L::BLOCK_VALUES);
    let full = n_full.saturating_mul(SCALE_BYTES + L::n_bytes(L::BLOCK_VALUES));
    let rest = if n_rest == 0 { 0 } else { SCALE_BYTES + L::n_bytes(n_rest) };
    full.saturating_add(rest)
}

/// Scale of a block of `TensorCodec::Int8` whose largest magnitude this is.
pub fn int8_scale(largest: f32) -> f32 {
    scale_of(largest, INT8_LEVEL_MAX)
}

fn scale_of(largest: f32, level: f32) -> f32 {
    let scale = largest / level;
    // Rounded up, that of the largest number there is would make it infinite.
    if largest.is_finite() && !(scale * level).is_finite() { scale.next_down() } else { scale }
}

/// `bytes` are as long as [`encoded_len`] says.
pub(super) fn encode<L: Levels>(values: &[f32], bytes: &mut [u8]) -> bool {
    let blocks = bytes.chunks_mut(SCALE_BYTES + L::n_bytes(L::BLOCK_VALUES));
    for (values, block) in values.chunks(L::BLOCK_VALUES).zip(blocks) {
        let max = max_magnitude(values);
        let Some((scale_bytes, levels)) = block.split_first_chunk_mut::<SCALE_BYTES>() else { return false };
        if max >= INFINITY {
            return false;
        }
        let scale = scale_of(f32::from_bits(max), L::LARGEST);
        *scale_bytes = scale.to_le_bytes();
        // A block of zeros, or of values so small that their scale underflows, travels as zeros.
        let inverse = if scale.is_normal() { 1.0 / scale } else { 0.0 };
        L::pack(values, inverse, levels);
    }
    true
}

/// `bytes` are as long as [`encoded_len`] says.
pub(super) fn decode<L: Levels>(bytes: &[u8], values: &mut [f32]) -> bool {
    let blocks = bytes.chunks(SCALE_BYTES + L::n_bytes(L::BLOCK_VALUES));
    let mut max = 0;
    for (values, block) in values.chunks_mut(L::BLOCK_VALUES).zip(blocks) {
        let Some((&scale, levels)) = block.split_first_chunk::<SCALE_BYTES>() else { return false };
        L::unpack(levels, f32::from_le_bytes(scale), values);
        max = max.max(max_magnitude(values));
    }
    max < INFINITY
}
