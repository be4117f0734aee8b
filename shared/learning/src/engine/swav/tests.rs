//! The method against its formulas, on the CPU: assignments, the swapped prediction, its gradient, the queue.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::run::{ModelKind, ModelSpec};
use futures::executor::block_on;

use super::*;
use crate::conformance::deviation;
use crate::data_shape::DataShape;
use crate::device::ComputeDevice;
use crate::random::SplitMix64;

const SHAPE: ImageShape = ImageShape { height: 12, width: 12, channels: 1 };

fn kind(queue_samples: u32, queue_after: u32) -> ModelKind {
    ModelKind::Swav {
        maps: vec![3, 5],
        hidden: 8,
        projection: 6,
        prototypes: 7,
        small_crops: 2,
        small_side: 8,
        queue_samples,
        queue_after,
        frozen_epochs: 0,
    }
}

fn layout(kind: &ModelKind) -> ParameterLayout {
    let data = DataShape::Images { shape: SHAPE, n_classes: 2 };
    ParameterLayout::of(&ModelSpec { kind: kind.clone(), seed: 2 }, data).unwrap()
}

fn engine(queue_samples: u32, queue_after: u32) -> SwavEngine {
    let kind = kind(queue_samples, queue_after);
    let layout = layout(&kind);
    let sizes = SwavSizes::of(&kind, SHAPE).unwrap();
    SwavEngine::new(&layout, sizes, ComputeDevice::cpu().burn(), &layout.initial_parameters(2))
}

fn crops(engine: &SwavEngine, n_samples: usize, seed: u64) -> Crops {
    let mut random = SplitMix64 { state: seed };
    let images: Vec<u8> = (0..n_samples * SHAPE.n_values()).map(|_| random.below(256) as u8).collect();
    Crops::of(&images, engine.sizes.crops, 3, 4)
}

fn matrix(values: &[f32], shape: [usize; 2]) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), ComputeDevice::cpu().burn())
}

fn values(tensor: Tensor<2>) -> Vec<f32> {
    block_on(read(tensor, None)).unwrap()
}

fn gradient(engine: &mut SwavEngine, crops: &Crops) -> Vec<f32> {
    block_on(engine.step(crops, false, Arithmetic::Single)).unwrap();
    block_on(engine.take()).unwrap()
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

#[test]
fn the_gradient_is_that_of_the_loss_with_assignments_held() {
    let mut engine = engine(0, 0);
    let crops = crops(&engine, 6, 1);
    let layout = layout(&kind(0, 0));
    let flat = layout.initial_parameters(2);
    let loss = |engine: &SwavEngine, held: Option<&Tensor<2>>| {
        let heads = heads(engine.tensors.parameters(), &engine.sizes, &crops, engine.tensors.device());
        let assigned = held.cloned().unwrap_or_else(|| engine.assignments(&heads.scores, 6));
        let swapped = SwappedPrediction::of(heads.scores, &assigned, 4, 6);
        let losses = values(swapped.values);
        (losses[..6].iter().map(|&loss| f64::from(loss)).sum::<f64>(), assigned)
    };
    let (_, held) = loss(&engine, None);
    let gradient = gradient(&mut engine, &crops);
    for segment in layout.segments() {
        let range = segment.range();
        let norm = gradient[range.clone()].iter().map(|value| value * value).sum::<f32>().sqrt();
        // What goes before a batch normalization is the same for all and has no gradient.
        if segment.name == "head.hidden.bias" {
            assert!(norm < 1e-3, "{norm}");
            continue;
        }
        let [up, down] = [1e-3, -1e-3].map(|step: f32| {
            let mut moved = flat.clone();
            let slopes = gradient[range.clone()].iter();
            moved[range.clone()]
                .iter_mut()
                .zip(slopes)
                .for_each(|(value, slope)| *value += step * slope / norm);
            engine.load(&moved);
            loss(&engine, Some(&held)).0
        });
        let slope = (up - down) / 2e-3;
        println!("{}: {norm} {slope}", segment.name);
        assert!((slope / f64::from(norm) - 1.0).abs() < 0.05, "{}: {norm} {slope}", segment.name);
    }
}

#[test]
fn frozen_prototypes_get_no_gradient_and_all_else_the_same() {
    let mut engine = engine(0, 0);
    let crops = crops(&engine, 5, 1);
    let free = gradient(&mut engine, &crops);
    block_on(engine.step(&crops, true, Arithmetic::Single)).unwrap();
    let frozen = block_on(engine.take()).unwrap();
    let n_before = free.len() - 7 * 6;
    assert!(free[..n_before] == frozen[..n_before]);
    assert!(frozen[n_before..].iter().all(|value| *value == 0.0));
    assert!(free[n_before..].iter().any(|value| *value != 0.0));
}

#[test]
fn without_a_queue_a_pass_gives_the_same_whatever_went_before() {
    let mut engine = engine(0, 0);
    let (one, other) = (crops(&engine, 6, 1), crops(&engine, 6, 2));
    let fresh = gradient(&mut engine, &one);
    gradient(&mut engine, &other);
    assert!(gradient(&mut engine, &one) == fresh);
    block_on(engine.step(&one, false, Arithmetic::Single)).unwrap();
    block_on(engine.step(&other, false, Arithmetic::Single)).unwrap();
    let both = block_on(engine.take()).unwrap();
    block_on(engine.step(&other, false, Arithmetic::Single)).unwrap();
    block_on(engine.step(&one, false, Arithmetic::Single)).unwrap();
    let turned = block_on(engine.take()).unwrap();
    assert!(deviation(&turned, &both) < 1e-5);
}

#[test]
fn a_queue_is_used_after_its_passes_bounded_and_forgotten() {
    let mut engine = engine(14, 2);
    let (one, other) = (crops(&engine, 6, 1), crops(&engine, 6, 2));
    let fresh = gradient(&mut engine, &one);
    assert!(gradient(&mut engine, &one) == fresh, "one pass is not yet enough");
    let balanced = gradient(&mut engine, &other);
    engine.clear_queue();
    let alone = gradient(&mut engine, &other);
    assert!(deviation(&balanced, &alone) > 1e-3);
    for _ in 0..5 {
        gradient(&mut engine, &one);
        assert!(engine.queue.n_samples <= 14 && engine.queue.passes.len() <= 2);
    }
    assert_eq!(engine.queue.of_crop(1).unwrap().dims(), [12, 6]);
}
