//! Which prototypes pictures are assigned to, so that every prototype has as many (SwAV §3.1 eq. 3–5): the algorithm
//! of Sinkhorn and Knopp (Cuturi 2013), without a gradient.

use burn::tensor::Tensor;

/// Weight of the entropy of an assignment (the ε of eq. 3): the smaller, the harder it is.
const ENTROPY_WEIGHT: f32 = 0.05;
/// Times that columns and rows are scaled.
const ITERATIONS: usize = 3;
/// Largest score: a cosine.
const SCORE_MAX: f32 = 1.0;

/// Soft assignments of rows to columns.
///
/// # Shapes
/// - `scores`: `[n_samples, prototypes]`, cosines; the exponentials of all of them fit single precision
/// - returns the same, each row summing to 1, each column to about `n_samples / prototypes`
pub(in crate::engine) fn assign(scores: Tensor<2>) -> Tensor<2> {
    let mut assigned = ((scores - SCORE_MAX) / ENTROPY_WEIGHT).exp();
    for _ in 0..ITERATIONS {
        assigned = assigned.clone() / assigned.sum_dim(0);
        assigned = assigned.clone() / assigned.sum_dim(1);
    }
    assigned
}
