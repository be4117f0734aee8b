//! The update rules in the symbols of their papers, each on the tensor of one layer.

use std::ops::Range;

use multiversion::multiversion;

use super::{OptimizerSpec, OptimizerState};
use crate::platform;

/// A norm below this is zero: a ratio with it would leave the range of `f32`.
const NORM_MIN: f64 = 1e-20;

/// Values that a thread moves at a time.
const PIECE: usize = 1 << 16;

/// One step, as far as it is the same for all values of a layer.
pub(super) struct OptimizerStep<'a> {
    spec: OptimizerSpec,
    /// Where each layer's tensor is, its gradient and its learning rate.
    layers: Vec<(Range<usize>, &'a [f32], f32)>,
    n_steps: u64,
    beta_products: [f64; 2],
}

/// The first value of a step that is not finite, by its place in the flat vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StepFault {
    /// Of the gradient.
    Gradient(usize),
    /// Where the step leads, a moment included.
    Parameter(usize),
}

/// Values that lie together in a tensor: parameters, gradient and moments, as many as the rule has.
struct TensorPiece<'a, W, M> {
    at: usize,
    rate: f32,
    w: W,
    g: &'a [f32],
    moments: Vec<M>,
}

impl<'a> OptimizerStep<'a> {
    /// The step of `spec` at the global rate `learning_rate` from `parameters`, `[n_parameters]`, and a state that has as many
    /// moments as the specification says. `layers`: where each tensor is, and its gradient.
    pub(super) fn new(
        spec: OptimizerSpec,
        parameters: &[f32],
        layers: Vec<(Range<usize>, &'a [f32])>,
        learning_rate: f32,
        state: &OptimizerState,
    ) -> Self {
        let n_steps = state.n_steps.saturating_add(1);
        let mut beta_products = state.beta_products;
        if let OptimizerSpec::Adam { beta1, beta2, .. } | OptimizerSpec::Lamb { beta1, beta2, .. } = spec {
            beta_products[0] *= f64::from(beta1);
            beta_products[1] *= f64::from(beta2);
        }
        let mut step = Self { spec, layers: Vec::new(), n_steps, beta_products };
        let with_rate = layers.into_iter().map(|(range, g)| {
            let w = &parameters[range.clone()];
            let rate = match (spec, state.moments.as_slice()) {
                (OptimizerSpec::Lars { trust_coefficient, weight_decay, .. }, _) => {
                    learning_rate * lars_local_rate(w, g, trust_coefficient, weight_decay)
                }
                (OptimizerSpec::Lamb { weight_decay, .. }, [m, v]) => {
                    let rule = step.rule(learning_rate);
                    let values = w.iter().zip(g).zip(m[range.clone()].iter().zip(&v[range.clone()]));
                    let moves =
                        values.map(|((w, g), (m, v))| rule.direction(*g, [*m, *v]) + weight_decay * w);
                    learning_rate * lamb_trust(norm(w.iter().copied()), norm(moves))
                }
                _ => learning_rate,
            };
            (range, g, rate)
        });
        step.layers = with_rate.collect();
        step
    }

    fn rule(&self, rate: f32) -> Rule {
        Rule { spec: self.spec, corrections: self.beta_products.map(|product| (1.0 - product) as f32), rate }
    }

    /// Whether all is finite, where it leads to, too. Nothing has changed.
    pub(super) fn check(&self, parameters: &[f32], state: &OptimizerState) -> Result<(), StepFault> {
        let mut pieces = Vec::new();
        for (range, g, rate) in &self.layers {
            for (number, g) in g.chunks(PIECE).enumerate() {
                let at = range.start + number * PIECE;
                let values = at..at + g.len();
                let moments = state.moments.iter().map(|moment| &moment[values.clone()]).collect();
                pieces.push(TensorPiece { at, rate: *rate, w: &parameters[values], g, moments });
            }
        }
        let faults = platform::on_each(pieces, |TensorPiece { at, rate, w, g, moments }| {
            let rule = self.rule(rate);
            let are_usual = rule.is_usual() && all_usual(w) && all_usual(g);
            if are_usual && moments.iter().all(|moment| all_usual(moment)) {
                return None;
            }
            let fault = |index: usize| {
                let of_value = [0, 1].map(|moment| moments.get(moment).map_or(0.0, |moment| moment[index]));
                let (moved, [m, v]) = rule.moved(w[index], g[index], of_value);
                match (g[index].is_finite(), [moved, m, v].iter().all(|value| value.is_finite())) {
                    (false, _) => Some(StepFault::Gradient(at + index)),
                    (true, false) => Some(StepFault::Parameter(at + index)),
                    (true, true) => None,
                }
            };
            (0..g.len()).filter_map(fault).min()
        });
        faults.into_iter().flatten().min().map_or(Ok(()), Err)
    }

    /// Makes the step, which was checked.
    pub(super) fn make(&self, parameters: &mut [f32], state: &mut OptimizerState) {
        (state.n_steps, state.beta_products) = (self.n_steps, self.beta_products);
        let mut pieces = Vec::new();
        let (mut at, mut w) = (0, parameters);
        let mut moments: Vec<&mut [f32]> = state.moments.iter_mut().map(Vec::as_mut_slice).collect();
        for (range, g, rate) in &self.layers {
            // Layers lie one after the other.
            w = w.split_at_mut(range.start - at).1;
            for moment in &mut moments {
                *moment = std::mem::take(moment).split_at_mut(range.start - at).1;
            }
            at = range.start;
            for g in g.chunks(PIECE) {
                let here;
                (here, w) = w.split_at_mut(g.len());
                let mut of_piece = Vec::with_capacity(moments.len());
                for moment in &mut moments {
                    let (here, rest) = std::mem::take(moment).split_at_mut(g.len());
                    of_piece.push(here);
                    *moment = rest;
                }
                pieces.push(TensorPiece { at, rate: *rate, w: here, g, moments: of_piece });
                at += g.len();
            }
        }
        platform::on_each(pieces, |TensorPiece { rate, w, g, mut moments, .. }| {
            move_values(self.rule(rate), w, g, &mut moments);
        });
    }
}

/// Where all that a usual rule computes with is below this, no product or quotient of it leaves the range of `f32`.
const USUAL: f32 = 1e9;

#[multiversion(targets("x86_64+avx+avx2"))]
fn all_usual(values: &[f32]) -> bool {
    // Looks at all of them, several at a time. A NaN is not below anything.
    values.iter().fold(true, |all, value| all & (value.abs() < USUAL))
}

#[multiversion(targets("x86_64+avx+avx2"))]
fn move_values(rule: Rule, w: &mut [f32], g: &[f32], moments: &mut [&mut [f32]]) {
    let values = w.iter_mut().zip(g);
    match moments {
        [first, second] => {
            let moments = first.iter_mut().zip(second.iter_mut());
            values.zip(moments).for_each(|((w, g), (m, v))| {
                (*w, [*m, *v]) = rule.moved(*w, *g, [*m, *v]);
            });
        }
        [first] => values.zip(first.iter_mut()).for_each(|((w, g), m)| {
            (*w, [*m, _]) = rule.moved(*w, *g, [*m, 0.0]);
        }),
        _ => debug_assert!(false, "restore compares the moments with the specification"),
    }
}

/// How one value of a layer moves.
#[derive(Clone, Copy)]
struct Rule {
    spec: OptimizerSpec,
    /// `1 - beta1^t` and `1 - beta2^t`.
    corrections: [f32; 2],
    /// Of the layer.
    rate: f32,
}

impl Rule {
    /// See [`USUAL`]. The other hyperparameters are from 0 to 1.
    fn is_usual(self) -> bool {
        let (weight_decay, epsilon) = match self.spec {
            OptimizerSpec::SgdMomentum { weight_decay, .. } | OptimizerSpec::Lars { weight_decay, .. } => {
                (weight_decay, 1.0)
            }
            OptimizerSpec::Adam { weight_decay, epsilon, .. }
            | OptimizerSpec::Lamb { weight_decay, epsilon, .. } => (weight_decay, epsilon),
        };
        self.rate < USUAL && weight_decay < USUAL && epsilon > 1.0 / USUAL
    }

    /// A value and its moments after the step.
    #[inline(always)]
    fn moved(self, w: f32, g: f32, moments: [f32; 2]) -> (f32, [f32; 2]) {
        let Self { spec, rate, .. } = self;
        let [v, _] = moments;
        match spec {
            OptimizerSpec::SgdMomentum { momentum, nesterov, weight_decay } => {
                let decayed = g + weight_decay * w;
                let velocity = momentum * v + decayed;
                // The point that Nesterov's method computes its gradient at is what is kept as `w` (Sutskever et al. 2013,
                // section 2; Bengio et al. 2013, "Advances in optimizing recurrent networks", eq. 7).
                let ahead = if nesterov { decayed + momentum * velocity } else { velocity };
                (w - rate * ahead, [velocity, 0.0])
            }
            // Hydra eq. 7 with momentum; the rate is already inside the velocity (You et al. 2017).
            OptimizerSpec::Lars { momentum, weight_decay, .. } => {
                let velocity = momentum * v + rate * (g + weight_decay * w);
                (w - velocity, [velocity, 0.0])
            }
            OptimizerSpec::Adam { weight_decay, .. } | OptimizerSpec::Lamb { weight_decay, .. } => {
                let moments_after = self.moments(g, moments);
                (w - rate * (self.of_moments(moments_after) + weight_decay * w), moments_after)
            }
        }
    }

    /// `m_t` and `v_t` of Adam and LAMB.
    fn moments(self, g: f32, [m, v]: [f32; 2]) -> [f32; 2] {
        match self.spec {
            OptimizerSpec::Adam { beta1, beta2, .. } | OptimizerSpec::Lamb { beta1, beta2, .. } => {
                [beta1 * m + (1.0 - beta1) * g, beta2 * v + (1.0 - beta2) * g * g]
            }
            OptimizerSpec::SgdMomentum { .. } | OptimizerSpec::Lars { .. } => [0.0; 2],
        }
    }

    /// `m̂ / (sqrt(v̂) + ε)` of Adam and LAMB.
    fn of_moments(self, [m, v]: [f32; 2]) -> f32 {
        let [first, second] = self.corrections;
        match self.spec {
            OptimizerSpec::Adam { epsilon, .. } | OptimizerSpec::Lamb { epsilon, .. } => {
                (m / first) / ((v / second).sqrt() + epsilon)
            }
            OptimizerSpec::SgdMomentum { .. } | OptimizerSpec::Lars { .. } => 0.0,
        }
    }

    /// The same, of the moments before the step.
    fn direction(self, g: f32, moments: [f32; 2]) -> f32 {
        self.of_moments(self.moments(g, moments))
    }
}

/// φ(‖w‖) / ‖r + λw‖ of LAMB; φ is the identity. Without a ratio the step is Adam's, as in the paper's code.
fn lamb_trust(w_norm: f64, step_norm: f64) -> f32 {
    if w_norm >= NORM_MIN && step_norm >= NORM_MIN { (w_norm / step_norm) as f32 } else { 1.0 }
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

/// Euclidean norm, summed in double precision from first to last.
fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.fold(0.0_f64, |sum, value| sum + f64::from(value) * f64::from(value)).sqrt()
}
