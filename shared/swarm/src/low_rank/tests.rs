//! Factors against dense references, and what is owed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::Sha256Hash;
use proptest::prelude::*;

use super::linear::orthonormalise;
use super::owed::{left_over, with_owed};
use super::*;

fn random_values(n: usize, random: &mut SplitMix64) -> Vec<f32> {
    (0..n).map(|_| (random.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Orthonormal columns, each of `n_each` values.
fn random_columns(n_each: usize, n_columns: usize, random: &mut SplitMix64) -> Vec<f32> {
    let mut columns = random_values(n_each * n_columns, random);
    orthonormalise(&mut columns, n_each, random);
    columns
}

/// A matrix with these singular values.
fn matrix(n_rows: usize, n_columns: usize, singular: &[f64], random: &mut SplitMix64) -> Vec<f32> {
    let left = random_columns(n_rows, singular.len(), random);
    let right = random_columns(n_columns, singular.len(), random);
    let value = |row: usize, column: usize| {
        let each = singular.iter().enumerate().map(|(index, s)| {
            s * f64::from(left[index * n_rows + row]) * f64::from(right[index * n_columns + column])
        });
        each.sum::<f64>() as f32
    };
    (0..n_rows * n_columns).map(|index| value(index / n_columns, index % n_columns)).collect()
}

fn plan(n_rows: usize, n_columns: usize, rank: usize) -> LowRank {
    LowRank::new(n_rows * n_columns, &[Shape { offset: 0, n_rows, n_columns }], rank).unwrap()
}

/// What one peer alone would step by.
fn round_trip(plan: &LowRank, values: &[f32], start: &[f32]) -> Vec<f32> {
    let mut basis = plan.basis(values, start);
    plan.orthonormalise_basis(&mut basis);
    plan.expand(&basis, &plan.factors(values, &basis))
}

fn distance(one: &[f32], other: &[f32]) -> f64 {
    let squares = one.iter().zip(other).map(|(one, other)| (f64::from(*one) - f64::from(*other)).powi(2));
    squares.sum::<f64>().sqrt()
}

fn norm(values: &[f32]) -> f64 {
    distance(values, &vec![0.0; values.len()])
}

/// Largest difference of `columns^T columns` from the identity.
fn far_from_orthonormal(columns: &[f32], n_each: usize) -> f64 {
    let all: Vec<&[f32]> = columns.chunks_exact(n_each).collect();
    let mut largest = 0.0f64;
    for (i, one) in all.iter().enumerate() {
        for (j, other) in all.iter().enumerate() {
            let product: f64 = one.iter().zip(*other).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            largest = largest.max((product - f64::from(u8::from(i == j))).abs());
        }
    }
    largest
}

#[test]
fn columns_become_orthonormal_whatever_they_are() {
    let mut random = SplitMix64::new(1);
    let n_each = 40;
    let column = random_values(n_each, &mut random);
    let nearly: Vec<f32> = column.iter().map(|value| value * (1.0 + 1e-7)).collect();
    let huge: Vec<f32> = column.iter().rev().map(|value| value * 1e37).collect();
    let tiny: Vec<f32> = random_values(n_each, &mut random).iter().map(|value| value * 1e-37).collect();
    let not_finite = vec![f32::INFINITY; n_each];
    let mut columns =
        [&column, &column, &nearly, &vec![0.0; n_each], &huge, &tiny, &not_finite].map(Vec::clone).concat();
    orthonormalise(&mut columns, n_each, &mut random);
    assert!(far_from_orthonormal(&columns, n_each) < 1e-6);
    // Of what had a direction it is that direction.
    let along: f64 = column.iter().zip(&columns).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    assert!((along / norm(&column) - 1.0).abs() < 1e-6);
}

#[test]
fn a_matrix_of_the_rank_comes_back_at_once() {
    let mut random = SplitMix64::new(2);
    for (n_rows, n_columns) in [(30, 50), (50, 30), (7, 100)] {
        let values = matrix(n_rows, n_columns, &[3.0, 0.5], &mut random);
        let plan = plan(n_rows, n_columns, 2);
        let back = round_trip(&plan, &values, &plan.first_start());
        assert!(distance(&back, &values) < 1e-5 * norm(&values), "{n_rows} by {n_columns}");
        // Its own factors are found again from what was stepped by.
        let next = plan.next_start(&back, &plan.first_start());
        let again = round_trip(&plan, &values, &next);
        assert!(distance(&again, &values) < 1e-5 * norm(&values), "{n_rows} by {n_columns}");
    }
}

/// The best approximation of rank r leaves the singular values beyond the first r.
#[test]
fn warm_starts_come_close_to_the_best_approximation() {
    let mut random = SplitMix64::new(3);
    let falling: Vec<f64> = (0..24).map(|index| 0.8f64.powi(index)).collect();
    let flat = vec![1.0; 24];
    for (singular, worst) in [(&falling, 1.01), (&flat, 1.15)] {
        for rank in [1, 2, 4, 8] {
            let values = matrix(40, 60, singular, &mut random);
            let plan = plan(40, 60, rank);
            let best = singular[rank..].iter().map(|s| s * s).sum::<f64>().sqrt();
            let mut start = plan.first_start();
            let cold = distance(&round_trip(&plan, &values, &start), &values);
            for _ in 0..20 {
                let mean = round_trip(&plan, &values, &start);
                start = plan.next_start(&mean, &start);
            }
            let warm = distance(&round_trip(&plan, &values, &start), &values);
            assert!(warm >= best * 0.999, "{warm} is better than the best, {best}");
            assert!(warm <= worst * best, "rank {rank}: {warm}, the best is {best}");
            assert!(warm <= cold * 1.000_1, "rank {rank}: {warm} after {cold}");
        }
    }
}

/// Means of bases and factors are those of the mean matrix: nothing but the rank is lost on the way.
#[test]
fn factors_of_several_peers_are_those_of_their_mean() {
    let mut random = SplitMix64::new(4);
    let (n_values, rank) = (5 + 12 * 20 + 3 + 9 * 30 + 4, 2);
    let shapes =
        [(5, 12, 20), (248, 9, 30)].map(|(offset, n_rows, n_columns)| Shape { offset, n_rows, n_columns });
    let plan = LowRank::new(n_values, &shapes, rank).unwrap();
    assert_eq!(plan.n_basis_values(), rank * (12 + 9));
    assert_eq!(plan.n_factor_values(), rank * (20 + 30) + 5 + 3 + 4);
    let n_samples = [3.0, 1.0, 4.0f32];
    let peers: Vec<Vec<f32>> = n_samples.iter().map(|_| random_values(n_values, &mut random)).collect();
    let mean = |of: &[Vec<f32>]| -> Vec<f32> {
        let each = |index: usize| of.iter().zip(n_samples).map(|(values, n)| values[index] * n / 8.0).sum();
        (0..of[0].len()).map(each).collect()
    };
    let start = plan.first_start();
    let mut basis = mean(&peers.iter().map(|values| plan.basis(values, &start)).collect::<Vec<_>>());
    plan.orthonormalise_basis(&mut basis);
    let factors = mean(&peers.iter().map(|values| plan.factors(values, &basis)).collect::<Vec<_>>());
    let got = plan.expand(&basis, &factors);
    let want = round_trip(&plan, &mean(&peers), &start);
    assert!(distance(&got, &want) < 1e-5 * norm(&want));
    // Values outside of matrices are the mean itself.
    let dense = mean(&peers);
    for range in [0..5, 245..248, 518..522] {
        assert!(distance(&got[range.clone()], &dense[range]) < 1e-6);
    }
}

/// The same bits on every machine, in every version: peers compare the hash of their models.
#[test]
fn bits_are_pinned() {
    let mut random = SplitMix64::new(5);
    let (values, plan) = (random_values(37 * 53, &mut random), plan(37, 53, 3));
    let start = plan.first_start();
    let mean = round_trip(&plan, &values, &start);
    let next = plan.next_start(&mean, &start);
    let bytes: Vec<u8> = [start, mean, next].concat().iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(
        Sha256Hash::of(&bytes).to_string(),
        "6120663b842ebf7559040ea1ae408503689eb4af3a88a131f2c35d7ffc8b4424"
    );
}

#[test]
fn plans_that_make_no_sense_are_refused() {
    let shape = |offset, n_rows, n_columns| Shape { offset, n_rows, n_columns };
    let large = shape(0, 100, 100);
    for rank in [0, RANK_MAX + 1] {
        assert_eq!(LowRank::new(10_000, &[large], rank), Err(LowRankError::Rank(rank)));
    }
    for (n_values, shapes) in [
        (9_999, vec![large]),
        (20_000, vec![large, shape(9_999, 10, 10)]),
        (20_000, vec![shape(10_000, 10, 10), large]),
        (20_000, vec![shape(0, usize::MAX, 2)]),
        (20_000, vec![shape(usize::MAX, 10, 10)]),
    ] {
        let error = LowRank::new(n_values, &shapes, 2).unwrap_err();
        assert!(matches!(error, LowRankError::Shape { .. }), "{error}");
    }
    // Factors of rank 5 of 10 by 10 are as large as the matrix.
    for shapes in [vec![], vec![shape(0, 10, 10)], vec![shape(3, 7, 0)], vec![shape(0, 50, 1)]] {
        assert_eq!(LowRank::new(100, &shapes, 5), Err(LowRankError::Nothing(5)));
    }
    assert_eq!(Shape::of_tensor(3, &[6, 5, 5]), shape(3, 6, 25));
    assert_eq!(Shape::of_tensor(3, &[6]), shape(3, 6, 1));
}

/// One peer whose gradients are these, with so many samples each, in turn; what travelled of each, and what is owed.
fn travel(plan: &LowRank, given: &[(Vec<f32>, u64)]) -> (Vec<Vec<f32>>, Vec<f32>) {
    let (mut start, mut owed, mut travelled) = (plan.first_start(), Vec::new(), Vec::new());
    for (mean, n_samples) in given {
        let values = with_owed(mean, *n_samples, &owed);
        let mut basis = plan.basis(&values, &start);
        plan.orthonormalise_basis(&mut basis);
        let factors = plan.factors(&values, &basis);
        owed = left_over(plan, &values, *n_samples, &basis, &factors);
        let mean = plan.expand(&basis, &factors);
        start = plan.next_start(&mean, &start);
        travelled.push(mean);
    }
    (travelled, owed)
}

#[test]
fn all_of_a_gradient_arrives_in_the_end() {
    let mut random = SplitMix64::new(6);
    let (values, plan) = (random_values(20 * 30, &mut random), plan(20, 30, 1));
    let steps = |n| {
        let (travelled, _) = travel(&plan, &vec![(values.clone(), 7); n]);
        let mean = |index: usize| travelled.iter().map(|mean| mean[index]).sum::<f32>() / n as f32;
        let mean: Vec<f32> = (0..values.len()).map(mean).collect();
        distance(&mean, &values) / norm(&values)
    };
    let (after_one, after_many, after_more) = (steps(1), steps(100), steps(400));
    assert!(after_one > 0.8, "{after_one}");
    assert!(after_many < 0.25, "{after_many}");
    assert!(after_more < 0.3 * after_many, "{after_more} after {after_many}");
}

#[test]
fn what_has_exploded_is_forgotten() {
    assert_eq!(with_owed(&[1.0, 2.0], 1, &[f32::MAX, f32::MAX]), [f32::MAX, f32::MAX]);
    assert_eq!(with_owed(&[f32::MAX, 2.0], 1, &[f32::MAX, 1.0]), [f32::MAX, 2.0]);
    assert_eq!(with_owed(&[1.0, 2.0], 4, &[2.0, f32::NAN]), [1.0, 2.0]);
    assert_eq!(with_owed(&[1.0, 2.0], 4, &[2.0, 4.0]), [1.5, 3.0]);
    assert_eq!(with_owed(&[1.0, 2.0], 4, &[]), [1.0, 2.0]);
}

proptest! {
    #[test]
    fn what_travels_and_what_is_owed_is_what_was_given(
        seed in any::<u64>(),
        n_samples in prop::collection::vec(1u64..5000, 1..12),
        rank in 1usize..4,
    ) {
        let mut random = SplitMix64::new(seed);
        let shapes = [Shape { offset: 2, n_rows: 11, n_columns: 17 }];
        let plan = LowRank::new(2 + 11 * 17 + 6, &shapes, rank).unwrap();
        let given: Vec<_> = n_samples.iter().map(|n| (random_values(195, &mut random), *n)).collect();
        let (travelled, owed) = travel(&plan, &given);
        let mut scale = 0.0;
        for index in 0..195 {
            let of_given: f64 = given.iter().map(|(mean, n)| f64::from(mean[index]) * *n as f64).sum();
            let came = travelled.iter().zip(&n_samples).map(|(mean, n)| f64::from(mean[index]) * *n as f64);
            let error = (of_given - came.sum::<f64>() - f64::from(owed[index])).abs();
            scale = n_samples.iter().sum::<u64>() as f64 * n_samples.len() as f64;
            prop_assert!(error < 1e-5 * scale, "value {index}: {error} of {scale}");
        }
        prop_assert!(scale > 0.0);
    }

    #[test]
    fn any_values_keep_their_length_and_stay_finite(
        values in prop::collection::vec(-1e30f32..1e30, 9 * 12 + 1),
        zeros in any::<bool>(),
    ) {
        let plan = LowRank::new(109, &[Shape { offset: 0, n_rows: 9, n_columns: 12 }], 2).unwrap();
        let values = if zeros { vec![0.0; 109] } else { values };
        let start = plan.first_start();
        let mean = round_trip(&plan, &values, &start);
        prop_assert_eq!(mean.len(), 109);
        prop_assert!(mean.iter().all(|value| value.is_finite()));
        prop_assert!(norm(&mean) <= norm(&values) * 1.001);
        let next = plan.next_start(&mean, &start);
        prop_assert!(far_from_orthonormal(&next, 12) < 1e-5);
    }
}
