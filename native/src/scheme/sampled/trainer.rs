//! Local training on a thread of its own: some passes over this participant's data, from the model of a round.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Instant;

use anyhow::Context;
use barnraise_contributor::{local_trainer, trained_model};
use barnraise_learning::{ComputeDevice, DeviceError, Trainer};
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::{RunDescription, Sampled};
use barnraise_relay::tasks;
use barnraise_swarm::Moment;
use barnraise_swarm::pacing::{Pacer, PacingSettings};
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::sampled::SampledModel;
use futures::executor::block_on;
use tokio::sync::{mpsc, oneshot};

/// No round: nothing is trained.
const NONE: u64 = 0;

/// What a participant trains on: it stays where it is.
pub(crate) struct LocalData {
    pub(crate) samples: Samples,
    /// Whether they are the user's, and not the run's.
    pub(crate) is_own: bool,
    /// Of the order of the samples.
    pub(crate) seed: u64,
}

struct TrainingOrder {
    round: u64,
    model: SampledModel,
    result: oneshot::Sender<Option<SampledModel>>,
}

/// Trains one round at a time. It ends with the last of its clones.
#[derive(Clone)]
pub(crate) struct LocalTrainer {
    orders: mpsc::Sender<TrainingOrder>,
    /// The round that is wanted: what is trained for another one ends.
    wanted: Arc<AtomicU64>,
    thread: Thread,
}

impl LocalTrainer {
    /// Starts the thread, which rests between batches as the user wants it. The receiver hears why it ends where the device is lost.
    ///
    /// # Errors
    /// The model does not fit the device.
    pub(crate) fn start(
        run: &RunDescription,
        scheme: Sampled,
        data: LocalData,
        device: ComputeDevice,
        pacing: PacingSettings,
    ) -> anyhow::Result<(Self, oneshot::Receiver<DeviceError>)> {
        let own = data.is_own.then_some(&data.samples);
        let trainer = local_trainer(run, &scheme, (data.samples.n_samples(), own), device.clone())?;
        let (losing, lost) = oneshot::channel();
        let (orders, ordered) = mpsc::channel(2);
        let wanted = Arc::new(AtomicU64::new(NONE));
        let turn = TrainingTurn::new(Arc::clone(&wanted), pacing);
        let training = TrainingThread { trainer, device, scheme, data, turn };
        let work = move || training.run(ordered, losing);
        let thread = thread::Builder::new().name("training".to_owned()).spawn(work)?.thread().clone();
        Ok((Self { orders, wanted, thread }, lost))
    }

    /// Trains the model of a round. `None` where that was overtaken or failed.
    pub(crate) async fn train(&self, round: u64, model: SampledModel) -> Option<SampledModel> {
        self.wanted.fetch_max(round, Ordering::Relaxed);
        self.thread.unpark();
        let (result, trained) = oneshot::channel();
        self.orders.send(TrainingOrder { round, model, result }).await.ok()?;
        trained.await.ok().flatten()
    }

    /// Ends what is trained.
    pub(crate) fn cancel(&self) {
        self.wanted.store(NONE, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// When the thread computes: for the round that is wanted, and for no more than its share of the time.
struct TrainingTurn {
    wanted: Arc<AtomicU64>,
    pacer: Pacer,
    started: Instant,
}

impl TrainingTurn {
    fn new(wanted: Arc<AtomicU64>, pacing: PacingSettings) -> Self {
        let mut pacer = Pacer::default();
        pacer.set(pacing);
        Self { wanted, pacer, started: Instant::now() }
    }

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    /// Waits for the end of a rest. Returns whether the round is wanted then; where it no longer is, nothing is waited for.
    fn begins(&self, round: u64) -> bool {
        while self.wanted.load(Ordering::Relaxed) == round {
            let now = self.now();
            let Some(until) = self.pacer.rests_until(now) else { return true };
            thread::park_timeout(until.saturating_sub(now));
        }
        false
    }

    /// The device was busy since `began`.
    fn on_busy(&mut self, began: Moment) {
        let now = self.now();
        self.pacer.on_busy(now, now.saturating_sub(began));
    }
}

struct TrainingThread {
    trainer: Trainer,
    device: ComputeDevice,
    scheme: Sampled,
    data: LocalData,
    turn: TrainingTurn,
}

impl TrainingThread {
    fn run(mut self, mut ordered: mpsc::Receiver<TrainingOrder>, losing: oneshot::Sender<DeviceError>) {
        while let Some(TrainingOrder { round, model, result }) = ordered.blocking_recv() {
            // By a panic some backends say that their driver has failed.
            let trained = catch_unwind(AssertUnwindSafe(|| block_on(self.train(round, &model))));
            let trained = trained.unwrap_or_else(|panic| {
                self.device.lose(tasks::panic_message(&*panic));
                Ok(None)
            });
            let trained = trained.unwrap_or_else(|error| {
                tracing::error!(round, error = format!("{error:#}"), "a round could not be trained");
                None
            });
            // The receiver is gone where the run ends.
            let _ = result.send(trained);
            if let Err(lost) = self.device.check() {
                let _ = losing.send(lost);
                return;
            }
        }
    }

    async fn train(&mut self, round: u64, model: &SampledModel) -> anyhow::Result<Option<SampledModel>> {
        self.trainer.load_parameters(model)?;
        self.trainer.on_epoch(round);
        let n_samples = self.data.samples.n_samples();
        let mut order: Vec<usize> = (0..n_samples).collect();
        let mut random = SplitMix64::new(self.data.seed ^ round);
        for _ in 0..self.scheme.local_passes {
            random.shuffle(&mut order);
            for batch in order.chunks(self.scheme.micro_batch_size as usize) {
                if !self.turn.begins(round) {
                    return Ok(None);
                }
                let began = self.turn.now();
                let mut samples = self.data.samples.none_of();
                batch.iter().for_each(|index| samples.push(&self.data.samples, *index));
                self.trainer.accumulate_samples(&samples, round).await?;
                self.turn.on_busy(began);
            }
        }
        let moved = self.trainer.take_mean_gradient().await?.context("there is no local data")?;
        tracing::info!(round, loss = moved.loss, n_samples = moved.n_samples, "trained");
        Ok(Some(trained_model(model, &moved)?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use barnraise_swarm::pacing::Duty;

    use super::*;

    /// Of a device that was busy for so long, and computes half of the time.
    fn after(busy: Duration) -> TrainingTurn {
        let pacing = PacingSettings { duty: Duty::of_percent(50).unwrap(), ..PacingSettings::default() };
        let mut turn = TrainingTurn::new(Arc::new(AtomicU64::new(1)), pacing);
        turn.pacer.on_busy(Moment::ZERO, busy);
        turn
    }

    #[test]
    fn the_device_rests_for_its_share_of_the_time() {
        let rest = Duration::from_millis(20);
        let mut turn = after(rest);
        assert!(turn.begins(1) && turn.now() >= rest);
        assert!(!turn.begins(2), "another round is wanted");
        turn.on_busy(Moment::ZERO);
        assert!(turn.pacer.rests_until(Moment::ZERO).is_some());
    }

    #[test]
    fn a_rest_ends_when_its_round_is_no_longer_wanted() {
        let turn = after(Duration::from_secs(60));
        let wanted = Arc::clone(&turn.wanted);
        let resting = thread::spawn(move || turn.begins(1));
        wanted.store(NONE, Ordering::Relaxed);
        resting.thread().unpark();
        assert!(!resting.join().unwrap());
    }
}
