//! The copies of an expert, which step by the gradients of different trainers, become one again: about once a minute each moves its
//! parameters to the mean of its own and theirs, as in local SGD (Stich 2019, algorithm 1). Each host does so on its own, and waits
//! for none.
//!
//! A copy may be anybody's. So each difference counts at most by a norm, one step of centered clipping (Karimireddy, He and Jaggi
//! 2021, §4) around the parameters of the host itself.

use crate::robust::norm;

/// The difference of a copy that is clipped counts at most so many times as much as the host's own parameters have moved since it looked
/// last. Two copies that have moved as far from one point are no farther apart than that. And where one of two lies, it takes from the
/// other at most what that has learned.
pub const COPY_DISTANCE_MAX: f64 = 2.0;

/// The mean of a copy's parameters and those of others, each with whether it is clipped. `before` are its own when it looked last. `None`
/// where no other copy that is finite and of its length counts.
///
/// # Shapes
/// All `[n_parameters]`, as what is returned. Where all others are clipped, it is less than [`COPY_DISTANCE_MAX`] times as far from `own`
/// as `before`.
pub fn mean_of_copies<'a>(
    own: &[f32],
    before: &[f32],
    others: impl IntoIterator<Item = (&'a [f32], bool)>,
) -> Option<Vec<f32>> {
    let distance_max = COPY_DISTANCE_MAX * norm(&difference(own, before)?);
    let mut sum = vec![0.0_f64; own.len()];
    let mut n_copies = 1_u32;
    for (other, is_clipped) in others {
        let Some(difference) = difference(other, own) else { continue };
        let distance = norm(&difference);
        let factor = if is_clipped && distance > distance_max { distance_max / distance } else { 1.0 };
        if factor > 0.0 {
            sum.iter_mut().zip(&difference).for_each(|(sum, value)| *sum += factor * f64::from(*value));
            n_copies += 1;
        }
    }
    let mean = |(own, sum): (&f32, &f64)| (f64::from(*own) + sum / f64::from(n_copies)) as f32;
    (n_copies > 1).then(|| own.iter().zip(&sum).map(mean).collect())
}

/// `a - b`; `None` where a value is not finite, or the lengths differ.
fn difference(a: &[f32], b: &[f32]) -> Option<Vec<f32>> {
    let difference: Vec<f32> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    let is_finite = difference.iter().all(|value| value.is_finite());
    (a.len() == b.len() && is_finite).then_some(difference)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The mean with others that are all clipped.
    fn clipped(own: &[f32], before: &[f32], others: &[Vec<f32>]) -> Option<Vec<f32>> {
        mean_of_copies(own, before, others.iter().map(|other| (other.as_slice(), true)))
    }

    #[test]
    fn copies_that_have_moved_apart_meet_in_the_middle() {
        let (before, one, other) = ([0.0, 0.0], [1.0, 0.0], vec![0.0, 1.0]);
        assert_eq!(clipped(&one, &before, std::slice::from_ref(&other)), Some(vec![0.5, 0.5]));
        assert_eq!(clipped(&other, &before, &[one.to_vec()]), Some(vec![0.5, 0.5]));
        let opposite = clipped(&one, &before, &[vec![-1.0, 0.0]]).unwrap();
        assert!(opposite[0].abs() < 1e-6, "no farther than may be: {opposite:?}");
        let three = clipped(&one, &before, &[other, vec![2.0, -1.0]]).unwrap();
        assert!((three[0] - 1.0).abs() < 1e-6 && three[1].abs() < 1e-6, "{three:?}");
    }

    /// Each minute both move, publish where they are, and average with what the other has published.
    fn moved_in_a_minute(paces: [f32; 2], is_clipped: [bool; 2]) -> f32 {
        let mut at = [[0.0], [0.0]];
        let mut before = at;
        for _ in 0..200 {
            (0..2).for_each(|one| at[one][0] += paces[one]);
            let published = at;
            for one in 0..2 {
                let other = (&published[1 - one][..], is_clipped[one]);
                if let Some(mean) = mean_of_copies(&at[one], &before[one], [other]) {
                    at[one][0] = mean[0];
                }
                before[one] = at[one];
            }
        }
        at[0][0] / 200.0
    }

    #[test]
    fn a_slow_replica_holds_the_expert_up_no_more_than_a_mean_does() {
        for slow in [1.0, 0.1, 0.0] {
            let pace = moved_in_a_minute([10.0, slow], [true, false]);
            assert!(pace > 0.45 * (10.0 + slow), "{pace} with {slow}");
        }
        assert!(moved_in_a_minute([10.0, 10.0], [true, false]) > 9.9);
    }

    #[test]
    fn nothing_is_averaged_where_there_is_nothing_of_use() {
        let (before, own) = ([0.0; 2], [1.0; 2]);
        for useless in
            [vec![], vec![vec![]], vec![vec![f32::NAN; 2]], vec![vec![1.0; 3], vec![f32::INFINITY, 0.0]]]
        {
            assert_eq!(clipped(&own, &before, &useless), None, "{useless:?}");
        }
        assert_eq!(clipped(&own, &own, &[vec![9.0; 2]]), None, "it has not moved");
        assert_eq!(
            mean_of_copies(&own, &own, [(&[9.0; 2][..], false)]),
            Some(vec![5.0; 2]),
            "the expert itself"
        );
        assert_eq!(clipped(&own, &[0.0; 3], &[vec![9.0; 2]]), None);
        let huge = [f32::MAX, 0.0];
        assert_eq!(clipped(&huge, &huge.map(|value| -value), &[huge.to_vec()]), None);
    }

    proptest! {
        #[test]
        fn hostile_copies_move_an_honest_one_by_no_more_than_the_bound(
            own in proptest::collection::vec(-10.0_f32..10.0, 4),
            before in proptest::collection::vec(-10.0_f32..10.0, 4),
            others in proptest::collection::vec(proptest::collection::vec(any::<f32>(), 4), 0..4),
        ) {
            let Some(mean) = clipped(&own, &before, &others) else { return Ok(()) };
            let moved = norm(&difference(&own, &before).unwrap());
            let pulled = norm(&difference(&mean, &own).unwrap());
            let n_others = others.len() as f64;
            let bound = COPY_DISTANCE_MAX * n_others / (n_others + 1.0) * moved;
            prop_assert!(pulled <= bound * 1.0001 + 1e-5, "{} of {}", pulled, bound);
        }
    }
}
