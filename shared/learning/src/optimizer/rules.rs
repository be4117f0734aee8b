//! The update rules in the symbols of their papers, each on the tensor of one layer.

use std::ops::Range;

use super::{OptimizerSpec, OptimizerState};

/// A norm below this is zero: a ratio with it would leave the range of `f32`.
const NORM_MIN: f64 = 1e-20;

/// Inputs of one optimizer step, and what it makes of the state.
///
/// Where the step leads is computed first and changes nothing; the moments follow once it is known to be finite.
pub(super) struct OptimizerStep<'a> {
    spec: OptimizerSpec,
    /// `[n_parameters]`, as they are before the step.
    parameters: &'a [f32],
    /// `[n_parameters]`, finite.
    gradient: &'a [f32],
    /// Where each layer's tensor is, and its learning rate.
    layers: Vec<(Range<usize>, f32)>,
    n_steps: u64,
    beta_products: [f64; 2],
}

impl<'a> OptimizerStep<'a> {
    /// The step of `spec` at the global rate `learning_rate`.
    pub(super) fn new(
        spec: OptimizerSpec,
        (parameters, gradient): (&'a [f32], &'a [f32]),
        learning_rate: f32,
        segments: &[Range<usize>],
        state: &OptimizerState,
    ) -> Self {
        let rate = |range: &Range<usize>| match spec {
            OptimizerSpec::Lars { trust_coefficient, weight_decay, .. } => {
                let (w, g) = (&parameters[range.clone()], &gradient[range.clone()]);
                learning_rate * lars_local_rate(w, g, trust_coefficient, weight_decay)
            }
            _ => learning_rate,
        };
        let layers = segments.iter().map(|range| (range.clone(), rate(range))).collect();
        let n_steps = state.n_steps.saturating_add(1);
        let mut beta_products = state.beta_products;
        if let OptimizerSpec::Adam { beta1, beta2, .. } | OptimizerSpec::Lamb { beta1, beta2, .. } = spec {
            beta_products[0] *= f64::from(beta1);
            beta_products[1] *= f64::from(beta2);
        }
        Self { spec, parameters, gradient, layers, n_steps, beta_products }
    }

    /// Computes the parameters after the step, `[n_parameters]`, from the state before it, which has as many moments
    /// as the specification says.
    pub(super) fn parameters_after(&self, state: &OptimizerState, next: &mut [f32]) {
        let corrections = self.beta_products.map(|product| (1.0 - product) as f32);
        for (range, rate) in &self.layers {
            let (w, g) = (&self.parameters[range.clone()], &self.gradient[range.clone()]);
            let next = &mut next[range.clone()];
            match (self.spec, state.moments.as_slice()) {
                (OptimizerSpec::SgdMomentum { momentum, nesterov, weight_decay }, [v]) => {
                    let sgd = DecayedMomentum { momentum, weight_decay };
                    match nesterov {
                        true => sgd.nesterov((w, g, &v[range.clone()]), *rate, next),
                        false => sgd.sgd((w, g, &v[range.clone()]), *rate, next),
                    }
                }
                (OptimizerSpec::Lars { momentum, weight_decay, .. }, [v]) => {
                    DecayedMomentum { momentum, weight_decay }.lars((w, g, &v[range.clone()]), *rate, next);
                }
                (OptimizerSpec::Adam { beta1, beta2, epsilon, weight_decay }, [m, v]) => {
                    let (m, v) = (&m[range.clone()], &v[range.clone()]);
                    let moments = Moments { m, v, g, betas: [beta1, beta2], corrections, epsilon };
                    moments.adam(w, *rate, weight_decay, next);
                }
                (OptimizerSpec::Lamb { beta1, beta2, epsilon, weight_decay }, [m, v]) => {
                    let (m, v) = (&m[range.clone()], &v[range.clone()]);
                    let moments = Moments { m, v, g, betas: [beta1, beta2], corrections, epsilon };
                    moments.lamb(w, *rate, weight_decay, next);
                }
                _ => debug_assert!(false, "restore compares the moments with the specification"),
            }
        }
    }

    /// Makes the step in the state.
    pub(super) fn advance(&self, state: &mut OptimizerState) {
        (state.n_steps, state.beta_products) = (self.n_steps, self.beta_products);
        for (range, rate) in &self.layers {
            let (w, g) = (&self.parameters[range.clone()], &self.gradient[range.clone()]);
            match (self.spec, state.moments.as_mut_slice()) {
                (OptimizerSpec::SgdMomentum { momentum, weight_decay, .. }, [v]) => {
                    let sgd = DecayedMomentum { momentum, weight_decay };
                    let v = w.iter().zip(g).zip(&mut v[range.clone()]);
                    v.for_each(|((w, g), v)| *v = sgd.velocity(*w, *g, *v));
                }
                (OptimizerSpec::Lars { momentum, weight_decay, .. }, [v]) => {
                    let lars = DecayedMomentum { momentum, weight_decay };
                    let v = w.iter().zip(g).zip(&mut v[range.clone()]);
                    v.for_each(|((w, g), v)| *v = lars.scaled_velocity(*w, *g, *v, *rate));
                }
                (
                    OptimizerSpec::Adam { beta1, beta2, .. } | OptimizerSpec::Lamb { beta1, beta2, .. },
                    [m, v],
                ) => {
                    for ((m, v), g) in m[range.clone()].iter_mut().zip(&mut v[range.clone()]).zip(g) {
                        *m = first_moment(beta1, *m, *g);
                        *v = second_moment(beta2, *v, *g);
                    }
                }
                _ => debug_assert!(false, "restore compares the moments with the specification"),
            }
        }
    }
}

/// Weights, gradient and velocity of one layer.
type LayerWithVelocity<'a> = (&'a [f32], &'a [f32], &'a [f32]);

/// The rules with a velocity.
#[derive(Clone, Copy)]
struct DecayedMomentum {
    momentum: f32,
    weight_decay: f32,
}

impl DecayedMomentum {
    /// Of SGD, with Nesterov's momentum or without.
    fn velocity(self, w: f32, g: f32, v: f32) -> f32 {
        self.momentum * v + (g + self.weight_decay * w)
    }

    /// Hydra eq. 7 with momentum; the rate is already inside the velocity (You et al. 2017).
    fn scaled_velocity(self, w: f32, g: f32, v: f32, rate: f32) -> f32 {
        self.momentum * v + rate * (g + self.weight_decay * w)
    }

    fn sgd(self, (w, g, v): LayerWithVelocity<'_>, rate: f32, next: &mut [f32]) {
        for (((w, g), v), next) in w.iter().zip(g).zip(v).zip(next) {
            *next = w - rate * self.velocity(*w, *g, *v);
        }
    }

    /// The point that Nesterov's method computes its gradient at is what is kept as `w` (Sutskever et al. 2013, section
    /// 2; Bengio et al. 2013, "Advances in optimizing recurrent networks", eq. 7).
    fn nesterov(self, (w, g, v): LayerWithVelocity<'_>, rate: f32, next: &mut [f32]) {
        for (((w, g), v), next) in w.iter().zip(g).zip(v).zip(next) {
            let decayed = g + self.weight_decay * w;
            *next = w - rate * (decayed + self.momentum * self.velocity(*w, *g, *v));
        }
    }

    fn lars(self, (w, g, v): LayerWithVelocity<'_>, rate: f32, next: &mut [f32]) {
        for (((w, g), v), next) in w.iter().zip(g).zip(v).zip(next) {
            *next = w - self.scaled_velocity(*w, *g, *v, rate);
        }
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

/// `m_t` of Adam.
fn first_moment(beta1: f32, m: f32, g: f32) -> f32 {
    beta1 * m + (1.0 - beta1) * g
}

/// `v_t` of Adam.
fn second_moment(beta2: f32, v: f32, g: f32) -> f32 {
    beta2 * v + (1.0 - beta2) * g * g
}

/// Gradient of one layer, and its moments before the step.
struct Moments<'a> {
    m: &'a [f32],
    v: &'a [f32],
    g: &'a [f32],
    betas: [f32; 2],
    /// `1 - beta1^t` and `1 - beta2^t`.
    corrections: [f32; 2],
    epsilon: f32,
}

impl Moments<'_> {
    /// `m̂ / (sqrt(v̂) + ε)`, of the moments after the step.
    fn directions(&self) -> impl Iterator<Item = f32> {
        let ([first, second], [beta1, beta2]) = (self.corrections, self.betas);
        self.m.iter().zip(self.v).zip(self.g).map(move |((m, v), g)| {
            let (m, v) = (first_moment(beta1, *m, *g), second_moment(beta2, *v, *g));
            (m / first) / ((v / second).sqrt() + self.epsilon)
        })
    }

    fn adam(&self, w: &[f32], rate: f32, weight_decay: f32, next: &mut [f32]) {
        for ((w, direction), next) in w.iter().zip(self.directions()).zip(next) {
            *next = w - rate * (direction + weight_decay * w);
        }
    }

    fn lamb(&self, w: &[f32], rate: f32, weight_decay: f32, next: &mut [f32]) {
        let step_norm = norm(self.directions().zip(w).map(|(r, w)| r + weight_decay * w));
        let w_norm = norm(w.iter().copied());
        // φ is the identity. Without a ratio the step is Adam's, as in the paper's code.
        let trust =
            if w_norm >= NORM_MIN && step_norm >= NORM_MIN { (w_norm / step_norm) as f32 } else { 1.0 };
        for ((w, r), next) in w.iter().zip(self.directions()).zip(next) {
            *next = w - rate * trust * (r + weight_decay * w);
        }
    }
}

/// Euclidean norm, summed in double precision from first to last.
fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.fold(0.0_f64, |sum, value| sum + f64::from(value) * f64::from(value)).sqrt()
}
