//! Passes in half precision against the same in single precision, on the CPU, and overflow.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::dataset::{ImageShape, LabelledImages, Samples, TokenSequences, TokenShape};
use barnraise_protocol::run::Preset;
use barnraise_protocol::run::model::presets::{Albert, Swav, SwavTrunk};
use futures::executor::block_on;

use super::*;
use crate::conformance::deviation;
use crate::data_shape::DataShape;
use crate::device::{ComputeDevice, Precision};
use crate::optimizer::{Optimizer, OptimizerSpec};
use crate::random::SplitMix64;
use crate::scaling::{LossScaler, SCALE_FIRST, SCALE_MAX, SCALE_MIN};
use crate::trainer::MeanGradient;

const SHAPE: ImageShape = ImageShape { height: 14, width: 14, channels: 1 };
const IMAGES: DataShape = DataShape::Images { shape: SHAPE, n_classes: 4 };
const TOKENS: TokenShape = TokenShape { length: 12, vocabulary: 40, mask: Some(1) };

/// In half and in single precision.
fn trainers(kind: &Preset, data: DataShape) -> [Trainer; 2] {
    let spec = kind.model(3);
    [Precision::F16, Precision::Single].map(|precision| {
        let device = ComputeDevice::cpu().with_precision(precision).unwrap();
        assert_eq!(device.precision(), precision);
        Trainer::new(&spec, data, device).unwrap()
    })
}

fn mlp() -> Preset {
    Preset::Mlp { hidden: vec![24, 16] }
}

/// Pictures with a bright quadrant, which is the class, or sequences.
fn samples(data: DataShape, n_samples: usize) -> Samples {
    let mut random = SplitMix64 { state: 4 };
    match data {
        DataShape::Images { .. } => {
            let mut pictures = LabelledImages::default();
            for sample in 0..n_samples {
                let label = sample % 4;
                for pixel in 0..SHAPE.n_values() {
                    let is_bright = (pixel / 14 / 7) * 2 + pixel % 14 / 7 == label;
                    pictures.images.push((random.below(90) + if is_bright { 120 } else { 0 }) as u8);
                }
                pictures.labels.push(label as u8);
            }
            Samples::Images(pictures)
        }
        DataShape::Tokens(shape) => {
            let n_ids = n_samples * usize::from(shape.length);
            let ids = (0..n_ids).map(|_| 3 + random.below(37) as u32).collect();
            Samples::Tokens(TokenSequences { length: shape.length, ids })
        }
        other => other.blank_samples(n_samples),
    }
}

fn gradient(trainer: &mut Trainer, samples: &Samples, n_passes: usize) -> MeanGradient {
    block_on(async {
        for _ in 0..n_passes {
            trainer.accumulate_samples(samples, 5).await.unwrap();
        }
        trainer.take_mean_gradient().await.unwrap().unwrap()
    })
}

#[test]
fn gradients_of_every_model_are_those_of_single_precision() {
    let albert = Preset::Albert(Albert { embedding: 12, hidden: 24, heads: 3, inner: 32, layers: 2 });
    let swav = Preset::Swav(Swav {
        trunk: SwavTrunk::Convolutions(vec![4, 8]),
        hidden: 16,
        projection: 8,
        prototypes: 6,
        small_crops: 1,
        small_side: 8,
        queue_samples: 64,
        queue_after: 1,
        frozen_epochs: 0,
    });
    // Half precision rounds to 2^-11; through a few layers that stays below a hundredth of the largest value. Where there
    // is pooling, another of two nearly equal pixels may be the largest. SwAV multiplies differences of scores by 20
    // before it assigns, and by 10 before it guesses.
    for (kind, data, tolerance) in [
        (mlp(), IMAGES, 0.01),
        (Preset::LeNet, IMAGES, 0.03),
        (albert, DataShape::Tokens(TOKENS), 0.01),
        (swav, IMAGES, 0.1),
    ] {
        let name = format!("{kind:?}");
        let samples = samples(data, 24);
        let [got, want] = trainers(&kind, data).map(|mut trainer| gradient(&mut trainer, &samples, 3));
        assert_eq!((got.n_samples, want.n_samples), (72, 72));
        let deviation = deviation(&got.values, &want.values);
        println!("{name}: {deviation}, {} {}", got.loss, want.loss);
        assert!(deviation > 0.0, "{name}: it was not computed in half precision");
        assert!(deviation < tolerance, "{name}: {deviation}");
        assert!((got.loss / want.loss - 1.0).abs() < 0.01, "{name}: {} {}", got.loss, want.loss);
    }
}

#[test]
fn a_model_learns_as_in_single_precision() {
    let samples = samples(IMAGES, 64);
    let losses = trainers(&Preset::LeNet, IMAGES).map(|mut trainer| {
        let mut parameters = trainer.layout().initial_parameters(3);
        let mut optimizer = Optimizer::new(OptimizerSpec::adam(), trainer.layout()).unwrap();
        for _ in 0..12 {
            let mean = gradient(&mut trainer, &samples, 1);
            optimizer.step(&mut parameters, &mean.values, 0.002).unwrap();
            trainer.load_parameters(&parameters).unwrap();
        }
        block_on(trainer.evaluate_samples(&samples)).unwrap().loss
    });
    println!("{losses:?}");
    assert!(losses[1] < 1.0, "{losses:?}");
    assert!((losses[0] - losses[1]).abs() < 0.05, "{losses:?}");
}

#[test]
fn a_scale_that_overflows_falls_and_no_sample_is_lost() {
    let samples = samples(IMAGES, 16);
    let [mut mixed, mut single] = trainers(&mlp(), IMAGES);
    assert_eq!(mixed.scaler, Some(LossScaler::beginning_at(SCALE_FIRST)));
    mixed.scaler = Some(LossScaler::beginning_at(SCALE_MAX));
    let (got, want) = (gradient(&mut mixed, &samples, 4), gradient(&mut single, &samples, 4));
    let scale = mixed.scaler.unwrap().scale();
    assert!(scale < SCALE_MAX && scale > SCALE_MIN, "{scale}");
    assert_eq!((got.n_samples, got.n_correct), (64, want.n_correct));
    assert!(deviation(&got.values, &want.values) < 0.01);
    // It has found a scale that works: nothing is made again.
    gradient(&mut mixed, &samples, 4);
    assert_eq!(mixed.scaler.unwrap().scale(), scale);
    assert!(single.scaler.is_none());
}

#[test]
fn what_half_precision_cannot_hold_is_computed_in_single() {
    let samples = samples(IMAGES, 8);
    let [mut mixed, mut single] = trainers(&mlp(), IMAGES);
    // Activations of hundreds of thousands, which single precision holds and half does not.
    let mut parameters = single.layout().initial_parameters(3);
    let first = single.layout().segments()[0].range();
    parameters[first].iter_mut().for_each(|weight| *weight *= 1e6);
    mixed.load_parameters(&parameters).unwrap();
    single.load_parameters(&parameters).unwrap();
    let (got, want) = (gradient(&mut mixed, &samples, 3), gradient(&mut single, &samples, 3));
    assert_eq!(mixed.scaler.unwrap().scale(), SCALE_MIN);
    assert!(got == want, "the passes were made in single precision");
}
