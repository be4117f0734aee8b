//! Attention (Vaswani et al. 2017), with fewer heads of keys and values than of queries (Ainslie et al. 2023), and with
//! rotary embedding (Su et al. 2021).

use std::f64::consts::TAU;
use std::ops::Range;

use barnraise_protocol::run::model::operation::{Attention, Rotary, RotaryScaling};
use burn::tensor::{Device, Tensor, TensorData};

use crate::engine::arithmetic::wide;
use crate::engine::composite::{Scores, multiply, softmax_rows};

/// Keys, which are rotated, and values of the tokens so far, `[n_samples, key-value heads, tokens, head width]`.
#[derive(Debug, Clone)]
pub(super) struct KeptKeys {
    key: Tensor<4>,
    value: Tensor<4>,
}

/// Queries, keys and values that one sequence has side by side in the last dimension.
pub(super) fn unpacked(states: Tensor<3>, options: &Attention) -> [Tensor<3>; 3] {
    let [heads, key_value_heads] = heads(options);
    let head_width = states.dims()[2] / (heads + 2 * key_value_heads);
    let (wide, narrow) = (heads * head_width, key_value_heads * head_width);
    let query = states.clone().narrow(2, 0, wide);
    let key = states.clone().narrow(2, wide, narrow);
    let value = states.narrow(2, wide + narrow, narrow);
    [query, key, value]
}

/// Of queries `[n_samples, length, heads * head width]`, keys and values
/// `[n_samples, length, key-value heads * head width]`; as the queries. `drop` is the dropout of the weights
/// `[n_samples, heads, length, tokens]`. The tokens go on from those that are kept, and are kept themselves.
pub(super) fn attend(
    [query, key, value]: [Tensor<3>; 3],
    options: &Attention,
    kept: Option<&mut Option<KeptKeys>>,
    drop: impl FnOnce(Tensor<4>) -> Tensor<4>,
) -> Tensor<3> {
    let [n, length, width] = query.dims();
    let [heads, key_value_heads] = heads(options);
    let (head_width, dtype) = (width / heads, query.dtype());
    let split =
        |tensor: Tensor<3>, heads: usize| tensor.reshape([n, length, heads, head_width]).swap_dims(1, 2);
    let (mut query, mut key) = (split(query, heads), split(key, key_value_heads));
    let mut value = split(value, key_value_heads);
    let before = kept.as_ref().and_then(|kept| kept.as_ref());
    let n_before = before.map_or(0, |kept| kept.key.dims()[2]);
    if let Some(rotary) = options.rotary {
        let waves = Waves::of(n_before..n_before + length, head_width, rotary, &query.device());
        (query, key) = (waves.rotate(query), waves.rotate(key));
    }
    if let Some(kept) = kept {
        if let Some(before) = kept.take() {
            (key, value) = (Tensor::cat(vec![before.key, key], 2), Tensor::cat(vec![before.value, value], 2));
        }
        *kept = Some(KeptKeys { key: key.clone(), value: value.clone() });
    }
    let n_tokens = n_before + length;
    // The queries of the heads that share a key are rows of one product.
    let rows = heads / key_value_heads * length;
    let query = query.reshape([n, key_value_heads, rows, head_width]);
    let scores = multiply(query, key.swap_dims(2, 3));
    let scores = wide(scores).reshape([n, heads, length, n_tokens]);
    let seen =
        Scores { scale: 1.0 / (head_width as f32).sqrt(), n_before: options.causal.then_some(n_before) };
    let weights = drop(softmax_rows(scores, seen)).cast(dtype).reshape([n, key_value_heads, rows, n_tokens]);
    let mixed = multiply(weights, value).reshape([n, heads, length, head_width]);
    mixed.swap_dims(1, 2).reshape([n, length, width])
}

fn heads(options: &Attention) -> [usize; 2] {
    let heads = options.heads.max(1) as usize;
    let key_value_heads = options.key_value_heads as usize;
    [heads, if key_value_heads == 0 { heads } else { key_value_heads }]
}

/// Cosines and sines by which a position turns the pairs of a head, `[1, 1, length, head width]`. The pair of a value is
/// the one half a head further.
struct Waves {
    cosines: Tensor<4>,
    sines: Tensor<4>,
}

impl Waves {
    fn of(positions: Range<usize>, head_width: usize, rotary: Rotary, device: &Device) -> Self {
        let half = head_width / 2;
        let angle = |at: usize| {
            let (position, pair) = (positions.start + at / head_width, at % head_width % half.max(1));
            let frequency = f64::from(rotary.theta).powf(-2.0 * pair as f64 / head_width as f64);
            position as f64 * rotary.scaling.map_or(frequency, |scaling| scaled(frequency, scaling))
        };
        let tensor = |of: fn(f64) -> f64| {
            let length = positions.len();
            let values: Vec<f32> = (0..length * head_width).map(|at| of(angle(at)) as f32).collect();
            Tensor::from_data(TensorData::new(values, [1, 1, length, head_width]), device)
        };
        Self { cosines: tensor(f64::cos), sines: tensor(f64::sin) }
    }

    /// In single precision, and back in the numbers of `heads`.
    fn rotate(&self, heads: Tensor<4>) -> Tensor<4> {
        let dtype = heads.dtype();
        let heads = wide(heads);
        let half = heads.dims()[3] / 2;
        let (real, imaginary) = (heads.clone().narrow(3, 0, half), heads.clone().narrow(3, half, half));
        let turned = Tensor::cat(vec![-imaginary, real], 3);
        (heads * self.cosines.clone() + turned * self.sines.clone()).cast(dtype)
    }
}

/// What a frequency, in radians for each position, becomes.
fn scaled(frequency: f64, scaling: RotaryScaling) -> f64 {
    let [factor, low, high] = [scaling.factor, scaling.low_frequency, scaling.high_frequency].map(f64::from);
    // Waves in a text of the original length.
    let n_waves = f64::from(scaling.original_tokens) * frequency / TAU;
    let kept = ((n_waves - low) / (high - low)).clamp(0.0, 1.0);
    frequency * (kept + (1.0 - kept) / factor)
}
