//! F32 and f16, value by value. Each function returns whether all values are finite.
//!
//! Half precision is converted here, without a branch. The `half` crate converts one value at a time where the
//! target does not guarantee the processor's own instruction, as in every tab.

use super::{INFINITY, MAGNITUDE, max_magnitude};

/// Values that are processed together while they are in the cache.
const CHUNK_VALUES: usize = 1024;
/// Bits of 2⁻¹⁴, the smallest normal half.
const SMALLEST_NORMAL: u32 = 0x3880_0000;
/// Bits of 65504, the largest half.
const LARGEST: u32 = 0x477f_e000;
/// Difference of the exponents' biases, shifted to the exponent of an f32.
const BIAS: u32 = (127 - 15) << 23;

pub(super) fn encode_f32(values: &[f32], bytes: &mut [u8]) -> bool {
    let mut max = 0;
    for (values, bytes) in values.chunks(CHUNK_VALUES).zip(bytes.chunks_mut(CHUNK_VALUES * 4)) {
        max = max.max(max_magnitude(values));
        for (four, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
            *four = value.to_le_bytes();
        }
    }
    max < INFINITY
}

pub(super) fn decode_f32(bytes: &[u8], values: &mut [f32]) -> bool {
    let mut max = 0;
    for (values, bytes) in values.chunks_mut(CHUNK_VALUES).zip(bytes.chunks(CHUNK_VALUES * 4)) {
        for (value, four) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*four);
        }
        max = max.max(max_magnitude(values));
    }
    max < INFINITY
}

pub(super) fn encode_f16(values: &[f32], bytes: &mut [u8]) -> bool {
    let mut max = 0;
    for (values, bytes) in values.chunks(CHUNK_VALUES).zip(bytes.chunks_mut(CHUNK_VALUES * 2)) {
        max = max.max(max_magnitude(values));
        for (two, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
            *two = half_from_f32(*value).to_le_bytes();
        }
    }
    max < INFINITY
}

pub(super) fn decode_f16(bytes: &[u8], values: &mut [f32]) -> bool {
    let mut max = 0;
    for (values, bytes) in values.chunks_mut(CHUNK_VALUES).zip(bytes.chunks(CHUNK_VALUES * 2)) {
        for (value, two) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32_from_half(u16::from_le_bytes(*two));
        }
        max = max.max(max_magnitude(values));
    }
    max < INFINITY
}

/// To nearest even, saturating; of a NaN, some number.
#[inline]
pub(super) fn half_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = (bits & MAGNITUDE).min(LARGEST);
    // Rounds to nearest even: adds half a unit of the last kept bit, and 1 less where that bit is 0.
    let normal = (magnitude.wrapping_sub(BIAS).wrapping_add(0xfff + ((magnitude >> 13) & 1))) >> 13;
    // At 0.5 the unit in the last place is 2⁻²⁴, that of a subnormal half.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let half = if magnitude < SMALLEST_NORMAL { subnormal } else { normal };
    (half | ((bits >> 16) & 0x8000)) as u16
}

/// Exact; an infinity or a NaN becomes one of them.
#[inline]
pub(super) fn f32_from_half(half: u16) -> f32 {
    let half = u32::from(half);
    let magnitude = half & 0x7fff;
    let normal = (magnitude << 13).wrapping_add(BIAS);
    let subnormal = ((magnitude as i32) as f32 * (1.0 / 16_777_216.0)).to_bits();
    let finite = if magnitude < 0x0400 { subnormal } else { normal };
    let bits = if magnitude >= 0x7c00 { finite | INFINITY } else { finite };
    f32::from_bits(bits | ((half & 0x8000) << 16))
}

#[cfg(test)]
mod tests {
    use half::f16;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_half_is_what_the_field_says_and_comes_back() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f32_from_half(bits), f16::from_bits(bits).to_f32());
            if theirs.is_finite() {
                assert_eq!(ours.to_bits(), theirs.to_bits(), "{bits:#x}");
                assert_eq!(half_from_f32(ours), bits);
            } else {
                assert!(!ours.is_finite(), "{bits:#x}");
            }
        }
    }

    /// Every half, and the numbers just beside the middle between two.
    #[test]
    fn ties_are_broken_as_the_field_breaks_them() {
        for bits in 0..0x7bff_u16 {
            let (low, high) = (f32_from_half(bits), f32_from_half(bits + 1));
            let middle = low / 2.0 + high / 2.0;
            for near in [middle.next_down(), middle, middle.next_up()] {
                assert_eq!(half_from_f32(near), f16::from_f32(near).to_bits(), "{near}");
                assert_eq!(half_from_f32(-near), f16::from_f32(-near).to_bits(), "{near}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_float_becomes_the_half_that_the_field_says(bits: u32) {
            let value = f32::from_bits(bits);
            prop_assume!(value.is_finite());
            let want = f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()));
            prop_assert_eq!(half_from_f32(value), want.to_bits());
        }
    }
}
