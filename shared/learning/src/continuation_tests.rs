#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::dataset::TokenShape;
use barnraise_protocol::run::model::presets::{Gpt, GptFamily};
use barnraise_protocol::run::{ModelSpec, Preset};
use futures::executor::block_on;

use super::*;
use crate::conformance::deviation;
use crate::data_shape::DataShape;
use crate::device::ComputeDevice;
use crate::optimizer::{Optimizer, OptimizerSpec};

const LENGTH: u32 = 12;
const VOCABULARY: u32 = 20;

fn special() -> SpecialTokens {
    SpecialTokens { separator: 2, mask: Some(1), unknown: Some(0), all: vec![0, 1, 2] }
}

fn after(prompt: &[u32], seed: u64) -> Continuation {
    Continuation::of(prompt, &special(), seed)
}

fn spec(family: GptFamily) -> ModelSpec {
    let gpt = Gpt { key_value_heads: 2, inner: 24, dropout: 0.1, ..Gpt::new(family, 16, 2, 4) };
    Preset::Gpt(gpt).model(3)
}

fn trainer(spec: &ModelSpec) -> Trainer {
    let shape = TokenShape { length: LENGTH as u16, vocabulary: VOCABULARY, mask: Some(1) };
    Trainer::new(spec, DataShape::Tokens(shape), ComputeDevice::cpu()).unwrap()
}

fn logits(trainer: &Trainer, parts: &[&[u32]]) -> Vec<f32> {
    let mut cache = TokenCache::default();
    let all = parts.iter().map(|ids| block_on(trainer.next_logits(ids, &mut cache)).unwrap());
    all.last().unwrap()
}

#[test]
fn tokens_one_by_one_give_what_all_of_them_give() {
    for family in [GptFamily::Gpt2, GptFamily::Llama] {
        let trainer = trainer(&spec(family));
        let ids: Vec<u32> = (0..LENGTH).map(|at| 3 + (at * 7) % 17).collect();
        let whole = logits(&trainer, &[&ids]);
        let single: Vec<&[u32]> = ids.chunks(1).collect();
        assert!(deviation(&logits(&trainer, &single), &whole) < 1e-5, "{family:?}");
        assert!(deviation(&logits(&trainer, &[&ids[..5], &ids[5..6], &ids[6..]]), &whole) < 1e-5);
        assert!(deviation(&logits(&trainer, &[&ids[1..]]), &whole) > 1e-3, "the first token counts");
        // The loss of a sequence is the mean over its tokens but the first.
        let n_predicted = ids.len() - 1;
        let of_token = |at: usize| {
            let mut row = logits(&trainer, &[&ids[..at]]);
            statistics::softmax_rows(&mut row, VOCABULARY as usize);
            -row[ids[at] as usize].ln()
        };
        let all = (1..=n_predicted).map(of_token).sum::<f32>() / n_predicted as f32;
        let loss = block_on(trainer.evaluate_tokens(&ids)).unwrap().loss;
        assert!((loss - all).abs() < 1e-4, "{loss} and {all}");
    }
}

#[test]
fn a_model_that_learned_a_text_goes_on_with_it_beyond_its_length() {
    let spec = spec(GptFamily::Llama);
    let mut trainer = trainer(&spec);
    let period = 7;
    let text = |from: u32| (0..LENGTH).map(|at| 3 + (from + at) % period).collect::<Vec<u32>>();
    let batch: Vec<u32> = (0..period).flat_map(text).collect();
    let layout = trainer.layout().clone();
    let mut parameters = layout.initial_parameters(3);
    let mut optimizer = Optimizer::new(OptimizerSpec::adam(), &layout).unwrap();
    for step in 0..150 {
        block_on(trainer.accumulate_tokens(&batch, step)).unwrap();
        let mean = block_on(trainer.take_mean_gradient()).unwrap().unwrap();
        optimizer.step(&mut parameters, &mean.values, 0.01).unwrap();
        trainer.load_parameters(&parameters).unwrap();
    }
    let mut continuation = after(&[3, 4, 5], 1);
    for at in 3..40 {
        assert_eq!(block_on(continuation.next(&trainer)).unwrap(), Some(3 + at % period), "token {at}");
    }
}

#[test]
fn the_same_seed_draws_the_same_tokens_and_no_special_ones() {
    let trainer = trainer(&spec(GptFamily::Gpt2));
    let draw = |seed| {
        let mut continuation = after(&[5, 6], seed);
        std::iter::from_fn(|| block_on(continuation.next(&trainer)).unwrap()).take(30).collect::<Vec<u32>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    assert!((1..20).flat_map(draw).all(|id| id >= 3));
    let mut ended = Continuation { has_ended: true, ..after(&[5], 1) };
    assert_eq!(block_on(ended.next(&trainer)).unwrap(), None);
}

#[test]
fn likely_tokens_are_drawn_as_often_as_they_are_likely_and_unlikely_ones_never() {
    let n_draws = 20_000;
    let mut random = SplitMix64 { state: 5 };
    let mut counts = [0_u32; 7];
    for _ in 0..n_draws {
        // Probabilities of 0.62, 0.34, 0.02 and 0.02 after the temperature; the special tokens would be likelier.
        let logit = |probability: f32| TEMPERATURE * probability.ln();
        let mut logits = [9.0, 9.0, -9.0, logit(0.62), logit(0.34), logit(0.02), logit(0.02)];
        counts[sample(&mut logits, &[0, 1], &mut random).unwrap() as usize] += 1;
    }
    assert_eq!([counts[0], counts[1], counts[2], counts[5], counts[6]], [0; 5]);
    let share = f64::from(counts[3]) / f64::from(n_draws);
    assert!((share - 0.62 / 0.96).abs() < 0.02, "{share}");
    let mut broken = [0.0, 0.0, 0.0, f32::NAN];
    assert_eq!(sample(&mut broken, &[0, 1], &mut random), Err(ModelError::NotFinite { index: 3 }));
}

#[test]
fn what_no_model_of_text_from_left_to_right_can_do_is_refused() {
    let masked = Preset::Albert(barnraise_protocol::run::model::presets::Albert {
        embedding: 8,
        hidden: 8,
        heads: 2,
        inner: 8,
        layers: 1,
    });
    let masked = trainer(&masked.model(1));
    let refused = block_on(after(&[3], 1).next(&masked));
    assert_eq!(refused, Err(ModelError::WrongData { got: "a text to go on with" }));
    let trainer = trainer(&spec(GptFamily::Gpt2));
    assert!(block_on(after(&[VOCABULARY], 1).next(&trainer)).is_err());
    assert!(block_on(after(&[0], 1).next(&trainer)).is_ok());
    let mut cache = TokenCache::default();
    assert!(block_on(trainer.next_logits(&[], &mut cache)).is_err());
    assert!(block_on(trainer.next_logits(&[3; 13], &mut cache)).is_err());
}
