//! Stochastic rounding: a codec without error feedback that loses nothing on average (QSGD, Alistarh et al. 2017 §3.1).
//!
//! A recomputed contribution has no residual. Rounded to the nearest level of its block, a value far below the largest
//! one would be zero in every contribution, and its parameter would never learn.

use barnraise_protocol::TensorCodec;
use barnraise_protocol::codec::{INT8_BLOCK_VALUES, INT8_LEVEL_MAX, int8_scale};

use crate::random::SplitMix64;

/// Rounds values up or down to the levels of `codec`, at random, so that the expected result is the value. The same seed
/// gives the same result. Encode them next: a value at a level keeps it.
///
/// Does nothing for codecs other than int8: f32 and f16 are precise enough, and the others are not recomputed. A block
/// that is not finite stays as it is, for the codec to refuse.
///
/// # Shapes
/// - `values`: `[n_parameters]`
pub fn round_stochastically(values: &mut [f32], codec: TensorCodec, seed: u64) {
    if codec != TensorCodec::Int8 {
        return;
    }
    let mut random = SplitMix64::new(seed);
    for block in values.chunks_mut(INT8_BLOCK_VALUES) {
        let scale = int8_scale(block.iter().fold(0.0, |max, value| max.max(value.abs())));
        if !scale.is_normal() {
            continue;
        }
        for value in block {
            // 24 random bits: uniform in 0..1, and exact.
            let uniform = (random.next_u64() >> 40) as f32 / (1 << 24) as f32;
            let level = (*value / scale + uniform).floor();
            *value = level.clamp(-INT8_LEVEL_MAX, INT8_LEVEL_MAX) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// One large value, and small ones that are below half a level.
    fn uneven() -> Vec<f32> {
        (0..600).map(|at| if at % INT8_BLOCK_VALUES == 0 { 1.27 } else { 1e-5 * at as f32 - 3e-3 }).collect()
    }

    fn sent(values: &[f32]) -> Vec<f32> {
        let bytes = TensorCodec::Int8.encode(values).unwrap();
        TensorCodec::Int8.decode(&bytes, values.len()).unwrap()
    }

    #[test]
    fn small_values_arrive_on_average() {
        const N: u64 = 4000;
        let values = uneven();
        let mut sums = vec![0.0_f64; values.len()];
        for seed in 0..N {
            let mut rounded = values.clone();
            round_stochastically(&mut rounded, TensorCodec::Int8, seed);
            sums.iter_mut().zip(sent(&rounded)).for_each(|(sum, value)| *sum += f64::from(value));
        }
        // A level is 0.01: its standard error over so many is 8e-5 at most.
        for (at, (sum, want)) in sums.iter().zip(&values).enumerate() {
            let mean = sum / N as f64;
            assert!((mean - f64::from(*want)).abs() < 5e-4, "{at}: {mean}, not {want}");
        }
        let nearest = sent(&values);
        assert_eq!(nearest[1], 0.0, "as it would be without");
    }

    /// As many as a value's distance from the level below says, and nowhere but at the two levels next to it.
    #[test]
    fn a_value_goes_to_the_level_above_as_often_as_it_is_near_it() {
        // A level is 1.
        let values = [0.25_f32, -0.25, 0.5, 3.75, -126.5, 126.75, 0.0].map(|value| [value; 9]).concat();
        let mut n_above = [0_u32; 7];
        for seed in 0..120 {
            let mut rounded = [&[127.0, -127.0], &values[..]].concat();
            round_stochastically(&mut rounded, TensorCodec::Int8, seed);
            assert_eq!(rounded[..2], [127.0, -127.0], "the largest of a block keeps its level");
            for (at, (value, rounded)) in values.iter().zip(&rounded[2..]).enumerate() {
                let is_above = *rounded > *value;
                assert!([value.floor(), value.ceil()].contains(rounded), "{value} became {rounded}");
                n_above[at / 9] += u32::from(is_above);
            }
        }
        // Of 1080 each; five standard deviations are 82 at most.
        for (got, want) in n_above.into_iter().zip([270, 810, 540, 810, 540, 810, 0]) {
            assert!(got.abs_diff(want) < 82, "{n_above:?}");
        }
    }

    #[test]
    fn the_codec_keeps_the_level_and_the_seed_decides_it() {
        let rounded = |seed| {
            let mut values = uneven();
            round_stochastically(&mut values, TensorCodec::Int8, seed);
            values
        };
        let values = rounded(1);
        for (at, (value, sent)) in values.iter().zip(sent(&values)).enumerate() {
            assert!((value - sent).abs() < 1e-5, "{at}: {value} is sent as {sent}");
        }
        assert_eq!(values, rounded(1));
        assert_ne!(values, rounded(2));
    }

    #[test]
    fn the_largest_number_there_is_stays_finite() {
        for value in [f32::MAX, f32::MIN] {
            let mut values = [value, 1.0];
            round_stochastically(&mut values, TensorCodec::Int8, 1);
            assert!(values[0].is_finite() && sent(&values)[0].is_finite(), "{values:?}");
        }
    }

    #[test]
    fn other_codecs_and_what_is_not_finite_stay() {
        for codec in [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int4] {
            let mut values = uneven();
            round_stochastically(&mut values, codec, 1);
            assert_eq!(values, uneven(), "{codec:?}");
        }
        for value in [f32::NAN, f32::INFINITY] {
            let mut values = uneven();
            values[300] = value;
            round_stochastically(&mut values, TensorCodec::Int8, 1);
            TensorCodec::Int8.encode(&values).unwrap_err();
        }
        let mut zeros = vec![0.0; 5];
        round_stochastically(&mut zeros, TensorCodec::Int8, 1);
        assert_eq!(zeros, [0.0; 5]);
    }
}
