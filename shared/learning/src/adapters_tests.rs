//! Adapters on frozen weights, through the trainer.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use barnraise_protocol::TensorCodec;
use barnraise_protocol::dataset::{ImageShape, Samples, TokenSequences, TokenShape};
use barnraise_protocol::run::model::presets::{Gpt, GptFamily, ResNet};
use barnraise_protocol::run::model::{Adapters, FirstWeights};
use barnraise_protocol::run::{ModelSpec, Preset};
use futures::executor::block_on;

use crate::frozen::FrozenWeights;
use crate::graph::ResolvedGraph;
use crate::{ComputeDevice, DataShape, FrozenError, ModelError, Optimizer, OptimizerSpec, Trainer, merged};

const TEXT: TokenShape = TokenShape { length: 8, vocabulary: 24, mask: None };

fn adapters(codec: TensorCodec, targets: &[&str], trained: &[&str]) -> Adapters {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    Adapters { codec, rank: 4, alpha: 8.0, targets: names(targets), trained: names(trained) }
}

fn gpt(family: GptFamily, adapters: Adapters) -> ModelSpec {
    let gpt = Gpt { key_value_heads: 2, inner: 12, ..Gpt::new(family, 8, 2, 4) };
    ModelSpec { weights: FirstWeights::Frozen(adapters), ..Preset::Gpt(gpt).model(5) }
}

/// The frozen weights that the seed draws, encoded.
fn frozen(spec: &ModelSpec, data: DataShape) -> FrozenWeights {
    let graph = ResolvedGraph::of_model(spec, data).unwrap();
    let values = graph.frozen().initial_parameters(77);
    FrozenWeights::encode(spec.weights.adapters().unwrap().codec, &values).unwrap()
}

fn sentences() -> Samples {
    let ids = (0..64_u32).map(|at| 3 + (at * at + at / 8) % 20).collect();
    Samples::Tokens(TokenSequences { length: TEXT.length, ids })
}

fn gradient(trainer: &mut Trainer, samples: &Samples) -> Vec<f32> {
    block_on(trainer.accumulate_samples(samples, 0)).unwrap();
    block_on(trainer.take_mean_gradient()).unwrap().unwrap().values
}

#[test]
fn only_adapters_are_in_the_flat_vector_and_they_change_nothing_at_first() {
    let data = DataShape::Tokens(TEXT);
    for (family, targets) in [
        (GptFamily::Gpt2, &["attn.c_attn"][..]),
        (GptFamily::Llama, &["self_attn.q_proj", "self_attn.v_proj"]),
    ] {
        let spec = gpt(family, adapters(TensorCodec::F32, targets, &[]));
        let graph = ResolvedGraph::of_model(&spec, data).unwrap();
        let plain = ModelSpec { weights: FirstWeights::Drawn, ..spec.clone() };
        let n_plain = ResolvedGraph::of_model(&plain, data).unwrap().layout().n_parameters();
        assert_eq!(graph.frozen().n_parameters(), n_plain);
        assert_eq!(graph.layout().segments().len(), 2 * 2 * targets.len(), "A and B, in two layers");
        assert!(graph.layout().segments().iter().all(|segment| segment.name.contains(".lora_")));
        let frozen = frozen(&spec, data);
        let mut adapted = Trainer::with_frozen(&spec, data, Some(&frozen), ComputeDevice::cpu()).unwrap();
        let mut whole = Trainer::new(&plain, data, ComputeDevice::cpu()).unwrap();
        whole.load_parameters(&frozen.values()).unwrap();
        let [of_adapted, of_whole] =
            [&adapted, &whole].map(|trainer| block_on(trainer.evaluate_samples(&sentences())).unwrap());
        assert_eq!(of_adapted, of_whole);
        // B is zero, so that A has no gradient yet, and B has one.
        let gradient = gradient(&mut adapted, &sentences());
        for segment in graph.layout().segments() {
            let has_one = gradient[segment.range()].iter().any(|value| *value != 0.0);
            assert_eq!(has_one, segment.name.contains("lora_B"), "{}", segment.name);
        }
    }
}

#[test]
fn adapters_learn_and_merge_into_weights_that_say_the_same() {
    let data = DataShape::Tokens(TEXT);
    for codec in [TensorCodec::F32, TensorCodec::Int8, TensorCodec::Int4] {
        let spec = gpt(GptFamily::Gpt2, adapters(codec, &["c_attn", "c_proj", "c_fc"], &["ln_f"]));
        let frozen = frozen(&spec, data);
        let mut trainer = Trainer::with_frozen(&spec, data, Some(&frozen), ComputeDevice::cpu()).unwrap();
        let layout = trainer.layout().clone();
        let mut flat = layout.initial_parameters(spec.seed);
        let mut optimizer = Optimizer::new(OptimizerSpec::adam(), &layout).unwrap();
        let before = block_on(trainer.evaluate_samples(&sentences())).unwrap().loss;
        for _ in 0..300 {
            let gradient = gradient(&mut trainer, &sentences());
            // At 0.05 the loss jumps back after half of the steps.
            optimizer.step(&mut flat, &gradient, 0.02).unwrap();
            trainer.load_parameters(&flat).unwrap();
        }
        let learned = block_on(trainer.evaluate_samples(&sentences())).unwrap();
        assert!(learned.loss < 0.8 * before, "{codec:?}: {before} to {}", learned.loss);
        let (whole, merged) = merged(&spec, data, &frozen, &flat).unwrap();
        let mut plain = Trainer::new(&whole, data, ComputeDevice::cpu()).unwrap();
        plain.load_parameters(&merged).unwrap();
        let said = block_on(plain.evaluate_samples(&sentences())).unwrap();
        assert!((said.loss - learned.loss).abs() < 1e-4, "{codec:?}: {} and {}", said.loss, learned.loss);
    }
}

/// The gradient of a trained block beside frozen ones is that of the whole model, and frozen batch normalizations use
/// the statistics that they came with.
#[test]
fn a_head_on_a_frozen_network_has_the_gradient_that_it_has_in_evaluation() {
    let data = DataShape::Images { shape: ImageShape { height: 12, width: 12, channels: 1 }, n_classes: 3 };
    let resnet = ResNet { small_pictures: true, width: 4, ..ResNet::default() };
    let weights = FirstWeights::Frozen(adapters(TensorCodec::F32, &[], &["fc"]));
    let spec = ModelSpec { weights, ..Preset::ResNet18(resnet).model(5) };
    let graph = ResolvedGraph::of_model(&spec, data).unwrap();
    let names: Vec<&str> = graph.layout().segments().iter().map(|segment| &segment.name[..]).collect();
    assert_eq!(names, ["fc.weight", "fc.bias"]);
    assert!(graph.statistics().is_empty());
    assert!(graph.frozen().segments().iter().any(|segment| segment.name == "bn1.running_mean"));
    let frozen = frozen(&spec, data);
    let mut trainer = Trainer::with_frozen(&spec, data, Some(&frozen), ComputeDevice::cpu()).unwrap();
    let Samples::Images(mut images) = data.blank_samples(4) else { unreachable!() };
    images.images.iter_mut().enumerate().for_each(|(at, pixel)| *pixel = (at * 7 % 251) as u8);
    let samples = Samples::Images(images);
    let flat = graph.layout().initial_parameters(spec.seed);
    let gradient = gradient(&mut trainer, &samples);
    // Finite differences of what evaluation says: statistics of the pass would give another one.
    let mut loss = |flat: &[f32]| {
        trainer.load_parameters(flat).unwrap();
        f64::from(block_on(trainer.evaluate_samples(&samples)).unwrap().loss)
    };
    for at in [0, 5, 17, flat.len() - 1] {
        let mut moved = flat.clone();
        let mut by = |step: f32| {
            moved[at] = flat[at] + step;
            loss(&moved)
        };
        let difference = (by(0.01) - by(-0.01)) / 0.02;
        assert!(
            (difference - f64::from(gradient[at])).abs() < 1e-3,
            "{at}: {difference} and {}",
            gradient[at]
        );
    }
}

#[test]
fn adapters_that_are_none_are_refused() {
    let data = DataShape::Tokens(TEXT);
    let refused =
        |adapters| ResolvedGraph::of_model(&gpt(GptFamily::Gpt2, adapters), data).unwrap_err().to_string();
    let of = |targets: &[&str], trained: &[&str]| adapters(TensorCodec::Int8, targets, trained);
    assert!(refused(of(&["q_proj"], &[])).starts_with("`q_proj` of the adapters is no dense block"));
    assert!(refused(of(&["c_attn"], &["fc"])).contains("`fc` of the adapters is no block with weights"));
    assert!(refused(of(&["attn"], &[])).contains("no dense block"), "an attention has no weights");
    assert!(refused(of(&[], &[])).contains("number of blocks"));
    assert!(refused(Adapters { rank: 0, ..of(&["c_attn"], &[]) }).contains("rank"));
    assert!(refused(Adapters { alpha: f32::NAN, ..of(&["c_attn"], &[]) }).contains("alpha"));
    let spec = gpt(GptFamily::Gpt2, of(&["c_attn"], &[]));
    let without = Trainer::new(&spec, data, ComputeDevice::cpu()).err();
    assert!(matches!(without, Some(ModelError::Frozen(FrozenError::Missing { .. }))), "{without:?}");
    let other = FrozenWeights::new(TensorCodec::F32, &Default::default(), Vec::<Arc<[u8]>>::new()).unwrap();
    assert!(Trainer::with_frozen(&spec, data, Some(&other), ComputeDevice::cpu()).is_err());
}
