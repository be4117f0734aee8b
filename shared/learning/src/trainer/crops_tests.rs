//! The trainer on pictures without labels, on the CPU: its features learn to separate classes that it never saw.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::dataset::{ImageShape, Samples};
use barnraise_protocol::run::model::presets::{Swav, SwavTrunk};
use barnraise_protocol::run::{ModelSpec, Preset};
use futures::executor::block_on;

use super::*;
use crate::batch::Batch;
use crate::device::ComputeDevice;
use crate::optimizer::{Optimizer, OptimizerSpec};
use crate::random::SplitMix64;

const SHAPE: ImageShape = ImageShape { height: 20, width: 20, channels: 1 };
const N_CLASSES: usize = 4;

fn swav() -> ModelSpec {
    let kind = Preset::Swav(Swav {
        trunk: SwavTrunk::Convolutions(vec![8, 16]),
        hidden: 32,
        projection: 16,
        prototypes: 12,
        small_crops: 2,
        small_side: 12,
        queue_samples: 128,
        queue_after: 30,
        frozen_epochs: 2,
    });
    kind.model(5)
}

fn trainer() -> Trainer {
    let data = DataShape::Images { shape: SHAPE, n_classes: N_CLASSES };
    Trainer::new(&swav(), data, ComputeDevice::cpu()).unwrap()
}

/// Textures of four kinds, each of its own brightness, phase and noise: stripes across, stripes down, a chequerboard
/// and blobs.
fn textures(n_samples: usize, seed: u64) -> LabelledImages {
    let mut random = SplitMix64 { state: seed };
    let mut pictures = LabelledImages::default();
    for sample in 0..n_samples {
        let label = sample % N_CLASSES;
        let (down, right) = (random.below(4), random.below(4));
        let (ground, height) = (random.below(60), 40 + random.below(80));
        for pixel in 0..SHAPE.n_values() {
            let (row, column) = ((pixel / 20 + down) / 2, (pixel % 20 + right) / 2);
            let is_lit = match label {
                0 => row % 2 == 0,
                1 => column % 2 == 0,
                2 => (row + column) % 2 == 0,
                _ => row % 2 == 0 && column % 2 == 0,
            };
            let noise = random.below(60);
            pictures.images.push((ground + noise + if is_lit { height } else { 0 }) as u8);
        }
        pictures.labels.push(label as u8);
    }
    pictures
}

#[test]
fn features_get_better_at_what_nobody_told() {
    let (train, test) = (textures(256, 1), textures(128, 2));
    let mut trainer = trainer();
    let mut parameters = trainer.layout().initial_parameters(5);
    let lars = OptimizerSpec::Lars { momentum: 0.9, trust_coefficient: 0.01, weight_decay: 1e-6 };
    let mut optimizer = Optimizer::new(lars, trainer.layout()).unwrap();
    let before = block_on(trainer.evaluate_neighbours(&train, &test)).unwrap();
    for epoch in 0..40 {
        for images in train.images.chunks(64 * SHAPE.n_values()) {
            block_on(trainer.accumulate_crops(images, epoch)).unwrap();
        }
        let mean = block_on(trainer.take_mean_gradient()).unwrap().unwrap();
        assert_eq!(mean.n_samples, 256);
        optimizer.step(&mut parameters, &mean.values, 1.0).unwrap();
        trainer.load_parameters(&parameters).unwrap();
    }
    let after = block_on(trainer.evaluate_neighbours(&train, &test)).unwrap();
    // 3.51 and 0.969, then 1.24 and 1.
    assert!(after.loss < 0.6 * before.loss, "{before:?} {after:?}");
    assert!(after.accuracy > before.accuracy, "{before:?} {after:?}");
}

#[test]
fn labels_are_never_looked_at_and_pictures_are_checked() {
    let mut trainer = trainer();
    let mut pictures = textures(16, 3);
    let gradient = |trainer: &mut Trainer, pictures: &LabelledImages| {
        block_on(trainer.accumulate_samples(&Samples::Images(pictures.clone()), 7)).unwrap();
        block_on(trainer.take_mean_gradient()).unwrap().unwrap()
    };
    let want = gradient(&mut trainer, &pictures);
    pictures.labels.fill(0);
    assert!(gradient(&mut trainer, &pictures) == want);
    let wrong = |result: Result<(), ModelError>| matches!(result, Err(ModelError::WrongData { .. }));
    let batch = Batch { images: pictures.images.clone(), labels: pictures.labels.clone() };
    assert!(wrong(block_on(trainer.accumulate(&batch))));
    assert!(wrong(block_on(trainer.predict(&pictures.images, 16)).map(drop)));
    assert!(wrong(block_on(trainer.accumulate_tokens(&[3; 12], 0))));
    let refused = block_on(trainer.accumulate_crops(&pictures.images[1..], 0));
    assert!(matches!(refused, Err(ModelError::ImageBytes { n_samples: 15, .. })), "{refused:?}");
    assert!(matches!(block_on(trainer.accumulate_crops(&[], 0)), Err(ModelError::BatchSize { .. })));
    pictures.labels[3] = 4;
    let refused = block_on(trainer.evaluate_neighbours(&pictures, &pictures));
    assert!(matches!(refused, Err(ModelError::Label { sample: 3, label: 4, .. })), "{refused:?}");
    let mlp = Preset::Mlp { hidden: vec![4] }.model(1);
    let data = DataShape::Images { shape: SHAPE, n_classes: N_CLASSES };
    let mlp = Trainer::new(&mlp, data, ComputeDevice::cpu()).unwrap();
    assert!(wrong(block_on(mlp.evaluate_neighbours(&pictures, &pictures)).map(drop)));
}
