//! The method against its formulas, on the CPU: assignments, and the swapped prediction.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use futures::executor::block_on;

use super::*;
use crate::device::ComputeDevice;
use crate::engine::readback::read;
use crate::random::SplitMix64;

fn matrix(values: &[f32], shape: [usize; 2]) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), ComputeDevice::cpu().burn())
}

fn values(tensor: Tensor<2>) -> Vec<f32> {
    block_on(read(tensor, None)).unwrap()
}

/// The algorithm of the paper's supplement in double precision.
fn assigned_by_loops(scores: &[f32], [rows, columns]: [usize; 2]) -> Vec<f64> {
    let mut q: Vec<f64> = scores.iter().map(|&score| (f64::from(score) / 0.05).exp()).collect();
    for _ in 0..3 {
        for column in 0..columns {
            let sum: f64 = (0..rows).map(|row| q[row * columns + column]).sum();
            (0..rows).for_each(|row| q[row * columns + column] /= sum * columns as f64);
        }
        for row in q.chunks_mut(columns) {
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|value| *value /= sum * rows as f64);
        }
    }
    q.iter().map(|value| value * rows as f64).collect()
}

#[test]
fn assignments_use_every_prototype_alike() {
    let mut random = SplitMix64 { state: 8 };
    // All of them like the first prototype best, some more than others.
    let scores: Vec<f32> = (0..40 * 5)
        .map(|at| 0.15 * random.next_signed_unit() + if at % 5 == 0 { 0.4 } else { 0.0 })
        .collect();
    let assigned = values(sinkhorn::assign(matrix(&scores, [40, 5])));
    for row in assigned.chunks(5) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
    }
    for column in 0..5 {
        let sum: f32 = assigned.iter().skip(column).step_by(5).sum();
        assert!((sum - 8.0).abs() < 0.8, "{column}: {sum}");
    }
    let want = assigned_by_loops(&scores, [40, 5]);
    let worst =
        assigned.iter().zip(&want).fold(0.0_f64, |worst, (a, b)| worst.max((f64::from(*a) - b).abs()));
    assert!(worst < 1e-4, "{worst}");
    // What is liked alike is shared, and the ends of the scale are within the range of single precision.
    let alike = values(sinkhorn::assign(matrix(&[1.0, -1.0, 1.0, -1.0], [2, 2])));
    assert!(alike.iter().all(|share| (share - 0.5).abs() < 1e-5), "{alike:?}");
}

#[test]
fn each_crop_predicts_the_assignments_of_the_others() {
    // Two large crops and a small one of one picture, two prototypes.
    let scores = [0.1, 0.3, 0.4, 0.0, -0.2, 0.2];
    let assignments = [1.0, 0.0, 0.25, 0.75];
    let swapped = SwappedPrediction::of(matrix(&scores, [3, 2]), &matrix(&assignments, [2, 2]), 3, 1);
    let log_p = |row: usize, column: usize| {
        let row = &scores[2 * row..][..2];
        let sum: f32 = row.iter().map(|score| (score / 0.1).exp()).sum();
        row[column] / 0.1 - sum.ln()
    };
    let first = log_p(1, 0) + log_p(2, 0);
    let second = |row| 0.25 * log_p(row, 0) + 0.75 * log_p(row, 1);
    let want = -(first + second(0) + second(2)) / 4.0;
    let got = values(swapped.values);
    assert!((got[0] - want).abs() < 1e-4, "{} {want}", got[0]);
    // The first crop was assigned to the first prototype, and that is the guess of the second crop.
    assert_eq!(got[1], 1.0);
}
