//! Random configurations: operator and participant agree on each, and what they accept trains a step.

use std::cell::Cell;

use barnraise_contributor::{description, trainer};
use barnraise_learning::{ComputeDevice, Decay, Optimizer, OptimizerSpec, ParameterLayout, ScheduleSpec};
use barnraise_native::config::{LocalStepsSection, RecomputationSection, RunConfig};
use barnraise_native::data::sets::{GARMENTS, IMAGE_SHAPE};
use barnraise_protocol::access::{AccessDescription, PublicKey};
use barnraise_protocol::codec::{Density, TensorCodec};
use barnraise_protocol::dataset::{LabelledImages, Manifest, SampleKind, Samples, ShardEntry};
use barnraise_protocol::run::model::presets::{Albert, Swav, SwavTrunk};
use barnraise_protocol::run::{GradientCodec, Preset, RunDescription, SlowLinks, TopK};
use barnraise_protocol::{Sha256Hash, framing, run};
use barnraise_swarm::compression::Compressor;
use futures::executor::block_on;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

fn gradient_codec() -> impl Strategy<Value = GradientCodec> {
    let momentum = prop_oneof![6 => Just(0.0f32), 3 => Just(0.9), 1 => Just(1.0)];
    let clip_norm = prop_oneof![6 => Just(None), 3 => Just(Some(1.0f32)), 1 => Just(Some(0.0))];
    let top_k = (0.001f64..1.0, 0u32..50, momentum, any::<bool>(), clip_norm);
    let top_k = top_k.prop_map(|(share, warmup_epochs, momentum, masking, clip_norm)| {
        let plain = TopK::plain(Density::from_share(share).unwrap(), warmup_epochs);
        GradientCodec::TopK(TopK { momentum, masking: masking && momentum > 0.0, clip_norm, ..plain })
    });
    prop_oneof![
        1 => Just(GradientCodec::F32),
        1 => Just(GradientCodec::F16),
        1 => Just(GradientCodec::Int8),
        1 => Just(GradientCodec::Int4),
        3 => top_k,
    ]
}

fn model() -> impl Strategy<Value = Preset> {
    let width = prop_oneof![12 => 1u32..12, 1 => Just(0), 1 => Just(u32::MAX)];
    let swav = (1u32..4, 0u32..2).prop_map(|(n_maps, queue_samples)| {
        Preset::Swav(Swav {
            trunk: SwavTrunk::Convolutions(vec![2 * n_maps, 4]),
            hidden: 8,
            projection: 4,
            prototypes: 4,
            small_crops: 1,
            small_side: 14,
            queue_samples: 4 * queue_samples,
            queue_after: 0,
            frozen_epochs: 1,
        })
    });
    prop_oneof![
        4 => proptest::collection::vec(width, 0..3).prop_map(|hidden| Preset::Mlp { hidden }),
        1 => Just(Preset::LeNet),
        1 => swav,
        1 => Just(Preset::Albert(Albert { embedding: 4, hidden: 8, heads: 2, inner: 8, layers: 1 })),
    ]
}

/// Of all kinds, some with a number that is out of its range.
fn optimizer() -> impl Strategy<Value = OptimizerSpec> {
    let momentum = prop_oneof![12 => Just(0.0f32), 6 => Just(0.9), 1 => Just(1.0)];
    let epsilon = prop_oneof![9 => Just(1e-6f32), 1 => Just(0.0)];
    let weight_decay = prop_oneof![9 => Just(0.0f32), 9 => Just(0.01), 1 => Just(f32::NAN)];
    (momentum, epsilon, weight_decay, any::<bool>(), 0..6).prop_map(
        |(momentum, epsilon, weight_decay, nesterov, kind)| match kind {
            0 => OptimizerSpec::Adam { beta1: 0.9, beta2: 0.999, epsilon, weight_decay },
            1 => OptimizerSpec::Lamb { beta1: 0.9, beta2: 0.999, epsilon, weight_decay },
            2 => OptimizerSpec::Lars { momentum, trust_coefficient: epsilon, weight_decay },
            _ => OptimizerSpec::SgdMomentum { momentum, nesterov, weight_decay },
        },
    )
}

/// Of all kinds, some with a number that is out of its range.
fn schedule() -> impl Strategy<Value = ScheduleSpec> {
    let peak = prop_oneof![12 => Just(0.01f32), 1 => Just(0.0), 1 => Just(f32::INFINITY)];
    let steps = prop_oneof![9 => Just(100u64), 1 => Just(0)];
    let floor = prop_oneof![9 => Just(0.001f32), 1 => Just(0.1)];
    (peak, 0u64..4, steps, floor, 0..4).prop_map(|(peak, warmup_steps, steps, floor, kind)| {
        let decay = match kind {
            0 => Decay::Constant,
            1 => Decay::Cosine { steps, floor },
            2 => Decay::Linear { steps, floor },
            _ => Decay::Step { every: steps, factor: 10.0 * floor },
        };
        ScheduleSpec { peak, warmup_steps, decay }
    })
}

fn config() -> impl Strategy<Value = RunConfig> {
    let inner = prop_oneof![
        4 => Just(OptimizerSpec::adam()),
        4 => Just(OptimizerSpec::sgd_momentum()),
        1 => Just(OptimizerSpec::lamb()),
    ];
    let local_steps = proptest::option::weighted(0.3, (0u32..5, inner));
    let slow_links = proptest::option::weighted(0.3, (0u64..2, gradient_codec()));
    let recomputation = proptest::option::weighted(0.5, any::<bool>());
    let size = |fits: std::ops::Range<u32>| prop_oneof![9 => fits, 1 => 0u32..3];
    let sizes = (size(1..5), size(16..20), size(16..20), size(8..40));
    let state_codec = prop_oneof![
        3 => Just(TensorCodec::F32),
        3 => Just(TensorCodec::F16),
        3 => Just(TensorCodec::Int8),
        1 => Just(TensorCodec::Int4),
    ];
    let codecs = (gradient_codec(), slow_links, state_codec);
    (model(), sizes, codecs, (optimizer(), schedule()), (local_steps, recomputation, any::<bool>())).prop_map(
        |(model, sizes, (gradient_codec, slow_links, state_codec), step, steps)| {
            let (micro, target, contribution, buffer) = sizes;
            let (local_steps, recomputation, delayed_updates) = steps;
            let mut config = RunConfig::default();
            config.model.kind = model;
            config.data.shuffle_buffer_samples = buffer;
            let scheme = config.synchronous_mut().unwrap();
            (scheme.micro_batch_size, scheme.target_batch_size) = (micro, target);
            scheme.delayed_updates = delayed_updates;
            (scheme.gradient_codec, scheme.state_codec) = (gradient_codec, state_codec);
            scheme.slow_links =
                slow_links.map(|(below_bytes_per_second, codec)| SlowLinks { below_bytes_per_second, codec });
            (scheme.optimizer, scheme.schedule) = step;
            scheme.local_steps = local_steps.map(|(steps, optimizer)| LocalStepsSection {
                steps,
                optimizer,
                schedule: ScheduleSpec::constant(0.01),
            });
            scheme.recomputation = recomputation
                .map(|is_on| RecomputationSection { share: if is_on { 0.1 } else { 0.0 }, tolerance: 0.05 });
            scheme.contribution_samples_max = contribution;
            config
        },
    )
}

fn manifest() -> Manifest {
    let samples = SampleKind::Images { shape: IMAGE_SHAPE, class_names: GARMENTS.map(str::to_owned).into() };
    let entry = ShardEntry { n_samples: 1, n_bytes: 1, sha256: Sha256Hash::of(b"") };
    Manifest {
        name: "Pictures".into(),
        samples,
        shards: vec![entry],
        gallery: entry,
        frozen: Vec::new(),
        preprocessing: None,
        stream: None,
    }
}

/// The description as a participant gets it.
fn received(described: &RunDescription) -> RunDescription {
    let bytes = framing::encode(described, run::MESSAGE_BYTES_MAX).unwrap();
    framing::decode(&bytes, run::MESSAGE_BYTES_MAX).unwrap()
}

/// A contribution of one micro-batch for each local step, in a run whose model has `n_parameters`; and the step of it.
fn train(run: &RunDescription, layout: &ParameterLayout) {
    let n_parameters = layout.n_parameters();
    let scheme = run.synchronous().unwrap();
    let mut trainer = trainer(run, scheme, None, ComputeDevice::cpu()).unwrap();
    let parameters = trainer.layout().initial_parameters(run.model.seed);
    assert_eq!(parameters.len(), n_parameters);
    trainer.load_parameters(&parameters).unwrap();
    let n_samples = scheme.micro_batch_size as usize;
    let images: Vec<u8> = (0..n_samples * 28 * 28).map(|at| (at * 31 % 251) as u8).collect();
    let labels = (0..n_samples).map(|at| (at % 10) as u8).collect();
    let samples = Samples::Images(LabelledImages { images, labels });
    for draw in 0..scheme.local_steps.map_or(1, |local| u64::from(local.steps)) {
        block_on(trainer.accumulate_samples(&samples, draw)).unwrap();
    }
    let mean = block_on(trainer.take_mean_gradient()).unwrap().expect("a gradient");
    assert_eq!(mean.values.len(), n_parameters);
    for codec in [scheme.codec_of_link(None), scheme.codec_of_link(Some(1e12))] {
        let mut compressor = Compressor::new(codec, mean.values.len(), scheme.target_batch_size);
        let bytes = compressor.compress(mean.values.clone(), mean.n_samples, 0).unwrap();
        assert!(scheme.takes(compressor.encoding()), "{codec:?}");
        compressor.encoding().decode(&bytes, mean.values.len()).unwrap();
    }
    let mut optimizer = Optimizer::new(OptimizerSpec::from(scheme.optimizer), layout).unwrap();
    let learning_rate = ScheduleSpec::from(scheme.schedule).learning_rate(0);
    let mut stepped = parameters;
    optimizer.step(&mut stepped, &mean.values, learning_rate).unwrap();
    assert!(stepped.iter().all(|value| value.is_finite()));
}

#[test]
fn both_sides_agree_and_what_is_accepted_trains_a_step() {
    // How many of them are accepted is chance: so many that it is enough with each seed.
    const CASES: u32 = 600;
    let n_trained = Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: CASES,
        source_file: Some(file!()),
        ..ProptestConfig::default()
    });
    let agreed = runner.run(&config(), |config| {
        let here = config.validate();
        let run = received(&config.describe(manifest(), AccessDescription::open(PublicKey([1; 32]))));
        let there = description::validate(&run).map(|layout| (run, layout));
        match (here, there) {
            (Ok(()), Ok((run, layout))) => {
                train(&run, &layout);
                n_trained.set(n_trained.get() + 1);
            }
            (Err(error), Ok(_)) => {
                prop_assert!(false, "the operator refuses what is accepted: {}", error);
            }
            (Err(error), Err(refused)) => prop_assert_eq!(error.key, refused.key(), "{}", error),
            (Ok(()), Err(refused)) => {
                prop_assert!(false, "the operator accepts what is refused: {}", refused);
            }
        }
        Ok(())
    });
    agreed.unwrap();
    assert!(n_trained.get() >= 40, "only {} of {CASES} were trained", n_trained.get());
}
