//! The update rules in the symbols of their papers, each on the tensor of one layer.

use std::ops::Range;

use super::{OptimizerSpec, OptimizerState};

/// A norm below this is zero: a ratio with it would leave the range of `f32`.
const NORM_MIN: f64 = 1e-20;

/// Inputs of one optimizer step.
pub(super) struct OptimizerStep<'a> {
    /// `[n_parameters]`, changed in place.
    pub(super) parameters: &'a mut [f32],
    /// `[n_parameters]`, finite.
    pub(super) gradient: &'a [f32],
    /// Global learning rate.
    pub(super) learning_rate: f32,
}

/// One step of `spec`. The state has as many moments as the specification says.
pub(super) fn apply(
    spec: &OptimizerSpec,
    step: &mut OptimizerStep<'_>,
    segments: &[Range<usize>],
    state: &mut OptimizerState,
) {
    state.n_steps = state.n_steps.saturating_add(1);
    if let OptimizerSpec::Adam { beta1, beta2, .. } | OptimizerSpec::Lamb { beta1, beta2, .. } = *spec {
        state.beta_products[0] *= f64::from(beta1);
        state.beta_products[1] *= f64::from(beta2);
    }
    let corrections = state.beta_products.map(|product| (1.0 - product) as f32);
    let rate = step.learning_rate;
    for range in segments {
        let w = &mut step.parameters[range.clone()];
        let g = &step.gradient[range.clone()];
        match (*spec, state.moments.as_mut_slice()) {
            (OptimizerSpec::SgdMomentum { momentum, nesterov: false, weight_decay }, [v]) => {
                sgd(w, g, &mut v[range.clone()], rate, momentum, weight_decay);
            }
            (OptimizerSpec::SgdMomentum { momentum, nesterov: true, weight_decay }, [v]) => {
                nesterov(w, g, &mut v[range.clone()], rate, momentum, weight_decay);
            }
            (OptimizerSpec::Lars { momentum, trust_coefficient, weight_decay }, [v]) => {
                let local = lars_local_rate(w, g, trust_coefficient, weight_decay);
                lars(w, g, &mut v[range.clone()], rate * local, momentum, weight_decay);
            }
            (OptimizerSpec::Adam { beta1, beta2, epsilon, weight_decay }, [m, v]) => {
                let (m, v) = (&mut m[range.clone()], &mut v[range.clone()]);
                Moments { m, v, corrections, epsilon }.update(g, beta1, beta2).adam(w, rate, weight_decay);
            }
            (OptimizerSpec::Lamb { beta1, beta2, epsilon, weight_decay }, [m, v]) => {
                let (m, v) = (&mut m[range.clone()], &mut v[range.clone()]);
                Moments { m, v, corrections, epsilon }.update(g, beta1, beta2).lamb(w, rate, weight_decay);
            }
            _ => debug_assert!(false, "restore compares the moments with the specification"),
        }
    }
}

fn sgd(w: &mut [f32], g: &[f32], v: &mut [f32], rate: f32, momentum: f32, weight_decay: f32) {
    for ((w, g), v) in w.iter_mut().zip(g).zip(v) {
        *v = momentum * *v + (g + weight_decay * *w);
        *w -= rate * *v;
    }
}

/// The point that Nesterov's method computes its gradient at is what is kept as `w` (Sutskever et al. 2013, section
/// 2; Bengio et al. 2013, "Advances in optimizing recurrent networks", eq. 7).
fn nesterov(w: &mut [f32], g: &[f32], v: &mut [f32], rate: f32, momentum: f32, weight_decay: f32) {
    for ((w, g), v) in w.iter_mut().zip(g).zip(v) {
        let g = g + weight_decay * *w;
        *v = momentum * *v + g;
        *w -= rate * (g + momentum * *v);
    }
}

/// The λ of Hydra eq. 9, which is eq. 8 where the weight decay β is zero.
///
/// A tensor of zeros, or one whose gradient is zero, has no ratio to scale by: it gets η alone,
/// so that it can leave zero.
fn lars_local_rate(w: &[f32], g: &[f32], trust_coefficient: f32, weight_decay: f32) -> f32 {
    let (w_norm, g_norm) = (norm(w.iter().copied()), norm(g.iter().copied()));
    if w_norm < NORM_MIN || g_norm < NORM_MIN {
        return trust_coefficient;
    }
    let ratio = w_norm / (g_norm + f64::from(weight_decay) * w_norm);
    (f64::from(trust_coefficient) * ratio) as f32
}

/// Hydra eq. 7 with momentum; the rate is already inside the velocity (You et al. 2017).
fn lars(w: &mut [f32], g: &[f32], v: &mut [f32], rate: f32, momentum: f32, weight_decay: f32) {
    for ((w, g), v) in w.iter_mut().zip(g).zip(v) {
        *v = momentum * *v + rate * (g + weight_decay * *w);
        *w -= *v;
    }
}

/// First and second moment of one layer.
struct Moments<'a> {
    m: &'a mut [f32],
    v: &'a mut [f32],
    /// `1 - beta1^t` and `1 - beta2^t`.
    corrections: [f32; 2],
    epsilon: f32,
}

impl Moments<'_> {
    fn update(self, g: &[f32], beta1: f32, beta2: f32) -> Self {
        for ((m, v), g) in self.m.iter_mut().zip(self.v.iter_mut()).zip(g) {
            *m = beta1 * *m + (1.0 - beta1) * g;
            *v = beta2 * *v + (1.0 - beta2) * g * g;
        }
        self
    }

    /// `m̂ / (sqrt(v̂) + ε)`.
    fn directions(&self) -> impl Iterator<Item = f32> {
        let [first, second] = self.corrections;
        self.m.iter().zip(self.v.iter()).map(move |(m, v)| (m / first) / ((v / second).sqrt() + self.epsilon))
    }

    fn adam(&self, w: &mut [f32], rate: f32, weight_decay: f32) {
        for (w, direction) in w.iter_mut().zip(self.directions()) {
            *w -= rate * (direction + weight_decay * *w);
        }
    }

    fn lamb(&self, w: &mut [f32], rate: f32, weight_decay: f32) {
        let step_norm = norm(self.directions().zip(w.iter()).map(|(r, w)| r + weight_decay * w));
        let w_norm = norm(w.iter().copied());
        // φ is the identity. Without a ratio the step is Adam's, as in the paper's code.
        let trust =
            if w_norm >= NORM_MIN && step_norm >= NORM_MIN { (w_norm / step_norm) as f32 } else { 1.0 };
        for (w, r) in w.iter_mut().zip(self.directions()) {
            *w -= rate * trust * (r + weight_decay * *w);
        }
    }
}

/// Euclidean norm, summed in double precision from first to last.
fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.fold(0.0_f64, |sum, value| sum + f64::from(value) * f64::from(value)).sqrt()
}
