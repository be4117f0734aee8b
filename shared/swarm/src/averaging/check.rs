//! Verification of a mean by random projections, after Freivalds: no member needs the values of the others.
//!
//! The members of a group hold a seed that the reducers do not know. Each member sums its own values of a part with
//! random signs ([`PROJECTIONS`] times, with different signs). The members average these few numbers among themselves.
//! Projections are linear, so the projections of a correct mean equal the mean of the projections, but for rounding. A
//! reducer that does not know the signs cannot change the mean by more than rounding and keep all projections: with a
//! change of length `d` and a tolerance `t`, each projection fits with a probability of about `t / d`.
//!
//! The tolerance follows from the members' statements of their own values, never from the mean that is verified.

use barnraise_protocol::TensorCodec;
use barnraise_protocol::codec::{CodecError, INT8_BLOCK_VALUES};

use super::{chunk, n_chunks};
use crate::random::SplitMix64;

/// Random projections of a part.
pub const PROJECTIONS: usize = 8;
/// Values of a member's statement about one part: its projections, their error bound, and whether it used the standby
/// reducer (0 or 1).
pub const STATEMENT_VALUES: usize = PROJECTIONS + 2;

/// Tolerance in multiples of the error bound. Six standard deviations, which a random sum exceeds twice in 10^9, and twice
/// that, since values pass the codec on the way to the reducer and back.
const ERRORS: f64 = 12.0;
/// Rounding error of sums in f32, relative to the length of the values.
const ROUNDING: f64 = 1.0 / 262_144.0;
/// Least tolerance, for values near 0.
const FLOOR: f64 = 1e-30;

/// The result of verifying a mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeanVerdict {
    /// It is the mean.
    Correct {
        /// Some member did not get it from the part's own reducer.
        was_replaced: bool,
    },
    /// It is not the mean.
    Wrong,
}

/// The values of a part after encoding and decoding, `[n_values]`.
///
/// # Errors
/// A value that is not finite.
pub fn through_codec(codec: TensorCodec, values: &[f32]) -> Result<Vec<f32>, CodecError> {
    let mut travelled = vec![0.0; values.len()];
    let mut bytes = Vec::new();
    for index in 0..n_chunks(values.len()) {
        let range = chunk(values.len(), index);
        codec.encode_into(&values[range.clone()], &mut bytes)?;
        codec.decode_into(&bytes, &mut travelled[range])?;
    }
    Ok(travelled)
}

/// A member's statement, `[STATEMENT_VALUES]`, about its own values of a part after the codec.
#[must_use]
pub fn statement(
    seed: u64,
    part: usize,
    codec: TensorCodec,
    travelled: &[f32],
    was_replaced: bool,
) -> [f32; STATEMENT_VALUES] {
    let mut statement = [0.0; STATEMENT_VALUES];
    for (value, projection) in statement.iter_mut().zip(projections(seed, part, travelled)) {
        *value = projection as f32;
    }
    statement[PROJECTIONS] = (codec_error(codec, travelled) + ROUNDING * length(travelled)) as f32;
    statement[PROJECTIONS + 1] = f32::from(u8::from(was_replaced));
    statement
}

/// Verifies `mean`, `[n_values]`, against the mean of the members' statements, `[STATEMENT_VALUES]`.
#[must_use]
pub fn verify_mean(seed: u64, part: usize, mean: &[f32], statement: &[f32]) -> MeanVerdict {
    let (Some(sums), Some(&[bound, replaced])) =
        (statement.first_chunk::<PROJECTIONS>(), statement.last_chunk::<2>())
    else {
        return MeanVerdict::Wrong;
    };
    let tolerance = ERRORS * f64::from(bound) + FLOOR;
    let found = projections(seed, part, mean);
    let fits = |(sum, found): (&f32, f64)| (f64::from(*sum) - found).abs() <= tolerance;
    match sums.iter().zip(found).all(fits) {
        true => MeanVerdict::Correct { was_replaced: replaced > 0.0 },
        false => MeanVerdict::Wrong,
    }
}

/// Sums of the values with random signs, `[PROJECTIONS]`.
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

/// Bound of the length of the codec's error on these values.
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
        // Groups use no other lossy codec.
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;

    use super::*;

    /// Value sent in place of the value at an index.
    type MeanTampering = fn(usize, f32) -> f32;
    use crate::averaging::{Reduction, ReductionConfig};

    const GOLDEN_SUMS: [f32; PROJECTIONS] = [361.0, 1479.0, -481.0, 881.0, 1389.0, 1823.0, 187.0, 809.0];
    const CODECS: [TensorCodec; 3] = [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8];

    fn noise(seed: u64, n_values: usize, scale: f32) -> Vec<f32> {
        let mut random = SplitMix64::new(seed);
        let value = |_| (random.next_u64() as f64 / u64::MAX as f64 - 0.5) as f32 * scale;
        (0..n_values).map(value).collect()
    }

    /// The mean as a reducer sends it, and the mean of the members' statements.
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
        let travelled: Vec<_> = of.iter().map(|values| through_codec(codec, values).unwrap()).collect();
        let mean = through_codec(codec, &mean_of(&travelled)).unwrap();
        assert_eq!(mean.len(), n_values);
        let statements: Vec<Vec<f32>> =
            travelled.iter().map(|values| statement(seed, 3, codec, values, false).to_vec()).collect();
        (mean, mean_of(&statements))
    }

    #[test]
    fn a_mean_is_right_with_every_codec_and_any_weights() {
        for codec in CODECS {
            for seed in 0..40 {
                let scale = 10.0_f32.powi(seed as i32 % 9 - 4);
                let of: Vec<_> = (0..5).map(|member| noise(100 * seed + member, 70_000, scale)).collect();
                let (mean, mean_statement) = averaged(codec, seed, &[1, 20, 300, 4, 999], &of);
                let right = MeanVerdict::Correct { was_replaced: false };
                assert_eq!(verify_mean(seed, 3, &mean, &mean_statement), right, "{codec:?}, seed {seed}");
            }
        }
    }

    #[test]
    fn another_mean_is_wrong() {
        for codec in CODECS {
            let of: Vec<_> = (0..3).map(|member| noise(member, 20_000, 1.0)).collect();
            let (mean, mean_statement) = averaged(codec, 9, &[5, 6, 7], &of);
            let tamperings: [(&str, MeanTampering); 6] = [
                ("flipped", |_, value| -value),
                ("scaled", |_, value| value * 1.5),
                ("nothing", |_, _| 0.0),
                ("one huge value", |at, value| if at == 777 { 1e4 } else { value }),
                ("huge values everywhere", |_, value| value * 1e6),
                ("no number", |at, value| if at == 5 { f32::NAN } else { value }),
            ];
            for (what, tamper) in tamperings {
                let tampered: Vec<f32> =
                    mean.iter().enumerate().map(|(at, value)| tamper(at, *value)).collect();
                assert_eq!(
                    verify_mean(9, 3, &tampered, &mean_statement),
                    MeanVerdict::Wrong,
                    "{what}, {codec:?}"
                );
            }
            let swapped = [&mean[1..], &mean[..1]].concat();
            assert_eq!(verify_mean(9, 3, &swapped, &mean_statement), MeanVerdict::Wrong, "{codec:?}");
            assert_eq!(verify_mean(8, 3, &mean, &mean_statement), MeanVerdict::Wrong, "another seed");
            assert_eq!(verify_mean(9, 4, &mean, &mean_statement), MeanVerdict::Wrong, "another part");
            assert_eq!(
                verify_mean(9, 3, &mean, &mean_statement[1..]),
                MeanVerdict::Wrong,
                "half a statement"
            );
        }
    }

    /// Members with other builds state the same: powers of two, from whose sum the signs can be read.
    #[test]
    fn the_signs_of_a_statement_are_the_same_everywhere() {
        let values: Vec<f32> =
            (0..11).map(|at| 2.0_f32.powi(at) * if at % 3 == 0 { -1.0 } else { 1.0 }).collect();
        let known = statement(5, 3, TensorCodec::F32, &values, false);
        assert_eq!(known[..PROJECTIONS], GOLDEN_SUMS);
        let next = statement(5, 4, TensorCodec::F32, &values, false);
        assert_ne!(known[..PROJECTIONS], next[..PROJECTIONS], "each part has its own signs");
        let negated: Vec<f32> = values.iter().map(|value| -value).collect();
        let opposite = statement(5, 3, TensorCodec::F32, &negated, false);
        assert!(opposite[..PROJECTIONS].iter().zip(GOLDEN_SUMS).all(|(sum, of)| *sum == -of));
        // Of a single value each sum is the value or its opposite, by chance.
        for at in 0..values.len() {
            let mut one = vec![0.0; values.len()];
            one[at] = 3.0;
            let sums = statement(5, 3, TensorCodec::F32, &one, false);
            assert!(sums[..PROJECTIONS].iter().all(|sum| sum.abs() == 3.0), "{sums:?}");
        }
    }

    /// The bound is the most that a codec changes the values by, and the rounding of sums.
    #[test]
    fn the_error_bound_of_a_statement_follows_from_values_and_codec() {
        let is_near = |got: f64, want: f64| (got - want).abs() <= 1e-12 * want;
        assert!(is_near(length(&[3.0, -4.0]), 5.0));
        assert_eq!(codec_error(TensorCodec::F32, &[3.0, 4.0]), 0.0);
        // Half of the last bit of each value, and of the least one that f16 has.
        assert!(is_near(
            codec_error(TensorCodec::F16, &[3.0, 4.0]),
            5.0 / 2048.0 + 2.0_f64.sqrt() / 33_554_432.0
        ));
        assert!(is_near(codec_error(TensorCodec::F16, &[0.0; 4]), 2.0 / 33_554_432.0));
        // Half of a step of 127 up to the largest of the block.
        let mut blocks = vec![1.0; INT8_BLOCK_VALUES + 3];
        blocks[7] = -508.0;
        blocks[INT8_BLOCK_VALUES] = 127.0;
        let squares = INT8_BLOCK_VALUES as f64 * 4.0 + 3.0 * 0.25;
        assert!(is_near(codec_error(TensorCodec::Int8, &blocks), squares.sqrt()));
        let bound = |codec| f64::from(statement(1, 0, codec, &[3.0, 4.0], true)[PROJECTIONS]);
        assert!((bound(TensorCodec::F32) - 5.0 * ROUNDING).abs() < 1e-11);
        let want = codec_error(TensorCodec::F16, &[3.0, 4.0]) + 5.0 * ROUNDING;
        assert!((bound(TensorCodec::F16) - want).abs() < 1e-9);
    }

    #[test]
    fn a_mean_may_differ_from_its_statement_by_the_tolerance() {
        let verdict = |sum: f32, bound: f32, replaced: f32| {
            let statement = [&[sum; PROJECTIONS][..], &[bound, replaced]].concat();
            verify_mean(1, 0, &[0.0], &statement)
        };
        let correct = |was_replaced| MeanVerdict::Correct { was_replaced };
        for sign in [1.0, -1.0] {
            assert_eq!(verdict(sign * 24.0, 2.0, 0.0), correct(false));
            assert_eq!(verdict(sign * 24.001, 2.0, 0.0), MeanVerdict::Wrong);
            assert_eq!(verdict(sign * 1e-31, 0.0, 0.0), correct(false), "a mean near 0");
            assert_eq!(verdict(sign * 1e-29, 0.0, 0.0), MeanVerdict::Wrong);
        }
        // One of many members had to use the standby reducer.
        assert_eq!(verdict(0.0, 0.0, 0.01), correct(true));
    }

    #[test]
    fn a_mean_that_was_changed_by_more_is_wrong_up_and_down() {
        let values = noise(3, 64, 1.0);
        let of_values = statement(1, 0, TensorCodec::F32, &values, false);
        for change in [0.01, -0.01] {
            let changed: Vec<f32> = values
                .iter()
                .enumerate()
                .map(|(at, value)| value + if at == 9 { change } else { 0.0 })
                .collect();
            assert_eq!(verify_mean(1, 0, &changed, &of_values), MeanVerdict::Wrong);
        }
        let doubled: Vec<f32> = values.iter().map(|value| 2.0 * value).collect();
        assert_eq!(verify_mean(1, 0, &doubled, &of_values), MeanVerdict::Wrong);
        assert_eq!(verify_mean(1, 0, &values, &of_values), MeanVerdict::Correct { was_replaced: false });
    }

    #[test]
    fn values_pass_the_codec_chunk_by_chunk() {
        let n_values = barnraise_protocol::average::CHUNK_VALUES + 2;
        let values: Vec<f32> = (0..n_values).map(|at| at as f32).collect();
        assert_eq!(through_codec(TensorCodec::F32, &values).unwrap(), values);
        assert!(through_codec(TensorCodec::F32, &[f32::NAN]).is_err());
        // A third of a step of the block's largest value is rounded.
        assert_eq!(through_codec(TensorCodec::Int8, &[127.0, 2.3]).unwrap(), [127.0, 2.0]);
    }

    #[test]
    fn a_statement_says_whether_the_standby_reducer_was_used() {
        let values = noise(1, 1000, 1.0);
        let mean_statement = statement(1, 0, TensorCodec::F32, &values, true);
        assert_eq!(verify_mean(1, 0, &values, &mean_statement), MeanVerdict::Correct { was_replaced: true });
        let zeros = statement(1, 0, TensorCodec::Int8, &[0.0; 9], false);
        assert_eq!(verify_mean(1, 0, &[0.0; 9], &zeros), MeanVerdict::Correct { was_replaced: false });
    }

    proptest! {
        #[test]
        fn any_statement_is_verified(values in prop::collection::vec(any::<f32>(), 0..40), n in 0..40usize) {
            let _ = verify_mean(7, 0, &values, &values[..n.min(values.len())]);
        }
    }
}
