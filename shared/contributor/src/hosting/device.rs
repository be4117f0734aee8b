//! Has the experts of a host, and computes for them, one job after the other.

use std::collections::BTreeMap;

use barnraise_learning::ComputeDevice;
use barnraise_learning::hosted::{ExpertError, ExpertState, HostedExpert, HostedLayer, layer_of};
use barnraise_protocol::experts::checkpoints::CheckpointVersion;
use barnraise_protocol::experts::leases::ExpertLease;
use barnraise_protocol::run::ModelSpec;
use barnraise_swarm::experts::mean_of_copies;
use barnraise_swarm::experts::serving::{
    CountedState, CountedStateError, OutputRows, ServingBatch, step_factor,
};

use super::stored::{CopyState, StoredExpert};

/// What it is to do.
pub enum ExpertJob {
    /// Compute a batch.
    Compute {
        /// The batch.
        batch: ServingBatch,
        /// Whether the expert makes no step.
        is_frozen: bool,
        /// `[n_rows, n_values]`
        inputs: Vec<f32>,
        /// Of a backward pass.
        gradients: Option<OutputGradients>,
    },
    /// One more expert, as it begins or as it was stored.
    Add {
        /// Its number.
        expert: u32,
        /// Under which it is served.
        lease: ExpertLease,
        /// What it goes on from.
        stored: Option<StoredExpert>,
    },
    /// Tell the state of an expert.
    Store {
        /// Its number.
        expert: u32,
    },
    /// Move an expert to the mean of its own parameters and those of its other copies ([`mean_of_copies`]). The first time it is only
    /// remembered where it is.
    Average {
        /// Its number.
        expert: u32,
        /// What is new of the others; `None` where there are none any more.
        others: Option<Vec<CopyState>>,
    },
    /// Tell the state of an expert, and have it no longer.
    Remove {
        /// Its number.
        expert: u32,
    },
}

/// Gradients of the output of an expert.
#[derive(Debug)]
pub struct OutputGradients {
    /// `[n_rows, n_given]`
    pub values: Vec<f32>,
    /// The rows, in their order, by how old the output is.
    pub parts: Vec<OutputRows>,
}

/// What came of a batch.
#[derive(Debug)]
pub struct ComputedRows {
    /// Behind the parameters that computed.
    pub n_steps: u64,
    /// Behind those that are there now.
    pub n_steps_after: u64,
    /// `[n_rows, n_given]` of a forward pass, `[n_rows, n_values]` of a backward pass.
    pub rows: Vec<f32>,
}

/// Why a batch was not computed.
#[derive(Debug, thiserror::Error)]
pub enum ComputeError {
    /// It was removed.
    #[error("its expert is not hosted here any more")]
    Gone,
    /// It failed.
    #[error(transparent)]
    Expert(#[from] ExpertError),
}

/// Why an expert cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// The model has no such expert.
    #[error("no such place on the grid")]
    Place,
    /// It cannot begin.
    #[error(transparent)]
    Expert(#[from] ExpertError),
    /// What no host has counted.
    #[error(transparent)]
    Counted(#[from] CountedStateError),
    /// Another state may do.
    #[error("no expert goes on from a state of term {} with {} steps: {source}", version.term, version.n_steps)]
    State {
        /// Of the state.
        version: CheckpointVersion,
        /// What is wrong with it.
        source: ExpertError,
    },
}

/// What was done, in the order of the jobs.
pub enum JobDone {
    /// A batch is over.
    Computed {
        /// The batch.
        batch: ServingBatch,
        /// What came of it.
        result: Result<ComputedRows, ComputeError>,
    },
    /// What the expert has counted and its steps, or why it cannot be served.
    Added {
        /// Its number.
        expert: u32,
        /// Under which it is served.
        lease: ExpertLease,
        /// See above.
        result: Result<(CountedState, u64), AddError>,
    },
    /// The state of an expert.
    Store {
        /// Its number.
        expert: u32,
        /// Its state.
        state: ExpertState,
    },
    /// An expert may have moved to a mean.
    Averaged {
        /// Its number.
        expert: u32,
        /// Its steps now.
        n_steps: u64,
    },
    /// The last state of an expert.
    Removed {
        /// Its number.
        expert: u32,
        /// Its state.
        state: ExpertState,
    },
}

/// See the module.
pub struct ExpertDevice {
    model: ModelSpec,
    layers: Vec<HostedLayer>,
    device: ComputeDevice,
    experts: BTreeMap<u32, HostedExpert>,
    /// Where experts that have other copies were when these were looked at last: about a minute ago.
    averaged: BTreeMap<u32, Vec<f32>>,
}

impl ExpertDevice {
    /// Without experts; those that come are of these layers of the model.
    pub fn new(model: ModelSpec, layers: Vec<HostedLayer>, device: ComputeDevice) -> Self {
        Self { model, layers, device, experts: BTreeMap::new(), averaged: BTreeMap::new() }
    }

    /// Does a job. Each batch is answered: the runtime counts those that the device has. `None` where the job is about an expert
    /// that is not here.
    pub async fn work(&mut self, job: ExpertJob) -> Option<JobDone> {
        Some(match job {
            ExpertJob::Compute { batch, is_frozen, inputs, gradients } => {
                let result = match self.experts.get_mut(&batch.expert) {
                    Some(expert) => computed(expert, is_frozen, &inputs, gradients.as_ref()).await,
                    None => Err(ComputeError::Gone),
                };
                JobDone::Computed { batch, result }
            }
            ExpertJob::Add { expert, lease, stored } => {
                let result = self.add(expert, &lease, stored);
                JobDone::Added { expert, lease, result }
            }
            ExpertJob::Store { expert } => {
                JobDone::Store { expert, state: self.experts.get(&expert)?.state() }
            }
            ExpertJob::Average { expert, others } => {
                JobDone::Averaged { expert, n_steps: self.average(expert, others.as_deref())? }
            }
            ExpertJob::Remove { expert } => {
                self.averaged.remove(&expert);
                JobDone::Removed { expert, state: self.experts.remove(&expert)?.state() }
            }
        })
    }

    /// The steps of an expert that may have averaged; `None` where it is not here.
    fn average(&mut self, number: u32, others: Option<&[CopyState]>) -> Option<u64> {
        let expert = self.experts.get_mut(&number)?;
        let Some(others) = others else {
            self.averaged.remove(&number);
            return Some(expert.n_steps());
        };
        // Copy 0 is the expert itself: its host need not lie as a replica.
        let others = others.iter().map(|other| (other.parameters.as_slice(), other.copy > 0));
        let before = self.averaged.get(&number);
        if let Some(mean) = before.and_then(|before| mean_of_copies(expert.parameters(), before, others)) {
            // One that can make no more steps stays where it is.
            let _ = expert.move_to(&mean);
        }
        self.averaged.insert(number, expert.parameters().to_vec());
        Some(expert.n_steps())
    }

    fn add(
        &mut self,
        expert: u32,
        lease: &ExpertLease,
        stored: Option<StoredExpert>,
    ) -> Result<(CountedState, u64), AddError> {
        let layer = layer_of(&self.layers, lease.place).ok_or(AddError::Place)?;
        let number = layer.grid.number(&lease.place.1).and_then(|number| usize::try_from(number).ok());
        let number = number.ok_or(AddError::Place)?;
        let mut hosted = HostedExpert::new(&self.model, &layer.body, number, &self.device)?;
        let counted = match stored {
            Some(stored) => {
                let version = stored.version();
                hosted.restore(stored.state).map_err(|source| AddError::State { version, source })?;
                stored.counted
            }
            None => CountedState::default(),
        };
        let n_steps = hosted.n_steps();
        self.experts.insert(expert, hosted);
        Ok((counted, n_steps))
    }
}

async fn computed(
    expert: &mut HostedExpert,
    is_frozen: bool,
    inputs: &[f32],
    gradients: Option<&OutputGradients>,
) -> Result<ComputedRows, ComputeError> {
    let n_steps = expert.n_steps();
    let rows = match gradients {
        None => expert.forward(inputs).await?,
        Some(gradients) if is_frozen => expert.backward_frozen(inputs, &gradients.values).await?,
        Some(OutputGradients { values, parts }) => {
            expert.backward(inputs, values, step_factor(n_steps, parts)).await?
        }
    };
    Ok(ComputedRows { n_steps, n_steps_after: expert.n_steps(), rows })
}
