//! The trainer on the CPU: it learns, and how samples are cut into micro-batches changes nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::dataset::LabelledImages;
use barnraise_protocol::run::model::Graph;
use barnraise_protocol::run::model::graph::Block;
use barnraise_protocol::run::model::operation::{BatchNorm, Operation};
use barnraise_protocol::run::{
    self, DecayDescription, HostedExperts, OptimizerDescription, Preset, ScheduleDescription,
};
use futures::executor::block_on;

use super::*;
use crate::conformance::deviation;
use crate::optimizer::{Optimizer, OptimizerSpec};
use crate::schedule::ScheduleSpec;

const SHAPE: ImageShape = ImageShape { height: 12, width: 12, channels: 1 };
const N_CLASSES: usize = 4;

fn mlp() -> ModelSpec {
    Preset::Mlp { hidden: vec![24] }.model(5)
}

fn lenet() -> ModelSpec {
    Preset::LeNet.model(5)
}

/// With running statistics of maps and of a vector.
fn normalized() -> ModelSpec {
    let norm = |name: &str| {
        let options = BatchNorm { epsilon: 1e-5, momentum: 0.1, running: true };
        Block::new(name, Operation::BatchNorm(options))
    };
    let mut spec = lenet();
    let blocks = spec.graph.blocks.iter().flat_map(|block| match block.name.as_str() {
        "conv1" => vec![block.clone(), norm("bn1")],
        "fc1" => vec![block.clone(), norm("bn2")],
        _ => vec![block.clone()],
    });
    spec.graph.blocks = blocks.collect();
    spec
}

fn trainer(spec: &ModelSpec) -> Trainer {
    Trainer::new(spec, DataShape::Images { shape: SHAPE, n_classes: N_CLASSES }, ComputeDevice::cpu())
        .unwrap()
}

/// A bright quadrant on a noisy ground; its corner is the class.
fn quadrants(n_samples: usize, seed: u32) -> Batch {
    let mut batch = Batch::default();
    let mut random = seed;
    for sample in 0..n_samples {
        let label = (sample * 7 + 3) % N_CLASSES;
        for pixel in 0..SHAPE.n_values() {
            let (row, column) = (pixel / 12, pixel % 12);
            let inside = (row / 6) * 2 + column / 6 == label;
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let noise = (random >> 26) as u8;
            batch.images.push(if inside { 160 + noise } else { noise });
        }
        batch.labels.push(label as u8);
    }
    batch
}

fn part(batch: &Batch, range: std::ops::Range<usize>) -> Batch {
    let pixels = range.start * SHAPE.n_values()..range.end * SHAPE.n_values();
    Batch { images: batch.images[pixels].to_vec(), labels: batch.labels[range].to_vec() }
}

fn gradient_of(trainer: &mut Trainer, batches: &[Batch]) -> MeanGradient {
    block_on(async {
        for batch in batches {
            trainer.accumulate(batch).await.unwrap();
        }
        trainer.take_mean_gradient().await.unwrap().unwrap()
    })
}

/// Each epoch sees other pictures than the last one, a repeated epoch the same, and held-out pictures stay as they are.
#[test]
fn pictures_that_are_trained_on_are_changed_and_those_of_an_evaluation_are_not() {
    let batch = quadrants(32, 1);
    let samples =
        Samples::Images(LabelledImages { images: batch.images.clone(), labels: batch.labels.clone() });
    let augmentation = run::Augmentation { crop_padding: 2, flip: true, ..run::Augmentation::default() };
    let mut plain = trainer(&lenet());
    let mut augmented = trainer(&lenet()).with_augmentation(augmentation).unwrap();
    let evaluation = block_on(plain.evaluate_samples(&samples)).unwrap();
    assert_eq!(block_on(augmented.evaluate_samples(&samples)).unwrap(), evaluation);
    assert_eq!(
        block_on(augmented.predict(&batch.images, 32)).unwrap(),
        block_on(plain.predict(&batch.images, 32)).unwrap()
    );
    let gradient = |trainer: &mut Trainer, epoch| {
        block_on(async {
            trainer.accumulate_samples(&samples, epoch).await.unwrap();
            trainer.take_mean_gradient().await.unwrap().unwrap().values
        })
    };
    let first = gradient(&mut augmented, 1);
    assert!(deviation(&gradient(&mut augmented, 1), &first) < 1e-6);
    for other in [gradient(&mut augmented, 2), gradient(&mut plain, 1)] {
        assert!(deviation(&other, &first) > 1e-3);
    }
    let too_much = run::Augmentation { crop_padding: 7, ..augmentation };
    assert!(matches!(trainer(&lenet()).with_augmentation(too_much), Err(ModelError::Augmentation(_))));
}

#[test]
fn uneven_micro_batches_give_the_gradient_of_one_batch() {
    for spec in [mlp(), lenet()] {
        let all = quadrants(29, 1);
        let mut trainer = trainer(&spec);
        let whole = gradient_of(&mut trainer, std::slice::from_ref(&all));
        let cuts: Vec<_> = [0..3, 3..4, 4..17, 17..29].map(|range| part(&all, range)).to_vec();
        let pieces = gradient_of(&mut trainer, &cuts);
        assert_eq!((whole.n_samples, pieces.n_samples), (29, 29));
        assert_eq!(whole.n_correct, pieces.n_correct);
        assert!((whole.loss - pieces.loss).abs() < 1e-5);
        // Sums of f32 in another order: a few units in the last place of the largest value.
        assert!(deviation(&pieces.values, &whole.values) < 1e-5);
        assert_eq!(trainer.n_samples(), 0);
        assert!(block_on(trainer.take_mean_gradient()).unwrap().is_none());
    }
}

#[test]
fn peers_weighted_by_samples_give_the_gradient_of_one_machine() {
    let all = quadrants(20, 2);
    let mut machine = trainer(&lenet());
    let whole = gradient_of(&mut machine, std::slice::from_ref(&all));
    let peers = [part(&all, 0..5), part(&all, 5..20)];
    let gradients = peers.map(|batch| gradient_of(&mut trainer(&lenet()), &[batch]));
    let mut mean = vec![0.0_f32; whole.values.len()];
    for gradient in &gradients {
        for (sum, value) in mean.iter_mut().zip(&gradient.values) {
            *sum += value * gradient.n_samples as f32 / 20.0;
        }
    }
    assert!(deviation(&mean, &whole.values) < 1e-5);
}

#[test]
fn new_parameters_drop_the_gradient_of_the_old_ones() {
    let mut trainer = trainer(&mlp());
    let batch = quadrants(8, 3);
    let before = gradient_of(&mut trainer, std::slice::from_ref(&batch));
    block_on(trainer.accumulate(&batch)).unwrap();
    let flat = trainer.layout().initial_parameters(99);
    trainer.load_parameters(&flat).unwrap();
    assert_eq!(trainer.n_samples(), 0);
    let after = gradient_of(&mut trainer, std::slice::from_ref(&batch));
    assert_eq!(after.n_samples, 8);
    assert!(deviation(&after.values, &before.values) > 0.1);
    let same = trainer.layout().initial_parameters(5);
    trainer.load_parameters(&same).unwrap();
    assert_eq!(gradient_of(&mut trainer, &[batch]), before);
}

#[test]
fn parameters_of_a_backbone_are_loaded_as_any_others() {
    let batch = quadrants(8, 3);
    for spec in [mlp(), lenet()] {
        let (mut flat, mut encoded) = (trainer(&spec), trainer(&spec));
        let parameters = flat.layout().initial_parameters(99);
        let codec = TensorCodec::F32;
        let bytes = codec.encode(&parameters).unwrap();
        let state = |n| {
            let hash = Sha256Hash::of(&bytes[..4 * n]);
            EncodedState::new((1, hash), codec, n, bytes[..4 * n].into()).unwrap()
        };
        block_on(encoded.accumulate(&batch)).unwrap();
        encoded.load_epoch(&state(parameters.len())).unwrap();
        assert_eq!(encoded.n_samples(), 0);
        flat.load_parameters(&parameters).unwrap();
        let want = gradient_of(&mut flat, std::slice::from_ref(&batch));
        assert_eq!(gradient_of(&mut encoded, std::slice::from_ref(&batch)), want);
        let error = encoded.load_epoch(&state(parameters.len() - 1)).unwrap_err();
        assert!(matches!(error, ModelError::ParameterCount { .. }), "{error}");
        assert_eq!(gradient_of(&mut encoded, std::slice::from_ref(&batch)), want, "the others stay");
    }
}

#[test]
fn the_parts_of_a_mean_are_the_mean() {
    let batches = [quadrants(8, 3), quadrants(8, 4)];
    let mut trainer = trainer(&lenet());
    let whole = gradient_of(&mut trainer, &batches);
    let parts = block_on(async {
        for batch in &batches {
            trainer.accumulate(batch).await.unwrap();
        }
        trainer.take_mean_in_parts().await.unwrap().unwrap()
    });
    let lengths: Vec<usize> = trainer.layout().trained().iter().map(|segment| segment.len).collect();
    let of_parts: Vec<usize> = parts.values.iter().map(Vec::len).collect();
    assert_eq!(of_parts[..lengths.len()], lengths, "a part for each tensor");
    assert_eq!(joined(parts.values), whole.values);
    assert_eq!((parts.n_samples, parts.loss), (whole.n_samples, whole.loss));
}

fn learn(spec: &ModelSpec, optimizer: OptimizerSpec, rate: f32, n_steps: usize) -> (Evaluation, Evaluation) {
    let mut trainer = trainer(spec);
    let mut parameters = trainer.layout().initial_parameters(spec.seed);
    let mut optimizer = Optimizer::new(optimizer, trainer.layout()).unwrap();
    let train = quadrants(32, 4);
    for _ in 0..n_steps {
        let mean = gradient_of(&mut trainer, std::slice::from_ref(&train));
        optimizer.step(&mut parameters, &mean.values, rate).unwrap();
        trainer.load_parameters(&parameters).unwrap();
    }
    let unseen = quadrants(300, 77);
    block_on(async {
        let seen = trainer.evaluate(&train.images, &train.labels).await.unwrap();
        (seen, trainer.evaluate(&unseen.images, &unseen.labels).await.unwrap())
    })
}

#[test]
fn every_optimizer_memorises_a_batch_and_learns_the_problem() {
    let cases = [
        (OptimizerSpec::sgd_momentum(), 0.05),
        (OptimizerSpec::adam(), 0.01),
        (OptimizerSpec::lamb(), 0.05),
        (OptimizerSpec::Lars { momentum: 0.9, trust_coefficient: 0.02, weight_decay: 0.0 }, 1.0),
    ];
    for (optimizer, rate) in cases {
        let (seen, unseen) = learn(&mlp(), optimizer, rate, 40);
        assert!(seen.loss < 0.05 && seen.accuracy == 1.0, "{optimizer:?}: {seen:?}");
        assert!(unseen.accuracy > 0.95, "{optimizer:?}: {unseen:?}");
    }
}

#[test]
fn lenet_learns() {
    let (seen, unseen) = learn(&lenet(), OptimizerSpec::adam(), 0.005, 40);
    assert!(seen.loss < 0.1 && seen.accuracy == 1.0, "{seen:?}");
    assert!(unseen.accuracy > 0.9, "{unseen:?}");
}

/// Unseen samples come one by one and are judged by the running statistics; by those of the beginning they are guessed.
#[test]
fn a_network_with_batch_normalization_learns_and_its_statistics_too() {
    let spec = normalized();
    let (seen, unseen) = learn(&spec, OptimizerSpec::adam(), 0.005, 60);
    assert!(seen.loss < 0.1 && seen.accuracy == 1.0, "{seen:?}");
    assert!(unseen.accuracy > 0.9, "{unseen:?}");
    // With the learning rate 0 the statistics alone move, to the moments of the samples.
    let mut trainer = trainer(&spec);
    let layout = trainer.layout().clone();
    let first = layout.initial_parameters(spec.seed);
    let (mut parameters, train) = (first.clone(), quadrants(64, 4));
    let mut optimizer = Optimizer::new(OptimizerSpec::adam(), &layout).unwrap();
    for _ in 0..100 {
        let mean = gradient_of(&mut trainer, std::slice::from_ref(&train));
        optimizer.step(&mut parameters, &mean.values, 0.0).unwrap();
        trainer.load_parameters(&parameters).unwrap();
    }
    assert_eq!(parameters[..layout.n_trained()], first[..layout.n_trained()]);
    let mean = gradient_of(&mut trainer, std::slice::from_ref(&train));
    let largest = |values: &[f32]| values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    assert!(largest(&mean.values[layout.n_trained()..]) < 1e-7, "they have arrived");
    let by_pass = mean.loss;
    let by_running = block_on(trainer.evaluate(&train.images, &train.labels)).unwrap().loss;
    assert!((by_pass - by_running).abs() < 1e-3, "{by_pass} and {by_running}");
    trainer.load_parameters(&first).unwrap();
    let before = block_on(trainer.evaluate(&train.images, &train.labels)).unwrap().loss;
    assert!((by_pass - before).abs() > 0.01, "{by_pass} and {before}: or nothing was shown");
}

#[test]
fn predictions_are_probabilities_and_agree_with_the_evaluation() {
    let trainer = trainer(&lenet());
    let batch = quadrants(EVALUATION_CHUNK + 9, 6);
    let probabilities = block_on(trainer.predict(&batch.images, batch.labels.len())).unwrap();
    let mut loss = 0.0;
    for (row, &label) in probabilities.chunks(N_CLASSES).zip(&batch.labels) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        loss -= row[usize::from(label)].ln() / batch.labels.len() as f32;
    }
    let evaluation = block_on(trainer.evaluate(&batch.images, &batch.labels)).unwrap();
    assert!((evaluation.loss - loss).abs() < 1e-4);
    assert_eq!(block_on(trainer.predict(&[], 0)).unwrap(), Vec::<f32>::new());
}

#[test]
fn wrong_input_is_refused_and_adds_nothing() {
    let mut trainer = trainer(&mlp());
    let good = quadrants(4, 8);
    let expected = gradient_of(&mut trainer, std::slice::from_ref(&good));
    block_on(trainer.accumulate(&good)).unwrap();
    let empty = block_on(trainer.accumulate(&Batch::default()));
    assert!(matches!(empty, Err(ModelError::BatchSize { got: 0, .. })));
    let mut short = good.clone();
    short.images.pop();
    assert!(matches!(block_on(trainer.accumulate(&short)), Err(ModelError::ImageBytes { .. })));
    let mut label = good.clone();
    label.labels[2] = 4;
    let refused = block_on(trainer.accumulate(&label));
    assert_eq!(refused, Err(ModelError::Label { sample: 2, label: 4, n_classes: 4 }));
    assert!(matches!(trainer.load_parameters(&[0.0]), Err(ModelError::ParameterCount { got: 1, .. })));
    assert_eq!(block_on(trainer.take_mean_gradient()).unwrap(), Some(expected));
}

#[test]
fn a_diverged_model_is_named() {
    let mut trainer = trainer(&mlp());
    let signs = [1e30, -1e30].into_iter().cycle();
    let flat: Vec<f32> = signs.take(trainer.layout().n_parameters()).collect();
    trainer.load_parameters(&flat).unwrap();
    block_on(trainer.accumulate(&quadrants(2, 9))).unwrap();
    let taken = block_on(trainer.take_mean_gradient());
    assert!(matches!(taken, Err(ModelError::NotFinite { .. })));
    assert_eq!(trainer.n_samples(), 0);
}

#[test]
fn steps_in_flight_are_bounded_and_report_their_loss() {
    let mut trainer = trainer(&mlp());
    let batch = quadrants(4, 10);
    assert_eq!(trainer.last_loss(), None);
    for _ in 0..3 * IN_FLIGHT_MAX {
        block_on(trainer.accumulate(&batch)).unwrap();
        assert!(trainer.in_flight().len() <= IN_FLIGHT_MAX);
    }
    let loss = trainer.last_loss().unwrap();
    let mean = block_on(trainer.take_mean_gradient()).unwrap().unwrap();
    assert!((mean.loss - loss).abs() < 1e-5);
}

#[test]
fn a_thread_pool_may_run_a_trainer() {
    fn assert_send<T: Send>(_: &T) {}
    let mut trainer = trainer(&mlp());
    assert_send(&trainer);
    let batch = quadrants(2, 11);
    assert_send(&trainer.accumulate(&batch));
    assert_send(&trainer.take_mean_gradient());
    assert_send(&trainer.evaluate(&batch.images, &batch.labels));
}

fn described(steps: u32, optimizer: OptimizerSpec, rate: f32) -> run::LocalSteps {
    let schedule = ScheduleSpec::constant(rate).into();
    run::LocalSteps { steps, optimizer: optimizer.into(), schedule }
}

fn step(parameters: &mut [f32], gradient: &[f32], spec: OptimizerSpec, rate: f32, layout: &ParameterLayout) {
    Optimizer::new(spec, layout).unwrap().step(parameters, gradient, rate).unwrap();
}

/// With an outer optimizer of plain SGD at rate 1.
#[test]
fn local_steps_of_one_are_plain_sgd_and_of_more_what_one_machine_does() {
    const RATE: f32 = 0.1;
    let (plain, one) = (OptimizerSpec::plain_sgd(), 1.0);
    for spec in [mlp(), lenet(), normalized()] {
        let batches = [quadrants(16, 1), quadrants(8, 2), quadrants(24, 3)];
        let mut alone = trainer(&spec);
        let layout = alone.layout().clone();
        let first = layout.initial_parameters(spec.seed);

        let mut single = trainer(&spec).with_local_steps(&spec, &described(1, plain, RATE)).unwrap();
        let pseudo = gradient_of(&mut single, &batches);
        let mean = gradient_of(&mut alone, &batches);
        assert_eq!((pseudo.n_samples, pseudo.n_correct), (48, mean.n_correct));
        assert!((pseudo.loss - mean.loss).abs() < 1e-5);
        let (mut outer, mut sgd) = (first.clone(), first.clone());
        step(&mut outer, &pseudo.values, plain, one, &layout);
        step(&mut sgd, &mean.values, plain, RATE, &layout);
        assert!(deviation(&outer, &sgd) < 1e-6);

        let mut local = trainer(&spec).with_local_steps(&spec, &described(3, plain, RATE)).unwrap();
        let pseudo = gradient_of(&mut local, &batches);
        let mut machine = first.clone();
        for batch in &batches {
            alone.load_parameters(&machine).unwrap();
            let gradient = gradient_of(&mut alone, std::slice::from_ref(batch));
            step(&mut machine, &gradient.values, plain, RATE, &layout);
        }
        let mut outer = first.clone();
        step(&mut outer, &pseudo.values, plain, one, &layout);
        assert!(deviation(&outer, &machine) < 1e-6);
        assert!(deviation(&machine, &sgd) > 1e-3, "or nothing was shown");
    }
}

#[test]
fn what_is_shown_amid_local_steps_is_the_epoch() {
    let spec = mlp();
    let batch = quadrants(16, 4);
    let want = block_on(trainer(&spec).predict(&batch.images, 16)).unwrap();
    let steps = described(8, OptimizerSpec::adam(), 0.01);
    let mut local = trainer(&spec).with_local_steps(&spec, &steps).unwrap();
    block_on(async {
        local.accumulate(&batch).await.unwrap();
        local.accumulate(&batch).await.unwrap();
        assert_ne!(local.predict(&batch.images, 16).await.unwrap(), want);
        local.restore_loaded_parameters();
        assert_eq!(local.predict(&batch.images, 16).await.unwrap(), want);
        local.accumulate(&batch).await.unwrap();
    });
    let whole = block_on(local.take_mean_gradient()).unwrap().unwrap();
    let mut undisturbed = trainer(&spec).with_local_steps(&spec, &steps).unwrap();
    assert_eq!(whole.values, gradient_of(&mut undisturbed, &vec![batch; 3]).values);
}

#[test]
fn local_steps_learn_over_epochs() {
    let spec = mlp();
    let all = quadrants(256, 5);
    let steps = described(4, OptimizerSpec::adam(), 0.002);
    let mut local = trainer(&spec).with_local_steps(&spec, &steps).unwrap();
    let mut parameters = local.layout().initial_parameters(spec.seed);
    let nesterov = OptimizerSpec::SgdMomentum { momentum: 0.6, nesterov: true, weight_decay: 0.0 };
    let mut outer = Optimizer::new(nesterov, &local.layout().clone()).unwrap();
    let mut losses = Vec::new();
    for epoch in 0..12 {
        local.load_parameters(&parameters).unwrap();
        local.on_epoch(epoch);
        let batches: Vec<Batch> =
            (0..8).map(|part_of| part(&all, 32 * part_of..32 * (part_of + 1))).collect();
        let mean = gradient_of(&mut local, &batches);
        losses.push(mean.loss);
        outer.step(&mut parameters, &mean.values, 0.7).unwrap();
    }
    assert!(losses[11] < 0.5 * losses[0], "{losses:?}");
}

/// Without its experts it would be another model, and nobody would see it.
#[test]
fn a_model_whose_experts_are_elsewhere_computes_nothing_without_them() {
    let graph: Graph = toml::from_str(
        "name = \"moe\"\nloss = \"classification\"\n\
         parts = [{ name = \"expert\", blocks = [{ name = \"fc\", op = { dense = { units = 4 } } }] }]\n\
         blocks = [\n\
         { name = \"flat\", op = \"flatten\" },\n\
         { name = \"moe\", op = { experts = { part = \"expert\", side = 4, active = 2 } } },\n\
         { name = \"fc\", op = { dense = { units = \"classes\" } } },\n\
         ]",
    )
    .unwrap();
    let mut spec = Preset::Graph(graph).model(1);
    let shape = ImageShape { height: 2, width: 2, channels: 1 };
    let data = DataShape::Images { shape, n_classes: 2 };
    let batch = Batch { images: vec![0, 50, 100, 200], labels: vec![1] };
    let mut whole = Trainer::new(&spec, data, ComputeDevice::cpu()).unwrap();
    block_on(whole.accumulate(&batch)).unwrap();
    spec.hosted = Some(HostedExperts {
        optimizer: OptimizerDescription::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 },
        schedule: ScheduleDescription { peak: 0.1, warmup_epochs: 0, decay: DecayDescription::Constant },
        codec: TensorCodec::F16,
    });
    let mut trainer = Trainer::new(&spec, data, ComputeDevice::cpu()).unwrap();
    assert!(trainer.layout().n_parameters() < whole.layout().n_parameters());
    assert_eq!(block_on(trainer.accumulate(&batch)), Err(ModelError::UnreachableExperts));
    assert_eq!(block_on(trainer.evaluate(&batch.images, &batch.labels)), Err(ModelError::UnreachableExperts));
    // With a port behind which nobody is, it goes on without them.
    let mut trainer = trainer.with_experts(ExpertPort::new().0);
    block_on(trainer.accumulate(&batch)).unwrap();
    assert!(block_on(trainer.take_mean_gradient()).unwrap().is_some());
}
