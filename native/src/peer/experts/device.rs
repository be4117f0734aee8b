//! The thread that has the experts and computes for them, one batch after the other.

use std::collections::BTreeMap;
use std::thread;

use anyhow::Context;
use barnraise_learning::ComputeDevice;
use barnraise_learning::hosted::{ExpertError, ExpertState, HostedExpert};
use barnraise_protocol::run::ModelSpec;
use barnraise_swarm::experts::serving::{CountedState, ServingBatch};
use futures::executor::block_on;
use tokio::sync::mpsc;

use super::store::StoredExpert;
use super::{ExpertPlace, HostedLayer};

/// Batches that the thread has, with the one that it computes.
const JOBS_MAX: usize = 4;

/// What the thread is to do.
pub(super) enum ExpertJob {
    Compute {
        batch: ServingBatch,
        inputs: Vec<f32>,
        /// Of a backward pass.
        gradients: Option<Vec<f32>>,
    },
    /// Tell the state of an expert.
    Store { expert: u32 },
}

/// What the thread has done, in the order of its jobs.
pub(super) enum JobDone {
    Computed { batch: ServingBatch, result: Result<(u64, Vec<f32>), ExpertError> },
    Store { expert: u32, state: ExpertState },
}

/// See the module.
pub(super) struct ExpertDevice {
    model: ModelSpec,
    layers: Vec<HostedLayer>,
    device: ComputeDevice,
    /// Before the thread begins.
    experts: BTreeMap<u32, HostedExpert>,
    places: Vec<(ExpertPlace, CountedState, u64)>,
}

impl ExpertDevice {
    pub(super) fn new(model: ModelSpec, layers: Vec<HostedLayer>, device: ComputeDevice) -> Self {
        Self { model, layers, device, experts: BTreeMap::new(), places: Vec::new() }
    }

    /// One more expert, as it begins or as it was stored. Experts are numbered in this order.
    ///
    /// # Errors
    /// A state of another expert.
    pub(super) fn add(&mut self, place: ExpertPlace, stored: Option<StoredExpert>) -> anyhow::Result<()> {
        let (id, uid) = place;
        let layer = self.layers.iter().find(|layer| layer.id == id).context("no such layer")?;
        let number = layer.grid.number(&uid).context("no such place on the grid")?;
        let mut expert = HostedExpert::new(&self.model, &layer.body, usize::try_from(number)?, &self.device)?;
        let counted = match stored {
            Some(StoredExpert { state, counted }) => {
                expert.restore(state)?;
                counted
            }
            None => CountedState::default(),
        };
        let n_steps = expert.n_steps();
        self.experts.insert(u32::try_from(self.places.len())?, expert);
        self.places.push((place, counted, n_steps));
        Ok(())
    }

    /// Starts the thread. It ends when nobody sends jobs any more. Returns the places of the experts, and what they counted.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(super) fn start(self) -> anyhow::Result<StartedDevice> {
        let Self { mut experts, places, .. } = self;
        let (jobs, mut received) = mpsc::channel(JOBS_MAX);
        let (done, results) = mpsc::channel(JOBS_MAX);
        let working = move || {
            while let Some(job) = received.blocking_recv() {
                let done_job = match job {
                    ExpertJob::Compute { batch, inputs, gradients } => {
                        let Some(expert) = experts.get_mut(&batch.expert) else { continue };
                        let result = block_on(computed(expert, &inputs, gradients.as_deref()));
                        JobDone::Computed { batch, result }
                    }
                    ExpertJob::Store { expert: number } => match experts.get(&number) {
                        Some(expert) => JobDone::Store { expert: number, state: expert.state() },
                        None => continue,
                    },
                };
                if done.blocking_send(done_job).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("experts".to_owned()).spawn(working)?;
        Ok(StartedDevice { places, jobs, results })
    }
}

/// The other side of the thread.
pub(super) struct StartedDevice {
    /// Of each expert its place, what it has counted, and its steps.
    pub(super) places: Vec<(ExpertPlace, CountedState, u64)>,
    pub(super) jobs: mpsc::Sender<ExpertJob>,
    pub(super) results: mpsc::Receiver<JobDone>,
}

/// The steps behind the parameters that computed, and the rows.
async fn computed(
    expert: &mut HostedExpert,
    inputs: &[f32],
    gradients: Option<&[f32]>,
) -> Result<(u64, Vec<f32>), ExpertError> {
    let n_steps = expert.n_steps();
    let rows = match gradients {
        None => expert.forward(inputs).await?,
        Some(gradients) => expert.backward(inputs, gradients).await?,
    };
    Ok((n_steps, rows))
}
