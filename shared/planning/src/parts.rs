//! Divides the flat vector into parts by fractions.
//!
//! It computes in whole numbers from the first step on, so that no rounding differs between peers. It never reads
//! bandwidths.

use std::ops::Range;

/// Resolution of fractions: far finer than any measurement, and small enough for exact products.
const GRAINS: f64 = (1_u64 << 40) as f64;

/// Consecutive ranges of values, `[n_fractions]`, which cover `0..n_values` without a
/// gap. Sizes are proportional to the fractions (DeDLOC eq. 6), by the largest remainder method; of equal remainders
/// the first one counts.
///
/// Negative fractions and NaN count as 0. If all are 0, the first range is everything.
pub(crate) fn parts(fractions: &[f64], n_values: u64) -> Vec<Range<u64>> {
    let mut weights: Vec<u64> =
        fractions.iter().map(|fraction| (fraction.max(0.0) * GRAINS).round() as u64).collect();
    if weights.iter().all(|&weight| weight == 0)
        && let Some(first) = weights.first_mut()
    {
        *first = 1;
    }
    let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    let product = |weight: u64| u128::from(n_values) * u128::from(weight);
    let mut sizes: Vec<u64> = weights
        .iter()
        .map(|&weight| u64::try_from(product(weight) / sum.max(1)).unwrap_or(n_values))
        .collect();
    let left = n_values - sizes.iter().sum::<u64>();
    let mut by_loss: Vec<usize> = (0..sizes.len()).collect();
    by_loss.sort_by_key(|&i| (std::cmp::Reverse(product(weights[i]) % sum.max(1)), i));
    // Fewer are left than there are fractions: each lost less than one.
    for &i in by_loss.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        sizes[i] += 1;
    }
    let mut start = 0;
    let range = |size: u64| {
        let range = start..start + size;
        start = range.end;
        range
    };
    sizes.into_iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn thirds_of_ten_are_four_three_three() {
        assert_eq!(parts(&[1.0 / 3.0; 3], 10), [0..4, 4..7, 7..10]);
    }

    #[test]
    fn a_fraction_of_zero_is_an_empty_range() {
        assert_eq!(parts(&[0.0, 0.75, 0.0, 0.25], 8), [0..0, 0..6, 6..6, 6..8]);
    }

    proptest! {
        #[test]
        fn parts_cover_the_vector_without_a_gap(
            weights in prop::collection::vec(0.0..1.0_f64, 1..200),
            n_values in 1..u64::MAX / 2,
        ) {
            let sum = weights.iter().sum::<f64>().max(f64::MIN_POSITIVE);
            let fractions: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
            let parts = parts(&fractions, n_values);
            prop_assert_eq!(parts.len(), fractions.len());
            let mut end = 0;
            for (part, fraction) in parts.iter().zip(&fractions) {
                prop_assert_eq!(part.start, end);
                prop_assert!(part.end >= part.start);
                end = part.end;
                let wanted = fraction * n_values as f64;
                let got = (part.end - part.start) as f64;
                prop_assert!((got - wanted).abs() <= 2.0 + n_values as f64 * 1e-9);
            }
            prop_assert_eq!(end, n_values);
        }
    }
}
