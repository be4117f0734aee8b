//! Answers of experts are computed once more. Learning@home (§3.3) trusts its hosts; these are strangers.
//!
//! A host signs each answer, with the steps of its expert, and about once a minute a checkpoint of the expert. A trainer keeps some
//! answers ([`AnswerSamples`]) and shows them to its backbone, which takes one now and then ([`chosen`]), fetches checkpoints from
//! their keepers, not from the host, and computes it again:
//!
//! - Where a checkpoint is of the very step, the answer follows from it. Another one is evidence: the host has signed both.
//! - Else there are checkpoints before and after it. The expert cannot have been farther from both than they are from each other, by
//!   some factor ([`AnswerDrift`]). An answer that is proves nothing to others, and after some of them the backbone lets the host have
//!   no places ([`HostStandings`]): so nobody is honest at the steps of its checkpoints alone.
//!
//! The host does not know which answers are kept, nor when they are looked at.

mod samples;
mod standings;
#[cfg(test)]
mod tests;

use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::experts::checkpoints::CheckpointVersion;

pub use self::samples::{ANSWER_AGE_MAX, ANSWER_BYTES_MAX, AnswerSamples};
pub use self::standings::{DISTRUSTED_FOR, FAR_MAX, HostStandings};
use crate::recomputation::Difference;
use crate::robust::norm;

/// Devices differ by so much of an answer's norm: half precision, and other orders of sums.
pub const TOLERANCE: f32 = 0.03;
/// An expert is at most so many times as far from a checkpoint as the next one is. On its way from one to the other an expert that
/// learns is about as far from both as they are from each other.
const DRIFT_FACTOR: f64 = 4.0;

/// Which of the offered answers of one expert can be checked, where its newest checkpoint is of this version: one of the very
/// step, or else one that is newer and waits for the next checkpoint. Index into `offered`.
pub fn chosen(newest: CheckpointVersion, offered: &[CheckpointVersion]) -> Option<usize> {
    let exact = offered.iter().position(|version| *version == newest);
    let is_between = |version: &CheckpointVersion| version.term == newest.term && *version > newest;
    exact.or_else(|| offered.iter().position(is_between))
}

/// How an answer differs from what its expert gives at the same step, `[n_rows, output_values]`. `None` where nothing can be said.
pub fn difference(claimed: &[f32], recomputed: &[f32], codec: TensorCodec) -> Option<Difference> {
    Difference::between(claimed, recomputed, (codec, 0), TOLERANCE)
}

/// How far an answer is from what its expert gave before and after.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnswerDrift {
    /// From the farther of both, relative to the larger of their norms.
    pub distance: f32,
    /// The farthest that an expert on its way from one to the other gets.
    pub allowed: f32,
}

impl AnswerDrift {
    /// Of an answer, and what the checkpoints before and after it give to the same inputs; all `[n_rows, output_values]` and
    /// finite. `None` where nothing can be said: both give zero, or the lengths differ.
    pub fn of(claimed: &[f32], (before, after): (&[f32], &[f32]), codec: TensorCodec) -> Option<Self> {
        let apart = |a: &[f32], b: &[f32]| {
            let differences: Vec<f32> = a.iter().zip(b).map(|(a, b)| a - b).collect();
            norm(&differences)
        };
        let length = norm(before).max(norm(after));
        let is_said = length.is_normal() && claimed.len() == before.len() && before.len() == after.len();
        // What the encoding has lost counts as in an exact comparison.
        let lost = difference(claimed, before, codec).or_else(|| difference(claimed, after, codec))?.allowed;
        let drift = DRIFT_FACTOR * apart(before, after) / length;
        let distance = apart(claimed, before).max(apart(claimed, after)) / length;
        (is_said && distance.is_finite())
            .then_some(Self { distance: distance as f32, allowed: 2.0 * lost + drift as f32 })
    }

    /// Whether no expert on that way gave the answer.
    pub fn is_far(&self) -> bool {
        self.distance > self.allowed
    }
}
