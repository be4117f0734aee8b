//! An expert at its host (Learning@home §3.3): computes what it is asked, and steps by the gradients that come back.
//!
//! A call back recomputes what the call before it computed, so that nothing is kept in between (appendix C). Steps are made on
//! the host's processor, by the optimizers that a run's aggregators have.

mod layers;

use std::sync::Arc;

use barnraise_protocol::experts::checkpoints::STEPS_MAX;
use barnraise_protocol::run::{HostedExperts, ModelSpec};

pub use self::layers::{HostedLayer, HostedLayerError, layer_of};
use crate::device::{ComputeDevice, DeviceError};
use crate::engine::ExpertEngine;
use crate::graph::HostedBody;
use crate::optimizer::{Optimizer, OptimizerError, OptimizerSpec, OptimizerState};
use crate::parameters::ParameterLayout;
use crate::random::SplitMix64;
use crate::schedule::{ScheduleError, ScheduleSpec};

/// Most inputs of one call: with the widest layers of the field some dozen MiB.
const INPUTS_MAX: usize = 16_384;

/// Why an expert did not compute, or is none.
#[derive(Debug, thiserror::Error)]
pub enum ExpertError {
    /// Values that are no whole inputs, or too many.
    #[error("{got} values, a multiple of {width} and at most {max} were wanted")]
    Values {
        /// Of one input.
        width: usize,
        /// Most in one call.
        max: usize,
        /// What came.
        got: usize,
    },
    /// A gradient for another number of inputs.
    #[error("{gradients} gradients for {inputs} inputs")]
    Pairs {
        /// Inputs that came.
        inputs: usize,
        /// Gradients that came.
        gradients: usize,
    },
    /// A value among the inputs or gradients that is no number.
    #[error("value {index} of what came is not finite")]
    NotFinite {
        /// Position of the first one.
        index: usize,
    },
    /// The expert gives no numbers.
    #[error("the expert gives what is not finite")]
    Diverged,
    /// A place that the grid does not have.
    #[error("expert {got} of a grid of {n_experts}")]
    Place {
        /// Experts of the layer.
        n_experts: usize,
        /// What was asked for.
        got: usize,
    },
    /// A model whose experts are its own.
    #[error("the model's experts are not hosted")]
    NotHosted,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A step that could not be made, or a state of another expert.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// More steps than an expert can have made.
    #[error("{got} steps, an expert makes at most {STEPS_MAX}")]
    Steps {
        /// What came.
        got: u64,
    },
    /// A schedule out of its bounds.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

/// All of an expert that lasts.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertState {
    /// `[n_parameters]`
    pub parameters: Vec<f32>,
    /// With its steps.
    pub optimizer: OptimizerState,
}

impl ExpertState {
    /// Checks that it may be the state of an expert with this optimizer and this flat vector. The peer that made it may have made up
    /// its values.
    ///
    /// # Errors
    /// A state of another expert, or one that no step leads to.
    pub fn check(&self, optimizer: &OptimizerSpec, layout: &ParameterLayout) -> Result<(), ExpertError> {
        let (want, got) = (layout.n_parameters(), self.parameters.len());
        if want != got {
            return Err(OptimizerError::Length { what: "the parameters", want, got }.into());
        }
        if let Some(index) = self.parameters.iter().position(|value| !value.is_finite()) {
            return Err(ExpertError::NotFinite { index });
        }
        let got = self.optimizer.n_steps;
        if got > STEPS_MAX {
            return Err(ExpertError::Steps { got });
        }
        Ok(self.optimizer.check(optimizer, layout.n_trained())?)
    }
}

/// An expert, its optimizer, and where it computes.
pub struct HostedExpert {
    body: Arc<HostedBody>,
    device: ComputeDevice,
    engine: ExpertEngine,
    parameters: Vec<f32>,
    optimizer: Optimizer,
    schedule: ScheduleSpec,
}

impl HostedExpert {
    /// The expert at a place of the grid, as it begins: its weights follow from the model's seed, the layer and the place.
    ///
    /// # Errors
    /// A place that the grid does not have; a model without hosted experts; options out of their bounds.
    pub fn new(
        model: &ModelSpec,
        body: &Arc<HostedBody>,
        place: usize,
        device: &ComputeDevice,
    ) -> Result<Self, ExpertError> {
        let Some(HostedExperts { optimizer, schedule, .. }) = &model.hosted else {
            return Err(ExpertError::NotHosted);
        };
        if place >= body.n_experts {
            return Err(ExpertError::Place { n_experts: body.n_experts, got: place });
        }
        let mut random = SplitMix64 { state: model.seed };
        random.state = random.next_u64() ^ ((body.layer as u64) << 32 | place as u64);
        let parameters = body.graph.layout().initial_parameters(random.next_u64());
        let engine = ExpertEngine::new(body.clone(), device.burn(), &parameters);
        let schedule = ScheduleSpec::from(*schedule);
        schedule.validate()?;
        let optimizer = Optimizer::new((*optimizer).into(), body.graph.layout())?;
        Ok(Self { body: body.clone(), device: device.clone(), engine, parameters, optimizer, schedule })
    }

    /// Goes on from a state of this expert.
    ///
    /// # Errors
    /// A state of another expert.
    pub fn restore(&mut self, state: ExpertState) -> Result<(), ExpertError> {
        state.check(self.optimizer.spec(), self.layout())?;
        self.optimizer.restore(state.optimizer)?;
        self.engine.load(&state.parameters);
        self.parameters = state.parameters;
        Ok(())
    }

    /// Goes on from other parameters, as after one more step; its moments stay.
    ///
    /// # Errors
    /// Parameters of another expert, or ones that are not finite; as many steps as an expert can make. Nothing changed then.
    pub fn move_to(&mut self, parameters: &[f32]) -> Result<(), ExpertError> {
        let (want, got) = (self.parameters.len(), parameters.len());
        if want != got {
            return Err(OptimizerError::Length { what: "the parameters", want, got }.into());
        }
        check_finite(parameters)?;
        let got = self.n_steps() + 1;
        if got > STEPS_MAX {
            return Err(ExpertError::Steps { got });
        }
        self.optimizer.count_step();
        self.engine.load(parameters);
        self.parameters.copy_from_slice(parameters);
        Ok(())
    }

    /// What it computes with, `[n_parameters]`.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// What lasts of it.
    pub fn state(&self) -> ExpertState {
        ExpertState { parameters: self.parameters.clone(), optimizer: self.optimizer.state().clone() }
    }

    /// Its flat vector.
    pub fn layout(&self) -> &ParameterLayout {
        self.body.graph.layout()
    }

    /// Steps that it made.
    pub fn n_steps(&self) -> u64 {
        self.optimizer.state().n_steps
    }

    /// What it gives for `inputs`; nothing changes.
    ///
    /// # Shapes
    /// - `inputs`: `[n_inputs, n_values]`
    /// - returns `[n_inputs, n_given]`, finite
    ///
    /// # Errors
    /// Inputs of another size, or not finite; an expert that gives no numbers; a device that failed.
    pub async fn forward(&self, inputs: &[f32]) -> Result<Vec<f32>, ExpertError> {
        self.check(inputs)?;
        let given = self.engine.forward(inputs).await?;
        self.device.check()?;
        if given.iter().all(|value| value.is_finite()) { Ok(given) } else { Err(ExpertError::Diverged) }
    }

    /// One step by the gradient of a loss, summed over the inputs, with `factor` times the learning rate. Returns the gradient by the
    /// inputs before it.
    ///
    /// # Shapes
    /// - `inputs`: `[n_inputs, n_values]`
    /// - `gradients`: of the loss by what [`Self::forward`] gave, `[n_inputs, n_given]`
    /// - returns `[n_inputs, n_values]`, finite
    ///
    /// # Errors
    /// As of [`Self::forward`]; a step that would leave no number. Nothing changed then.
    pub async fn backward(
        &mut self,
        inputs: &[f32],
        gradients: &[f32],
        factor: f32,
    ) -> Result<Vec<f32>, ExpertError> {
        let (of_parameters, of_inputs) = self.gradients(inputs, gradients).await?;
        let rate = factor * self.schedule.learning_rate(self.n_steps());
        self.optimizer.step_in_parts(&mut self.parameters, &of_parameters, rate)?;
        self.engine.load(&self.parameters);
        Ok(of_inputs)
    }

    /// The gradient by the inputs alone, as [`Self::backward`] returns it: a frozen expert makes no step.
    ///
    /// # Errors
    /// As of [`Self::forward`].
    pub async fn backward_frozen(
        &mut self,
        inputs: &[f32],
        gradients: &[f32],
    ) -> Result<Vec<f32>, ExpertError> {
        Ok(self.gradients(inputs, gradients).await?.1)
    }

    /// Those by the parameters, a part for each tensor, and by the inputs.
    async fn gradients(
        &mut self,
        inputs: &[f32],
        gradients: &[f32],
    ) -> Result<(Vec<Vec<f32>>, Vec<f32>), ExpertError> {
        self.check(inputs)?;
        let n_inputs = inputs.len() / self.n_values();
        let n_gradients = gradients.len() / self.n_given();
        if n_inputs != n_gradients || !gradients.len().is_multiple_of(self.n_given()) {
            return Err(ExpertError::Pairs { inputs: n_inputs, gradients: n_gradients });
        }
        check_finite(gradients)?;
        let (of_parameters, of_inputs) = self.engine.backward(inputs, gradients).await?;
        // Of a device that is lost any numbers come.
        self.device.check()?;
        match of_inputs.iter().all(|value| value.is_finite()) {
            true => Ok((of_parameters, of_inputs)),
            false => Err(ExpertError::Diverged),
        }
    }

    fn n_values(&self) -> usize {
        self.body.n_values().max(1)
    }

    fn n_given(&self) -> usize {
        self.body.n_given().max(1)
    }

    fn check(&self, inputs: &[f32]) -> Result<(), ExpertError> {
        let width = self.n_values();
        let max = INPUTS_MAX.min(self.body.graph.layout().batch_samples_max());
        if !inputs.len().is_multiple_of(width) || inputs.is_empty() || inputs.len() / width > max {
            return Err(ExpertError::Values { width, max: max * width, got: inputs.len() });
        }
        check_finite(inputs)
    }
}

fn check_finite(values: &[f32]) -> Result<(), ExpertError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(ExpertError::NotFinite { index }),
        None => Ok(()),
    }
}
