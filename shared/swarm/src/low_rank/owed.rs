//! What a peer's own mean lost on its way, which it adds to its next one (error feedback: Karimireddy et al. 2019).
//!
//! A mean counts with its samples, so what is owed is kept as a sum over samples: what travelled times its samples,
//! plus what is owed, is what was given, whatever the numbers of samples are.

use super::LowRank;

/// A mean together with what is owed.
///
/// Where a value of that leaves the finite numbers, what was owed has exploded and is forgotten.
///
/// - `mean`: `[n_values]`, finite, over `n_samples` above 0
/// - `owed`: `[n_values]`, a sum over samples; empty where nothing is
#[must_use]
pub fn with_owed(mean: &[f32], n_samples: u64, owed: &[f32]) -> Vec<f32> {
    let n_samples = n_samples.max(1) as f32;
    let all: Vec<f32> = mean.iter().zip(owed).map(|(mean, owed)| mean + owed / n_samples).collect();
    let is_good = all.len() == mean.len() && all.iter().all(|value| value.is_finite());
    if is_good { all } else { mean.to_vec() }
}

/// What `values` are beyond their share of the factors, as a sum over samples.
///
/// - `values`: `[n_values]`, what [`with_owed`] gave
/// - `basis`: `[n_basis_values]`, orthonormal
/// - `factors`: `[n_factor_values]`, of these values
#[must_use]
pub fn left_over(plan: &LowRank, values: &[f32], n_samples: u64, basis: &[f32], factors: &[f32]) -> Vec<f32> {
    let n_samples = n_samples as f32;
    let mut owed = plan.expand(basis, factors);
    owed.iter_mut().zip(values).for_each(|(travels, value)| *travels = n_samples * (value - *travels));
    owed
}
