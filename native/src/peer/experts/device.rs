//! The thread that has the experts and computes for them, one job after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use barnraise_contributor::hosting::{ComputeError, ExpertDevice, ExpertJob, JobDone};
use barnraise_learning::ComputeDevice;
use barnraise_learning::hosted::ExpertError;
use barnraise_relay::tasks;
use barnraise_swarm::experts::serving::ServingBatch;
use futures::executor::block_on;
use tokio::sync::mpsc;

/// Jobs that the thread has, with the one that it does.
const JOBS_MAX: usize = 4;

/// Starts the thread, which computes on `compute`. It ends when nobody sends jobs any more.
///
/// # Errors
/// The system starts no thread.
pub(super) fn start(mut device: ExpertDevice, compute: ComputeDevice) -> anyhow::Result<StartedDevice> {
    let (jobs, mut received) = mpsc::channel(JOBS_MAX);
    let (done, results) = mpsc::channel(JOBS_MAX);
    let of_thread = compute.clone();
    let working = move || {
        while let Some(job) = received.blocking_recv() {
            let batch = match &job {
                ExpertJob::Compute { batch, .. } => Some(batch.clone()),
                _ => None,
            };
            let done_job = caught(&of_thread, batch, || block_on(device.work(job)));
            if done_job.is_some_and(|job| done.blocking_send(job).is_err()) {
                return;
            }
        }
    };
    thread::Builder::new().name("experts".to_owned()).spawn(working)?;
    Ok(StartedDevice { compute, jobs, results })
}

/// Does a job, whose batch is `batch`. After a panic, by which some backends say that their driver has failed, the device counts as
/// lost: the experts are as they were before, on the host's side, and can be handed over.
fn caught(
    compute: &ComputeDevice,
    batch: Option<ServingBatch>,
    work: impl FnOnce() -> Option<JobDone>,
) -> Option<JobDone> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        compute.lose(tasks::panic_message(&*panic));
        let lost = compute.check().err().map(|lost| ComputeError::Expert(ExpertError::Device(lost)));
        Some(JobDone::Computed { batch: batch?, result: Err(lost?) })
    })
}

/// The other side of the thread.
pub(super) struct StartedDevice {
    pub(super) compute: ComputeDevice,
    pub(super) jobs: mpsc::Sender<ExpertJob>,
    pub(super) results: mpsc::Receiver<JobDone>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use barnraise_contributor::hosting::{AddError, CopyState, OutputGradients, StoredExpert};
    use barnraise_protocol::access::KeyPair;
    use barnraise_protocol::experts::checkpoints::CheckpointVersion;
    use barnraise_protocol::experts::leases::ExpertLease;
    use barnraise_protocol::experts::{ExpertPass, ExpertUid, LayerId};
    use barnraise_swarm::experts::serving::{BatchId, CountedState, OutputRows, RequestKey};

    use super::*;
    use crate::host::expert_hosts::testing::{layers, model};

    fn started() -> anyhow::Result<StartedDevice> {
        let compute = ComputeDevice::cpu();
        start(ExpertDevice::new(model(), layers(), compute.clone()), compute)
    }

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
    async fn a_gradient_that_others_have_overtaken_moves_an_expert_less() {
        let mut device = started().unwrap();
        let holder = KeyPair::from_seed(&[1; 32]).public();
        let place = (LayerId(0), ExpertUid::new(&[3]).unwrap());
        let lease = ExpertLease { place, copy: 0, holder, term: 5, grants: Vec::new() };
        let mut moved = Vec::new();
        for n_steps in [4, 2, 0] {
            done(&mut device, ExpertJob::Add { expert: 2, lease: lease.clone(), stored: None }).await;
            let mut step = async |n_steps| {
                let parts = vec![(RequestKey(1), 0..1)];
                let batch = ServingBatch { id: BatchId(8), expert: 2, pass: ExpertPass::Backward, parts };
                let parts = vec![OutputRows { n_rows: 1, n_steps }];
                let gradients = Some(OutputGradients { values: vec![0.25; 4], parts });
                let job = ExpertJob::Compute { batch, is_frozen: false, inputs: vec![0.5; 4], gradients };
                assert!(matches!(done(&mut device, job).await, JobDone::Computed { result: Ok(_), .. }));
                let stored = done(&mut device, ExpertJob::Store { expert: 2 }).await;
                let JobDone::Store { state, .. } = stored else { panic!("it has a state") };
                state.parameters
            };
            let mut before = Vec::new();
            for at in 0..4 {
                before = step(at).await;
            }
            let after = step(n_steps).await;
            moved.push(before.iter().zip(&after).map(|(before, after)| (after - before).abs()).sum::<f32>());
        }
        assert!(moved[0] > 1.5 * moved[1] && moved[1] > 1.2 * moved[2] && moved[2] > 0.0, "{moved:?}");
    }

    #[test]
    fn a_backend_that_panics_is_used_no_more_and_its_batch_fails() {
        let compute = ComputeDevice::cpu();
        let pass = ExpertPass::Forward;
        let batch = ServingBatch { id: BatchId(7), expert: 2, pass, parts: Vec::new() };
        let Some(JobDone::Computed { batch, result: Err(error) }) =
            caught(&compute, Some(batch), || panic!("the driver has {}", "failed"))
        else {
            panic!("the runtime waits for it")
        };
        assert_eq!(batch.id, BatchId(7));
        assert!(compute.is_lost() && error.to_string().contains("the driver has failed"), "{error}");
        assert!(caught(&compute, None, || panic!("again")).is_none());
    }

    #[tokio::test]
    async fn a_batch_of_an_expert_that_is_gone_is_answered() {
        let mut device = started().unwrap();
        let holder = KeyPair::from_seed(&[1; 32]).public();
        let place = (LayerId(0), ExpertUid::new(&[3]).unwrap());
        let lease = ExpertLease { place, copy: 0, holder, term: 5, grants: Vec::new() };
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
            let (inputs, values) = (vec![0.5; 4], vec![0.25; 4]);
            let gradients = Some(OutputGradients { values, parts: Vec::new() });
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

    /// With a replica of these parameters.
    fn average(parameters: Vec<f32>) -> ExpertJob {
        let version = CheckpointVersion { term: 6, n_steps: 1 };
        ExpertJob::Average { expert: 2, others: Some(vec![CopyState { copy: 1, version, parameters }]) }
    }

    /// An expert that a device has, which has moved so many steps since it was averaged.
    async fn moved(n_steps: usize, gradient: f32) -> (StartedDevice, Vec<f32>, Vec<f32>) {
        let mut device = started().unwrap();
        let holder = KeyPair::from_seed(&[1; 32]).public();
        let place = (LayerId(0), ExpertUid::new(&[3]).unwrap());
        let lease = ExpertLease { place, copy: 0, holder, term: 5, grants: Vec::new() };
        let _added = done(&mut device, ExpertJob::Add { expert: 2, lease, stored: None }).await;
        let before = parameters(&mut device).await.0;
        let average = average(vec![9.0; before.len()]);
        let JobDone::Averaged { n_steps: 0, .. } = done(&mut device, average).await else {
            panic!("the first time it only remembers where it is")
        };
        for _ in 0..n_steps {
            let pass = ExpertPass::Backward;
            let batch = ServingBatch { id: BatchId(8), expert: 2, pass, parts: Vec::new() };
            let gradients = Some(OutputGradients { values: vec![gradient; 4], parts: Vec::new() });
            let job = ExpertJob::Compute { batch, is_frozen: false, inputs: vec![0.5; 4], gradients };
            let _computed = done(&mut device, job).await;
        }
        let now = parameters(&mut device).await.0;
        (device, before, now)
    }

    async fn parameters(device: &mut StartedDevice) -> (Vec<f32>, u64) {
        let JobDone::Store { state, .. } = done(device, ExpertJob::Store { expert: 2 }).await else {
            panic!("it tells its state")
        };
        (state.parameters, state.optimizer.n_steps)
    }

    fn apart(one: &[f32], other: &[f32]) -> f32 {
        one.iter().zip(other).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt()
    }

    #[tokio::test]
    async fn copies_meet_as_of_one_more_step_and_a_hostile_one_moves_none_far() {
        let (mut one, before, of_one) = moved(3, 0.25).await;
        let (mut other, _, of_other) = moved(2, -0.25).await;
        for (device, others, n_steps) in [(&mut one, &of_other, 4), (&mut other, &of_one, 3)] {
            let average = average(others.clone());
            let JobDone::Averaged { n_steps: after, .. } = done(device, average).await else {
                panic!("it averages")
            };
            assert_eq!(
                (after, parameters(device).await.1),
                (n_steps, n_steps),
                "no state has a version twice"
            );
        }
        let (met_one, met_other) = (parameters(&mut one).await.0, parameters(&mut other).await.0);
        let (before_apart, after_apart) = (apart(&of_one, &of_other), apart(&met_one, &met_other));
        assert!(after_apart < before_apart / 4.0, "{after_apart} of {before_apart}");
        // It has not moved since, so that nothing moves it; and then by no more than it has moved itself.
        let hostile = || average(vec![-1e30; before.len()]);
        let JobDone::Averaged { n_steps: 4, .. } = done(&mut one, hostile()).await else {
            panic!("it stays where it is")
        };
        assert_eq!(parameters(&mut one).await.0, met_one);
        let (mut honest, before, own) = moved(3, 0.25).await;
        let JobDone::Averaged { n_steps: 4, .. } = done(&mut honest, hostile()).await else {
            panic!("it averages")
        };
        let pulled = apart(&parameters(&mut honest).await.0, &own);
        assert!(pulled <= 1.001 * apart(&own, &before), "{pulled}");
        for useless in [vec![f32::NAN; before.len()], vec![0.0; 1]] {
            let (mut honest, _, own) = moved(1, 0.25).await;
            let JobDone::Averaged { n_steps: 1, .. } = done(&mut honest, average(useless)).await else {
                panic!("it is ignored")
            };
            assert_eq!(parameters(&mut honest).await.0, own);
        }
    }
}
