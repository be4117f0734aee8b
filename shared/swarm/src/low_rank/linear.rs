//! What factors are made with. Every sum has one order, whatever the machine, and every loop over values one that the
//! compiler can turn into vector instructions.

use std::iter::Sum;
use std::ops::{AddAssign, Mul};

use crate::random::SplitMix64;

/// Sums that are kept apart until the end.
const LANES: usize = 16;
/// A column of which less is left, once what is in the others is taken away, is rounding error.
const LEFT_MIN: f64 = 1e-5;
/// Columns that are tried in place of one that is in the others. The first will do, but for a chance of nothing.
const TRIES_MAX: usize = 4;

/// Sum of products, each of them and the sum in `T`.
pub(super) fn dot<T>(one: &[f32], other: &[f32]) -> T
where
    T: From<f32> + Copy + Default + AddAssign + Mul<Output = T> + Sum,
{
    let mut sums = [T::default(); LANES];
    let (ones, one_rest) = one.as_chunks::<LANES>();
    let (others, other_rest) = other.as_chunks::<LANES>();
    for (one, other) in ones.iter().zip(others) {
        for (sum, (one, other)) in sums.iter_mut().zip(one.iter().zip(other)) {
            *sum += T::from(*one) * T::from(*other);
        }
    }
    for (sum, (one, other)) in sums.iter_mut().zip(one_rest.iter().zip(other_rest)) {
        *sum += T::from(*one) * T::from(*other);
    }
    sums.into_iter().sum()
}

/// `into += factor * values`
pub(super) fn accumulate(into: &mut [f32], factor: f32, values: &[f32]) {
    for (into, value) in into.iter_mut().zip(values) {
        *into += factor * value;
    }
}

/// Makes columns of `n_each` values orthonormal, in their order (modified Gram and Schmidt, each column twice, because
/// rounding leaves something the first time). One that is zero, or in those before it, becomes a pseudo-random one.
pub(super) fn orthonormalise(columns: &mut [f32], n_each: usize, random: &mut SplitMix64) {
    for index in 0..columns.len() / n_each.max(1) {
        let (before, rest) = columns.split_at_mut(index * n_each);
        let column = &mut rest[..n_each];
        let mut n_tries = 0;
        while !becomes_unit(column, before) && n_tries < TRIES_MAX {
            column.iter_mut().for_each(|value| *value = signed_unit(random));
            n_tries += 1;
        }
    }
}

/// Whether enough was left of the column to have a direction; it is of no use where not.
fn becomes_unit(column: &mut [f32], before: &[f32]) -> bool {
    let given = norm(column);
    if !(given.is_finite() && given > 0.0 && scale(column, given)) {
        column.fill(0.0);
        return false;
    }
    for _ in 0..2 {
        for other in before.chunks_exact(column.len()) {
            let along = dot::<f64>(column, other) as f32;
            accumulate(column, -along, other);
        }
        let left = norm(column);
        if left < LEFT_MIN || !scale(column, left) {
            column.fill(0.0);
            return false;
        }
    }
    true
}

/// Divides by a norm; whether what comes out is finite, as it is but for the smallest norms there are.
fn scale(column: &mut [f32], norm: f64) -> bool {
    column.iter_mut().for_each(|value| *value = (f64::from(*value) / norm) as f32);
    column.iter().all(|value| value.is_finite())
}

fn norm(column: &[f32]) -> f64 {
    dot::<f64>(column, column).sqrt()
}

/// Uniform from -1 to 1.
fn signed_unit(random: &mut SplitMix64) -> f32 {
    (random.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0
}
