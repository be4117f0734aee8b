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

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The normal distribution function, to 1e-6 of itself: a Chebyshev fit of the complementary error function (Press et al.
/// 1992, §6.2).
#[inline(always)]
fn normal(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * z);
    let sum = 0.170_872_77 * t - 0.822_152_2;
    let sum = sum * t + 1.488_515_9;
    let sum = sum * t - 1.135_204;
    let sum = sum * t + 0.278_868_07;
    let sum = sum * t - 0.186_288_06;
    let sum = sum * t + 0.096_784_18;
    let sum = sum * t + 0.374_091_96;
    let sum = sum * t + 1.000_023_7;
    let tail = 0.5 * t * exp(sum * t - 1.265_512_2 - z * z);
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    x * normal(x)
}

#[inline(always)]
pub(super) fn gelu_slope(x: f32) -> f32 {
    const INVERSE_ROOT_TWO_PI: f32 = 0.398_942_3;
    normal(x) + x * INVERSE_ROOT_TWO_PI * exp(-0.5 * x * x)
}

/// What `x` is multiplied by, `(1 + tanh(u)) / 2 = sigmoid(2 u)`, and how fast `2 u` grows.
#[inline(always)]
fn tanh_gate(x: f32) -> (f32, f32) {
    const TWO_ROOT_TWO_OVER_PI: f32 = 2.0 * 0.797_884_6;
    const GELU_CUBE: f32 = 0.044_715;
    let doubled = TWO_ROOT_TWO_OVER_PI * x * (1.0 + GELU_CUBE * x * x);
    (sigmoid(doubled), TWO_ROOT_TWO_OVER_PI * (1.0 + 3.0 * GELU_CUBE * x * x))
}

#[inline(always)]
pub(super) fn gelu_tanh(x: f32) -> f32 {
    x * tanh_gate(x).0
}

#[inline(always)]
pub(super) fn gelu_tanh_slope(x: f32) -> f32 {
    let (gate, growth) = tanh_gate(x);
    gate + x * growth * gate * (1.0 - gate)
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
