#![allow(clippy::unwrap_used)]

mod parts;

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::activation::{gelu, log_softmax, silu, softmax};
use burn::tensor::module::layer_norm;
use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData};

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

/// Gradients by rows and weights of `f`, weighted.
fn gradients_of(f: impl Fn(Tensor<2>, Tensor<1>) -> Tensor<2>) -> [Vec<f32>; 2] {
    let tensor = |n, seed| Tensor::<1>::from_data(TensorData::new(drawn(n, 1.0, seed), [n]), &Device::flex());
    let leaf = |n, seed| tensor(n, seed).autodiff().require_grad();
    let (rows, weights) = (leaf(3 * 4, 1), leaf(4 * 5, 2));
    let given = f(rows.clone().reshape([3, 4]), weights.clone());
    let mut gradients = (given * tensor(15, 3).reshape([3, 5]).autodiff()).sum().backward();
    [rows, weights].map(|leaf| leaf.grad_remove(&mut gradients).unwrap().into_data().try_into_vec().unwrap())
}

#[test]
fn a_flat_matrix_has_the_derivatives_of_one_that_is_not() {
    let flat = gradients_of(|rows, weights| linear_by_flat(rows, weights, [4, 5], None));
    let shaped = gradients_of(|rows, weights| linear(rows, weights.reshape([4, 5]), None));
    assert_eq!(flat, shaped);
}

/// Also where the leaf has no other gradient.
#[test]
fn a_sum_is_added_to_the_gradient_of_its_leaf_and_to_nothing_else() {
    let device = Device::flex();
    let tensor = |values: [f32; 2]| Tensor::<1>::from_data(values, &device);
    let (used, unused) = (tensor([2.0, 3.0]), tensor([0.0, 0.0]));
    let [used, unused] = [used, unused].map(|one| one.autodiff().require_grad());
    let given = used.clone() * tensor([5.0, 7.0]).autodiff();
    let given = summing(given.reshape([1, 2]), used.clone(), tensor([100.0, 200.0]));
    let given = summing(given, unused.clone(), tensor([300.0, 400.0]));
    assert_eq!(given.clone().into_data().try_to_vec::<f32>().unwrap(), [10.0, 21.0]);
    let mut gradients = given.backward();
    let gradient = |leaf: Tensor<1>, gradients: &mut _| -> Vec<f32> {
        leaf.grad_remove(gradients).unwrap().into_data().try_into_vec().unwrap()
    };
    assert_eq!(gradient(used, &mut gradients), [105.0, 207.0]);
    assert_eq!(gradient(unused, &mut gradients), [300.0, 400.0]);
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
            let parts = parts::normalize_rows::<Flex>(rows, of_weight, of_bias, norm);
            assert_near(&values(loops), &values(parts), 1e-5);
            let (rows, of_weight, _) = inputs();
            let by = flex(&by, &shape);
            let loops = loops::normalize_rows_backward(&rows, &of_weight, by.clone(), norm);
            let parts = parts::normalize_rows_backward::<Flex>(rows, of_weight, by, norm);
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
        let parts = parts::softmax_rows::<Flex>(flex(&scores, &shape), of);
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
        let parts = parts::softmax_rows_backward::<Flex>(loops.clone(), by.clone(), of);
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
    compare(
        &[rows.clone(), drawn([12, 5], 4)],
        |x| multiply(x[0].clone(), x[1].clone()),
        |x| x[0].clone().matmul(x[1].clone()),
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

#[test]
fn loops_say_what_burn_says_of_cross_entropy() {
    for (n_rows, width) in [(1, 1), (5, 3), (300, 257)] {
        let (logits, classes) = (drawn(n_rows * width, 8.0, 1), drawn_classes(n_rows, width));
        let (residual, judged) = loops::cross_entropy(flex(&logits, &[n_rows, width]), &classes, 0.5);
        let device = Device::flex();
        let rows = Tensor::<2>::from_data(TensorData::new(logits, [n_rows, width]), &device);
        let ids: Vec<i32> = classes.iter().map(|&class| class as i32).collect();
        let ids = Tensor::<2, Int>::from_ints(TensorData::new(ids, [n_rows, 1]), &device);
        let losses = -log_softmax(rows.clone(), 1).gather(1, ids.clone());
        let right = rows.clone().argmax(1).equal(ids.clone()).float();
        let wanted = Tensor::cat(vec![losses, right], 0).into_data().try_to_vec::<f32>().unwrap();
        assert_near(&values(judged), &wanted, 1e-5);
        let ones = Tensor::<2>::full([n_rows, 1], -1.0, &device);
        let wanted = softmax(rows, 1).scatter(1, ids, ones, IndexingUpdateOp::Add) * 0.5;
        assert_near(&values(residual), &wanted.into_data().try_to_vec::<f32>().unwrap(), 1e-6);
    }
}

const TIES: [f32; 9] = [1.0, 1.0, 0.0, 1.0, 1.0, 0.0, f32::NAN, 0.0, 0.0];
/// Of classes 0, 1 and 0.
const RIGHT: [f32; 3] = [1.0, 0.0, 0.0];

/// Of equal logits the first is the prediction; what is no number is none.
#[test]
fn the_first_of_equal_logits_is_the_prediction() {
    let (_, judged) = loops::cross_entropy(flex(&TIES, &[3, 3]), &[0, 1, 0], 1.0);
    assert_eq!(values(judged)[3..], RIGHT);
}

fn drawn_classes(n_rows: usize, width: usize) -> Vec<u32> {
    let mut random = SplitMix64 { state: 3 };
    (0..n_rows).map(|_| random.below(width) as u32).collect()
}

#[test]
fn linear_is_what_burn_has() {
    let device = Device::flex();
    let input = Tensor::<3>::from_data(TensorData::new(drawn(2 * 5 * 7, 1.0, 1), [2, 5, 7]), &device);
    let weight = Tensor::<2>::from_data(TensorData::new(drawn(7 * 3, 1.0, 2), [7, 3]), &device);
    let bias = Tensor::<1>::from_data(TensorData::new(drawn(3, 1.0, 3), [3]), &device);
    for bias in [None, Some(bias)] {
        let ours = linear(input.clone(), weight.clone(), bias.clone());
        let theirs = burn::tensor::module::linear(input.clone(), weight.clone(), bias);
        assert_eq!(ours.dims(), theirs.dims());
        let [ours, theirs] = [ours, theirs].map(|rows| rows.into_data().try_to_vec::<f32>().unwrap());
        assert_near(&ours, &theirs, 1e-6);
    }
}

/// The kernels are compared with the loops, as they divide rows on graphics cards and on a processor that plays one.
#[cfg(feature = "wgpu")]
mod on_a_card {
    use burn::backend::{Backend, Cube, DispatchDevice};
    use burn_cubecl::CubeDevice;
    use burn_cubecl::tensor::CubeTensor;
    use futures::executor::block_on;

    use super::*;
    use crate::device::{DeviceChoice, DeviceError, open_device};

    const UNITS: [usize; 2] = [1, 32];

    fn card() -> Option<CubeDevice> {
        match block_on(open_device(DeviceChoice::Wgpu)) {
            Ok(device) => match device.burn().as_dispatch() {
                DispatchDevice::Cube(device) => Some(device.clone()),
                other => unreachable!("{other:?}"),
            },
            Err(DeviceError::NoAdapter(why)) => {
                println!("SKIPPED: {why}: mesa-vulkan-drivers has one");
                None
            }
            Err(error) => unreachable!("{error}"),
        }
    }

    fn sent<B: Backend>(values: &[f32], shape: &[usize], device: &B::Device) -> FloatTensor<B> {
        B::float_from_data(TensorData::new(values.to_vec(), shape.to_vec()), device)
    }

    fn swapped<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
        B::float_transpose(tensor)
    }

    fn product<B: Backend>(lhs: FloatTensor<B>, rhs: FloatTensor<B>) -> FloatTensor<B> {
        B::float_matmul(lhs, rhs)
    }

    fn fetched(tensor: CubeTensor) -> Vec<f32> {
        async fn read<B: Backend>(tensor: FloatTensor<B>) -> TensorData {
            B::float_into_data(tensor).await.unwrap()
        }
        block_on(read::<Cube>(tensor)).try_to_vec().unwrap()
    }

    #[test]
    fn activations() {
        let Some(card) = card() else { return };
        for n in [4099, 4100] {
            let (mut x, by) = (drawn(n, 9.0, 1), drawn(n, 2.0, 2));
            x[..6].copy_from_slice(&[0.0, -0.0, -40.0, 40.0, -1e4, 1e4]);
            let on_card = |values: &[f32]| sent::<Cube>(values, &[n], &card);
            for activation in ACTIVATIONS {
                let wanted = values(loops::activate(flex(&x, &[n]), activation));
                assert_near(&fetched(kernels::activate(on_card(&x), activation)), &wanted, 2e-6);
                let wanted = loops::activate_backward(&flex(&x, &[n]), flex(&by, &[n]), activation);
                let got = kernels::activate_backward(on_card(&x), on_card(&by), activation);
                assert_near(&fetched(got), &values(wanted), 1e-5);
            }
        }
    }

    #[test]
    fn normalized_rows() {
        let Some(card) = card() else { return };
        for (n_rows, width) in [(3, 5), (70, 33), (40, 512)] {
            let shape = [n_rows, width];
            let (x, by) = (drawn(n_rows * width, 3.0, 1), drawn(n_rows * width, 1.0, 2));
            let (weight, bias) = (drawn(width, 2.0, 3), drawn(width, 1.0, 4));
            let on_card = |values: &[f32], shape: &[usize]| sent::<Cube>(values, shape, &card);
            for (units, centred) in UNITS.into_iter().flat_map(|units| [(units, false), (units, true)]) {
                let norm = RowNorm { epsilon: 1e-5, centred };
                let of_loops = || (flex(&x, &shape), flex(&weight, &[width]));
                let of_card = || (on_card(&x, &shape), on_card(&weight, &[width]));
                let (rows, weights) = of_loops();
                let wanted = loops::normalize_rows(&rows, &weights, &flex(&bias, &[width]), norm);
                let (rows, weights) = of_card();
                let got = kernels::normalize_rows(rows, weights, on_card(&bias, &[width]), norm, units);
                assert_near(&fetched(got), &values(wanted), 1e-5);
                let (rows, weights) = of_loops();
                let wanted = loops::normalize_rows_backward(&rows, &weights, flex(&by, &shape), norm);
                let (rows, weights) = of_card();
                let got = kernels::normalize_rows_backward(rows, weights, on_card(&by, &shape), norm, units);
                for (got, wanted) in got.into_iter().zip(wanted) {
                    assert_near(&fetched(got), &values(wanted), 1e-4);
                }
            }
        }
    }

    #[test]
    fn softmax() {
        let Some(card) = card() else { return };
        for (queries, tokens, n_before) in
            [(4, 4, Some(0)), (3, 40, Some(37)), (70, 70, Some(0)), (5, 300, None)]
        {
            let shape = [2, 3, queries, tokens];
            let of = Scores { scale: 0.3, n_before };
            let n = shape.iter().product();
            let (scores, by) = (drawn(n, 60.0, 5), drawn(n, 1.0, 6));
            let weights = loops::softmax_rows(flex(&scores, &shape), of);
            let wanted = values(loops::softmax_rows_backward(&weights, flex(&by, &shape), of));
            for units in UNITS {
                let got = kernels::softmax_rows(sent::<Cube>(&scores, &shape, &card), of, units);
                assert_near(&fetched(got.clone()), &values(weights.clone()), 1e-6);
                let by = sent::<Cube>(&by, &shape, &card);
                assert_near(&fetched(kernels::softmax_rows_backward(got, by, of, units)), &wanted, 1e-6);
            }
        }
    }

    #[test]
    fn cross_entropy() {
        let Some(card) = card() else { return };
        for (n_rows, width) in [(1, 1), (5, 3), (300, 257)] {
            let mut logits = drawn(n_rows * width, 8.0, 1);
            // Equal ones, of which the first is the prediction.
            logits[..width].fill(0.5);
            let classes = drawn_classes(n_rows, width);
            let (residual, judged) = loops::cross_entropy(flex(&logits, &[n_rows, width]), &classes, 0.5);
            let (residual, judged) = (values(residual), values(judged));
            for units in UNITS {
                let on_card = sent::<Cube>(&logits, &[n_rows, width], &card);
                let got = kernels::cross_entropy(on_card, &classes, 0.5, units);
                assert_near(&fetched(got.0), &residual, 1e-6);
                assert_near(&fetched(got.1), &judged, 1e-5);
            }
        }
        for units in UNITS {
            let ties = sent::<Cube>(&TIES, &[3, 3], &card);
            assert_eq!(fetched(kernels::cross_entropy(ties, &[0, 1, 0], 1.0, units).1)[3..], RIGHT);
        }
    }

    /// Its buffer begins before it, and goes on after it.
    #[test]
    fn part_of_a_tensor() {
        let Some(card) = card() else { return };
        let card = Device::new(DispatchDevice::Cube(card));
        let (all, weight) = (drawn(200 * 8, 3.0, 1), drawn(8, 2.0, 2));
        let on = |device: &Device| {
            let all = Tensor::<2>::from_data(TensorData::new(all.clone(), [200, 8]), device);
            let part = all.narrow(0, 64, 70);
            let weight = Tensor::<1>::from_data(TensorData::new(weight.clone(), [8]), device);
            let norm = RowNorm { epsilon: 1e-5, centred: true };
            let normed = normalize_rows(part.clone(), weight.clone(), weight, norm);
            let weights = softmax_rows(part.clone(), Scores { scale: 1.0, n_before: None });
            let active = activate(part.clone(), Activation::Silu);
            let (residual, judged) = super::cross_entropy(part.clone(), vec![3; 70], 1.0);
            let product = multiply(part.clone(), part.transpose());
            let wide: Tensor<1> = Tensor::cat(vec![normed, weights, active, residual], 0).flatten(0, 1);
            let all: Tensor<1> = Tensor::cat(vec![wide, judged.flatten(0, 1), product.flatten(0, 1)], 0);
            block_on(all.into_data_async()).unwrap().try_to_vec::<f32>().unwrap()
        };
        assert_near(&on(&card), &on(&Device::flex()), 1e-5);
    }

    /// Either operand may be transposed, so that its vectors lie along rows or columns.
    #[test]
    fn products() {
        let Some(card) = card() else { return };
        let sizes = [[4, 4, 4], [5, 8, 12], [8, 6, 12], [12, 8, 7], [32, 100, 36], [1, 4, 4], [129, 64, 68]];
        for ([m, k, n], outer) in sizes.into_iter().flat_map(|size| [(size, [1, 1]), (size, [2, 3])]) {
            let of = |rows, columns| [outer[0], outer[1], rows, columns];
            let count = |shape: [usize; 4]| shape.iter().product::<usize>();
            for (is_left_swapped, is_right_swapped) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let left = if is_left_swapped { of(k, m) } else { of(m, k) };
                let right = if is_right_swapped { of(n, k) } else { of(k, n) };
                let (a, b) = (drawn(count(left), 1.0, 1), drawn(count(right), 1.0, 2));
                let turned = |tensor, is_swapped: bool| match is_swapped {
                    true => swapped::<Cube>(tensor),
                    false => tensor,
                };
                let lhs = turned(sent::<Cube>(&a, &left, &card), is_left_swapped);
                let rhs = turned(sent::<Cube>(&b, &right, &card), is_right_swapped);
                // Whole vectors along one dimension of each, after a copy where need be.
                let fits = (k.is_multiple_of(4) || is_left_swapped && m.is_multiple_of(4))
                    && (n.is_multiple_of(4) || is_right_swapped && k.is_multiple_of(4));
                let Some(got) = tiles::multiply(&lhs, &rhs) else {
                    assert!(!fits, "{m} {k} {n}");
                    continue;
                };
                let turned = |tensor, is_swapped: bool| match is_swapped {
                    true => swapped::<Flex>(tensor),
                    false => tensor,
                };
                let lhs = turned(flex(&a, &left), is_left_swapped);
                let rhs = turned(flex(&b, &right), is_right_swapped);
                assert_eq!(got.shape().as_slice(), of(m, n));
                assert_near(&fetched(got), &values(product::<Flex>(lhs, rhs)), 1e-5);
            }
        }
    }
}
