//! Functions of one value that a compiler can vectorize: no branch, no call.

/// `e^x` to two units in the last place, for `x` from -87 to 88 and as at these ends beyond them. Range reduction and
/// polynomial as in Cephes (Moshier 1992).
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    /// Added and subtracted: rounds to an integer, which is in the lowest bits in between.
    const ROUNDING: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x.clamp(-87.0, 88.0) * std::f32::consts::LOG2_E + ROUNDING;
    let n = shifted - ROUNDING;
    let rest = x.clamp(-87.0, 88.0) - n * LN_2_HIGH - n * LN_2_LOW;
    let sum = 1.987_569_1e-4 * rest + 1.398_199_9e-3;
    let sum = sum * rest + 8.333_452e-3;
    let sum = sum * rest + 4.166_579_6e-2;
    let sum = sum * rest + 1.666_666_6e-1;
    let sum = sum * rest + 0.5;
    let exponent = shifted.to_bits().wrapping_sub(ROUNDING.to_bits()).wrapping_add(127);
    (sum * rest * rest + rest + 1.0) * f32::from_bits(exponent << 23)
}

/// To 1e-7.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The normal distribution function to 1e-7, and its derivative (Abramowitz and Stegun 1964, 7.1.26).
#[inline(always)]
fn normal(x: f32) -> (f32, f32) {
    const INVERSE_ROOT_TWO_PI: f32 = 0.398_942_3;
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let falling = exp(-z * z);
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let sum = 1.061_405_4 * t - 1.453_152_1;
    let sum = sum * t + 1.421_413_8;
    let sum = sum * t - 0.284_496_72;
    let sum = sum * t + 0.254_829_6;
    let tail = 0.5 * sum * t * falling;
    (if x < 0.0 { tail } else { 1.0 - tail }, INVERSE_ROOT_TWO_PI * falling)
}

#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    x * normal(x).0
}

#[inline(always)]
pub(super) fn gelu_slope(x: f32) -> f32 {
    let (below, density) = normal(x);
    below + x * density
}

const SQRT_2_OVER_PI: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

#[inline(always)]
pub(super) fn gelu_tanh(x: f32) -> f32 {
    0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * x * (1.0 + GELU_CUBE * x * x)))
}

#[inline(always)]
pub(super) fn gelu_tanh_slope(x: f32) -> f32 {
    let tanh = tanh(SQRT_2_OVER_PI * x * (1.0 + GELU_CUBE * x * x));
    let inner = SQRT_2_OVER_PI * x * (1.0 + 3.0 * GELU_CUBE * x * x);
    0.5 * (1.0 + tanh + inner * (1.0 - tanh * tanh))
}

#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

#[inline(always)]
pub(super) fn silu_slope(x: f32) -> f32 {
    let gate = sigmoid(x);
    gate * (1.0 + x * (1.0 - gate))
}
