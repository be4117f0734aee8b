//! The operations on a graphics card, in single precision: a dispatch each, and three more for the derivatives by the weights of a
//! normalization.
//!
//! A row belongs to several units, which read values side by side; on a processor that plays a graphics card to one,
//! as a barrier costs much there.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Cube, TensorMetadata};
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::calculate_cube_count_elemwise;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;

use super::{Activation, RowNorm, Scores};

/// Units of a cube where each has a row, or a few values, of its own.
pub(super) const CUBE: u32 = 64;
/// Units that share a row on a graphics card.
const UNITS: usize = 32;
/// Most graphics cards have planes of so many units at least. Processors that play one have 4 or 8; and so do Arm's first ones with
/// planes, which have no memory of their own for what units share either.
const PLANE_MIN: u32 = 16;
/// Rows whose derivatives by the weights one unit sums.
const ROWS: usize = 32;

pub(super) fn activate(values: CubeTensor, activation: Activation) -> CubeTensor {
    let values = into_contiguous(values);
    let output = like(&values, values.shape());
    let lanes = lanes(values.shape().num_elements());
    let (count, dim) = grid(&values, values.shape().num_elements() / lanes, CUBE);
    activate_each::launch(
        &values.client.clone(),
        count,
        dim,
        output.required_address_type(),
        lanes,
        values.into_buffer_arg(),
        output.clone().into_buffer_arg(),
        activation,
    );
    output
}

pub(super) fn activate_backward(
    values: CubeTensor,
    by_output: CubeTensor,
    activation: Activation,
) -> CubeTensor {
    let (values, by_output) = (into_contiguous(values), into_contiguous(by_output));
    let by_values = like(&values, values.shape());
    let lanes = lanes(values.shape().num_elements());
    let (count, dim) = grid(&values, values.shape().num_elements() / lanes, CUBE);
    activate_each_backward::launch(
        &values.client.clone(),
        count,
        dim,
        by_values.required_address_type(),
        lanes,
        values.into_buffer_arg(),
        by_output.into_buffer_arg(),
        by_values.clone().into_buffer_arg(),
        activation,
    );
    by_values
}

pub(super) fn normalize_rows(
    rows: CubeTensor,
    weight: CubeTensor,
    bias: CubeTensor,
    norm: RowNorm,
    units: usize,
) -> CubeTensor {
    let (rows, weight, bias) = (into_contiguous(rows), into_contiguous(weight), into_contiguous(bias));
    let output = like(&rows, rows.shape());
    let (n_rows, width) = rows_of(&rows);
    let (count, dim) = grid_of_rows(&rows, n_rows, units);
    normalize::launch(
        &rows.client.clone(),
        count,
        dim,
        output.required_address_type(),
        rows.into_buffer_arg(),
        weight.into_buffer_arg(),
        bias.into_buffer_arg(),
        output.clone().into_buffer_arg(),
        width,
        norm.epsilon,
        norm.centred,
        units,
    );
    output
}

pub(super) fn normalize_rows_backward(
    rows: CubeTensor,
    weight: CubeTensor,
    by_output: CubeTensor,
    norm: RowNorm,
    units: usize,
) -> [CubeTensor; 3] {
    let (rows, weight) = (into_contiguous(rows), into_contiguous(weight));
    let by_output = into_contiguous(by_output);
    let client = rows.client.clone();
    let (n_rows, width) = rows_of(&rows);
    let by_rows = like(&rows, rows.shape());
    let moments = like(&rows, Shape::from([n_rows, 2]));
    let (count, dim) = grid_of_rows(&rows, n_rows, units);
    normalize_backward::launch(
        &client,
        count,
        dim,
        by_rows.required_address_type(),
        rows.clone().into_buffer_arg(),
        weight.into_buffer_arg(),
        by_output.clone().into_buffer_arg(),
        by_rows.clone().into_buffer_arg(),
        moments.clone().into_buffer_arg(),
        width,
        norm.epsilon,
        norm.centred,
        units,
    );
    let n_parts = n_rows.div_ceil(ROWS).max(1);
    let part = Shape::from([n_parts, width]);
    let (by_weight, by_bias) = (like(&rows, part.clone()), like(&rows, part));
    let (count, dim) = grid(&rows, n_parts * width, CUBE);
    sum_columns::launch(
        &client,
        count,
        dim,
        rows.required_address_type(),
        rows.into_buffer_arg(),
        moments.into_buffer_arg(),
        by_output.into_buffer_arg(),
        by_weight.clone().into_buffer_arg(),
        by_bias.clone().into_buffer_arg(),
        n_rows,
        width,
    );
    [by_rows, sum_of_rows::<Cube>(by_weight, width), sum_of_rows::<Cube>(by_bias, width)]
}

/// Of `[n_parts, width]`; `[width]`.
fn sum_of_rows<B: Backend>(parts: FloatTensor<B>, width: usize) -> FloatTensor<B> {
    B::float_reshape(B::float_sum_dim(parts, 0), Shape::from([width]))
}

pub(super) fn softmax_rows(scores: CubeTensor, of: Scores, units: usize) -> CubeTensor {
    let scores = into_contiguous(scores);
    let weights = like(&scores, scores.shape());
    let (n_rows, tokens) = rows_of(&scores);
    let (count, dim) = grid_of_rows(&scores, n_rows, units);
    let (queries, before) = queries_of(&scores, of);
    softmax::launch(
        &scores.client.clone(),
        count,
        dim,
        weights.required_address_type(),
        scores.into_buffer_arg(),
        weights.clone().into_buffer_arg(),
        tokens,
        queries,
        before,
        of.scale,
        units,
    );
    weights
}

pub(super) fn softmax_rows_backward(
    weights: CubeTensor,
    by_output: CubeTensor,
    of: Scores,
    units: usize,
) -> CubeTensor {
    let (weights, by_output) = (into_contiguous(weights), into_contiguous(by_output));
    let by_scores = like(&weights, weights.shape());
    let (n_rows, tokens) = rows_of(&weights);
    let (count, dim) = grid_of_rows(&weights, n_rows, units);
    let (queries, before) = queries_of(&weights, of);
    softmax_backward::launch(
        &weights.client.clone(),
        count,
        dim,
        by_scores.required_address_type(),
        weights.into_buffer_arg(),
        by_output.into_buffer_arg(),
        by_scores.clone().into_buffer_arg(),
        tokens,
        queries,
        before,
        of.scale,
        units,
    );
    by_scores
}

pub(super) fn cross_entropy(
    logits: CubeTensor,
    classes: &[u32],
    scale: f32,
    units: usize,
) -> (CubeTensor, CubeTensor) {
    let logits = into_contiguous(logits);
    let client = logits.client.clone();
    let (n_rows, width) = rows_of(&logits);
    let bytes: Vec<u8> = classes.iter().flat_map(|class| class.to_le_bytes()).collect();
    let classes = CubeTensor::new_contiguous(
        client.clone(),
        logits.device.clone(),
        Shape::from([n_rows]),
        client.create_from_slice(&bytes),
        DType::U32,
    );
    let residual = like(&logits, logits.shape());
    let values = like(&logits, Shape::from([2, n_rows]));
    let (count, dim) = grid_of_rows(&logits, n_rows, units);
    compare_classes::launch(
        &client,
        count,
        dim,
        residual.required_address_type(),
        logits.into_buffer_arg(),
        classes.into_buffer_arg(),
        residual.clone().into_buffer_arg(),
        values.clone().into_buffer_arg(),
        width,
        scale,
        units,
    );
    (residual, values)
}

/// Values that are written next, without gaps.
pub(super) fn like(tensor: &CubeTensor, shape: Shape) -> CubeTensor {
    empty_device_contiguous_dtype(tensor.client.clone(), tensor.device.clone(), shape, tensor.dtype)
}

/// Values that a unit takes at once.
fn lanes(n: usize) -> usize {
    if n.is_multiple_of(4) { 4 } else { 1 }
}

/// Rows of the last dimension, and their width.
fn rows_of(tensor: &CubeTensor) -> (usize, usize) {
    let shape = tensor.shape();
    let width = shape[shape.num_dims() - 1];
    (shape.num_elements() / width.max(1), width)
}

/// Rows that belong to one head of one sample, and how many tokens the first of them sees; all tokens, where that is not
/// bounded.
fn queries_of(scores: &CubeTensor, of: Scores) -> (usize, usize) {
    let shape = scores.shape();
    let queries = shape[shape.num_dims().saturating_sub(2)].max(1);
    (queries, of.n_before.map_or(shape[shape.num_dims() - 1], |n_before| n_before + 1))
}

pub(super) fn grid(tensor: &CubeTensor, n: usize, units: u32) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new_1d(units);
    (calculate_cube_count_elemwise(&tensor.client, n, dim), dim)
}

/// Whether a processor plays the graphics card.
pub(super) fn is_played(tensor: &CubeTensor) -> bool {
    tensor.client.properties().hardware.plane_size_max < PLANE_MIN
}

/// Units that share a row.
pub(super) fn units(tensor: &CubeTensor) -> usize {
    if is_played(tensor) { 1 } else { UNITS }
}

/// Cubes for all rows: no row has units of two.
fn grid_of_rows(tensor: &CubeTensor, n_rows: usize, units: usize) -> (CubeCount, CubeDim) {
    grid(tensor, n_rows * units, if units == 1 { CUBE } else { units as u32 })
}

#[cube(launch, address_type = "dynamic")]
fn activate_each<N: Size>(
    values: &[Vector<f32, N>],
    output: &mut [Vector<f32, N>],
    #[comptime] activation: Activation,
) {
    if ABSOLUTE_POS < output.len() {
        let x = values[ABSOLUTE_POS];
        output[ABSOLUTE_POS] = match comptime![activation] {
            Activation::Gelu => x * below(x),
            Activation::GeluTanh => x * sigmoid(tanh_gate(x)),
            Activation::Silu => x * sigmoid(x),
        };
    }
}

#[cube(launch, address_type = "dynamic")]
fn activate_each_backward<N: Size>(
    values: &[Vector<f32, N>],
    by_output: &[Vector<f32, N>],
    by_values: &mut [Vector<f32, N>],
    #[comptime] activation: Activation,
) {
    if ABSOLUTE_POS < by_values.len() {
        let x = values[ABSOLUTE_POS];
        let one = Vector::new(1.0f32);
        let slope = match comptime![activation] {
            Activation::Gelu => {
                let density = Vector::exp(x * x * Vector::new(-0.5f32)) * Vector::new(0.398_942_3f32);
                below(x) + x * density
            }
            Activation::GeluTanh => {
                let gate = sigmoid(tanh_gate(x));
                // 2 sqrt(2/π) (1 + 3 · 0.044715 x²)
                let inner = (x * x * Vector::new(0.134_145f32) + one) * Vector::new(1.595_769f32);
                gate + x * gate * (one - gate) * inner
            }
            Activation::Silu => {
                let gate = sigmoid(x);
                gate + x * gate * (one - gate)
            }
        };
        by_values[ABSOLUTE_POS] = by_output[ABSOLUTE_POS] * slope;
    }
}

/// How much of a normal distribution is below.
#[cube]
fn below<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    (Vector::erf(x * Vector::new(0.707_106_77f32)) + Vector::new(1.0f32)) * Vector::new(0.5f32)
}

/// `(1 + tanh u) / 2` is `sigmoid(2 u)`; this is `2 u`.
#[cube]
fn tanh_gate<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    x * (x * x * Vector::new(0.044_715f32) + Vector::new(1.0f32)) * Vector::new(1.595_769f32)
}

/// No exponential is infinite: a shader's arithmetic need not know infinity.
#[cube]
fn sigmoid<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::new(1.0f32);
    let x = max(x, Vector::new(-80.0f32));
    one / (one + Vector::exp(-x))
}

/// Adds up what the units of a row have.
#[cube]
fn sum_of_units(value: f32, shared: &mut Shared<[f32]>, #[comptime] units: usize) -> f32 {
    let mut sum = value;
    if comptime![units > 1] {
        sync_cube();
        shared[UNIT_POS as usize] = value;
        sync_cube();
        sum = 0.0f32;
        for unit in 0..units {
            sum += shared[unit];
        }
    }
    sum
}

/// The largest of what the units of a row have.
#[cube]
fn largest_of_units(value: f32, shared: &mut Shared<[f32]>, #[comptime] units: usize) -> f32 {
    let mut largest = value;
    if comptime![units > 1] {
        sync_cube();
        shared[UNIT_POS as usize] = value;
        sync_cube();
        for unit in 0..units {
            largest = max(largest, shared[unit]);
        }
    }
    largest
}

/// Where a unit's part of its row begins and ends: nowhere after the last row, where units wait at barriers all the same. `n` is what
/// is written: the buffer of a part of a tensor may go on after it.
#[cube]
fn part_of_row(n: usize, width: usize, #[comptime] units: usize) -> (usize, usize) {
    let row = ABSOLUTE_POS / units;
    let from = row * width;
    let mut end = from + width;
    if end > n {
        end = from;
    }
    (from + ABSOLUTE_POS % units, end)
}

/// The mean of a row, or zero, and the inverse of the root of its mean square around that and `epsilon`.
#[cube]
fn moments_of(
    rows: &[f32],
    from: usize,
    end: usize,
    width: usize,
    epsilon: f32,
    shared: &mut Shared<[f32]>,
    #[comptime] centred: bool,
    #[comptime] units: usize,
) -> (f32, f32) {
    let n = f32::cast_from(width);
    let mut mean = 0.0f32;
    if comptime![centred] {
        let mut sum = 0.0f32;
        for at in range_stepped(from, end, units) {
            sum += rows[at];
        }
        mean = sum_of_units(sum, shared, units) / n;
    }
    let mut squares = 0.0f32;
    for at in range_stepped(from, end, units) {
        let deviation = rows[at] - mean;
        squares += deviation * deviation;
    }
    let squares = sum_of_units(squares, shared, units);
    (mean, 1.0f32 / f32::sqrt(squares / n + epsilon))
}

#[cube(launch, address_type = "dynamic")]
fn normalize(
    rows: &[f32],
    weight: &[f32],
    bias: &[f32],
    output: &mut [f32],
    width: usize,
    epsilon: f32,
    #[comptime] centred: bool,
    #[comptime] units: usize,
) {
    let mut shared = Shared::<[f32]>::new_slice(units);
    let (from, end) = part_of_row(output.len(), width, units);
    let (mean, inverse) = moments_of(rows, from, end, width, epsilon, &mut shared, centred, units);
    for at in range_stepped(from, end, units) {
        let column = at % width;
        output[at] = (rows[at] - mean) * inverse * weight[column] + bias[column];
    }
}

/// By the rows; and their moments, `[n_rows, 2]`.
#[cube(launch, address_type = "dynamic")]
fn normalize_backward(
    rows: &[f32],
    weight: &[f32],
    by_output: &[f32],
    by_rows: &mut [f32],
    moments: &mut [f32],
    width: usize,
    epsilon: f32,
    #[comptime] centred: bool,
    #[comptime] units: usize,
) {
    let mut shared = Shared::<[f32]>::new_slice(units);
    let (from, end) = part_of_row(by_rows.len(), width, units);
    let (mean, inverse) = moments_of(rows, from, end, width, epsilon, &mut shared, centred, units);
    if from < end && ABSOLUTE_POS.is_multiple_of(units) {
        let row = ABSOLUTE_POS / units;
        moments[2 * row] = mean;
        moments[2 * row + 1] = inverse;
    }
    // What would move the length of a row, or its mean, is not in the derivative.
    let mut along = 0.0f32;
    let mut level = 0.0f32;
    for at in range_stepped(from, end, units) {
        let by = by_output[at] * weight[at % width];
        along += by * (rows[at] - mean);
        level += by;
    }
    let n = f32::cast_from(width);
    let along = sum_of_units(along, &mut shared, units) * inverse / n;
    let mut level = sum_of_units(level, &mut shared, units) / n;
    if comptime![!centred] {
        level = 0.0f32;
    }
    for at in range_stepped(from, end, units) {
        let by = by_output[at] * weight[at % width];
        by_rows[at] = inverse * (by - level - (rows[at] - mean) * inverse * along);
    }
}

/// By the weights and the biases, `[parts, width]`: each the sum over [`ROWS`] rows.
#[cube(launch, address_type = "dynamic")]
fn sum_columns(
    rows: &[f32],
    moments: &[f32],
    by_output: &[f32],
    by_weight: &mut [f32],
    by_bias: &mut [f32],
    n_rows: usize,
    width: usize,
) {
    if ABSOLUTE_POS < by_weight.len() {
        let column = ABSOLUTE_POS % width;
        let first = ABSOLUTE_POS / width * ROWS;
        let mut end = first + ROWS;
        if end > n_rows {
            end = n_rows;
        }
        let mut weighted = 0.0f32;
        let mut sum = 0.0f32;
        for row in first..end {
            let at = row * width + column;
            weighted += by_output[at] * (rows[at] - moments[2 * row]) * moments[2 * row + 1];
            sum += by_output[at];
        }
        by_weight[ABSOLUTE_POS] = weighted;
        by_bias[ABSOLUTE_POS] = sum;
    }
}

/// Where the tokens that a row sees end.
#[cube]
fn end_of_seen(
    end: usize,
    tokens: usize,
    queries: usize,
    first_sees: usize,
    #[comptime] units: usize,
) -> usize {
    let row = ABSOLUTE_POS / units;
    let seen = row * tokens + row % queries + first_sees;
    let mut last = end;
    if seen < end {
        last = seen;
    }
    last
}

#[cube(launch, address_type = "dynamic")]
fn softmax(
    scores: &[f32],
    weights: &mut [f32],
    tokens: usize,
    queries: usize,
    first_sees: usize,
    scale: f32,
    #[comptime] units: usize,
) {
    let mut shared = Shared::<[f32]>::new_slice(units);
    let (from, end) = part_of_row(weights.len(), tokens, units);
    let seen = end_of_seen(end, tokens, queries, first_sees, units);
    let mut largest = f32::MIN.runtime();
    for at in range_stepped(from, seen, units) {
        largest = max(largest, scores[at]);
    }
    let largest = largest_of_units(largest, &mut shared, units);
    let mut sum = 0.0f32;
    for at in range_stepped(from, seen, units) {
        sum += f32::exp((scores[at] - largest) * scale);
    }
    let inverse = 1.0f32 / sum_of_units(sum, &mut shared, units);
    for at in range_stepped(from, end, units) {
        let mut weight = 0.0f32;
        if at < seen {
            weight = f32::exp((scores[at] - largest) * scale) * inverse;
        }
        weights[at] = weight;
    }
}

#[cube(launch, address_type = "dynamic")]
fn softmax_backward(
    weights: &[f32],
    by_output: &[f32],
    by_scores: &mut [f32],
    tokens: usize,
    queries: usize,
    first_sees: usize,
    scale: f32,
    #[comptime] units: usize,
) {
    let mut shared = Shared::<[f32]>::new_slice(units);
    let (from, end) = part_of_row(by_scores.len(), tokens, units);
    let seen = end_of_seen(end, tokens, queries, first_sees, units);
    let mut along = 0.0f32;
    for at in range_stepped(from, seen, units) {
        along += weights[at] * by_output[at];
    }
    let along = sum_of_units(along, &mut shared, units);
    for at in range_stepped(from, end, units) {
        let mut by = 0.0f32;
        if at < seen {
            by = scale * weights[at] * (by_output[at] - along);
        }
        by_scores[at] = by;
    }
}

/// `(softmax - one_hot) scale` of each row; its loss, and after the losses 1 where its class is the first largest.
#[cube(launch, address_type = "dynamic")]
fn compare_classes(
    logits: &[f32],
    classes: &[u32],
    residual: &mut [f32],
    values: &mut [f32],
    width: usize,
    scale: f32,
    #[comptime] units: usize,
) {
    let mut shared = Shared::<[f32]>::new_slice(units);
    let (from, end) = part_of_row(residual.len(), width, units);
    let row = ABSOLUTE_POS / units;
    let mut right = 0usize.runtime();
    if from < end {
        right = row * width + classes[row] as usize;
    }
    let of_right = logits[right];
    let mut largest = f32::MIN.runtime();
    let mut n_before = 0.0f32;
    for at in range_stepped(from, end, units) {
        let logit = logits[at];
        largest = max(largest, logit);
        if logit > of_right || (logit == of_right && at < right) {
            n_before += 1.0f32;
        }
    }
    let largest = largest_of_units(largest, &mut shared, units);
    let n_before = sum_of_units(n_before, &mut shared, units);
    let mut sum = 0.0f32;
    for at in range_stepped(from, end, units) {
        sum += f32::exp(logits[at] - largest);
    }
    let sum = sum_of_units(sum, &mut shared, units);
    for at in range_stepped(from, end, units) {
        let mut by = f32::exp(logits[at] - largest) / sum;
        if at == right {
            by -= 1.0f32;
        }
        residual[at] = by * scale;
    }
    if from < end && ABSOLUTE_POS.is_multiple_of(units) {
        values[row] = f32::ln(sum) - (of_right - largest);
        // What is no number is not right.
        let mut is_right = 0.0f32;
        if n_before == 0.0f32 && of_right >= largest {
            is_right = 1.0f32;
        }
        values[values.len() / 2 + row] = is_right;
    }
}
