//! Optimizers on flat vectors: one step per epoch, on the aggregator. Running statistics, the last values of a vector,
//! move by what the mean gradient has for them, whatever the rule and the learning rate.
//!
//! Plain `f32` arithmetic with `+ - * / sqrt` only, of each value by itself (norms are summed in `f64` in a fixed order), so the
//! same gradients give the same parameters bit for bit on every platform and any number of threads. Nothing here touches a
//! tensor library or a device.

mod rules;
mod spec;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::parameters::{ParameterLayout, STATISTICS_UNIT};
use rules::{OptimizerStep, StepFault};
pub use spec::OptimizerSpec;

/// Why an optimizer was not built, restored, or did not step.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OptimizerError {
    /// A hyperparameter out of its range.
    #[error("{name} must be {want}, it is {got}")]
    Hyperparameter {
        /// Such as `momentum`.
        name: &'static str,
        /// The range in words.
        want: &'static str,
        /// What came.
        got: f32,
    },
    /// A vector of another model.
    #[error("{what} has {got} values, the model has {want}")]
    Length {
        /// Which vector.
        what: &'static str,
        /// Of the model.
        want: usize,
        /// What came.
        got: usize,
    },
    /// A state that no step leads to.
    #[error("value {index} of a moment of the state is not finite")]
    State {
        /// The first one.
        index: usize,
    },
    /// Likewise: a second moment is a mean of squares, and a product of decays is one of numbers from 0 to 1.
    #[error("{what} of the state is {got}, no step leads to that")]
    Unreachable {
        /// Which value.
        what: &'static str,
        /// What came.
        got: f64,
    },
    /// A state of another optimizer.
    #[error("the state has {got} moment vectors, this optimizer keeps {want}")]
    Moments {
        /// Of this optimizer.
        want: usize,
        /// In the state.
        got: usize,
    },
    /// Zero is allowed, so that a schedule may reach it.
    #[error("the learning rate must be finite and not negative, it is {0}")]
    LearningRate(f32),
    /// A NaN or an infinity among the gradient; nothing was changed.
    #[error("value {index} of the mean gradient is not finite")]
    NotFinite {
        /// Position in the flat gradient.
        index: usize,
    },
    /// The step would make a parameter or a moment of it NaN or infinite; nothing was changed.
    #[error("the step makes parameter {index}, or what the optimizer keeps of it, not finite")]
    Diverged {
        /// Position in the flat vector.
        index: usize,
    },
}

/// All that an optimizer remembers between steps; part of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerState {
    /// Steps made, those counted that changed no moment ([`Optimizer::count_step`]).
    pub n_steps: u64,
    /// `beta1` and `beta2` to the power of the steps that changed the moments, kept as products so that no power function is needed.
    pub beta_products: [f64; 2],
    /// `[n_moments][n_trained]`: velocity, or first and second moment.
    pub moments: Vec<Vec<f32>>,
}

impl OptimizerState {
    /// Before the first step.
    fn fresh(spec: &OptimizerSpec, n_trained: usize) -> Self {
        let moments = vec![vec![0.0; n_trained]; spec.n_moments()];
        Self { n_steps: 0, beta_products: [1.0, 1.0], moments }
    }

    /// Checks that an optimizer of this specification can go on from the state.
    ///
    /// # Errors
    /// A state of another optimizer or another model, or one that no step leads to.
    pub fn check(&self, spec: &OptimizerSpec, n_trained: usize) -> Result<(), OptimizerError> {
        let want = spec.n_moments();
        if self.moments.len() != want {
            return Err(OptimizerError::Moments { want, got: self.moments.len() });
        }
        for moment in &self.moments {
            check_length("a moment of the state", n_trained, moment.len())?;
            if let Some(index) = moment.iter().position(|value| !value.is_finite()) {
                return Err(OptimizerError::State { index });
            }
        }
        if let Some(&got) = self.beta_products.iter().find(|product| !(0.0..=1.0).contains(*product)) {
            return Err(OptimizerError::Unreachable { what: "a product of decays", got });
        }
        // Of Adam and LAMB: its root is taken.
        if let [_, second] = self.moments.as_slice()
            && let Some(&got) = second.iter().find(|value| **value < 0.0)
        {
            return Err(OptimizerError::Unreachable { what: "a second moment", got: got.into() });
        }
        Ok(())
    }
}

/// An optimizer, its hyperparameters and its state.
#[derive(Debug, Clone)]
pub struct Optimizer {
    spec: OptimizerSpec,
    /// Start and end of each layer's tensor, for the layer-wise rules.
    segments: Vec<std::ops::Range<usize>>,
    n_trained: usize,
    n_parameters: usize,
    state: OptimizerState,
}

impl Optimizer {
    /// A fresh optimizer for a model of `layout`.
    ///
    /// # Errors
    /// A hyperparameter out of its range.
    pub fn new(spec: OptimizerSpec, layout: &ParameterLayout) -> Result<Self, OptimizerError> {
        spec.validate()?;
        let (n_trained, n_parameters) = (layout.n_trained(), layout.n_parameters());
        Ok(Self {
            spec,
            segments: layout.trained().iter().map(|segment| segment.range()).collect(),
            n_trained,
            n_parameters,
            state: OptimizerState::fresh(&spec, n_trained),
        })
    }

    /// Moves `parameters` one step against `mean_gradient`.
    ///
    /// # Shapes
    /// - `parameters`, `mean_gradient`: `[n_parameters]`
    ///
    /// # Errors
    /// On any error parameters and state are as they were.
    pub fn step(
        &mut self,
        parameters: &mut [f32],
        mean_gradient: &[f32],
        learning_rate: f32,
    ) -> Result<(), OptimizerError> {
        check_length("the mean gradient", self.n_parameters, mean_gradient.len())?;
        let (of_layers, statistics) = mean_gradient.split_at(self.n_trained);
        let of_layers = self.segments.iter().map(|range| &of_layers[range.clone()]).collect();
        self.step_by(parameters, of_layers, statistics, learning_rate)
    }

    /// The same of a gradient in parts, one for each tensor, of a model without running statistics.
    ///
    /// # Errors
    /// As of [`Self::step`].
    pub fn step_in_parts(
        &mut self,
        parameters: &mut [f32],
        mean_gradient: &[Vec<f32>],
        learning_rate: f32,
    ) -> Result<(), OptimizerError> {
        let n_values = mean_gradient.iter().map(Vec::len).sum();
        check_length("the mean gradient", self.n_parameters, n_values)?;
        self.step_by(parameters, mean_gradient.iter().map(Vec::as_slice).collect(), &[], learning_rate)
    }

    /// The parameters one step further, `[n_parameters]`, for those who keep the ones before it.
    ///
    /// # Shapes
    /// - `parameters`, `mean_gradient`: `[n_parameters]`
    ///
    /// # Errors
    /// On any error the state is as it was.
    pub fn stepped(
        &mut self,
        parameters: &[f32],
        mean_gradient: &[f32],
        learning_rate: f32,
    ) -> Result<Vec<f32>, OptimizerError> {
        let mut next = parameters.to_vec();
        self.step(&mut next, mean_gradient, learning_rate)?;
        Ok(next)
    }

    /// By the gradients of all tensors, and what running statistics move by.
    fn step_by(
        &mut self,
        parameters: &mut [f32],
        of_layers: Vec<&[f32]>,
        statistics: &[f32],
        learning_rate: f32,
    ) -> Result<(), OptimizerError> {
        check_length("the parameter vector", self.n_parameters, parameters.len())?;
        if !(learning_rate.is_finite() && learning_rate >= 0.0) {
            return Err(OptimizerError::LearningRate(learning_rate));
        }
        let mut layers = Vec::with_capacity(of_layers.len());
        check_length("the list of gradients", self.segments.len(), of_layers.len())?;
        for (range, gradient) in self.segments.iter().zip(of_layers) {
            check_length("the gradient of a tensor", range.len(), gradient.len())?;
            layers.push((range.clone(), gradient));
        }
        let step = OptimizerStep::new(self.spec, parameters, layers, learning_rate, &self.state);
        step.check(parameters, &self.state).map_err(|fault| match fault {
            StepFault::Gradient(index) => OptimizerError::NotFinite { index },
            StepFault::Parameter(index) => OptimizerError::Diverged { index },
        })?;
        let moved: Vec<f32> = parameters[self.n_trained..]
            .iter()
            .zip(statistics)
            .map(|(value, by)| value - STATISTICS_UNIT * by)
            .collect();
        if let Some(index) = statistics.iter().position(|by| !by.is_finite()) {
            return Err(OptimizerError::NotFinite { index: self.n_trained + index });
        }
        if let Some(index) = moved.iter().position(|value| !value.is_finite()) {
            return Err(OptimizerError::Diverged { index: self.n_trained + index });
        }
        step.make(parameters, &mut self.state);
        parameters[self.n_trained..].copy_from_slice(&moved);
        Ok(())
    }

    /// The hyperparameters.
    pub fn spec(&self) -> &OptimizerSpec {
        &self.spec
    }

    /// The parameters were changed by other means than a step of this optimizer: it counts as one, and the moments stay.
    pub fn count_step(&mut self) {
        self.state.n_steps = self.state.n_steps.saturating_add(1);
    }

    /// What a checkpoint must keep.
    pub fn state(&self) -> &OptimizerState {
        &self.state
    }

    /// Forgets all steps.
    pub fn reset(&mut self) {
        self.state = OptimizerState::fresh(&self.spec, self.n_trained);
    }

    /// Goes on from the state of a checkpoint.
    ///
    /// # Errors
    /// As of [`OptimizerState::check`]; the current state stays.
    pub fn restore(&mut self, state: OptimizerState) -> Result<(), OptimizerError> {
        state.check(&self.spec, self.n_trained)?;
        self.state = state;
        Ok(())
    }
}

fn check_length(what: &'static str, want: usize, got: usize) -> Result<(), OptimizerError> {
    match got == want {
        true => Ok(()),
        false => Err(OptimizerError::Length { what, want, got }),
    }
}
