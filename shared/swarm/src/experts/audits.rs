//! Answers of experts are computed once more. Learning@home (§3.3) trusts its hosts; these are strangers.
//!
//! A host signs each answer, with the steps of its expert, and about once a minute a checkpoint of the expert. A trainer keeps some
//! answers ([`AnswerSamples`]) and shows them to its backbone, which takes one now and then ([`chosen`]), fetches checkpoints from
//! their keepers, not from the host, and computes it again:
//!
//! - Where a checkpoint is of the very step, the answer follows from it. Another one is evidence: the host has signed both.
//! - Else there are checkpoints before and after it. An answer that is much farther from both than they are from each other
//!   ([`AnswerDrift`]) proves nothing to others; a host with some of them gets no places at this backbone ([`FarAnswers`]). An expert
//!   that moves far within a minute cannot be checked in this way.
//!
//! The host does not know which answers are kept, nor when they are looked at. It knows when it makes checkpoints, and with what
//! steps it signs: one that lies only between its checkpoints, and within that distance, is not found.

mod far;
mod samples;
#[cfg(test)]
mod tests;

use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::experts::checkpoints::CheckpointVersion;

pub use self::far::{DISTRUSTED_FOR, FAR_MAX, FarAnswers};
pub use self::samples::{ANSWER_AGE_MAX, ANSWER_BYTES_MAX, AnswerSamples};

use crate::random::SplitMix64;
use crate::recomputation::Difference;
use crate::robust::norm;

/// Devices differ by so much of an answer's norm: half precision, and other orders of sums.
pub const TOLERANCE: f32 = 0.03;
/// What rounding can do to an answer whose inputs are chosen so that its terms cancel: so many times what a change of the inputs by
/// [`INPUT_NOISE`] does.
const SENSITIVITY_FACTOR: f32 = 2.0;
/// By which part the inputs are changed to see how sensitive the answer is.
pub const INPUT_NOISE: f32 = 1.0 / 1024.0;
/// An answer that changes by more than this with its inputs says nothing.
const SENSITIVITY_MAX: f32 = 0.1;
/// An expert that learns is about as far from a checkpoint as the next one is; beyond so many times as far, an answer is far.
const DRIFT_FACTOR: f64 = 4.0;
/// Where the two are farther from each other, relative to their norm, nothing can be said of what is between them.
const DRIFT_MAX: f64 = 0.5;

/// Which of the offered answers of one expert can be checked, where its newest checkpoint is of this version: one of the very
/// step, or else one that is newer and waits for the next checkpoint. Index into `offered`.
pub fn chosen(newest: CheckpointVersion, offered: &[CheckpointVersion]) -> Option<usize> {
    let exact = offered.iter().position(|version| *version == newest);
    let is_between = |version: &CheckpointVersion| version.term == newest.term && *version > newest;
    exact.or_else(|| offered.iter().position(is_between))
}

/// Inputs, changed by [`INPUT_NOISE`] up or down.
pub fn noisy(inputs: &[f32]) -> Vec<f32> {
    let mut random = SplitMix64::new(inputs.len() as u64);
    let mut sign = || if random.next_u64() & 1 == 0 { INPUT_NOISE } else { -INPUT_NOISE };
    inputs.iter().map(|value| value * (1.0 + sign())).collect()
}

/// How an answer differs from what its expert gives at the same step, `[n_rows, output_values]`; it gives `with_noise` to
/// [changed](noisy) inputs. `None` where nothing can be said: it gives zero, or answers that hang on the rounding of the inputs.
pub fn difference(
    claimed: &[f32],
    (recomputed, with_noise): (&[f32], &[f32]),
    codec: TensorCodec,
) -> Option<Difference> {
    let sensitivity = Difference::between(with_noise, recomputed, (codec, 0), 0.0)?.distance;
    let tolerance = TOLERANCE + SENSITIVITY_FACTOR * sensitivity;
    let difference = Difference::between(claimed, recomputed, (codec, 0), tolerance)?;
    (sensitivity <= SENSITIVITY_MAX).then_some(difference)
}

/// How far an answer is from what its expert gave before and after.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnswerDrift {
    /// From the farther of both, relative to the larger of their norms.
    pub distance: f32,
    /// Beyond that it is far.
    pub allowed: f32,
}

impl AnswerDrift {
    /// Of an answer, and what the checkpoints before and after it give to the same inputs; all `[n_rows, output_values]` and
    /// finite. `None` where nothing can be said: both give zero, they are far from each other, or the lengths differ.
    pub fn of(claimed: &[f32], (before, after): (&[f32], &[f32]), codec: TensorCodec) -> Option<Self> {
        let apart = |a: &[f32], b: &[f32]| {
            let differences: Vec<f32> = a.iter().zip(b).map(|(a, b)| a - b).collect();
            norm(&differences)
        };
        let length = norm(before).max(norm(after));
        let is_said = length.is_normal() && claimed.len() == before.len() && before.len() == after.len();
        // What the encoding has lost counts as in an exact comparison.
        let by_encoding = |given: &[f32]| Difference::between(claimed, given, (codec, 0), TOLERANCE);
        let lost = by_encoding(before).or_else(|| by_encoding(after))?.allowed;
        let moved = apart(before, after) / length;
        let distance = apart(claimed, before).max(apart(claimed, after)) / length;
        (is_said && moved <= DRIFT_MAX && distance.is_finite()).then_some(Self {
            distance: distance as f32,
            allowed: 2.0 * lost + (DRIFT_FACTOR * moved) as f32,
        })
    }

    /// Whether no expert on that way gave the answer.
    pub fn is_far(&self) -> bool {
        self.distance > self.allowed
    }
}
