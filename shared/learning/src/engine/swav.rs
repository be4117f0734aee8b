//! SwAV (Caron et al. 2020) as burn tensors, with gradients by burn's autodiff, on any device: each crop of a picture
//! predicts the prototype assignments of another crop of it.
//!
//! Assignments are made by Sinkhorn and Knopp's algorithm over the pictures of a pass and those in the queue, so that
//! all prototypes are used; batch normalization in the head is over all crops of a pass. A gradient is therefore one
//! of a whole pass: the same pass gives the same gradient on every peer as long as there is no queue, and passes cut
//! otherwise give another one. No optimizer here, and no label.

pub(super) mod sinkhorn;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use burn::tensor::activation::{log_softmax, relu};
use burn::tensor::module::{conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use super::LogitsRead;
use super::arithmetic::{Arithmetic, where_finite, wide};
use super::readback::read;
use super::tensors::{Cursor, FlatTensors};
use crate::batch;
use crate::crops::{CropSizes, Crops, LARGE_CROPS};
use crate::device::DeviceError;
use crate::layout::SwavSizes;
use crate::parameters::ParameterLayout;

/// What scores are divided by before they are probabilities (the τ of eq. 2).
const TEMPERATURE: f32 = 0.1;
/// Added to the variance that the batch normalization divides by.
const NORM_EPSILON: f32 = 1e-5;
/// Added to the square of a length that is divided by.
const LENGTH_EPSILON: f32 = 1e-12;
/// Tensors at the end of the layout that are prototypes.
pub(super) const PROTOTYPE_TENSORS: usize = 1;

/// A SwAV model on a device, the gradient that it sums, and the queue.
pub(crate) struct SwavEngine {
    sizes: SwavSizes,
    autodiff: Device,
    tensors: FlatTensors,
    queue: ProjectionQueue,
}

impl SwavEngine {
    pub(crate) fn new(layout: &ParameterLayout, sizes: SwavSizes, device: &Device, flat: &[f32]) -> Self {
        let tensors = FlatTensors::new(layout, device, flat);
        let queue = ProjectionQueue::new(sizes.queue_samples, sizes.queue_after);
        Self { sizes, autodiff: device.clone().autodiff(), tensors, queue }
    }

    /// The queue stays: it is of parameters of before, as the method has it.
    pub(crate) fn load(&mut self, flat: &[f32]) {
        self.tensors.load(flat);
    }

    pub(crate) fn reset(&mut self) {
        self.tensors.reset();
    }

    /// Empties the queue.
    pub(crate) fn clear_queue(&mut self) {
        self.queue = ProjectionQueue::new(self.sizes.queue_samples, self.sizes.queue_after);
    }

    /// Queues a pass. Adds up the gradient of the sum of the pictures' losses.
    ///
    /// # Shapes
    /// - returns as [`SwappedPrediction::values`]
    pub(crate) fn step(&mut self, crops: &Crops, is_frozen: bool, arithmetic: Arithmetic) -> LogitsRead {
        let tracked = heads(self.tensors.leaves(arithmetic), &self.sizes, crops, &self.autodiff);
        let scores = tracked.scores.clone().without_autodiff();
        let assignments = self.assignments(&scores, crops.n_samples);
        let swapped = SwappedPrediction::of(scores, &assignments, self.sizes.n_crops(), crops.n_samples);
        let n_frozen = if is_frozen { PROTOTYPE_TENSORS } else { 0 };
        let is_finite = self.tensors.add_gradient(tracked.scores, swapped.residual, n_frozen, arithmetic);
        let mut projections = tracked.projections.without_autodiff();
        if let Some(flag) = &is_finite {
            // A NaN would stay in the queue. Zeros are as near to every prototype.
            projections = where_finite(projections, flag);
        }
        self.queue.push(projections, crops.n_samples);
        read(swapped.values, is_finite)
    }

    /// Losses without a gradient and without the queue.
    ///
    /// # Shapes
    /// - returns as [`SwappedPrediction::values`]
    pub(crate) fn losses(&self, crops: &Crops) -> LogitsRead {
        let heads = heads(self.tensors.parameters(), &self.sizes, crops, self.tensors.device());
        let assignments = of_each_large(crops.n_samples, |rows| sinkhorn::assign(rows.of(&heads.scores)));
        read(
            SwappedPrediction::of(heads.scores, &assignments, self.sizes.n_crops(), crops.n_samples).values,
            None,
        )
    }

    /// Features of whole pictures.
    ///
    /// # Shapes
    /// - `images`: `[n_samples, height, width, channels]`
    /// - returns `[n_samples, n_features]`
    pub(crate) fn features(&self, images: &[u8]) -> LogitsRead {
        let shape = self.sizes.crops.shape;
        let values = batch::normalize_channels_first(images, shape);
        let trunk = Trunk::next(&mut self.tensors.parameters(), &self.sizes);
        let [height, width] = [shape.height, shape.width].map(usize::from);
        read(trunk.on(values, [height, width], self.tensors.device()), None)
    }

    pub(crate) async fn take(&mut self) -> Result<Vec<f32>, DeviceError> {
        self.tensors.take().await
    }

    /// Assignments of the large crops, `[LARGE_CROPS * n_samples, prototypes]`; those in the queue help to balance
    /// them.
    fn assignments(&self, scores: &Tensor<2>, n_samples: usize) -> Tensor<2> {
        of_each_large(n_samples, |rows| {
            let own = rows.of(scores);
            let Some(earlier) = self.queue.of_crop(rows.crop) else { return sinkhorn::assign(own) };
            let prototypes = prototypes(self.tensors.parameters(), &self.sizes);
            let n_earlier = earlier.dims()[0];
            let all = Tensor::cat(vec![earlier.matmul(prototypes.swap_dims(0, 1)), own], 0);
            sinkhorn::assign(all).narrow(0, n_earlier, n_samples)
        })
    }
}

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

/// Projections and scores of crops.
struct Heads {
    /// `[n_crops * n_samples, projection]`, each of length 1.
    projections: Tensor<2>,
    /// Cosines with the prototypes, `[n_crops * n_samples, prototypes]`.
    scores: Tensor<2>,
}

/// The trunk in the numbers of the pass, all else in single precision.
fn heads(mut cursor: Cursor<'_>, sizes: &SwavSizes, crops: &Crops, device: &Device) -> Heads {
    let CropSizes { shape, small_side, .. } = sizes.crops;
    let trunk = Trunk::next(&mut cursor, sizes);
    let [height, width] = [shape.height, shape.width].map(usize::from);
    let mut features = vec![trunk.on(crops.large.clone(), [height, width], device)];
    if !crops.small.is_empty() {
        features.push(trunk.on(crops.small.clone(), [small_side, small_side], device));
    }
    cursor.in_single_precision();
    let hidden = cursor.linear(sizes.n_features(), sizes.hidden).on(Tensor::cat(features, 0));
    let norm = cursor.norm();
    let centred = hidden.clone() - hidden.mean_dim(0);
    let variance = (centred.clone() * centred.clone()).mean_dim(0);
    let normed = centred / (variance + NORM_EPSILON).sqrt();
    let normed = normed * norm.weight.reshape([1, sizes.hidden]) + norm.bias.reshape([1, sizes.hidden]);
    let projections = unit(cursor.linear(sizes.hidden, sizes.projection).on(relu(normed)));
    let prototypes = unit(cursor.vector().reshape([sizes.prototypes, sizes.projection]));
    Heads { scores: projections.clone().matmul(prototypes.swap_dims(0, 1)), projections }
}

/// Each of length 1, `[prototypes, projection]`.
fn prototypes(mut cursor: Cursor<'_>, sizes: &SwavSizes) -> Tensor<2> {
    cursor.skip_to_last(PROTOTYPE_TENSORS);
    unit(cursor.vector().reshape([sizes.prototypes, sizes.projection]))
}

/// Rows of length 1.
fn unit(rows: Tensor<2>) -> Tensor<2> {
    let squares = (rows.clone() * rows.clone()).sum_dim(1);
    rows / (squares + LENGTH_EPSILON).sqrt()
}

/// The convolutions.
struct Trunk {
    layers: Vec<(Tensor<4>, Tensor<1>)>,
    channels: usize,
    dtype: FloatDType,
}

impl Trunk {
    fn next(cursor: &mut Cursor<'_>, sizes: &SwavSizes) -> Self {
        let channels = usize::from(sizes.crops.shape.channels);
        let n_in = std::iter::once(&channels).chain(&sizes.maps);
        let layers = n_in
            .zip(&sizes.maps)
            .map(|(&n_in, &n_out)| (cursor.operand().reshape([n_out, n_in, 3, 3]), cursor.operand()))
            .collect();
        Self { layers, channels, dtype: cursor.dtype() }
    }

    /// `values` `[n, channels, height, width]` to features `[n, n_features]`, in single precision.
    fn on(&self, values: Vec<f32>, [height, width]: [usize; 2], device: &Device) -> Tensor<2> {
        let n = values.len() / (self.channels * height * width).max(1);
        let data = TensorData::new(values, [n, self.channels, height, width]);
        let mut maps = Tensor::<4>::from_data(data, device).cast(self.dtype);
        for (weight, bias) in &self.layers {
            let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
            maps = conv2d(maps, weight.clone(), Some(bias.clone()), options);
            // ReLU keeps the order of values, so it may follow the pooling, on a quarter of them.
            maps = relu(max_pool2d(maps, MaxPoolOptions::new([2, 2])));
        }
        wide(maps).mean_dim(3).mean_dim(2).flatten(1, 3)
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

    /// Projections of one of the large crops, `[n, projection]`; `None` before the queue is used.
    pub(super) fn of_crop(&self, crop: usize) -> Option<Tensor<2>> {
        if self.n_passes < self.after || self.passes.is_empty() {
            return None;
        }
        let rows = self.passes.iter().map(|(all, n_samples)| Rows { crop, n_samples: *n_samples }.of(all));
        Some(Tensor::cat(rows.collect(), 0))
    }
}
