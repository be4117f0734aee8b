//! A mean over several peers by factors of low rank (PowerSGD: Vogels, Karimireddy and Jaggi 2019, algorithm 1).
//!
//! The flat vector is seen as the matrices of the model's layers. Of a matrix `M`, `[rows, columns]`, peers average two
//! narrow ones, one after the other: the basis `P = M Q`, made orthonormal, and the factor `M^T P`. Their product
//! `P (M^T P)^T` is the mean of what each peer's matrix is within the basis, and what it is beyond is the peer's to
//! keep ([`owed`]). `Q` is the start: each step's comes from what was stepped by before
//! ([`LowRank::next_start`]), one more power iteration each time. Vectors, and matrices that two factors would not make
//! smaller, travel whole, with the factors.
//!
//! Whoever has the same start, the same mean basis and the same mean factors has the same mean, to the last bit: all
//! sums are taken in a fixed order, of operations that IEEE 754 rounds the same everywhere.

mod linear;
pub mod owed;
#[cfg(test)]
mod tests;

use std::ops::Range;

use self::linear::{accumulate, dot, orthonormalise};
use crate::random::SplitMix64;

/// Most columns of a factor.
pub const RANK_MAX: usize = 64;
/// Seed of the start before the first step. Any would do that all have alike.
const START_SEED: u64 = 0x5042_7a1e;

/// A matrix within a flat vector, row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Position of its first value.
    pub offset: usize,
    /// Its rows.
    pub n_rows: usize,
    /// Its columns.
    pub n_columns: usize,
}

impl Shape {
    /// A tensor of any number of dimensions as a matrix: its first one, and all others together.
    #[must_use]
    pub fn of_tensor(offset: usize, dimensions: &[usize]) -> Self {
        let (n_rows, rest) = dimensions.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
        Self { offset, n_rows, n_columns: rest.iter().product() }
    }

    fn n_values(&self) -> Option<usize> {
        self.n_rows.checked_mul(self.n_columns)
    }
}

/// Why a vector cannot be averaged so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LowRankError {
    /// A rank that is none.
    #[error("a rank of 1 to {RANK_MAX} is wanted, got {0}")]
    Rank(usize),
    /// Matrices that overlap, go backwards or leave the vector.
    #[error("the matrix at value {offset} does not follow the one before within {n_values} values")]
    Shape {
        /// Of the matrix.
        offset: usize,
        /// Of the vector.
        n_values: usize,
    },
    /// No matrix is large enough: all of it would travel whole.
    #[error("no matrix is made smaller by factors of rank {0}")]
    Nothing(usize),
}

/// Which values of a vector travel as factors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LowRank {
    rank: usize,
    n_values: usize,
    /// Those that two factors make smaller.
    matrices: Vec<Shape>,
    /// All other values.
    whole: Vec<Range<usize>>,
}

impl LowRank {
    /// Of a vector of `n_values` with these matrices, in their order. Values outside of them travel whole.
    ///
    /// # Errors
    /// See [`LowRankError`].
    pub fn new(n_values: usize, shapes: &[Shape], rank: usize) -> Result<Self, LowRankError> {
        if !(1..=RANK_MAX).contains(&rank) {
            return Err(LowRankError::Rank(rank));
        }
        let (mut matrices, mut whole, mut end) = (Vec::new(), Vec::new(), 0);
        let mut whole_from = 0;
        for shape in shapes {
            let after = shape.n_values().and_then(|n| shape.offset.checked_add(n));
            let Some(after) = after.filter(|after| shape.offset >= end && *after <= n_values) else {
                return Err(LowRankError::Shape { offset: shape.offset, n_values });
            };
            end = after;
            if rank * (shape.n_rows + shape.n_columns) < after - shape.offset {
                whole.push(whole_from..shape.offset);
                whole_from = after;
                matrices.push(*shape);
            }
        }
        whole.push(whole_from..n_values);
        whole.retain(|range| !range.is_empty());
        if matrices.is_empty() {
            return Err(LowRankError::Nothing(rank));
        }
        Ok(Self { rank, n_values, matrices, whole })
    }

    /// Values of the vector.
    #[must_use]
    pub fn n_values(&self) -> usize {
        self.n_values
    }

    /// Values of a basis: `rank` columns of as many values as each matrix has rows.
    #[must_use]
    pub fn n_basis_values(&self) -> usize {
        self.matrices.iter().map(|matrix| self.rank * matrix.n_rows).sum()
    }

    /// Values of a start: `rank` columns of as many values as each matrix has columns.
    #[must_use]
    pub fn n_start_values(&self) -> usize {
        self.matrices.iter().map(|matrix| self.rank * matrix.n_columns).sum()
    }

    /// Values of the factors, and of all that travels whole.
    #[must_use]
    pub fn n_factor_values(&self) -> usize {
        self.n_start_values() + self.whole.iter().map(ExactSizeIterator::len).sum::<usize>()
    }

    /// The start of the first step, the same for all: columns that are orthonormal.
    #[must_use]
    pub fn first_start(&self) -> Vec<f32> {
        let mut start = vec![0.0; self.n_start_values()];
        // Columns of zeros become pseudo-random ones.
        self.orthonormalise(&mut start, |matrix| matrix.n_columns);
        start
    }

    /// `P = M Q`: this peer's share of the basis, `[n_basis_values]`.
    ///
    /// - `values`: `[n_values]`
    /// - `start`: `[n_start_values]`
    #[must_use]
    pub fn basis(&self, values: &[f32], start: &[f32]) -> Vec<f32> {
        let mut basis = vec![0.0; self.n_basis_values()];
        let (mut rest, mut starts) = (basis.as_mut_slice(), start);
        for matrix in &self.matrices {
            let (into, others) = rest.split_at_mut(self.rank * matrix.n_rows);
            let (from, more) = starts.split_at(self.rank * matrix.n_columns);
            (rest, starts) = (others, more);
            for (index, row) in rows(values, matrix).enumerate() {
                for (column, q) in from.chunks_exact(matrix.n_columns).enumerate() {
                    into[column * matrix.n_rows + index] = dot(row, q);
                }
            }
        }
        basis
    }

    /// Makes the columns of a mean basis orthonormal, of each matrix for itself.
    pub fn orthonormalise_basis(&self, basis: &mut [f32]) {
        self.orthonormalise(basis, |matrix| matrix.n_rows);
    }

    /// `M^T P` of each matrix, and what travels whole: this peer's share of the mean, `[n_factor_values]`.
    ///
    /// - `values`: `[n_values]`
    /// - `basis`: `[n_basis_values]`, orthonormal
    #[must_use]
    pub fn factors(&self, values: &[f32], basis: &[f32]) -> Vec<f32> {
        let mut factors = vec![0.0; self.n_start_values()];
        self.multiply_transposed(values, basis, &mut factors);
        for range in &self.whole {
            factors.extend_from_slice(&values[range.clone()]);
        }
        factors
    }

    /// `P (M^T P)^T` of each matrix, and what travelled whole: `[n_values]`.
    ///
    /// - `basis`: `[n_basis_values]`, orthonormal
    /// - `factors`: `[n_factor_values]`
    #[must_use]
    pub fn expand(&self, basis: &[f32], factors: &[f32]) -> Vec<f32> {
        let mut values = vec![0.0; self.n_values];
        let (mut bases, mut factors) = (basis, factors);
        for matrix in &self.matrices {
            let (p, others) = bases.split_at(self.rank * matrix.n_rows);
            let (q, more) = factors.split_at(self.rank * matrix.n_columns);
            (bases, factors) = (others, more);
            let into = &mut values[matrix.offset..matrix.offset + matrix.n_rows * matrix.n_columns];
            for (index, row) in into.chunks_exact_mut(matrix.n_columns).enumerate() {
                for (column, q) in q.chunks_exact(matrix.n_columns).enumerate() {
                    accumulate(row, p[column * matrix.n_rows + index], q);
                }
            }
        }
        for range in &self.whole {
            let (whole, others) = factors.split_at(range.len());
            values[range.clone()].copy_from_slice(whole);
            factors = others;
        }
        values
    }

    /// The start of the next step: one power iteration of the mean that was stepped by, from the start of this one.
    ///
    /// It follows from what all have who have the same model, so that nobody need be asked for it: a mean of this rank
    /// gives back its own factors, and a whole one, of a peer that stepped alone, the directions in which it is longest.
    ///
    /// - `mean`: `[n_values]`
    /// - `start`: `[n_start_values]`
    #[must_use]
    pub fn next_start(&self, mean: &[f32], start: &[f32]) -> Vec<f32> {
        let mut basis = self.basis(mean, start);
        self.orthonormalise_basis(&mut basis);
        let mut next = vec![0.0; self.n_start_values()];
        self.multiply_transposed(mean, &basis, &mut next);
        self.orthonormalise(&mut next, |matrix| matrix.n_columns);
        next
    }

    fn multiply_transposed(&self, values: &[f32], basis: &[f32], into: &mut [f32]) {
        let (mut rest, mut bases) = (into, basis);
        for matrix in &self.matrices {
            let (into, others) = rest.split_at_mut(self.rank * matrix.n_columns);
            let (p, more) = bases.split_at(self.rank * matrix.n_rows);
            (rest, bases) = (others, more);
            for (index, row) in rows(values, matrix).enumerate() {
                for (column, q) in into.chunks_exact_mut(matrix.n_columns).enumerate() {
                    accumulate(q, p[column * matrix.n_rows + index], row);
                }
            }
        }
    }

    fn orthonormalise(&self, columns: &mut [f32], n_each: impl Fn(&Shape) -> usize) {
        let mut random = SplitMix64::new(START_SEED);
        let mut rest = columns;
        for matrix in &self.matrices {
            let (of_matrix, others) = rest.split_at_mut(self.rank * n_each(matrix));
            orthonormalise(of_matrix, n_each(matrix), &mut random);
            rest = others;
        }
    }
}

fn rows<'v>(values: &'v [f32], matrix: &Shape) -> impl Iterator<Item = &'v [f32]> {
    values[matrix.offset..matrix.offset + matrix.n_rows * matrix.n_columns].chunks_exact(matrix.n_columns)
}
