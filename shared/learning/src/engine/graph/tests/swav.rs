//! SwAV on a graph: its gradient, frozen prototypes, and the queue.

use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::run::Preset;
use barnraise_protocol::run::model::presets::{Swav, SwavTrunk};

use super::super::*;
use super::*;
use crate::crops::{CropSizes, Crops};
use crate::engine::readback::read;
use crate::engine::swav::{self as method, SwappedPrediction};
use crate::random::SplitMix64;

const SHAPE: ImageShape = ImageShape { height: 12, width: 12, channels: 1 };
/// Large and small.
const N_CROPS: usize = 4;
/// Values of the prototypes.
const PROTOTYPES: usize = 7 * 6;

fn swav(queue_samples: u32, queue_after: u32) -> GraphEngine {
    let preset = Preset::Swav(Swav {
        trunk: SwavTrunk::Convolutions(vec![3, 5]),
        hidden: 8,
        projection: 6,
        prototypes: 7,
        small_crops: 2,
        small_side: 8,
        queue_samples,
        queue_after,
        frozen_epochs: 0,
    });
    engine(&preset.graph(), GraphData::Images { shape: SHAPE, n_classes: 2 }, 2)
}

fn crops(n_samples: usize, seed: u64) -> GraphBatch {
    let mut random = SplitMix64 { state: seed };
    let images: Vec<u8> = (0..n_samples * SHAPE.n_values()).map(|_| random.below(256) as u8).collect();
    let sizes = CropSizes { shape: SHAPE, n_small: 2, small_side: 8 };
    GraphBatch::crops(&Crops::of(&images, sizes, 3, 4), false)
}

fn frozen(batch: &GraphBatch) -> GraphBatch {
    let GraphTargets::Crops { small, .. } = batch.targets.clone() else { panic!("crops") };
    GraphBatch { targets: GraphTargets::Crops { small, is_frozen: true }, ..batch.clone() }
}

fn gradient(engine: &mut GraphEngine, batch: &GraphBatch) -> Vec<f32> {
    pass(engine, batch).1
}

/// Summed losses with some assignments, or with those of the pass; and the assignments.
fn loss(engine: &GraphEngine, batch: &GraphBatch, held: Option<&Tensor<2>>) -> (f64, Tensor<2>) {
    let n_samples = batch.n_samples;
    let Loss::Swav(loss) = engine.graph.loss() else { panic!("another loss") };
    let (mut pass, inputs) = engine.evaluation(batch).unwrap();
    let large = inputs.into_iter().next().unwrap();
    let scores = block_on(crops::heads(&mut pass, large, batch, loss)).unwrap().scores;
    let assigned = held.cloned().unwrap_or_else(|| {
        method::of_each_large(n_samples, |rows| method::sinkhorn::assign(rows.of(&scores)))
    });
    let swapped = SwappedPrediction::of(scores, &assigned, N_CROPS, n_samples);
    let losses = block_on(read(swapped.values, None)).unwrap();
    (losses[..n_samples].iter().map(|&loss| f64::from(loss)).sum(), assigned)
}

#[test]
fn the_gradient_is_that_of_the_loss_with_assignments_held() {
    let mut engine = swav(0, 0);
    let batch = crops(6, 1);
    let layout = engine.graph.layout().clone();
    let flat = layout.initial_parameters(2);
    let (_, held) = loss(&engine, &batch, None);
    let gradient = gradient(&mut engine, &batch);
    for segment in layout.trained() {
        let range = segment.range();
        let norm = gradient[range.clone()].iter().map(|value| value * value).sum::<f32>().sqrt();
        // What goes before a batch normalization is the same for all and has no gradient.
        if segment.name == "projection_head.0.bias" {
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
            loss(&engine, &batch, Some(&held)).0
        });
        let slope = (up - down) / 2e-3;
        println!("{}: {norm} {slope}", segment.name);
        assert!((slope / f64::from(norm) - 1.0).abs() < 0.05, "{}: {norm} {slope}", segment.name);
    }
}

#[test]
fn frozen_prototypes_get_no_gradient_and_all_else_the_same() {
    let mut engine = swav(0, 0);
    let batch = crops(5, 1);
    let free = gradient(&mut engine, &batch);
    let frozen = gradient(&mut engine, &frozen(&batch));
    let n_before = free.len() - PROTOTYPES;
    assert!(free[..n_before] == frozen[..n_before]);
    assert!(frozen[n_before..].iter().all(|value| *value == 0.0));
    assert!(free[n_before..].iter().any(|value| *value != 0.0));
}

#[test]
fn without_a_queue_a_pass_gives_the_same_whatever_went_before() {
    let mut engine = swav(0, 0);
    let (one, other) = (crops(6, 1), crops(6, 2));
    let fresh = gradient(&mut engine, &one);
    gradient(&mut engine, &other);
    assert!(gradient(&mut engine, &one) == fresh);
    block_on(block_on(engine.step(one.clone(), Arithmetic::Single))).unwrap();
    block_on(block_on(engine.step(other.clone(), Arithmetic::Single))).unwrap();
    let both = block_on(engine.take()).unwrap();
    block_on(block_on(engine.step(other.clone(), Arithmetic::Single))).unwrap();
    block_on(block_on(engine.step(one.clone(), Arithmetic::Single))).unwrap();
    let turned = block_on(engine.take()).unwrap();
    assert!(deviation(&turned, &both) < 1e-5);
}

#[test]
fn a_queue_is_used_after_its_passes_bounded_and_forgotten() {
    let mut engine = swav(14, 2);
    let (one, other) = (crops(6, 1), crops(6, 2));
    let fresh = gradient(&mut engine, &one);
    assert!(gradient(&mut engine, &one) == fresh, "one pass is not yet enough");
    let balanced = gradient(&mut engine, &other);
    engine.clear_queue();
    let alone = gradient(&mut engine, &other);
    assert!(deviation(&balanced, &alone) > 1e-3);
    for _ in 0..5 {
        gradient(&mut engine, &one);
        assert!(engine.queue.n_samples() <= 14);
    }
    assert_eq!(engine.queue.of_crop(1).unwrap().dims(), [12, 6]);
}
