//! The operations on a processor, in single precision: one pass over the values, by vectors of the width that the processor has.
//!
//! Work is divided in the same way for any number of threads, so that a sum has the same rounding.

use burn::backend::TensorMetadata;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType, Shape};
use multiversion::multiversion;

use super::{Activation, RowNorm, Scores, math};
use crate::platform;

/// Values that one thread takes at once.
const CHUNK: usize = 16_384;

/// The values in order, without gaps.
struct Dense(FlexTensor);

impl Dense {
    fn of(tensor: &FlexTensor) -> Self {
        Self(tensor.to_contiguous())
    }

    fn values(&self) -> &[f32] {
        self.0.as_slice().unwrap_or_default()
    }
}

fn tensor(values: Vec<f32>, shape: Shape) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape), DType::F32)
}

/// Changes values in order, without gaps, where they are unless somebody else has them, too.
fn changed(values: FlexTensor, change: impl FnOnce(&mut [f32])) -> FlexTensor {
    let mut dense = Dense::of(&values).0;
    drop(values);
    let is_whole = dense.as_slice::<f32>().map(<[f32]>::len) == Some(dense.storage::<f32>().len());
    if !is_whole {
        let own = dense.as_slice().unwrap_or_default().to_vec();
        dense = tensor(own, dense.shape());
    }
    change(dense.storage_mut());
    dense
}

/// Whole rows of about [`CHUNK`] values.
fn chunk_of_rows(width: usize) -> usize {
    (CHUNK / width.max(1)).max(1) * width.max(1)
}

pub(super) fn activate(values: FlexTensor, activation: Activation) -> FlexTensor {
    changed(values, |values| {
        platform::on_chunks(values, CHUNK, |_, values| each(values, activation));
    })
}

pub(super) fn activate_backward(
    values: &FlexTensor,
    by_output: FlexTensor,
    activation: Activation,
) -> FlexTensor {
    let dense = Dense::of(values);
    changed(by_output, |by| {
        platform::on_chunks(by, CHUNK, |at, by| {
            each_slope(&dense.values()[at..at + by.len()], by, activation);
        });
    })
}

#[multiversion(targets("x86_64+avx+avx2+fma"))]
fn each(values: &mut [f32], activation: Activation) {
    let values = values.iter_mut();
    match activation {
        Activation::Gelu => values.for_each(|x| *x = math::gelu(*x)),
        Activation::GeluTanh => values.for_each(|x| *x = math::gelu_tanh(*x)),
        Activation::Silu => values.for_each(|x| *x = math::silu(*x)),
    }
}

/// Multiplies derivatives by the slopes at `values`.
#[multiversion(targets("x86_64+avx+avx2+fma"))]
fn each_slope(values: &[f32], by: &mut [f32], activation: Activation) {
    let pairs = by.iter_mut().zip(values);
    match activation {
        Activation::Gelu => pairs.for_each(|(by, &x)| *by *= math::gelu_slope(x)),
        Activation::GeluTanh => pairs.for_each(|(by, &x)| *by *= math::gelu_tanh_slope(x)),
        Activation::Silu => pairs.for_each(|(by, &x)| *by *= math::silu_slope(x)),
    }
}

pub(super) fn normalize_rows(
    rows: &FlexTensor,
    weight: &FlexTensor,
    bias: &FlexTensor,
    norm: RowNorm,
) -> FlexTensor {
    let (shape, rows, weight, bias) = (rows.shape(), Dense::of(rows), Dense::of(weight), Dense::of(bias));
    let (rows, weight, bias) = (rows.values(), weight.values(), bias.values());
    let mut output = vec![0.0; rows.len()];
    platform::on_chunks(&mut output, chunk_of_rows(weight.len()), |at, output| {
        normalize(&rows[at..at + output.len()], [weight, bias], output, norm);
    });
    tensor(output, shape)
}

#[multiversion(targets("x86_64+avx+avx2+fma"))]
fn normalize(rows: &[f32], [weight, bias]: [&[f32]; 2], output: &mut [f32], norm: RowNorm) {
    let width = weight.len().max(1);
    for (row, output) in rows.chunks_exact(width).zip(output.chunks_exact_mut(width)) {
        let (mean, inverse) = moments(row, norm);
        for (((output, x), weight), bias) in output.iter_mut().zip(row).zip(weight).zip(bias) {
            *output = (x - mean) * inverse * weight + bias;
        }
    }
}

/// What is subtracted from a row, and what it is multiplied by then.
#[inline(always)]
fn moments(row: &[f32], norm: RowNorm) -> (f32, f32) {
    let n = row.len().max(1) as f32;
    let mean = if norm.centred { sum(row, row, |x, _| x) / n } else { 0.0 };
    let squares = sum(row, row, |x, _| (x - mean) * (x - mean)) / n;
    (mean, 1.0 / (squares + norm.epsilon).sqrt())
}

/// By several sums side by side, which a compiler may keep in one vector.
#[inline(always)]
fn sum(a: &[f32], b: &[f32], of: impl Fn(f32, f32) -> f32) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [0.0; LANES];
    let (wide_a, rest_a) = a.as_chunks::<LANES>();
    let (wide_b, rest_b) = b.as_chunks::<LANES>();
    for (a, b) in wide_a.iter().zip(wide_b) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += of(a, b);
        }
    }
    let rest: f32 = rest_a.iter().zip(rest_b).map(|(&a, &b)| of(a, b)).sum();
    lanes.iter().sum::<f32>() + rest
}

pub(super) fn normalize_rows_backward(
    rows: &FlexTensor,
    weight: &FlexTensor,
    by_output: FlexTensor,
    norm: RowNorm,
) -> [FlexTensor; 3] {
    let shape = weight.shape();
    let (rows, weight) = (Dense::of(rows), Dense::of(weight));
    let (rows, weight) = (rows.values(), weight.values());
    let width = weight.len();
    let mut sums = [vec![0.0; width], vec![0.0; width]];
    let by_rows = changed(by_output, |by| {
        let parts = platform::on_chunks(by, chunk_of_rows(width), |at, by| {
            let mut sums = [vec![0.0; width], vec![0.0; width]];
            normalize_slope(&rows[at..at + by.len()], weight, by, &mut sums, norm);
            sums
        });
        for (sum, part) in parts.iter().flat_map(|part| [0, 1].map(|of| (of, &part[of]))) {
            sums[sum].iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
    });
    let [by_weight, by_bias] = sums;
    [by_rows, tensor(by_weight, shape.clone()), tensor(by_bias, shape)]
}

/// Puts the derivatives by rows in the place of those by what they became.
#[multiversion(targets("x86_64+avx+avx2+fma"))]
fn normalize_slope(
    rows: &[f32],
    weight: &[f32],
    by: &mut [f32],
    [by_weight, by_bias]: &mut [Vec<f32>; 2],
    norm: RowNorm,
) {
    let width = weight.len().max(1);
    let n = width as f32;
    for (row, by) in rows.chunks_exact(width).zip(by.chunks_exact_mut(width)) {
        let (mean, inverse) = moments(row, norm);
        for ((((by, x), weight), by_weight), by_bias) in
            by.iter_mut().zip(row).zip(weight).zip(by_weight.iter_mut()).zip(by_bias.iter_mut())
        {
            *by_weight += *by * (x - mean) * inverse;
            *by_bias += *by;
            *by *= weight;
        }
        // What would move the length of a row, or its mean, is not in the derivative.
        let along = sum(by, row, |by, x| by * (x - mean)) * inverse / n;
        let level = if norm.centred { sum(by, by, |by, _| by) / n } else { 0.0 };
        for (by, x) in by.iter_mut().zip(row) {
            *by = inverse * (*by - level - (x - mean) * inverse * along);
        }
    }
}

pub(super) fn softmax_rows(scores: FlexTensor, of: Scores) -> FlexTensor {
    let (queries, tokens) = last_two(&scores.shape());
    changed(scores, |scores| {
        platform::on_chunks(scores, chunk_of_rows(tokens), |at, scores| {
            let seen = seen(at, queries, tokens, of);
            for (row, scores) in scores.chunks_exact_mut(tokens.max(1)).enumerate() {
                let (scores, hidden) = scores.split_at_mut(seen(row));
                softmax(scores, of.scale);
                hidden.fill(0.0);
            }
        });
    })
}

pub(super) fn softmax_rows_backward(weights: &FlexTensor, by_output: FlexTensor, of: Scores) -> FlexTensor {
    let (queries, tokens) = last_two(&weights.shape());
    let dense = Dense::of(weights);
    changed(by_output, |by| {
        platform::on_chunks(by, chunk_of_rows(tokens), |at, by| {
            let seen = seen(at, queries, tokens, of);
            let weights = dense.values()[at..at + by.len()].chunks_exact(tokens.max(1));
            for (row, (weights, by)) in weights.zip(by.chunks_exact_mut(tokens.max(1))).enumerate() {
                let n_seen = seen(row);
                let (by, hidden) = by.split_at_mut(n_seen);
                softmax_slope(&weights[..n_seen], by, of.scale);
                hidden.fill(0.0);
            }
        });
    })
}

pub(super) fn cross_entropy(logits: FlexTensor, classes: &[u32], scale: f32) -> (FlexTensor, FlexTensor) {
    let (n_rows, width) = last_two(&logits.shape());
    let mut values = Vec::with_capacity(2 * n_rows);
    let mut hits = Vec::with_capacity(n_rows);
    let residual = changed(logits, |logits| {
        let judged = platform::on_chunks(logits, chunk_of_rows(width), |at, logits| {
            let rows = logits.chunks_exact_mut(width.max(1)).zip(&classes[at / width.max(1)..]);
            rows.map(|(logits, &class)| compare(logits, class as usize, scale)).collect::<Vec<_>>()
        });
        for (loss, is_right) in judged.into_iter().flatten() {
            values.push(loss);
            hits.push(f32::from(is_right));
        }
    });
    values.extend(hits);
    (residual, tensor(values, Shape::from([2, n_rows])))
}

/// Puts `(softmax - one_hot) scale` in the place of logits. Returns the loss, and whether the class is the first largest.
#[multiversion(targets("x86_64+avx+avx2+fma"))]
fn compare(logits: &mut [f32], class: usize, scale: f32) -> (f32, bool) {
    let of_class = logits[class];
    let largest = largest_of(logits);
    let is_right = of_class >= largest && logits[..class].iter().all(|&logit| logit < of_class);
    for logit in logits.iter_mut() {
        *logit = math::exp(*logit - largest);
    }
    let total = sum(logits, logits, |exponential, _| exponential);
    let factor = scale / total;
    logits.iter_mut().for_each(|exponential| *exponential *= factor);
    logits[class] -= scale;
    (total.ln() - (of_class - largest), is_right)
}

fn last_two(shape: &Shape) -> (usize, usize) {
    let rank = shape.num_dims();
    (shape[rank.saturating_sub(2)], shape[rank.saturating_sub(1)])
}

/// How many tokens the rows after a place see, the first ones.
fn seen(at: usize, queries: usize, tokens: usize, of: Scores) -> impl Fn(usize) -> usize {
    let first = at / tokens.max(1);
    let of_query =
        move |query: usize| of.n_before.map_or(tokens, |n_before| (n_before + query + 1).min(tokens));
    move |row| of_query((first + row) % queries.max(1))
}

#[multiversion(targets("x86_64+avx+avx2+fma"))]
fn softmax(scores: &mut [f32], scale: f32) {
    let largest = largest_of(scores);
    for score in scores.iter_mut() {
        *score = math::exp((*score - largest) * scale);
    }
    let inverse = 1.0 / sum(scores, scores, |weight, _| weight);
    scores.iter_mut().for_each(|weight| *weight *= inverse);
}

/// By several maxima side by side, which a compiler may keep in one vector.
#[inline(always)]
fn largest_of(values: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (wide, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for values in wide {
        lanes
            .iter_mut()
            .zip(values)
            .for_each(|(lane, &value)| *lane = if value > *lane { value } else { *lane });
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |largest, &value| largest.max(value))
}

#[multiversion(targets("x86_64+avx+avx2+fma"))]
fn softmax_slope(weights: &[f32], by: &mut [f32], scale: f32) {
    let along = sum(weights, by, |weight, by| weight * by);
    for (by, weight) in by.iter_mut().zip(weights) {
        *by = scale * weight * (*by - along);
    }
}
