#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::model::FirstWeights;
use barnraise_protocol::run::model::Size;
use barnraise_protocol::run::model::graph::{Block, Graph, Loss};
use barnraise_protocol::run::model::operation::{Dense, Initial, Operation};
use barnraise_protocol::run::{ModelSpec, Preset};
use futures::executor::block_on;

use super::*;
use crate::device::ComputeDevice;
use crate::optimizer::{Optimizer, OptimizerSpec};
use crate::random::SplitMix64;

const N_COLUMNS: usize = 3;

fn network(loss: Loss, last: Size) -> ModelSpec {
    let dense = |name: &str, units| {
        Block::new(name, Operation::Dense(Dense { units, bias: true, initial: Initial::He }))
    };
    let blocks = vec![dense("fc1", 16.into()), Block::new("act", Operation::Tanh), dense("fc2", last)];
    ModelSpec {
        graph: Graph { name: "table".into(), parts: Vec::new(), blocks, loss },
        seed: 1,
        weights: FirstWeights::Drawn,
        hosted: None,
    }
}

fn learn(
    spec: &ModelSpec,
    data: DataShape,
    train: &Samples,
    n_steps: usize,
    rate: f32,
) -> (Trainer, Vec<f32>) {
    let mut trainer = Trainer::new(spec, data, ComputeDevice::cpu()).unwrap();
    let layout = trainer.layout().clone();
    let mut parameters = layout.initial_parameters(spec.seed);
    let mut optimizer = Optimizer::new(OptimizerSpec::adam(), &layout).unwrap();
    for _ in 0..n_steps {
        block_on(trainer.accumulate_samples(train, 0)).unwrap();
        let mean = block_on(trainer.take_mean_gradient()).unwrap().unwrap();
        optimizer.step(&mut parameters, &mean.values, rate).unwrap();
        trainer.load_parameters(&parameters).unwrap();
    }
    (trainer, parameters)
}

fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut random = SplitMix64 { state: seed };
    (0..n).map(|_| random.next_signed_unit()).collect()
}

#[test]
fn values_and_classes_of_rows_are_learned() {
    let rows = |seed, with_classes: bool| {
        let values = numbers(400 * N_COLUMNS, seed);
        let told: Vec<f32> =
            values.chunks(N_COLUMNS).map(|row| 3.0 + row[0] - 2.0 * row[1] * row[2]).collect();
        let targets = match with_classes {
            true => RowTargets::Classes(told.iter().map(|&value| u8::from(value > 3.0)).collect()),
            false => RowTargets::Values { n_values: 1, values: told },
        };
        Samples::Rows(TableRows { n_columns: N_COLUMNS, values, targets })
    };
    for (with_classes, loss, size, target) in [
        (false, Loss::Regression, Size::Targets, RowTarget::Values(1)),
        (true, Loss::Classification, Size::Classes, RowTarget::Class(2)),
    ] {
        let data = DataShape::Rows { n_columns: N_COLUMNS, target };
        let (trainer, _) = learn(&network(loss, size), data, &rows(1, with_classes), 300, 0.02);
        let unseen = block_on(trainer.evaluate_samples(&rows(2, with_classes))).unwrap();
        assert!(unseen.accuracy > 0.85 && unseen.accuracy <= 1.0, "{unseen:?}");
        let Samples::Rows(other) = rows(2, !with_classes) else { panic!() };
        assert!(block_on(trainer.evaluate_rows(&other)).is_err(), "another target");
        let few = TableRows { n_columns: 2, ..other };
        assert!(block_on(trainer.evaluate_rows(&few)).is_err());
    }
}

#[test]
fn ratings_are_learned_from_users_and_items() {
    let (n_users, n_items) = (30, 20);
    let rating = |user: u32, item: u32| 3.0 + if user % 2 == item % 2 { 1.0 } else { -1.0 };
    let part = |held_out: bool| {
        let pairs = (0..n_users).flat_map(|user| (0..n_items).map(move |item| (user, item)));
        let pairs: Vec<(u32, u32)> =
            pairs.filter(|(user, item)| ((user * 7 + item * 3) % 5 == 0) == held_out).collect();
        let (users, items) = pairs.iter().copied().unzip();
        let ratings = pairs.iter().map(|&(user, item)| rating(user, item)).collect();
        Samples::Ratings(Ratings { users, items, ratings })
    };
    let data = DataShape::Ratings(RatingShape { n_users, n_items });
    let spec = Preset::MatrixFactorization { factors: 4 }.model(2);
    let (trainer, _) = learn(&spec, data, &part(false), 600, 0.02);
    let unseen = block_on(trainer.evaluate_samples(&part(true))).unwrap();
    assert!(unseen.accuracy > 0.8, "{unseen:?}");
    let strange = Ratings { users: vec![n_users], items: vec![0], ratings: vec![1.0] };
    assert!(block_on(trainer.evaluate_ratings(&strange)).is_err());
}

#[test]
fn who_always_says_the_mean_explains_nothing() {
    let values = [1.0, 10.0, 3.0, 30.0];
    assert!((variance(&values, 2) - (1.0 + 100.0) / 2.0).abs() < 1e-9);
    let of = |loss: f64| {
        Statistics { n_rows: 2, loss_sum: 2.0 * loss, n_correct: 0 }.explaining(&values, 2).accuracy
    };
    assert_eq!((of(50.5), of(0.0), of(99.0)), (0.0, 1.0, 0.0));
    assert_eq!(
        Statistics { n_rows: 1, loss_sum: 0.0, n_correct: 0 }.explaining(&[2.0, 2.0], 1).accuracy,
        0.0
    );
}

#[test]
fn what_is_predicted_of_rows_is_what_they_are_judged_by() {
    let values = numbers(7 * N_COLUMNS, 3);
    let labels = vec![0, 1, 1, 0, 1, 0, 0];
    for (target, loss, last) in [
        (RowTarget::Class(2), Loss::Classification, Size::Classes),
        (RowTarget::Values(1), Loss::Regression, Size::Targets),
    ] {
        let data = DataShape::Rows { n_columns: N_COLUMNS, target };
        let trainer = Trainer::new(&network(loss, last), data, ComputeDevice::cpu()).unwrap();
        let told = block_on(trainer.predict_rows(&values)).unwrap();
        let (targets, want): (_, f32) = match target {
            RowTarget::Class(_) => {
                let of_labels =
                    told.chunks(2).zip(&labels).map(|(row, &label)| -row[usize::from(label)].ln());
                (RowTargets::Classes(labels.clone()), of_labels.sum())
            }
            RowTarget::Values(_) => {
                let values: Vec<f32> = labels.iter().copied().map(f32::from).collect();
                let errors = told.iter().zip(&values).map(|(told, value)| (told - value) * (told - value));
                (RowTargets::Values { n_values: 1, values: values.clone() }, errors.sum())
            }
        };
        let rows = TableRows { n_columns: N_COLUMNS, values: values.clone(), targets };
        let judged = block_on(trainer.evaluate_samples(&Samples::Rows(rows))).unwrap();
        assert!((judged.loss - want / 7.0).abs() < 1e-5, "{target:?}: {judged:?} and {want}");
        assert!(block_on(trainer.predict_rows(&values[1..])).is_err());
        assert!(block_on(trainer.predict_rows(&[])).is_err());
    }
}
