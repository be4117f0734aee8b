//! Computations of a contributor on its device. Each takes the trainer and hands it back.

use barnraise_learning::{ComputeDevice, DataShape, MeanGradient, ModelError, Precision, Trainer};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::CodecError;
use barnraise_protocol::commitment::CommitmentError;
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::gradient::{Offer, PreparedContribution};
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::Moment;
use barnraise_swarm::compression::{Compressor, round_stochastically};
use barnraise_swarm::contributor::LateWork;

use crate::commitment::CommitmentSigner;
use crate::platform::Platform;

/// Why a computation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ComputeError {
    /// The model, the batch or the device.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A gradient that cannot be encoded.
    #[error("the gradient cannot be sent: {0}")]
    Codec(#[from] CodecError),
    /// The loss is not finite.
    #[error("the loss of the gradient is {0}")]
    Loss(f32),
    /// The commitment cannot be signed.
    #[error(transparent)]
    Account(#[from] CommitmentError),
    /// The trainer's count of samples differs from the state machine's.
    #[error("the trainer accumulated {got} samples, {want} were counted")]
    Samples {
        /// Count of the state machine.
        want: u32,
        /// Count of the trainer.
        got: u32,
    },
}

impl ComputeError {
    /// Index of the value that is NaN or infinite; past the end for the loss.
    pub(crate) fn not_finite_at(&self) -> Option<u64> {
        match self {
            Self::Model(ModelError::NotFinite { index }) => Some(*index as u64),
            Self::Codec(CodecError::NotFinite { index }) => Some(*index as u64),
            Self::Loss(_) => Some(u64::MAX),
            _ => None,
        }
    }
}

/// Creates the run's trainer on `device`. A backbone that recomputes contributions creates its trainer here, too.
///
/// # Errors
/// The model or the local steps are invalid, or do not fit the device; or contributions are recomputed, and the device
/// computes in mixed precision.
pub fn trainer(run: &RunDescription, device: ComputeDevice) -> Result<Trainer, ModelError> {
    if run.synchronous().recomputed && device.precision() == Precision::Mixed {
        return Err(ModelError::MixedPrecision);
    }
    let trainer = Trainer::new(&run.model, DataShape::of(&run.data.manifest.samples), device)?;
    let Some(steps) = &run.synchronous().local_steps else { return Ok(trainer) };
    let trainer = trainer.with_local_steps(&run.model, steps)?;
    Ok(if run.synchronous().recomputed { trainer.stateless() } else { trainer })
}

/// The compressor of a run whose model has `n_parameters`: it turns gradients into contributions.
pub(crate) fn compressor(run: &RunDescription, n_parameters: usize) -> Compressor {
    let scheme = run.synchronous();
    let mut compressor = Compressor::new(scheme.gradient_codec, n_parameters, scheme.target_batch_size);
    // The residual of a slow link's codec is sent once the link is fast.
    if scheme.local_steps.is_some() || scheme.slow_links.is_some() {
        compressor.keep_always();
    }
    if scheme.recomputed {
        compressor.keep_nothing();
    }
    compressor
}

/// Handling of gradients whose epoch is over. A recomputed gradient cannot be merged into another contribution.
pub(crate) fn late_work(run: &RunDescription, compressor: &Compressor) -> LateWork {
    match (run.synchronous().recomputed && run.synchronous().local_steps.is_some(), compressor.keeps()) {
        (true, _) => LateWork::ByItself,
        (false, true) => LateWork::WithNext,
        (false, false) => LateWork::Dropped,
    }
}

/// Outcome of a computation.
pub(crate) struct ComputeOutcome {
    pub(crate) trainer: Trainer,
    pub(crate) done: ComputeResult,
}

/// Result of a computation, by kind.
pub(crate) enum ComputeResult {
    Batch { n_samples: u32, took: Moment, is_ended: bool, result: Result<(), ModelError> },
    Gradient { naming: GradientLabel, took: Moment, result: Result<MeanGradient, ComputeError> },
    Trial { result: Result<TrialVerdict, ModelError> },
    Prediction { request: u32, epoch: u64, result: Result<Vec<f32>, ModelError> },
}

/// Result of the trial ([`crate::trial`]) for the adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrialVerdict {
    /// It is at least as fast as the CPU.
    Keep,
    /// The CPU is faster.
    Slower,
}

/// One forward and backward pass on the parameters of `epoch`. Yields first: on a CPU in a browser the pass holds
/// the only thread. Waits for the end of queued passes where `is_ended`.
pub(crate) async fn batch<P: Platform>(
    platform: &P,
    mut trainer: Trainer,
    samples: Samples,
    epoch: u64,
    is_ended: bool,
) -> ComputeOutcome {
    platform.yield_now().await;
    let began = platform.now();
    let n_samples = samples.n_samples() as u32;
    let mut result = trainer.accumulate_samples(&samples, epoch).await;
    if is_ended && result.is_ok() {
        result = trainer.finish_passes().await;
    }
    let took = platform.now().saturating_sub(began);
    ComputeOutcome { trainer, done: ComputeResult::Batch { n_samples, took, is_ended, result } }
}

/// Id, epoch and number of samples of a gradient.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GradientLabel {
    /// `None` if it is too late to be offered.
    pub(crate) contribution_id: Option<u64>,
    pub(crate) epoch: u64,
    pub(crate) n_samples: u32,
}

/// Takes the mean gradient. On a GPU this waits for queued passes.
pub(crate) async fn gradient<P: Platform>(
    platform: &P,
    mut trainer: Trainer,
    naming: GradientLabel,
) -> ComputeOutcome {
    let began = platform.now();
    let result = take(&mut trainer, naming.n_samples).await;
    let took = platform.now().saturating_sub(began);
    ComputeOutcome { trainer, done: ComputeResult::Gradient { naming, took, result } }
}

async fn take(trainer: &mut Trainer, want: u32) -> Result<MeanGradient, ComputeError> {
    let Some(mean) = trainer.take_mean_gradient().await? else {
        return Err(ComputeError::Samples { want, got: 0 });
    };
    if mean.n_samples != want {
        return Err(ComputeError::Samples { want, got: mean.n_samples });
    }
    if !mean.loss.is_finite() {
        return Err(ComputeError::Loss(mean.loss));
    }
    Ok(mean)
}

/// Encodes a gradient with the contributor's residual (error feedback). Where the run requires a commitment, signs one, and
/// rounds the gradient by it in place of a residual.
pub(crate) fn prepare(
    compressor: &mut Compressor,
    signer: Option<&mut CommitmentSigner>,
    contribution_id: u64,
    epoch: u64,
    mean: MeanGradient,
) -> Result<PreparedContribution, ComputeError> {
    let MeanGradient { mut values, n_samples, loss, .. } = mean;
    let n_values = values.len() as u64;
    if let Some(signer) = &signer {
        round_stochastically(&mut values, compressor.encoding(), signer.rounding_seed());
    }
    let bytes = compressor.compress(values, n_samples, epoch)?;
    let (codec, transfer) = (compressor.encoding(), Transfer::of(&bytes));
    let offer = Offer { contribution_id, epoch, n_samples, loss, n_values, codec, transfer };
    let (commitment, samples) = match signer {
        Some(signer) => {
            let (commitment, samples) = signer.sign(&offer)?;
            (Some(commitment), samples)
        }
        None => (None, Vec::new()),
    };
    Ok(PreparedContribution { offer, commitment, bytes, samples })
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
