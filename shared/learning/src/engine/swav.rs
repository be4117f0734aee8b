//! The method of SwAV (Caron et al. 2020) as burn tensors: each crop of a picture predicts the prototype assignments of
//! another crop of it.
//!
//! Assignments are made by Sinkhorn and Knopp's algorithm over the pictures of a pass and those in the queue, so that
//! all prototypes are used; batch normalization in the head is over all crops of a pass. A gradient is therefore one
//! of a whole pass: the same pass gives the same gradient on every peer as long as there is no queue, and passes cut
//! otherwise give another one. No optimizer here, and no label.

pub(super) mod sinkhorn;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use barnraise_protocol::run::model::graph::LARGE_CROPS;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Tensor, TensorData};

/// What scores are divided by before they are probabilities (the τ of eq. 2).
const TEMPERATURE: f32 = 0.1;
/// Tensors at the end of the layout that are prototypes.
pub(super) const PROTOTYPE_TENSORS: usize = 1;

/// The rows of a large crop among those of all crops.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub(super) crop: usize,
    n_samples: usize,
}

impl Rows {
    pub(super) fn of(self, all: &Tensor<2>) -> Tensor<2> {
        all.clone().narrow(0, self.crop * self.n_samples, self.n_samples)
    }
}

pub(super) fn of_each_large(n_samples: usize, rows: impl Fn(Rows) -> Tensor<2>) -> Tensor<2> {
    Tensor::cat((0..LARGE_CROPS).map(|crop| rows(Rows { crop, n_samples })).collect(), 0)
}

/// The swapped prediction (eq. 1 and 2): losses of the crops, and their derivative.
pub(super) struct SwappedPrediction {
    /// Derivative of the pictures' summed losses by the scores, `[n_crops * n_samples, prototypes]`.
    pub(super) residual: Tensor<2>,
    /// `[2, n_samples]`: the loss of each picture, natural logarithm; and 1 where the second large crop's top-1
    /// prediction is the prototype that the first one was assigned to, 0 elsewhere.
    pub(super) values: Tensor<2>,
}

impl SwappedPrediction {
    /// # Shapes
    /// - `scores`: `[n_crops * n_samples, prototypes]`, crop by crop, the large ones first
    /// - `assignments`: `[LARGE_CROPS * n_samples, prototypes]`, each row summing to 1
    pub(super) fn of(scores: Tensor<2>, assignments: &Tensor<2>, n_crops: usize, n_samples: usize) -> Self {
        let device = scores.device();
        let large = |crop| Rows { crop, n_samples };
        let (first, second) = (large(0).of(assignments), large(1).of(assignments));
        let both = first.clone() + second.clone();
        // The target of each crop, summed over the large crops other than itself, and the number of those.
        let mut targets = vec![second, first.clone()];
        targets.extend((LARGE_CROPS..n_crops).map(|_| both.clone()));
        let targets = Tensor::cat(targets, 0);
        let counts =
            (0..n_crops * n_samples).map(|row| if row < LARGE_CROPS * n_samples { 1.0 } else { 2.0 });
        let counts = TensorData::new(counts.collect::<Vec<f32>>(), [n_crops * n_samples, 1]);
        let counts = Tensor::<2>::from_data(counts, &device);
        let weight = 1.0 / (LARGE_CROPS * (n_crops - 1)) as f32;

        let guessed = large(1).of(&scores).argmax(1);
        let is_right = first.argmax(1).equal(guessed).float().reshape([1, n_samples]);
        let logarithms = log_softmax(scores / TEMPERATURE, 1);
        let losses = (logarithms.clone() * targets.clone()).sum_dim(1) * -weight;
        let losses = losses.reshape([n_crops, n_samples]).sum_dim(0);
        let residual = (logarithms.exp() * counts - targets) * (weight / TEMPERATURE);
        Self { residual, values: Tensor::cat(vec![losses, is_right], 0) }
    }
}

/// Projections of large crops of earlier passes, so that assignments are balanced over more pictures than a pass has
/// (§3.1). Another trainer has another one.
pub(super) struct ProjectionQueue {
    samples_max: usize,
    /// Passes before it is used.
    after: u32,
    n_passes: u32,
    n_samples: usize,
    /// Of each pass, `[LARGE_CROPS * n_samples, projection]` and `n_samples`.
    passes: VecDeque<(Tensor<2>, usize)>,
}

impl ProjectionQueue {
    pub(super) fn new(samples_max: usize, after: u32) -> Self {
        Self { samples_max, after, n_passes: 0, n_samples: 0, passes: VecDeque::new() }
    }

    /// Adds the projections of the large crops and drops the oldest passes beyond the limit.
    pub(super) fn push(&mut self, projections: Tensor<2>, n_samples: usize) {
        if self.samples_max == 0 {
            return;
        }
        self.n_passes = self.n_passes.saturating_add(1);
        self.passes.push_back((projections.narrow(0, 0, LARGE_CROPS * n_samples), n_samples));
        self.n_samples += n_samples;
        while self.n_samples > self.samples_max {
            let Some((_, n_oldest)) = self.passes.pop_front() else { break };
            self.n_samples -= n_oldest;
        }
    }

    /// Samples in it.
    #[cfg(test)]
    pub(super) fn n_samples(&self) -> usize {
        self.n_samples
    }

    /// Projections of one of the large crops, `[n, projection]`; `None` before the queue is used.
    pub(super) fn of_crop(&self, crop: usize) -> Option<Tensor<2>> {
        if self.n_passes < self.after || self.passes.is_empty() {
            return None;
        }
        let rows = self.passes.iter().map(|(all, n_samples)| Rows { crop, n_samples: *n_samples }.of(all));
        Some(Tensor::cat(rows.collect(), 0))
    }
}
