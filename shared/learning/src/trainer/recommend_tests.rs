#![allow(clippy::unwrap_used, clippy::panic)]

use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::{self, Preset};
use futures::executor::block_on;

use super::*;
use crate::device::ComputeDevice;
use crate::optimizer::OptimizerSpec;
use crate::schedule::ScheduleSpec;
use crate::trainer::MeanGradient;

const SHAPE: RatingShape = RatingShape { n_users: 40, n_items: 60 };

/// Users and items that are spread, with biases.
fn model() -> (Trainer, Vec<f32>) {
    let model = Preset::MatrixFactorization { factors: 4 }.model(7);
    let trainer = Trainer::new(&model, DataShape::Ratings(SHAPE), ComputeDevice::cpu()).unwrap();
    let mut parameters = trainer.layout().initial_parameters(3);
    for segment in trainer.layout().segments() {
        let scale = if segment.name.ends_with("factors.weight") { 8.0 } else { 0.0 };
        for (index, value) in parameters[segment.range()].iter_mut().enumerate() {
            let of_bias = (index * 7 % 11) as f32 / 10.0;
            *value = if scale > 0.0 { *value * scale } else { of_bias };
        }
    }
    (trainer, parameters)
}

#[test]
fn somebody_who_rates_as_a_user_does_gets_what_that_user_would_rate() {
    let (mut trainer, parameters) = model();
    trainer.load_parameters(&parameters).unwrap();
    let all: Vec<u32> = (0..SHAPE.n_items).collect();
    let want = block_on(trainer.predict_ratings(&vec![5; all.len()], &all)).unwrap();
    let rated: Vec<(u32, f32)> = (0..30).map(|item| (item * 2, want[item as usize * 2])).collect();
    let got = block_on(trainer.recommend(&parameters, &rated, Some(1e-6))).unwrap();
    let nobody = block_on(trainer.recommend(&parameters, &[], Some(0.5))).unwrap();
    let mean_error = |got: &[f32]| {
        got.iter().zip(&want).map(|(got, want)| (got - want).abs()).sum::<f32>() / want.len() as f32
    };
    assert!(mean_error(&got) < 0.01, "{}", mean_error(&got));
    assert!(mean_error(&nobody) > 0.1, "{}", mean_error(&nobody));
    // With errors as large as the differences between users, a rating moves little.
    let careful = block_on(trainer.recommend(&parameters, &rated[..1], Some(100.0))).unwrap();
    assert!(mean_error(&careful) > 0.9 * mean_error(&nobody));
    // The model is what it was.
    assert_eq!(block_on(trainer.predict_ratings(&vec![5; all.len()], &all)).unwrap(), want);
}

/// Four steps of a round on people's ratings.
fn round(trainer: &mut Trainer, parameters: &[f32], ratings: &Ratings) -> MeanGradient {
    trainer.load_parameters(parameters).unwrap();
    for _ in 0..4 {
        block_on(trainer.accumulate_samples(&Samples::Ratings(ratings.clone()), 1)).unwrap();
    }
    block_on(trainer.take_mean_gradient()).unwrap().unwrap()
}

#[test]
fn newcomers_teach_what_there_is_of_items_and_nothing_of_users() {
    let (mut trainer, true_parameters) = model();
    let spec = Preset::MatrixFactorization { factors: 4 }.model(7);
    trainer.load_parameters(&true_parameters).unwrap();
    // Two people who rate as users do, whose numbers are others.
    let all: Vec<u32> = (0..SHAPE.n_items).collect();
    let mut ratings = Ratings::default();
    for (person, like) in [(0, 5), (1, 31)] {
        ratings.ratings.extend(block_on(trainer.predict_ratings(&vec![like; all.len()], &all)).unwrap());
        ratings.users.extend(vec![person; all.len()]);
        ratings.items.extend(&all);
    }
    let optimizer = OptimizerSpec::SgdMomentum { momentum: 0.5, nesterov: false, weight_decay: 0.01 };
    let steps = run::LocalSteps {
        steps: 4,
        optimizer: optimizer.into(),
        schedule: ScheduleSpec::constant(0.3).into(),
    };
    let other = Trainer::new(&spec, DataShape::Ratings(SHAPE), ComputeDevice::cpu()).unwrap();
    assert!(other.with_newcomers(&ratings).is_err(), "its gradient would be of other users");
    let trainer = trainer.with_local_steps(&spec, &steps).unwrap().stateless();
    let mut trainer = trainer.with_newcomers(&ratings).unwrap();

    // The items are not known as well.
    let segments = trainer.layout().segments().to_vec();
    let of_users: Vec<_> = segments.iter().filter(|segment| segment.name.starts_with("user_")).collect();
    assert_eq!(of_users.len(), 2);
    let mut parameters = true_parameters.clone();
    for segment in segments.iter().filter(|segment| segment.name.starts_with("item_")) {
        parameters[segment.range()].iter_mut().for_each(|value| *value *= 0.5);
    }
    let mut losses = Vec::new();
    for _ in 0..30 {
        let moved = round(&mut trainer, &parameters, &ratings);
        assert!(of_users.iter().all(|segment| moved.values[segment.range()].iter().all(|&v| v == 0.0)));
        losses.push(moved.loss);
        parameters.iter_mut().zip(&moved.values).for_each(|(value, moved)| *value -= moved);
    }
    assert!(losses[29] < 0.3 * losses[0], "{losses:?}");

    // In between, predictions are those of the run's own users.
    trainer.load_parameters(&true_parameters).unwrap();
    let want = block_on(trainer.predict_ratings(&[0, 1], &[7, 8])).unwrap();
    block_on(trainer.accumulate_samples(&Samples::Ratings(ratings.clone()), 1)).unwrap();
    assert_ne!(block_on(trainer.predict_ratings(&[0, 1], &[7, 8])).unwrap(), want);
    trainer.restore_loaded_parameters();
    assert_eq!(block_on(trainer.predict_ratings(&[0, 1], &[7, 8])).unwrap(), want);
}

#[test]
fn one_user_is_enough_to_ask_by_and_strange_items_are_refused() {
    let one = DataShape::Ratings(RatingShape { n_users: 1, n_items: 3 });
    let model = Preset::MatrixFactorization { factors: 2 }.model(7);
    let mut trainer = Trainer::new(&model, one, ComputeDevice::cpu()).unwrap();
    let parameters = trainer.layout().initial_parameters(3);
    trainer.load_parameters(&parameters).unwrap();
    let want = block_on(trainer.predict_ratings(&[0; 3], &[0, 1, 2])).unwrap();
    // Nothing is known of how users differ: somebody new is as the one that there is.
    assert_eq!(block_on(trainer.recommend(&parameters, &[(1, 5.0)], Some(0.5))).unwrap(), want);
    assert!(block_on(trainer.recommend(&parameters, &[(3, 5.0)], Some(0.5))).is_err());
    assert!(block_on(trainer.predict_ratings(&[1], &[0])).is_err());
    assert!(block_on(trainer.recommend(&parameters[1..], &[], Some(0.5))).is_err());
}

#[test]
fn a_system_of_equations_is_solved() {
    let matrix = vec![vec![4.0, 2.0, 0.0], vec![2.0, 3.0, 1.0], vec![0.0, 1.0, 5.0]];
    let x = solve(matrix, vec![8.0, 11.0, 17.0]);
    for (got, want) in x.iter().zip([1.0, 2.0, 3.0]) {
        assert!((got - want).abs() < 1e-12, "{x:?}");
    }
}
