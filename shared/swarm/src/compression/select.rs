//! Selection of the largest values without sorting.

/// Bits of an f32's magnitude, from the top: 11, 10 and 10. Magnitudes are ordered as these bits are.
const DIGITS: [(u32, u32); 3] = [(20, 11), (10, 10), (0, 10)];
const MAGNITUDE: u32 = 0x7fff_ffff;

/// Sets all but the `n_kept` values of the largest magnitude to zero; of equal ones the first stay. NaN is the
/// largest.
///
/// Three counts of digits find the smallest magnitude that stays, in any order of the values.
pub fn keep_largest(values: &mut [f32], n_kept: usize) {
    if n_kept >= values.len() {
        return;
    }
    // Of the magnitudes that begin with `prefix`, so many stay, the largest ones.
    let (mut prefix, mut n_left) = (0u32, n_kept);
    for (shift, n_bits) in DIGITS {
        let mut counts = vec![0usize; 1 << n_bits];
        let above = shift + n_bits;
        for value in values.iter() {
            let magnitude = value.to_bits() & MAGNITUDE;
            // Nothing is above the first digit.
            if magnitude >> above == prefix {
                let digit = (magnitude >> shift) as usize & (counts.len() - 1);
                if let Some(count) = counts.get_mut(digit) {
                    *count += 1;
                }
            }
        }
        let mut digit = 0;
        for (candidate, &count) in counts.iter().enumerate().rev() {
            digit = candidate;
            if count > n_left {
                break;
            }
            n_left -= count;
        }
        prefix = prefix << n_bits | digit as u32;
    }
    // `prefix` is the largest magnitude of which not all stay.
    for value in values {
        let magnitude = value.to_bits() & MAGNITUDE;
        let is_tie_that_stays = magnitude == prefix && n_left > 0;
        n_left -= usize::from(is_tie_that_stays);
        if magnitude <= prefix && !is_tie_that_stays {
            *value = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_largest_stay_and_of_equal_ones_the_first() {
        let mut values = [1.0, -3.0, 2.0, -2.0, 0.0, 2.0];
        keep_largest(&mut values, 3);
        assert_eq!(values, [0.0, -3.0, 2.0, -2.0, 0.0, 0.0]);
        keep_largest(&mut values, 0);
        assert_eq!(values, [0.0; 6]);
    }

    #[test]
    fn where_all_stay_even_the_smallest_does() {
        let smallest = [1e-40, -3e-45, 2.0];
        for n_kept in 3..5 {
            let mut values = smallest;
            keep_largest(&mut values, n_kept);
            assert_eq!(values, smallest);
        }
        let mut values = smallest;
        keep_largest(&mut values, 2);
        assert_eq!(values, [1e-40, 0.0, 2.0], "magnitudes that differ in their last bits only");
        keep_largest(&mut [], 0);
    }

    proptest! {
        #[test]
        fn as_many_stay_as_a_sorted_list_says(
            values in proptest::collection::vec(prop_oneof![any::<i8>().prop_map(f32::from), -1e3f32..1e3], 0..300),
            n_kept in 0usize..320,
        ) {
            let mut kept = values.clone();
            keep_largest(&mut kept, n_kept);
            let mut order: Vec<usize> = (0..values.len()).collect();
            order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()));
            let mut want = vec![0.0; values.len()];
            order.iter().take(n_kept).for_each(|&at| want[at] = values[at]);
            prop_assert_eq!(kept, want);
        }
    }
}
