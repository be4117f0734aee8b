#![allow(clippy::unwrap_used, clippy::panic)]

use barnraise_protocol::run::Preset;
use futures::executor::block_on;

use super::*;
use crate::device::ComputeDevice;

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
    let got = block_on(trainer.recommend(&parameters, &rated, 1e-6)).unwrap();
    let nobody = block_on(trainer.recommend(&parameters, &[], 0.5)).unwrap();
    let mean_error = |got: &[f32]| {
        got.iter().zip(&want).map(|(got, want)| (got - want).abs()).sum::<f32>() / want.len() as f32
    };
    assert!(mean_error(&got) < 0.01, "{}", mean_error(&got));
    assert!(mean_error(&nobody) > 0.1, "{}", mean_error(&nobody));
    // With errors as large as the differences between users, a rating moves little.
    let careful = block_on(trainer.recommend(&parameters, &rated[..1], 100.0)).unwrap();
    assert!(mean_error(&careful) > 0.9 * mean_error(&nobody));
    // The model is what it was.
    assert_eq!(block_on(trainer.predict_ratings(&vec![5; all.len()], &all)).unwrap(), want);
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
    assert_eq!(block_on(trainer.recommend(&parameters, &[(1, 5.0)], 0.5)).unwrap(), want);
    assert!(block_on(trainer.recommend(&parameters, &[(3, 5.0)], 0.5)).is_err());
    assert!(block_on(trainer.predict_ratings(&[1], &[0])).is_err());
    assert!(block_on(trainer.recommend(&parameters[1..], &[], 0.5)).is_err());
}

#[test]
fn a_system_of_equations_is_solved() {
    let matrix = vec![vec![4.0, 2.0, 0.0], vec![2.0, 3.0, 1.0], vec![0.0, 1.0, 5.0]];
    let x = solve(matrix, vec![8.0, 11.0, 17.0]);
    for (got, want) in x.iter().zip([1.0, 2.0, 3.0]) {
        assert!((got - want).abs() < 1e-12, "{x:?}");
    }
}
