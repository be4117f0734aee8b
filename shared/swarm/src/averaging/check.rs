//! Whether a part that somebody else averaged is the mean: Freivalds' check of a sum that nobody has at hand.
//!
//! The members of a group hold a seed that the reducers are not told. Each member adds up its own values of a part with
//! random signs, some times over with other signs, and the members average these few numbers among themselves. Signs
//! and means commute, so what comes out is the same for the mean that the reducer sent, but for rounding. A reducer
//! that does not know the signs cannot change the mean by more than rounding and keep all sums: with a change of length
//! `d` and a tolerance `t` each of them fits with a chance of about `t / d`.
//!
//! The tolerance follows from what members say of their own values, never from the mean that is checked.

use barnraise_protocol::TensorCodec;
use barnraise_protocol::codec::{CodecError, INT8_BLOCK_VALUES};

use super::{chunk, n_chunks};
use crate::random::SplitMix64;

/// Sums with random signs of a part.
pub const PROJECTIONS: usize = 8;
/// What a member says of one part: the sums, how far off they may be, and whether its reducer had to be replaced.
pub const STATEMENT_VALUES: usize = PROJECTIONS + 2;

/// Twice what sums of errors with random signs stay below but for two in a thousand million: values may have gone
/// through the codec on the way there and on the way back.
const ERRORS: f64 = 12.0;
/// Of a sum in f32 over some members, and of the statements, in proportion to the values.
const ROUNDING: f64 = 1.0 / 262_144.0;
/// Of values that are next to nothing.
const FLOOR: f64 = 1e-30;

/// What a statement says of the reducer's mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is the mean.
    Right {
        /// Some member did not get it from the part's own reducer.
        was_replaced: bool,
    },
    /// It is something else.
    Wrong,
}

/// The values of a part as they are after the codec.
///
/// # Errors
/// A value that is not finite.
pub fn as_travelled(codec: TensorCodec, values: &[f32]) -> Result<Vec<f32>, CodecError> {
    let mut travelled = vec![0.0; values.len()];
    let mut bytes = Vec::new();
    for index in 0..n_chunks(values.len()) {
        let range = chunk(values.len(), index);
        codec.encode_into(&values[range.clone()], &mut bytes)?;
        codec.decode_into(&bytes, &mut travelled[range])?;
    }
    Ok(travelled)
}

/// What a member says of its own values of a part, as they travelled.
#[must_use]
pub fn statement(
    seed: u64,
    part: usize,
    codec: TensorCodec,
    travelled: &[f32],
    was_replaced: bool,
) -> [f32; STATEMENT_VALUES] {
    let mut statement = [0.0; STATEMENT_VALUES];
    for (said, sum) in statement.iter_mut().zip(projections(seed, part, travelled)) {
        *said = sum as f32;
    }
    statement[PROJECTIONS] = (codec_error(codec, travelled) + ROUNDING * length(travelled)) as f32;
    statement[PROJECTIONS + 1] = f32::from(u8::from(was_replaced));
    statement
}

/// Whether `mean` is the mean of the values that `statement`, `[STATEMENT_VALUES]`, is the mean statement of.
#[must_use]
pub fn judge(seed: u64, part: usize, mean: &[f32], statement: &[f32]) -> Verdict {
    let (Some(sums), Some(&[bound, replaced])) =
        (statement.first_chunk::<PROJECTIONS>(), statement.last_chunk::<2>())
    else {
        return Verdict::Wrong;
    };
    let tolerance = ERRORS * f64::from(bound) + FLOOR;
    let found = projections(seed, part, mean);
    let fits = |(sum, found): (&f32, f64)| (f64::from(*sum) - found).abs() <= tolerance;
    match sums.iter().zip(found).all(fits) {
        true => Verdict::Right { was_replaced: replaced > 0.0 },
        false => Verdict::Wrong,
    }
}

/// Sums of the values with random signs.
fn projections(seed: u64, part: usize, values: &[f32]) -> [f64; PROJECTIONS] {
    let mut signs = SplitMix64::new(SplitMix64::new(seed.wrapping_add(part as u64)).next_u64());
    let mut sums = [0.0; PROJECTIONS];
    // A bit for each of eight values and eight sums.
    for values in values.chunks(8) {
        let mut bits = signs.next_u64();
        for value in values {
            for (sum, bit) in sums.iter_mut().zip(0..PROJECTIONS) {
                let sign = ((bits >> bit) as u32 & 1) << 31;
                *sum += f64::from(f32::from_bits(value.to_bits() ^ sign));
            }
            bits >>= PROJECTIONS;
        }
    }
    sums
}

const _: () = assert!(PROJECTIONS == 8, "the bits of a random number are shared out by eight");

fn length(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

/// Length of the error that a codec makes of such values at most.
fn codec_error(codec: TensorCodec, values: &[f32]) -> f64 {
    match codec {
        TensorCodec::F16 => length(values) / 2048.0 + (values.len() as f64).sqrt() * 2.0_f64.powi(-25),
        TensorCodec::Int8 => {
            let block = |values: &[f32]| {
                let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                values.len() as f64 * (f64::from(largest) / 254.0).powi(2)
            };
            values.chunks(INT8_BLOCK_VALUES).map(block).sum::<f64>().sqrt()
        }
        // Groups have no other.
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;

    use super::*;

    /// What is sent in place of a value.
    type Lie = fn(usize, f32) -> f32;
    use crate::averaging::{Reduction, ReductionConfig};

    const CODECS: [TensorCodec; 3] = [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8];

    fn noise(seed: u64, n_values: usize, scale: f32) -> Vec<f32> {
        let mut random = SplitMix64::new(seed);
        let value = |_| (random.next_u64() as f64 / u64::MAX as f64 - 0.5) as f32 * scale;
        (0..n_values).map(value).collect()
    }

    /// Means as a reducer sends them, and the mean statement of the members.
    fn averaged(codec: TensorCodec, seed: u64, n_samples: &[u64], of: &[Vec<f32>]) -> (Vec<f32>, Vec<f32>) {
        let n_values = of[0].len();
        let mean_of = |of: &[Vec<f32>]| {
            let n_values = of[0].len();
            let patience = std::time::Duration::from_secs(1);
            let config = ReductionConfig { n_values, window_chunks: 64, patience };
            let now = crate::Moment::ZERO;
            let mut reduction = Reduction::new(now, config, n_samples);
            for index in 0..n_chunks(n_values) {
                for (member, values) in of.iter().enumerate() {
                    reduction.on_chunk(now, member, index, &values[chunk(n_values, index)]).unwrap();
                }
            }
            let mut mean = Vec::new();
            while let Some(chunk) = reduction.poll_mean() {
                mean.extend(chunk.values);
            }
            mean
        };
        let travelled: Vec<_> = of.iter().map(|values| as_travelled(codec, values).unwrap()).collect();
        let mean = as_travelled(codec, &mean_of(&travelled)).unwrap();
        assert_eq!(mean.len(), n_values);
        let said: Vec<Vec<f32>> =
            travelled.iter().map(|values| statement(seed, 3, codec, values, false).to_vec()).collect();
        (mean, mean_of(&said))
    }

    #[test]
    fn a_mean_is_right_with_every_codec_and_whoever_weighs_how_much() {
        for codec in CODECS {
            for seed in 0..40 {
                let scale = 10.0_f32.powi(seed as i32 % 9 - 4);
                let of: Vec<_> = (0..5).map(|member| noise(100 * seed + member, 70_000, scale)).collect();
                let (mean, said) = averaged(codec, seed, &[1, 20, 300, 4, 999], &of);
                let right = Verdict::Right { was_replaced: false };
                assert_eq!(judge(seed, 3, &mean, &said), right, "{codec:?}, seed {seed}");
            }
        }
    }

    #[test]
    fn another_mean_is_wrong() {
        for codec in CODECS {
            let of: Vec<_> = (0..3).map(|member| noise(member, 20_000, 1.0)).collect();
            let (mean, said) = averaged(codec, 9, &[5, 6, 7], &of);
            let lies: [(&str, Lie); 6] = [
                ("flipped", |_, value| -value),
                ("scaled", |_, value| value * 1.5),
                ("nothing", |_, _| 0.0),
                ("one huge value", |at, value| if at == 777 { 1e4 } else { value }),
                ("huge values everywhere", |_, value| value * 1e6),
                ("no number", |at, value| if at == 5 { f32::NAN } else { value }),
            ];
            for (what, lie) in lies {
                let lied: Vec<f32> = mean.iter().enumerate().map(|(at, value)| lie(at, *value)).collect();
                assert_eq!(judge(9, 3, &lied, &said), Verdict::Wrong, "{what}, {codec:?}");
            }
            let swapped = [&mean[1..], &mean[..1]].concat();
            assert_eq!(judge(9, 3, &swapped, &said), Verdict::Wrong, "{codec:?}");
            assert_eq!(judge(8, 3, &mean, &said), Verdict::Wrong, "another seed");
            assert_eq!(judge(9, 4, &mean, &said), Verdict::Wrong, "another part");
            assert_eq!(judge(9, 3, &mean, &said[1..]), Verdict::Wrong, "half a statement");
        }
    }

    #[test]
    fn a_member_that_had_to_turn_elsewhere_is_heard() {
        let values = noise(1, 1000, 1.0);
        let said = statement(1, 0, TensorCodec::F32, &values, true);
        assert_eq!(judge(1, 0, &values, &said), Verdict::Right { was_replaced: true });
        let zeros = statement(1, 0, TensorCodec::Int8, &[0.0; 9], false);
        assert_eq!(judge(1, 0, &[0.0; 9], &zeros), Verdict::Right { was_replaced: false });
    }

    proptest! {
        #[test]
        fn any_statement_is_judged(values in prop::collection::vec(any::<f32>(), 0..40), n in 0..40usize) {
            let _ = judge(7, 0, &values, &values[..n.min(values.len())]);
        }
    }
}
