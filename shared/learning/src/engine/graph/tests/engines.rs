//! Presets against the engines that were written for their networks.

use barnraise_protocol::dataset::{ImageShape, TokenShape};
use barnraise_protocol::run::{ModelKind, ModelSpec};

use super::*;
use crate::crops::{CropSizes, Crops};
use crate::data_shape::DataShape;
use crate::engine::{Engine, Input};
use crate::graph::presets::{Albert, Preset, Swav, SwavTrunk};
use crate::layout::{AlbertSizes, SwavSizes};
use crate::masking::MaskedTokens;
use crate::parameters::ParameterLayout;
use crate::random::SplitMix64;
use crate::statistics::Statistics;

/// The operations are the same ones in the same order: only the order of some sums may differ.
const TOLERANCE: f32 = 1e-6;
const SHAPE: ImageShape = ImageShape { height: 16, width: 14, channels: 3 };
const N_CLASSES: usize = 5;
const TOKENS: TokenShape = TokenShape { length: 12, vocabulary: 40 };

fn images(n: usize) -> (Vec<u8>, Vec<u8>) {
    let mut random = SplitMix64 { state: 3 };
    let pixels = (0..n * SHAPE.n_values()).map(|_| random.below(256) as u8).collect();
    (pixels, (0..n).map(|at| (at % N_CLASSES) as u8).collect())
}

fn layout(kind: &ModelKind, data: DataShape) -> ParameterLayout {
    ParameterLayout::of(&ModelSpec { kind: kind.clone(), seed: 0 }, data).unwrap()
}

#[test]
fn le_net_and_mlp_compute_what_their_engine_does() {
    let data = DataShape::Images { shape: SHAPE, n_classes: N_CLASSES };
    let hidden = vec![20, 12];
    for (preset, kind) in [
        (Preset::LeNet, ModelKind::LeNet),
        (Preset::Mlp { hidden: hidden.clone() }, ModelKind::Mlp { hidden }),
    ] {
        let layout = layout(&kind, data);
        let flat = layout.initial_parameters(5);
        let mut want = Engine::autodiff(&layout, SHAPE, N_CLASSES, &ComputeDevice::cpu(), &flat);
        let mut got = engine(&preset.graph(), data.into(), 5);
        let (images, labels) = images(9);
        let input = Input::Images { images: &images, labels: &labels };
        let logits = block_on(want.step(input, Arithmetic::Single)).unwrap();
        let gradient = block_on(want.take()).unwrap();
        let batch = GraphBatch::images(&images, &labels, SHAPE);
        let (values, got_gradient) = pass(&mut got, &batch);
        assert_near("gradient", &got_gradient, &gradient, TOLERANCE);
        assert_near("logits", &block_on(got.outputs(&batch)).unwrap(), &logits, TOLERANCE);
        let labels: Vec<u16> = labels.iter().map(|&label| label.into()).collect();
        let (got, want) = (Statistics::of_losses(&values), Statistics::of(&logits, &labels));
        assert_eq!((got.n_rows, got.n_correct), (want.n_rows, want.n_correct));
        assert!((got.loss_sum - want.loss_sum).abs() < 1e-5);
    }
}

#[test]
fn albert_computes_what_its_engine_does() {
    let kind = ModelKind::Albert { embedding: 10, hidden: 16, heads: 4, inner: 24, layers: 3 };
    let data = DataShape::Tokens(TOKENS);
    let layout = layout(&kind, data);
    let flat = layout.initial_parameters(5);
    let sizes = AlbertSizes::of(&kind, TOKENS).unwrap();
    let mut want = Engine::albert(&layout, sizes, &ComputeDevice::cpu(), &flat);
    let preset = Preset::Albert(Albert { embedding: 10, hidden: 16, heads: 4, inner: 24, layers: 3 });
    let mut got = engine(&preset.graph(), data.into(), 5);
    let mut random = SplitMix64 { state: 9 };
    let ids: Vec<u16> = (0..5 * 12).map(|_| 3 + random.below(37) as u16).collect();
    let masked = MaskedTokens::of(&ids, TOKENS, 7, 1);
    let logits = block_on(want.step(Input::Masked(&masked), Arithmetic::Single)).unwrap();
    let gradient = block_on(want.take()).unwrap();
    let batch = GraphBatch::masked(&masked, 12);
    let (values, got_gradient) = pass(&mut got, &batch);
    assert_near("gradient", &got_gradient, &gradient, TOLERANCE);
    assert_near("logits", &block_on(got.outputs(&batch)).unwrap(), &logits, TOLERANCE);
    let (got, want) = (Statistics::of_losses(&values), Statistics::of(&logits, &masked.targets));
    assert!((got.loss_sum - want.loss_sum).abs() < 1e-4);
}

#[test]
fn swav_computes_what_its_engine_does() {
    let shape = ImageShape { height: 16, width: 16, channels: 1 };
    let data = DataShape::Images { shape, n_classes: N_CLASSES };
    let kind = ModelKind::Swav {
        maps: vec![4, 6],
        hidden: 12,
        projection: 6,
        prototypes: 8,
        small_crops: 2,
        small_side: 8,
        queue_samples: 12,
        queue_after: 1,
        frozen_epochs: 0,
    };
    let layout = layout(&kind, data);
    let flat = layout.initial_parameters(5);
    let sizes = SwavSizes::of(&kind, shape).unwrap();
    let mut want = Engine::swav(&layout, sizes, &ComputeDevice::cpu(), &flat);
    let preset = Preset::Swav(Swav {
        trunk: SwavTrunk::Convolutions(vec![4, 6]),
        hidden: 12,
        projection: 6,
        prototypes: 8,
        small_crops: 2,
        small_side: 8,
        queue_samples: 12,
        queue_after: 1,
        frozen_epochs: 0,
    });
    let mut got = engine(&preset.graph(), data.into(), 5);
    let mut random = SplitMix64 { state: 3 };
    let pixels: Vec<u8> = (0..6 * shape.n_values()).map(|_| random.below(256) as u8).collect();
    // The second pass has the first one's projections in its queue.
    for (draw, is_frozen) in [(0, true), (1, false)] {
        let crops = Crops::of(&pixels, CropSizes { shape, n_small: 2, small_side: 8 }, 7, draw);
        let values =
            block_on(want.step(Input::Crops { crops: &crops, is_frozen }, Arithmetic::Single)).unwrap();
        let gradient = block_on(want.take()).unwrap();
        let batch = GraphBatch::crops(&crops, is_frozen);
        let (got_values, got_gradient) = pass(&mut got, &batch);
        // Batch normalization is burn's own here.
        assert_near("gradient", &got_gradient, &gradient, 2e-5);
        assert_near("losses", &got_values, &values, 1e-5);
        let input = Input::Crops { crops: &crops, is_frozen };
        let losses = block_on(want.logits(input, 6)).unwrap();
        assert_near("evaluation", &block_on(got.losses(&batch)).unwrap(), &losses, 1e-5);
    }
    let input = Input::Images { images: &pixels, labels: &[] };
    let features = block_on(want.logits(input, 6)).unwrap();
    let batch = GraphBatch::images(&pixels, &[], shape);
    assert_near("features", &block_on(got.outputs(&batch)).unwrap(), &features, TOLERANCE);
}
