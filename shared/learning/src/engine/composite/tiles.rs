//! Products of matrices on a processor that plays a graphics card: no barrier and no shared memory, which cost most there.
//!
//! A unit has four rows by four columns in registers, and loads four values at a time.

use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::kernels::{CUBE, grid, like};

/// Values of a vector; rows and columns of a tile.
const SIDE: usize = 4;

/// Matrices one after another, as a tile reads them.
struct Matrices {
    tensor: CubeTensor,
    /// From a matrix to the next, in vectors.
    step: usize,
    /// From a row of vectors to the next.
    pitch: usize,
    /// Whether vectors lie along the last dimension; otherwise along the one before.
    is_along_last: bool,
}

impl Matrices {
    /// `None` where no dimension has whole vectors.
    fn of(tensor: &CubeTensor) -> Option<Self> {
        Self::in_place(tensor).or_else(|| Self::in_place(&into_contiguous(tensor.clone())))
    }

    fn in_place(tensor: &CubeTensor) -> Option<Self> {
        let (shape, strides) = (tensor.shape(), tensor.meta.strides());
        let last = shape.num_dims().checked_sub(1)?;
        let before = last.checked_sub(1)?;
        let is_along_last = strides[last] == 1 && shape[last].is_multiple_of(SIDE);
        let is_along_other = strides[before] == 1 && shape[before].is_multiple_of(SIDE);
        let across = match (is_along_last, is_along_other) {
            (true, _) => before,
            (false, true) => last,
            _ => return None,
        };
        let pitch = if shape[across] > 1 { strides[across] } else { 0 };
        // All dimensions of matrices as one.
        let outer: Vec<usize> = (0..before).filter(|&dim| shape[dim] > 1).collect();
        let is_even = outer.windows(2).all(|dims| strides[dims[0]] == strides[dims[1]] * shape[dims[1]]);
        let step = outer.last().map_or(0, |&dim| strides[dim]);
        let is_whole = is_even && pitch.is_multiple_of(SIDE) && step.is_multiple_of(SIDE);
        let (step, pitch) = (step / SIDE, pitch / SIDE);
        is_whole.then(|| Self { tensor: tensor.clone(), step, pitch, is_along_last })
    }
}

/// `[…, m, k]` by `[…, k, n]`; `None` where tiles do not fit.
pub(super) fn multiply(lhs: &CubeTensor, rhs: &CubeTensor) -> Option<CubeTensor> {
    let (a, b) = (Matrices::of(lhs)?, Matrices::of(rhs)?);
    let (mut shape, of_rhs) = (lhs.shape(), rhs.shape());
    let last = shape.num_dims() - 1;
    let (m, k, n) = (shape[last - 1], shape[last], of_rhs[last]);
    shape[last] = n;
    let output = like(lhs, shape);
    let n_matrices = output.shape().num_elements() / (m * n).max(1);
    let n_tiles = n_matrices * m.div_ceil(SIDE) * n.div_ceil(SIDE);
    let (count, dim) = grid(&output, n_tiles, CUBE);
    let addresses = [&a.tensor, &b.tensor, &output].map(CubeTensor::required_address_type);
    multiply_tiles::launch(
        &output.client.clone(),
        count,
        dim,
        addresses.into_iter().max().unwrap_or_default(),
        SIDE,
        a.tensor.into_buffer_arg(),
        b.tensor.into_buffer_arg(),
        output.clone().into_buffer_arg(),
        m,
        k,
        n,
        a.step,
        a.pitch,
        b.step,
        b.pitch,
        a.is_along_last,
        b.is_along_last,
    );
    Some(output)
}

#[cube(launch, address_type = "dynamic")]
fn multiply_tiles<N: Size>(
    lhs: &[Vector<f32, N>],
    rhs: &[Vector<f32, N>],
    output: &mut [f32],
    n_rows: usize,
    depth: usize,
    n_columns: usize,
    lhs_step: usize,
    lhs_pitch: usize,
    rhs_step: usize,
    rhs_pitch: usize,
    #[comptime] is_lhs_along_k: bool,
    #[comptime] is_rhs_along_n: bool,
) {
    let across = n_columns.div_ceil(4);
    let down = n_rows.div_ceil(4);
    let matrix = ABSOLUTE_POS / (down * across);
    if matrix * n_rows * n_columns < output.len() {
        let row = ABSOLUTE_POS / across % down * 4;
        let column = ABSOLUTE_POS % across * 4;
        // The last row and column stand in for those after them, which are not stored.
        let (r0, r1, r2, r3) = places(row, n_rows, lhs_pitch, is_lhs_along_k);
        let (c0, c1, c2, c3) = places(column, n_columns, rhs_pitch, !is_rhs_along_n);
        let left = matrix * lhs_step;
        let right = matrix * rhs_step;
        let mut y0 = Vector::<f32, N>::new(0.0f32);
        let mut y1 = Vector::<f32, N>::new(0.0f32);
        let mut y2 = Vector::<f32, N>::new(0.0f32);
        let mut y3 = Vector::<f32, N>::new(0.0f32);
        for step in 0..depth / 4 {
            let at = walk(left, step, lhs_pitch, is_lhs_along_k);
            let (a0, a1, a2, a3) =
                by_rows(lhs[at + r0], lhs[at + r1], lhs[at + r2], lhs[at + r3], is_lhs_along_k);
            let at = walk(right, step, rhs_pitch, !is_rhs_along_n);
            let (b0, b1, b2, b3) =
                by_rows(rhs[at + c0], rhs[at + c1], rhs[at + c2], rhs[at + c3], is_rhs_along_n);
            y0 = add_products(a0, b0, b1, b2, b3, y0);
            y1 = add_products(a1, b0, b1, b2, b3, y1);
            y2 = add_products(a2, b0, b1, b2, b3, y2);
            y3 = add_products(a3, b0, b1, b2, b3, y3);
        }
        if comptime![!is_lhs_along_k && is_rhs_along_n] {
            for at in depth / 4 * 4..depth {
                let a = lhs[left + at * lhs_pitch + row / 4];
                let b = rhs[right + at * rhs_pitch + column / 4];
                y0 = fma(Vector::new(a.extract(0usize)), b, y0);
                y1 = fma(Vector::new(a.extract(1usize)), b, y1);
                y2 = fma(Vector::new(a.extract(2usize)), b, y2);
                y3 = fma(Vector::new(a.extract(3usize)), b, y3);
            }
        }
        let at = (matrix * n_rows + row) * n_columns + column;
        store(output, y0, at, row, column, n_rows, n_columns);
        store(output, y1, at + n_columns, row + 1, column, n_rows, n_columns);
        store(output, y2, at + 2 * n_columns, row + 2, column, n_rows, n_columns);
        store(output, y3, at + 3 * n_columns, row + 3, column, n_rows, n_columns);
    }
}

/// Where four lines begin: of a matrix whose vectors lie along `k` they are rows or columns of a tile, otherwise the lines
/// of four steps of `k`.
#[cube]
fn places(
    first: usize,
    n_lines: usize,
    pitch: usize,
    #[comptime] is_along_k: bool,
) -> (usize, usize, usize, usize) {
    if comptime![is_along_k] {
        let last = n_lines - 1;
        (
            first * pitch,
            min(first + 1, last) * pitch,
            min(first + 2, last) * pitch,
            min(first + 3, last) * pitch,
        )
    } else {
        let at = first / 4;
        (at, at + pitch, at + 2 * pitch, at + 3 * pitch)
    }
}

/// Where a step of four values along `k` begins.
#[cube]
fn walk(from: usize, step: usize, pitch: usize, #[comptime] is_along_k: bool) -> usize {
    if comptime![is_along_k] { from + step } else { from + 4 * step * pitch }
}

/// Four vectors.
type Four<N> = (Vector<f32, N>, Vector<f32, N>, Vector<f32, N>, Vector<f32, N>);

/// Four vectors as they are, or the rows of what they are the columns of.
#[cube]
fn by_rows<N: Size>(
    a: Vector<f32, N>,
    b: Vector<f32, N>,
    c: Vector<f32, N>,
    d: Vector<f32, N>,
    #[comptime] are_rows: bool,
) -> Four<N> {
    if comptime![are_rows] {
        (a, b, c, d)
    } else {
        (
            column(a, b, c, d, 0usize),
            column(a, b, c, d, 1usize),
            column(a, b, c, d, 2usize),
            column(a, b, c, d, 3usize),
        )
    }
}

#[cube]
fn column<N: Size>(
    a: Vector<f32, N>,
    b: Vector<f32, N>,
    c: Vector<f32, N>,
    d: Vector<f32, N>,
    #[comptime] at: usize,
) -> Vector<f32, N> {
    let mut column = Vector::<f32, N>::new(a.extract(at));
    column.insert(1usize, b.extract(at));
    column.insert(2usize, c.extract(at));
    column.insert(3usize, d.extract(at));
    column
}

/// A row of four values by four rows.
#[cube]
fn add_products<N: Size>(
    a: Vector<f32, N>,
    b0: Vector<f32, N>,
    b1: Vector<f32, N>,
    b2: Vector<f32, N>,
    b3: Vector<f32, N>,
    sum: Vector<f32, N>,
) -> Vector<f32, N> {
    let sum = fma(Vector::new(a.extract(0usize)), b0, sum);
    let sum = fma(Vector::new(a.extract(1usize)), b1, sum);
    let sum = fma(Vector::new(a.extract(2usize)), b2, sum);
    fma(Vector::new(a.extract(3usize)), b3, sum)
}

#[cube]
fn store<N: Size>(
    output: &mut [f32],
    values: Vector<f32, N>,
    at: usize,
    row: usize,
    column: usize,
    n_rows: usize,
    n_columns: usize,
) {
    if row < n_rows {
        #[unroll]
        for lane in 0..4usize {
            if column + lane < n_columns {
                output[at + lane] = values.extract(lane);
            }
        }
    }
}
