//! Feeds the runtime of a host: requests of trainers in, batches to the device, answers out; stores the experts, and announces
//! them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use barnraise_learning::hosted::ExpertError;
use barnraise_protocol::access::KeyPair;
use barnraise_protocol::experts::ExpertPass;
use barnraise_protocol::run::RunDescription;
use barnraise_relay::Node;
use barnraise_swarm::Moment;
use barnraise_swarm::experts::serving::{ExpertRuntime, ServingAction, ServingBatch, ServingLimits};
use libp2p::PeerId;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::super::display::Display;
use super::device::{ExpertJob, JobDone, StartedDevice};
use super::state::{HostState, Inner};
use super::store::{ExpertStore, StoredExpert};
use super::{HostedLayer, announce, answer};
use crate::host::addresses::AddressGroups;

/// Limits of a host that grants half a GiB to requests.
const LIMITS: ServingLimits = ServingLimits {
    rows_max: 4096,
    request_rows_max: 16_384,
    batch_delay: Duration::from_millis(20),
    bytes_max: 512 * 1024 * 1024,
    requests_per_minute: 6000,
};
/// Interval at which each expert is stored.
const STORE_EVERY: Duration = Duration::from_secs(60);
/// Least interval between two of them.
const STORE_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Interval of what is said about the work.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Longest wait for what the device has, when the host leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(30);
/// Without a deadline the clock is looked at again after so long.
const IDLE: Duration = Duration::from_secs(3600);

/// What a host does, and with what.
pub(super) struct ExpertHosting<'a> {
    pub(super) node: Node,
    pub(super) home: PeerId,
    pub(super) key: KeyPair,
    pub(super) run: RunDescription,
    pub(super) layers: Vec<HostedLayer>,
    pub(super) store: ExpertStore,
    pub(super) display: &'a Display,
}

impl ExpertHosting<'_> {
    /// Hosts until `leaving`, then stores the experts.
    ///
    /// # Errors
    /// The node has another host already, or an expert cannot be stored at the end.
    pub(super) async fn serve(self, device: StartedDevice, leaving: CancellationToken) -> anyhow::Result<()> {
        let StartedDevice { places, jobs, mut results } = device;
        let mut runtime = ExpertRuntime::new(LIMITS);
        for (expert, (_, counted, _)) in places.iter().enumerate() {
            runtime.on_expert_added(Moment::ZERO, u32::try_from(expert)?, counted)?;
        }
        let n_steps = places.iter().map(|(_, _, n_steps)| *n_steps).collect();
        let inner = Inner { runtime, held: HashMap::new(), n_steps, n_forward: 0, n_backward: 0 };
        let state = Arc::new(HostState {
            run_id: self.run.identity.run_id.clone(),
            layers: self.layers.clone(),
            places: places.iter().map(|(place, ..)| *place).collect(),
            groups: AddressGroups::new(&self.key),
            inner: Mutex::new(inner),
            changed: Notify::new(),
            started: Instant::now(),
        });
        let _answering = answer::spawn(&self.node, &state)?;
        let _announcing = announce::spawn((self.node.clone(), self.home), self.key.clone(), state.clone());
        // One after the other, so that the device is never held up for long.
        let n_experts = u32::try_from(state.places.len())?.max(1);
        let mut store_at = tokio::time::interval((STORE_EVERY / n_experts).max(STORE_INTERVAL_MIN));
        let mut next_stored = 0;
        let mut say_at = tokio::time::interval(SAY_EVERY);
        store_at.reset();
        loop {
            self.act(&state, &jobs).await;
            let deadline = state.lock().runtime.next_deadline();
            let wait = deadline.map_or(IDLE, |deadline| deadline.saturating_sub(state.now()));
            tokio::select! {
                () = leaving.cancelled() => break,
                () = state.changed.notified() => {}
                done = results.recv() => match done {
                    Some(done) => self.on_done(&state, done).await,
                    None => bail!("the thread that computes has ended"),
                },
                _ = store_at.tick() => {
                    // While the device has all that it takes, another tick will do.
                    if jobs.try_send(ExpertJob::Store { expert: next_stored }).is_ok() {
                        next_stored = (next_stored + 1) % n_experts;
                    }
                }
                _ = say_at.tick() => self.say(&state),
                () = tokio::time::sleep(wait) => state.with(|runtime, now| runtime.on_timeout(now)),
            }
        }
        state.with(|runtime, _| runtime.on_drain());
        let ending = self.end(&state, jobs, results);
        tokio::time::timeout(LEAVE_TIMEOUT, ending).await.unwrap_or(Ok(()))
    }

    /// Computes what it has, and stores all experts.
    async fn end(
        &self,
        state: &HostState,
        jobs: mpsc::Sender<ExpertJob>,
        mut results: mpsc::Receiver<JobDone>,
    ) -> anyhow::Result<()> {
        self.act(state, &jobs).await;
        for expert in 0..state.places.len() {
            let job = ExpertJob::Store { expert: u32::try_from(expert)? };
            let mut sending = std::pin::pin!(jobs.send(job));
            // Both channels are bounded: what is done is taken meanwhile.
            loop {
                tokio::select! {
                    sent = &mut sending => {
                        sent.ok().context("the thread that computes has ended")?;
                        break;
                    }
                    Some(done) = results.recv() => self.on_done(state, done).await,
                }
            }
        }
        drop(jobs);
        while let Some(done) = results.recv().await {
            self.on_done(state, done).await;
        }
        Ok(())
    }

    /// Does all that the runtime wants.
    async fn act(&self, state: &HostState, jobs: &mpsc::Sender<ExpertJob>) {
        loop {
            let action = state.lock().runtime.poll_action();
            match action {
                None => return,
                Some(ServingAction::Compute(batch)) => {
                    let job = gather(state, &batch);
                    // The runtime gives the device two batches at most, and the channel has room for more.
                    if jobs.send(job).await.is_err() {
                        return;
                    }
                }
                Some(ServingAction::Refuse { key, refusal }) => {
                    if let Some(held) = state.lock().held.remove(&key) {
                        let _ = held.answer.send(Err(refusal));
                    }
                }
                Some(ServingAction::Drop(key)) => {
                    state.lock().held.remove(&key);
                }
            }
        }
    }

    async fn on_done(&self, state: &HostState, done: JobDone) {
        match done {
            JobDone::Computed { batch, result } => on_computed(state, &batch, result),
            JobDone::Store { expert, state: of_expert } => {
                let counted = state.lock().runtime.counted(expert).unwrap_or_default();
                let Some(&place) = state.places.get(expert as usize) else { return };
                let stored = StoredExpert { state: of_expert, counted };
                if let Err(error) = self.store.save(place, stored).await {
                    self.display.say(&format!("An expert could not be stored: {error}"));
                }
            }
        }
    }

    fn say(&self, state: &HostState) {
        let mut inner = state.lock();
        let (n_forward, n_backward) = (inner.n_forward, inner.n_backward);
        (inner.n_forward, inner.n_backward) = (0, 0);
        let n_steps: u64 = inner.n_steps.iter().sum();
        let speed = inner.runtime.load().rows_per_second;
        drop(inner);
        if n_forward + n_backward > 0 {
            self.display.say(&format!(
                "{n_forward} rows computed and {n_backward} learned from in {} s, {n_steps} steps in all; the device does {speed:.0} rows a second.",
                SAY_EVERY.as_secs()
            ));
        }
    }
}

/// The job of a batch: the rows of its parts one after the other.
fn gather(state: &HostState, batch: &ServingBatch) -> ExpertJob {
    let inner = state.lock();
    let (mut inputs, mut gradients) = (Vec::new(), None);
    for (key, _) in &batch.parts {
        let Some(held) = inner.held.get(key) else { continue };
        inputs.extend_from_slice(&held.tensors.inputs);
        if let Some(of_part) = &held.tensors.gradients {
            gradients.get_or_insert_with(Vec::new).extend_from_slice(of_part);
        }
    }
    ExpertJob::Compute { batch: batch.clone(), inputs, gradients }
}

/// Hands out what a batch gave.
fn on_computed(state: &HostState, batch: &ServingBatch, result: Result<(u64, Vec<f32>), ExpertError>) {
    let now = state.now();
    let mut inner = state.lock();
    let (n_steps, rows) = match result {
        Ok(computed) => computed,
        Err(error) => {
            tracing::warn!(%error, "a batch of an expert failed");
            inner.runtime.on_failed(now, batch.id);
            return;
        }
    };
    let n_rows = u64::from(batch.n_rows());
    match batch.pass {
        ExpertPass::Forward => inner.n_forward += n_rows,
        ExpertPass::Backward => {
            inner.n_backward += n_rows;
            if let Some(steps) = inner.n_steps.get_mut(batch.expert as usize) {
                *steps = n_steps + 1;
            }
        }
    }
    inner.runtime.on_computed(now, batch.id);
    let width = rows.len() / batch.n_rows().max(1) as usize;
    for (key, of_part) in &batch.parts {
        let Some(held) = inner.held.remove(key) else { continue };
        let range = of_part.start as usize * width..of_part.end as usize * width;
        let answer = Ok((n_steps, rows.get(range).unwrap_or_default().to_vec()));
        if held.answer.send(answer).is_err() {
            // Nobody waits for it any more.
            inner.runtime.on_answered(now, *key);
        }
    }
}
