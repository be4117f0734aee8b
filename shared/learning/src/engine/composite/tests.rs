#![allow(clippy::unwrap_used)]

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::activation::{gelu, silu, softmax};
use burn::tensor::module::layer_norm;
use burn::tensor::{Device, Tensor, TensorData};

use super::*;
use crate::random::SplitMix64;

const ACTIVATIONS: [Activation; 3] = [Activation::Gelu, Activation::GeluTanh, Activation::Silu];

/// From -`bound` to `bound`.
fn drawn(n: usize, bound: f32, seed: u64) -> Vec<f32> {
    let mut random = SplitMix64 { state: seed };
    (0..n).map(|_| (random.below(2001) as f32 / 1000.0 - 1.0) * bound).collect()
}

fn flex(values: &[f32], shape: &[usize]) -> FloatTensor<Flex> {
    FlexTensor::from_data(TensorData::new(values.to_vec(), shape.to_vec()))
}

fn values(tensor: FloatTensor<Flex>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

fn assert_near(got: &[f32], wanted: &[f32], tolerance: f32) {
    assert_eq!(got.len(), wanted.len());
    for (index, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let allowed = tolerance * (1.0 + wanted.abs());
        assert!((got - wanted).abs() <= allowed, "at {index}: {got} and {wanted}");
    }
}

#[test]
fn an_exponential_is_right_to_two_units_in_the_last_place() {
    for step in -8700..=8800_i16 {
        let x = f32::from(step) / 100.0;
        let (got, wanted) = (f64::from(math::exp(x)), f64::from(x).exp());
        assert!((got / wanted - 1.0).abs() < 2.4e-7, "e^{x}: {got} and {wanted}");
    }
    assert_eq!(math::exp(0.0), 1.0);
    assert!(math::exp(f32::NAN).is_nan());
    assert_eq!(math::exp(-1e30), math::exp(-87.0));
}

#[test]
fn loops_say_what_the_parts_say_of_activations() {
    // More than one thread takes at once, and the ends.
    let mut x = drawn(20_000, 9.0, 1);
    x.extend([0.0, -0.0, 1e-20, -40.0, 40.0, -1e4, 1e4]);
    let (shape, by) = ([x.len()], drawn(x.len(), 2.0, 2));
    for activation in ACTIVATIONS {
        let loops = loops::activate(flex(&x, &shape), activation);
        let parts = by_parts::activate::<Flex>(flex(&x, &shape), activation);
        assert_near(&values(loops), &values(parts), 1e-6);
        let loops = loops::activate_backward(&flex(&x, &shape), flex(&by, &shape), activation);
        let parts = by_parts::activate_backward::<Flex>(flex(&x, &shape), flex(&by, &shape), activation);
        // `1 - tanh²` has lost its digits where it is multiplied by much.
        assert_near(&values(loops), &values(parts), 1e-5);
    }
}

#[test]
fn loops_say_what_the_parts_say_of_normalized_rows() {
    for (n_rows, width) in [(3, 5), (900, 33), (40, 512)] {
        let shape = [n_rows, width];
        let (x, by) = (drawn(n_rows * width, 3.0, 1), drawn(n_rows * width, 1.0, 2));
        let (weight, bias) = (drawn(width, 2.0, 3), drawn(width, 1.0, 4));
        let vector = |values: &[f32]| flex(values, &[width]);
        for centred in [false, true] {
            let norm = RowNorm { epsilon: 1e-5, centred };
            let inputs = || (flex(&x, &shape), vector(&weight), vector(&bias));
            let (rows, of_weight, of_bias) = inputs();
            let loops = loops::normalize_rows(&rows, &of_weight, &of_bias, norm);
            let parts = by_parts::normalize_rows::<Flex>(rows, of_weight, of_bias, norm);
            assert_near(&values(loops), &values(parts), 1e-5);
            let (rows, of_weight, _) = inputs();
            let by = flex(&by, &shape);
            let loops = loops::normalize_rows_backward(&rows, &of_weight, by.clone(), norm);
            let parts = by_parts::normalize_rows_backward::<Flex>(rows, of_weight, by, norm);
            for (loops, parts) in loops.into_iter().zip(parts) {
                assert_near(&values(loops), &values(parts), 1e-4);
            }
        }
    }
}

#[test]
fn loops_say_what_the_parts_say_of_softmax() {
    for (queries, tokens, n_before) in [(4, 4, Some(0)), (3, 40, Some(37)), (70, 70, Some(0)), (5, 300, None)]
    {
        let shape = [2, 3, queries, tokens];
        let of = Scores { scale: 0.3, n_before };
        let n = shape.iter().product();
        let (scores, by) = (drawn(n, 60.0, 5), drawn(n, 1.0, 6));
        let loops = loops::softmax_rows(flex(&scores, &shape), of);
        let parts = by_parts::softmax_rows::<Flex>(flex(&scores, &shape), of);
        assert_near(&values(loops.clone()), &values(parts), 1e-6);
        if n_before == Some(0) {
            let weights = values(loops.clone());
            assert!(
                weights.chunks(tokens).enumerate().all(|(row, weights)| {
                    weights[row % queries + 1..].iter().all(|&weight| weight == 0.0)
                })
            );
        }
        let by = flex(&by, &shape);
        let parts = by_parts::softmax_rows_backward::<Flex>(loops.clone(), by.clone(), of);
        let loops = loops::softmax_rows_backward(&loops, by, of);
        assert_near(&values(loops), &values(parts), 1e-6);
    }
}

/// A view is read in its own order.
#[test]
fn rows_of_a_transposed_tensor_are_its_rows() {
    let device = Device::flex();
    let tensor = Tensor::<2>::from_data(TensorData::new(drawn(60, 2.0, 7), [6, 10]), &device).transpose();
    let of = Scores { scale: 1.0, n_before: None };
    let got = softmax_rows(tensor.clone(), of).into_data().try_to_vec::<f32>().unwrap();
    assert_near(&got, &softmax(tensor, 1).into_data().try_to_vec::<f32>().unwrap(), 1e-6);
}

/// The derivatives of a sum, weighted so that none is like another.
fn derivatives(inputs: &[Tensor<2>], of: impl Fn(&[Tensor<2>]) -> Tensor<2>) -> Vec<Vec<f32>> {
    let device = Device::flex().autodiff();
    let inputs: Vec<Tensor<2>> = inputs
        .iter()
        .map(|input| Tensor::from_data(input.clone().into_data(), &device).require_grad())
        .collect();
    let output = of(&inputs);
    let n = output.dims().iter().product();
    let by = Tensor::<2>::from_data(TensorData::new(drawn(n, 1.0, 9), output.dims()), &device);
    let gradients = (output * by).sum().backward();
    let of_input = |input: &Tensor<2>| input.grad(&gradients).unwrap().into_data().try_to_vec().unwrap();
    inputs.iter().map(of_input).collect()
}

#[test]
fn derivatives_are_those_that_burn_finds() {
    let device = Device::flex();
    let drawn = |shape: [usize; 2], seed| {
        Tensor::<2>::from_data(TensorData::new(drawn(shape[0] * shape[1], 2.0, seed), shape), &device)
    };
    let compare =
        |inputs: &[Tensor<2>], ours: fn(&[Tensor<2>]) -> Tensor<2>, theirs: fn(&[Tensor<2>]) -> Tensor<2>| {
            let (ours, theirs) = (derivatives(inputs, ours), derivatives(inputs, theirs));
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert_near(ours, theirs, 1e-5);
            }
        };
    let rows = drawn([7, 12], 1);
    compare(
        std::slice::from_ref(&rows),
        |x| activate(x[0].clone(), Activation::Gelu),
        |x| gelu(x[0].clone()),
    );
    compare(
        std::slice::from_ref(&rows),
        |x| activate(x[0].clone(), Activation::Silu),
        |x| silu(x[0].clone()),
    );
    const SCORES: Scores = Scores { scale: 0.5, n_before: None };
    compare(
        std::slice::from_ref(&rows),
        |x| softmax_rows(x[0].clone(), SCORES),
        |x| softmax(x[0].clone() * 0.5, 1),
    );
    let inputs = [rows, drawn([1, 12], 2), drawn([1, 12], 3)];
    compare(
        &inputs,
        |x| {
            let norm = RowNorm { epsilon: 1e-5, centred: true };
            normalize_rows(x[0].clone(), x[1].clone().reshape([12]), x[2].clone().reshape([12]), norm)
        },
        |x| layer_norm(x[0].clone(), x[1].clone().reshape([12]), Some(x[2].clone().reshape([12])), 1e-5),
    );
}
