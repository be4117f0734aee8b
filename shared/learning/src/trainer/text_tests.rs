//! The trainer on text, on the CPU: it learns to guess, and how sequences are cut into micro-batches changes nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::run::model::presets::Albert;
use barnraise_protocol::run::{ModelSpec, Preset};
use futures::executor::block_on;

use super::*;
use crate::batch::Batch;
use crate::conformance::deviation;
use crate::device::ComputeDevice;
use crate::optimizer::{Optimizer, OptimizerSpec};

const TOKENS: TokenShape = TokenShape { length: 12, vocabulary: 23, mask: Some(1) };

fn albert() -> ModelSpec {
    Preset::Albert(Albert { embedding: 12, hidden: 24, heads: 2, inner: 48, layers: 2 }).model(5)
}

fn text_trainer() -> Trainer {
    Trainer::new(&albert(), DataShape::Tokens(TOKENS), ComputeDevice::cpu()).unwrap()
}

/// Alphabets that begin with one of four letters: what is masked follows from the letters beside it.
fn alphabets(n_sequences: usize) -> Vec<u32> {
    let id = |at: usize| 3 + ((at / 12 % 4 * 5 + at % 12) % 20) as u32;
    (0..n_sequences * 12).map(id).collect()
}

#[test]
fn a_transformer_learns_to_guess_masked_tokens() {
    let mut trainer = text_trainer();
    let mut parameters = trainer.layout().initial_parameters(5);
    let mut optimizer = Optimizer::new(OptimizerSpec::adam(), trainer.layout()).unwrap();
    let train = alphabets(4);
    let before = block_on(trainer.evaluate_tokens(&train)).unwrap();
    // As good as any of 23 tokens.
    assert!((before.loss - 23.0_f32.ln()).abs() < 0.6, "{before:?}");
    for epoch in 0..60 {
        // The same sequences in several draws: other tokens of them are masked each time.
        for draw in 0..8 {
            block_on(trainer.accumulate_tokens(&train, epoch * 8 + draw)).unwrap();
        }
        let mean = block_on(trainer.take_mean_gradient()).unwrap().unwrap();
        assert_eq!(mean.n_samples, 32);
        optimizer.step(&mut parameters, &mean.values, 0.005).unwrap();
        trainer.load_parameters(&parameters).unwrap();
    }
    let after = block_on(trainer.evaluate_tokens(&train)).unwrap();
    println!("{before:?}, then {after:?}");
    assert!(after.loss < 0.8 * before.loss, "{after:?}");
}

#[test]
fn sequences_in_any_micro_batches_give_the_gradient_of_one_batch() {
    let mut trainer = text_trainer();
    let all = alphabets(11);
    let mut gradient = |cuts: &[std::ops::Range<usize>]| {
        for cut in cuts {
            block_on(trainer.accumulate_tokens(&all[cut.start * 12..cut.end * 12], 9)).unwrap();
        }
        block_on(trainer.take_mean_gradient()).unwrap().unwrap()
    };
    let whole = gradient(std::slice::from_ref(&(0..11)));
    let pieces = gradient(&[7..11, 0..1, 1..7]);
    assert_eq!((whole.n_samples, whole.n_correct), (pieces.n_samples, pieces.n_correct));
    assert!(deviation(&pieces.values, &whole.values) < 1e-5);
    assert!((whole.loss - pieces.loss).abs() < 1e-5);
    block_on(trainer.accumulate_tokens(&all, 10)).unwrap();
    let masked_otherwise = block_on(trainer.take_mean_gradient()).unwrap().unwrap();
    assert!(deviation(&masked_otherwise.values, &whole.values) > 0.01);
}

#[test]
fn text_is_checked_and_each_model_has_its_samples() {
    let mut text = text_trainer();
    let refused = block_on(text.accumulate_tokens(&[3; 13], 0));
    assert_eq!(refused, Err(ModelError::TokenCount { length: 12, got: 13 }));
    let refused = block_on(text.accumulate_tokens(&[23; 12], 0));
    assert_eq!(refused, Err(ModelError::Token { index: 0, token: 23, vocabulary: 23 }));
    assert!(matches!(block_on(text.accumulate_tokens(&[], 0)), Err(ModelError::BatchSize { .. })));
    let picture = Batch { images: vec![0; 4], labels: vec![0] };
    let wrong = |result: Result<(), ModelError>| matches!(result, Err(ModelError::WrongData { .. }));
    assert!(wrong(block_on(text.accumulate(&picture))));
    assert!(wrong(block_on(text.predict(&[], 0)).map(drop)));
    let shape = ImageShape { height: 2, width: 2, channels: 1 };
    let images = DataShape::Images { shape, n_classes: 3 };
    let mlp = Preset::Mlp { hidden: vec![4] }.model(1);
    let mut pictures = Trainer::new(&mlp, images, ComputeDevice::cpu()).unwrap();
    assert!(wrong(block_on(pictures.accumulate_tokens(&[3; 12], 0))));
    let unsuited = Trainer::new(&albert(), images, ComputeDevice::cpu()).map(drop);
    assert!(matches!(unsuited, Err(ModelError::Graph(_))), "{unsuited:?}");
}
