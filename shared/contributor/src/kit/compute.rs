//! Computations that are the same in every scheme. Each takes the trainer and hands it back.

use barnraise_learning::{ModelError, Trainer};
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::Moment;

use crate::platform::Platform;

/// Outcome of a computation.
pub(crate) struct ComputeOutcome {
    pub(crate) trainer: Trainer,
    pub(crate) done: ComputeResult,
}

/// Result of a computation, by kind.
pub(crate) enum ComputeResult {
    Batch {
        n_samples: u32,
        took: Moment,
        is_ended: bool,
        result: Result<(), ModelError>,
    },
    /// Of the scheme.
    Scheme,
    Trial {
        result: Result<TrialVerdict, ModelError>,
    },
    Prediction {
        request: u32,
        epoch: u64,
        result: Result<Vec<f32>, ModelError>,
    },
}

/// Result of the trial ([`super::trial`]) for the adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrialVerdict {
    /// It is at least as fast as the CPU.
    Keep,
    /// The CPU is faster.
    Slower,
}

/// One forward and backward pass on the parameters of `epoch`. Yields first: on a CPU in a browser the pass holds
/// the only thread. Waits for the end of queued passes where `is_ended`, which is a measurement, or `is_awaited`.
pub(crate) async fn batch<P: Platform>(
    platform: &P,
    mut trainer: Trainer,
    samples: Samples,
    epoch: u64,
    (is_ended, is_awaited): (bool, bool),
) -> ComputeOutcome {
    platform.yield_now().await;
    let began = platform.now();
    let n_samples = samples.n_samples() as u32;
    let mut result = trainer.accumulate_samples(&samples, epoch).await;
    if (is_ended || is_awaited) && result.is_ok() {
        result = trainer.finish_passes().await;
    }
    let took = platform.now().saturating_sub(began);
    ComputeOutcome { trainer, done: ComputeResult::Batch { n_samples, took, is_ended, result } }
}

/// The trainer of a run, whose passes more threads take part in where the platform has them.
pub(crate) fn divided<P: Platform>(platform: &P, run: &RunDescription, trainer: Trainer) -> Trainer {
    match platform.replicas(run, trainer.layout().n_parameters()) {
        Some(start) => trainer.with_replicas(&run.model, start),
        None => trainer,
    }
}

/// Class probabilities of one image.
pub(crate) async fn predict(
    mut trainer: Trainer,
    request: u32,
    epoch: u64,
    pixels: Vec<u8>,
) -> ComputeOutcome {
    trainer.restore_loaded_parameters();
    let result = trainer.predict(&pixels, 1).await;
    ComputeOutcome { trainer, done: ComputeResult::Prediction { request, epoch, result } }
}
