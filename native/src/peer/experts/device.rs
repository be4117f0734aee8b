//! The thread that has the experts and computes for them, one job after the other.

use std::thread;

use barnraise_contributor::hosting::{ExpertDevice, ExpertJob, JobDone};
use futures::executor::block_on;
use tokio::sync::mpsc;

/// Jobs that the thread has, with the one that it does.
const JOBS_MAX: usize = 4;

/// Starts the thread. It ends when nobody sends jobs any more.
///
/// # Errors
/// The system starts no thread.
pub(super) fn start(mut device: ExpertDevice) -> anyhow::Result<StartedDevice> {
    let (jobs, mut received) = mpsc::channel(JOBS_MAX);
    let (done, results) = mpsc::channel(JOBS_MAX);
    let working = move || {
        while let Some(job) = received.blocking_recv() {
            if let Some(done_job) = block_on(device.work(job))
                && done.blocking_send(done_job).is_err()
            {
                return;
            }
        }
    };
    thread::Builder::new().name("experts".to_owned()).spawn(working)?;
    Ok(StartedDevice { jobs, results })
}

/// The other side of the thread.
pub(super) struct StartedDevice {
    pub(super) jobs: mpsc::Sender<ExpertJob>,
    pub(super) results: mpsc::Receiver<JobDone>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_contributor::hosting::{AddError, ComputeError, StoredExpert};
    use barnraise_learning::ComputeDevice;
    use barnraise_protocol::access::KeyPair;
    use barnraise_protocol::experts::checkpoints::CheckpointVersion;
    use barnraise_protocol::experts::leases::ExpertLease;
    use barnraise_protocol::experts::{ExpertPass, ExpertUid, LayerId};
    use barnraise_swarm::experts::serving::{BatchId, CountedState, ServingBatch};

    use super::*;
    use crate::host::expert_hosts::testing::{layers, model};

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
        let mut device = start(ExpertDevice::new(model(), layers(), ComputeDevice::cpu())).unwrap();
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
