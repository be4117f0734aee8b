//! By burn's own operations, on any backend: products, and activations in half precision.

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor;

use super::Activation;

const SQRT_2_OVER_PI: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

pub(super) fn activate<B: Backend>(values: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
    match activation {
        Activation::Gelu => B::gelu(values),
        Activation::Silu => B::float_mul(values.clone(), B::sigmoid(values)),
        Activation::GeluTanh => {
            let gate = B::float_add_scalar(gelu_tanh::<B>(values.clone()), 1.0.into());
            B::float_mul_scalar(B::float_mul(values, gate), 0.5.into())
        }
    }
}

pub(super) fn activate_backward<B: Backend>(
    values: FloatTensor<B>,
    by_output: FloatTensor<B>,
    activation: Activation,
) -> FloatTensor<B> {
    let slope = match activation {
        Activation::Gelu => return B::gelu_backward(values, by_output),
        Activation::Silu => {
            // s (1 + x (1 - s))
            let gate = B::sigmoid(values.clone());
            let rest = B::float_add_scalar(B::float_neg(gate.clone()), 1.0.into());
            B::float_mul(gate, B::float_add_scalar(B::float_mul(values, rest), 1.0.into()))
        }
        Activation::GeluTanh => {
            // (1 + t + x (1 - t²) u') / 2, with u' = sqrt(2/π) (1 + 3 · 0.044715 x²)
            let tanh = gelu_tanh::<B>(values.clone());
            let squares = B::float_mul(values.clone(), values.clone());
            let inner =
                B::float_add_scalar(B::float_mul_scalar(squares, (3.0 * GELU_CUBE).into()), 1.0.into());
            let inner = B::float_mul_scalar(B::float_mul(values, inner), SQRT_2_OVER_PI.into());
            let rest =
                B::float_add_scalar(B::float_neg(B::float_mul(tanh.clone(), tanh.clone())), 1.0.into());
            let sum = B::float_add(B::float_add_scalar(tanh, 1.0.into()), B::float_mul(inner, rest));
            B::float_mul_scalar(sum, 0.5.into())
        }
    };
    B::float_mul(by_output, slope)
}

/// `tanh(sqrt(2/π) (x + 0.044715 x³))`, without a power of a negative number.
fn gelu_tanh<B: Backend>(values: FloatTensor<B>) -> FloatTensor<B> {
    let squares = B::float_mul(values.clone(), values.clone());
    let inner = B::float_add_scalar(B::float_mul_scalar(squares, GELU_CUBE.into()), 1.0.into());
    B::float_tanh(B::float_mul_scalar(B::float_mul(values, inner), SQRT_2_OVER_PI.into()))
}

pub(super) fn multiply<B: Backend>(lhs: FloatTensor<B>, rhs: FloatTensor<B>) -> FloatTensor<B> {
    B::float_matmul(lhs, rhs)
}
