//! Dropout and jitter that every peer draws alike: they follow from the sample's seed and the block.

use burn::tensor::{Device, Tensor, TensorData};

use crate::random::SplitMix64;

/// Decisions that one random number makes, 16 bits each.
const DECISIONS: usize = 4;
const BITS: u32 = 16;
const RANGE: f32 = 65_536.0;

/// Sets values of `tensor` to zero, with a probability of `rate` in steps of 2^-16, and divides the others by the share
/// that stays. The first dimension is the samples: those of `seeds`, repeated for each crop.
pub(super) fn drop<const D: usize>(
    tensor: Tensor<D>,
    rate: f32,
    seeds: &[u64],
    block: usize,
    device: &Device,
) -> Tensor<D> {
    let dims = tensor.dims();
    let n_values = dims[1..].iter().product::<usize>();
    let factors = factors(rate, seeds, block, [dims[0], n_values]);
    let factors = Tensor::<D>::from_data(TensorData::new(factors, dims), device);
    let dtype = tensor.dtype();
    tensor * factors.cast(dtype)
}

/// Multiplies the values of `tensor` by numbers within `1 ± amount`. The first dimension is the samples, or the tokens of one after
/// those of another.
pub(super) fn jitter(
    tensor: Tensor<2>,
    amount: f32,
    seeds: &[u64],
    block: usize,
    device: &Device,
) -> Tensor<2> {
    let dims = tensor.dims();
    let n_values = dims[0] * dims[1];
    let of_sample = n_values / seeds.len().max(1);
    let mut factors = Vec::with_capacity(n_values);
    for row in 0..seeds.len() {
        let mut random = random_of(row, seeds, block);
        factors.extend((0..of_sample).map(|_| 1.0 + amount * random.next_signed_unit()));
    }
    factors.resize(n_values, 1.0);
    tensor * Tensor::<2>::from_data(TensorData::new(factors, dims), device)
}

/// The numbers of a row of `seeds`, repeated for each crop.
fn random_of(row: usize, seeds: &[u64], block: usize) -> SplitMix64 {
    let n_seeds = seeds.len().max(1);
    let seed = seeds.get(row % n_seeds).copied().unwrap_or_default();
    let mut random = SplitMix64 { state: seed };
    random.state = random.next_u64() ^ (((row / n_seeds) as u64) << 32 | block as u64);
    random
}

/// 0 or the reciprocal of the share that stays, `[n_rows, n_values]`.
fn factors(rate: f32, seeds: &[u64], block: usize, [n_rows, n_values]: [usize; 2]) -> Vec<f32> {
    let n_dropped = (rate * RANGE).round() as u64;
    let kept = RANGE / (RANGE - n_dropped as f32);
    let mut factors = Vec::with_capacity(n_rows * n_values);
    for row in 0..n_rows {
        let mut random = random_of(row, seeds, block);
        let end = factors.len() + n_values;
        while factors.len() < end {
            let mut bits = random.next_u64();
            for _ in 0..DECISIONS.min(end - factors.len()) {
                let is_dropped = bits & ((1 << BITS) - 1) < n_dropped;
                factors.push(if is_dropped { 0.0 } else { kept });
                bits >>= BITS;
            }
        }
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_and_a_block_decide_alone() {
        let both = factors(0.25, &[7, 8], 3, [2, 1001]);
        assert_eq!(both[1001..], factors(0.25, &[8], 3, [1, 1001]));
        assert_ne!(both[..1001], factors(0.25, &[7], 4, [1, 1001]));
        assert_ne!(both[..1001], both[1001..]);
        // Crops of one sample are not alike.
        let crops = factors(0.25, &[7], 3, [2, 1001]);
        assert_eq!(crops[..1001], both[..1001]);
        assert_ne!(crops[..1001], crops[1001..]);
        // As many as the rate says: the deviation of 100,000 is 0.14 %.
        let many = factors(0.25, &[1], 0, [1, 100_000]);
        let n_dropped = many.iter().filter(|factor| **factor == 0.0).count();
        assert!((24_000..26_000).contains(&n_dropped), "{n_dropped}");
        assert!(many.iter().all(|factor| *factor == 0.0 || (factor - 4.0 / 3.0).abs() < 1e-6));
    }

    /// Another build draws the same.
    #[test]
    fn the_first_decisions_are_those_of_every_platform() {
        let first: Vec<bool> = factors(0.5, &[42], 1, [1, 16]).iter().map(|factor| *factor > 0.0).collect();
        let mut random = SplitMix64 { state: 42 };
        random.state = random.next_u64() ^ 1;
        let bits: Vec<u64> = (0..4).map(|_| random.next_u64()).collect();
        let want: Vec<bool> =
            (0..16).map(|at| (bits[at / 4] >> (16 * (at % 4))) & 0xffff >= 32_768).collect();
        assert_eq!(first, want);
    }
}
