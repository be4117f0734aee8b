//! The thread that has the experts and computes for them, one batch after the other.

use std::collections::BTreeMap;
use std::thread;

use anyhow::Context;
use barnraise_learning::ComputeDevice;
use barnraise_learning::hosted::{ExpertError, ExpertState, HostedExpert};
use barnraise_protocol::experts::checkpoints::CheckpointVersion;
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
        /// Whether the expert makes no step.
        is_frozen: bool,
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

/// What came of a batch.
#[derive(Debug)]
pub(super) struct ComputedRows {
    /// Behind the parameters that computed.
    pub(super) n_steps: u64,
    pub(super) n_steps_after: u64,
    pub(super) rows: Vec<f32>,
}

/// Why a batch was not computed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ComputeError {
    #[error("its expert is not hosted here any more")]
    Gone,
    #[error(transparent)]
    Expert(#[from] ExpertError),
}

/// Why an expert cannot be served.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddError {
    #[error("{0:#}")]
    Expert(#[from] anyhow::Error),
    /// Another state may do.
    #[error("no expert goes on from a state of term {} with {} steps: {source}", version.term, version.n_steps)]
    State { version: CheckpointVersion, source: ExpertError },
}

/// What the thread has done, in the order of its jobs.
pub(super) enum JobDone {
    Computed {
        batch: ServingBatch,
        result: Result<ComputedRows, ComputeError>,
    },
    /// What the expert has counted and its steps, or why it cannot be served.
    Added {
        expert: u32,
        lease: ExpertLease,
        result: Result<(CountedState, u64), AddError>,
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
            ExpertJob::Compute { batch, is_frozen, inputs, gradients } => {
                // Each batch is answered: the runtime counts those that the device has.
                let result = match self.experts.get_mut(&batch.expert) {
                    Some(expert) => block_on(computed(expert, is_frozen, &inputs, gradients.as_deref())),
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
    ) -> Result<(CountedState, u64), AddError> {
        let layer = layer_of(&self.layers, lease.place).context("no such place on the grid")?;
        let number = layer.grid.number(&lease.place.1).context("no such place on the grid")?;
        let number = usize::try_from(number).context("no such place on the grid")?;
        let hosted = HostedExpert::new(&self.model, &layer.body, number, &self.device);
        let mut hosted = hosted.map_err(anyhow::Error::from)?;
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

/// The other side of the thread.
pub(super) struct StartedDevice {
    pub(super) jobs: mpsc::Sender<ExpertJob>,
    pub(super) results: mpsc::Receiver<JobDone>,
}

async fn computed(
    expert: &mut HostedExpert,
    is_frozen: bool,
    inputs: &[f32],
    gradients: Option<&[f32]>,
) -> Result<ComputedRows, ComputeError> {
    let n_steps = expert.n_steps();
    let rows = match gradients {
        None => expert.forward(inputs).await?,
        Some(gradients) if is_frozen => expert.backward_frozen(inputs, gradients).await?,
        Some(gradients) => expert.backward(inputs, gradients).await?,
    };
    Ok(ComputedRows { n_steps, n_steps_after: expert.n_steps(), rows })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::access::KeyPair;
    use barnraise_protocol::experts::{ExpertPass, ExpertUid, LayerId};
    use barnraise_swarm::experts::serving::BatchId;

    use super::*;
    use crate::host::expert_hosts::layers::tests::{layers, model};

    async fn done(device: &mut StartedDevice, job: ExpertJob) -> JobDone {
        device.jobs.send(job).await.unwrap();
        device.results.recv().await.unwrap()
    }

    fn compute(expert: u32) -> ExpertJob {
        let pass = ExpertPass::Forward;
        let batch = ServingBatch { id: BatchId(7), expert, pass, parts: Vec::new() };
        ExpertJob::Compute { batch, is_frozen: false, inputs: vec![0.5; 4], gradients: None }
    }

    #[tokio::test]
    async fn a_batch_of_an_expert_that_is_gone_is_answered() {
        let mut device = ExpertDevice::start(model(), layers(), ComputeDevice::cpu()).unwrap();
        let holder = KeyPair::from_seed(&[1; 32]).public();
        let place = (LayerId(0), ExpertUid::new(&[3]).unwrap());
        let lease = ExpertLease { place, holder, term: 5, grants: Vec::new() };
        let add = |stored| ExpertJob::Add { expert: 2, lease: lease.clone(), stored };
        let JobDone::Added { result: Ok((_, 0)), .. } = done(&mut device, add(None)).await else {
            panic!("it begins anew")
        };
        let JobDone::Computed { batch, result: Ok(given) } = done(&mut device, compute(2)).await else {
            panic!("it computes")
        };
        assert_eq!((batch.id, given.n_steps, given.rows.len()), (BatchId(7), 0, 4));
        for (is_frozen, n_steps) in [(true, 0), (false, 1), (true, 1)] {
            let pass = ExpertPass::Backward;
            let batch = ServingBatch { id: BatchId(8), expert: 2, pass, parts: Vec::new() };
            let (inputs, gradients) = (vec![0.5; 4], Some(vec![0.25; 4]));
            let job = ExpertJob::Compute { batch, is_frozen, inputs, gradients };
            let JobDone::Computed { result: Ok(given), .. } = done(&mut device, job).await else {
                panic!("it passes gradients on")
            };
            assert_eq!((given.n_steps_after, given.rows.len()), (n_steps, 4));
        }
        let JobDone::Removed { expert: 2, state } = done(&mut device, ExpertJob::Remove { expert: 2 }).await
        else {
            panic!("it is removed")
        };
        let JobDone::Computed { batch, result: Err(ComputeError::Gone) } =
            done(&mut device, compute(2)).await
        else {
            panic!("the runtime waits for it")
        };
        assert_eq!(batch.id, BatchId(7));
        // A state that it cannot go on from is named, and the next one is taken.
        let mut stored = StoredExpert { term: 4, state, counted: CountedState::default() };
        let good = stored.clone();
        stored.state.parameters.truncate(2);
        let JobDone::Added { result: Err(AddError::State { version, .. }), .. } =
            done(&mut device, add(Some(stored))).await
        else {
            panic!("it is no state of this expert")
        };
        assert_eq!(version, CheckpointVersion { term: 4, n_steps: 1 });
        let JobDone::Added { result: Ok(_), .. } = done(&mut device, add(Some(good))).await else {
            panic!("it goes on")
        };
    }
}
