//! CenteredClip over gradients of different weight.
//!
//! Karimireddy, He and Jaggi 2021 ("Learning from History for Byzantine Robust Optimization", §4): from a center
//! `v`, repeat `v ← v + Σ w_i (x_i − v) min(1, τ / ‖x_i − v‖)`, so that a gradient that is farther
//! than τ pulls no harder than one at distance τ. Gorbunov, Borzunov, Diskin and Ryabinin 2021 ("Secure Distributed Training at
//! Scale", §3) use it for collaborations of volunteers. Our own changes, and why:
//!
//! - The center begins at the coordinate-wise median of this round, and not at the last round's aggregate: a
//!   round then depends on its own contributions only, and a replay from any checkpoint gives the same bits.
//! - Weights are samples, but never more than the median member has: a member that claims a million samples gains
//!   nothing over the others. Less than a quarter of the members never have half of the weight, for any claims.
//!   The price is that a machine much faster than most counts as one of them.
//! - The mean of few samples is noisier than that of many, by the square root of their number. Distances are
//!   scaled by it, so that small honest shares are not taken for faults: `z_i = ‖x_i − v‖ √(w_i / w_median)`. A
//!   Byzantine member that claims few samples may be farther away, and pulls less: `w_i τ_i = τ √(w_i w_median)`.
//! - τ is [`RADIUS_MEDIANS`] times the median `z`. In many dimensions honest distances are nearly the same, so
//!   that honest members are hardly clipped at all.
//! - A member beyond [`FAR_MEDIANS`] times the median `z` is left out: such a crude attack has no pull at all, where
//!   clipping would leave it some in the same direction every time.
//!
//! One or two members are averaged by their samples: of two it cannot be decided which one is dishonest.

use super::median::{coordinate_median, lower_median};

/// The clipping radius τ, in medians of the members' distances.
pub const RADIUS_MEDIANS: f64 = 1.5;
/// A member farther away than this many medians is left out.
pub const FAR_MEDIANS: f64 = 6.0;
/// Iterations of the center. The paper's guarantee holds after one; a few more remove the error of the start.
pub const ITERATIONS: usize = 5;
/// Partial sums that are computed in parallel (SIMD), always in the same order.
const LANES: usize = 8;

/// One of the gradients to aggregate.
#[derive(Debug, Clone, Copy)]
pub struct WeightedGradient<'a> {
    /// `[n_values]`, finite.
    pub values: &'a [f32],
    /// Samples behind it, above zero.
    pub n_samples: u64,
}

/// Treatment of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClipVerdict {
    /// It counted unchanged.
    Unclipped,
    /// Its distance was clipped to τ.
    Clipped,
    /// It was too far away and did not count.
    LeftOut,
}

/// Treatment of a member, and its distance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClipOutcome {
    /// Whether it counted.
    pub verdict: ClipVerdict,
    /// Distance from the coordinate-wise median, scaled by samples, in medians of all such distances. Infinite where
    /// most members agree to the bit and this one does not.
    pub distance: f64,
}

/// The aggregate of some members.
#[derive(Debug, Clone, PartialEq)]
pub struct Clipped {
    /// `[n_values]`, within the range of the members.
    pub values: Vec<f32>,
    /// Outcome of each member.
    pub outcomes: Vec<ClipOutcome>,
}

/// A gradient on which a minority of Byzantine members has bounded influence.
///
/// # Shapes
/// - `members`: at least one, all of the same length
/// - returns `[n_values]`, empty without members
pub fn centered_clip(members: &[WeightedGradient<'_>]) -> Clipped {
    if members.len() < 3 {
        let outcomes = vec![ClipOutcome { verdict: ClipVerdict::Unclipped, distance: 0.0 }; members.len()];
        return Clipped { values: weighted_mean(members), outcomes };
    }
    let mut samples: Vec<u64> = members.iter().map(|member| member.n_samples).collect();
    let cap = lower_median(&mut samples, u64::cmp).unwrap_or(1).max(1);
    // At most 1: the part of the median weight that a member has.
    let weight = |member: &WeightedGradient<'_>| member.n_samples.clamp(1, cap) as f64 / cap as f64;
    let weights: Vec<f64> = members.iter().map(weight).collect();

    let values: Vec<&[f32]> = members.iter().map(|member| member.values).collect();
    let mut center = coordinate_median(&values);
    let scaled =
        values.iter().zip(&weights).map(|(values, weight)| distance(values, &center) * weight.sqrt());
    let scaled: Vec<f64> = scaled.collect();
    let median = lower_median(&mut scaled.clone(), f64::total_cmp).unwrap_or(0.0);
    let is_near: Vec<bool> = scaled.iter().map(|&scaled| scaled <= FAR_MEDIANS * median).collect();

    let radii: Vec<f64> = weights.iter().map(|weight| RADIUS_MEDIANS * median / weight.sqrt()).collect();
    let near = || (0..members.len()).filter(|&at| is_near[at]);
    let total: f64 = near().map(|at| weights[at]).sum();
    let mut is_clipped = vec![false; members.len()];
    let mut step = vec![0.0_f64; center.len()];
    for _ in 0..ITERATIONS {
        step.fill(0.0);
        for at in near() {
            let distance = distance(values[at], &center);
            is_clipped[at] = distance > radii[at];
            let kept = if is_clipped[at] { radii[at] / distance } else { 1.0 };
            add(&mut step, values[at], &center, kept * weights[at] / total);
        }
        center.iter_mut().zip(&step).for_each(|(center, step)| *center += step);
    }

    let outcome = |at: usize| {
        let verdict = match (is_near[at], is_clipped[at]) {
            (false, _) => ClipVerdict::LeftOut,
            (true, true) => ClipVerdict::Clipped,
            (true, false) => ClipVerdict::Unclipped,
        };
        let distance = if scaled[at] > 0.0 { scaled[at] / median } else { 0.0 };
        ClipOutcome { verdict, distance }
    };
    let outcomes = (0..members.len()).map(outcome).collect();
    Clipped { values: center.iter().map(|&value| value as f32).collect(), outcomes }
}

/// Mean weighted by samples, empty without members. Finite for finite values of any size.
fn weighted_mean(members: &[WeightedGradient<'_>]) -> Vec<f32> {
    let Some(first) = members.first() else { return Vec::new() };
    let total: f64 = members.iter().map(|member| member.n_samples as f64).sum();
    let mut mean = vec![0.0_f64; first.values.len()];
    for member in members {
        let share = member.n_samples as f64 / total;
        mean.iter_mut().zip(member.values).for_each(|(mean, &value)| *mean += share * f64::from(value));
    }
    mean.into_iter().map(|value| value as f32).collect()
}

/// `step += (values − center) · factor`
fn add(step: &mut [f64], values: &[f32], center: &[f64], factor: f64) {
    for ((step, &value), center) in step.iter_mut().zip(values).zip(center) {
        *step += (f64::from(value) - center) * factor;
    }
}

/// Euclidean distance, summed in the same order everywhere, so that the same values give the same bits.
fn distance(values: &[f32], center: &[f64]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    let (value_chunks, value_rest) = values.as_chunks::<LANES>();
    let (center_chunks, center_rest) = center.as_chunks::<LANES>();
    for (values, center) in value_chunks.iter().zip(center_chunks) {
        for ((lane, &value), center) in lanes.iter_mut().zip(values).zip(center) {
            let off = f64::from(value) - center;
            *lane += off * off;
        }
    }
    for ((lane, &value), center) in lanes.iter_mut().zip(value_rest).zip(center_rest) {
        let off = f64::from(value) - center;
        *lane += off * off;
    }
    lanes.iter().sum::<f64>().sqrt()
}

/// The Euclidean norm of `values`. It does not overflow for finite values.
pub fn norm(values: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks.iter().map(<[f32; LANES]>::as_slice).chain([rest]) {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(value) * f64::from(value);
        }
    }
    lanes.iter().sum::<f64>().sqrt()
}
