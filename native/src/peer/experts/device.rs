//! The thread that has the experts and computes for them, one batch after the other.

use std::collections::BTreeMap;
use std::thread;

use anyhow::Context;
use barnraise_learning::ComputeDevice;
use barnraise_learning::hosted::{ExpertError, ExpertState, HostedExpert};
use barnraise_protocol::experts::leases::ExpertLease;
use barnraise_protocol::run::ModelSpec;
use barnraise_swarm::experts::serving::{CountedState, ServingBatch};
use futures::executor::block_on;
use tokio::sync::mpsc;

use super::store::StoredExpert;
use crate::host::expert_hosts::layers::{HostedLayer, layer_of};

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
    /// One more expert, as it begins or as it was stored.
    Add { expert: u32, lease: ExpertLease, stored: Option<StoredExpert> },
    /// Tell the state of an expert.
    Store { expert: u32 },
    /// Likewise, and have it no longer.
    Remove { expert: u32 },
}

/// What the thread has done, in the order of its jobs.
pub(super) enum JobDone {
    Computed {
        batch: ServingBatch,
        result: Result<(u64, Vec<f32>), ExpertError>,
    },
    /// What the expert has counted and its steps, or why it cannot be served.
    Added {
        expert: u32,
        lease: ExpertLease,
        result: anyhow::Result<(CountedState, u64)>,
    },
    Store {
        expert: u32,
        state: ExpertState,
    },
    Removed {
        expert: u32,
        state: ExpertState,
    },
}

/// See the module.
pub(super) struct ExpertDevice {
    model: ModelSpec,
    layers: Vec<HostedLayer>,
    device: ComputeDevice,
    experts: BTreeMap<u32, HostedExpert>,
}

impl ExpertDevice {
    /// Starts the thread. It ends when nobody sends jobs any more.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(super) fn start(
        model: ModelSpec,
        layers: Vec<HostedLayer>,
        device: ComputeDevice,
    ) -> anyhow::Result<StartedDevice> {
        let mut this = Self { model, layers, device, experts: BTreeMap::new() };
        let (jobs, mut received) = mpsc::channel(JOBS_MAX);
        let (done, results) = mpsc::channel(JOBS_MAX);
        let working = move || {
            while let Some(job) = received.blocking_recv() {
                if let Some(done_job) = this.work(job)
                    && done.blocking_send(done_job).is_err()
                {
                    return;
                }
            }
        };
        thread::Builder::new().name("experts".to_owned()).spawn(working)?;
        Ok(StartedDevice { jobs, results })
    }

    fn work(&mut self, job: ExpertJob) -> Option<JobDone> {
        Some(match job {
            ExpertJob::Compute { batch, inputs, gradients } => {
                let expert = self.experts.get_mut(&batch.expert)?;
                let result = block_on(computed(expert, &inputs, gradients.as_deref()));
                JobDone::Computed { batch, result }
            }
            ExpertJob::Add { expert, lease, stored } => {
                let result = self.add(expert, &lease, stored);
                JobDone::Added { expert, lease, result }
            }
            ExpertJob::Store { expert } => {
                JobDone::Store { expert, state: self.experts.get(&expert)?.state() }
            }
            ExpertJob::Remove { expert } => {
                JobDone::Removed { expert, state: self.experts.remove(&expert)?.state() }
            }
        })
    }

    fn add(
        &mut self,
        expert: u32,
        lease: &ExpertLease,
        stored: Option<StoredExpert>,
    ) -> anyhow::Result<(CountedState, u64)> {
        let layer = layer_of(&self.layers, lease.place).context("no such place on the grid")?;
        let number = layer.grid.number(&lease.place.1).context("no such place on the grid")?;
        let number = usize::try_from(number)?;
        let mut hosted = HostedExpert::new(&self.model, &layer.body, number, &self.device)?;
        let counted = match stored {
            Some(StoredExpert { state, counted, .. }) => {
                hosted.restore(state)?;
                counted
            }
            None => CountedState::default(),
        };
        let n_steps = hosted.n_steps();
        self.experts.insert(expert, hosted);
        Ok((counted, n_steps))
    }
}

/// The other side of the thread.
pub(super) struct StartedDevice {
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
