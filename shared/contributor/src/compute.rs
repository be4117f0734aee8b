//! What a contributor does on its device, each with the trainer handed in and handed back.

use barnraise_learning::{ComputeDevice, DataShape, MeanGradient, ModelError, Precision, Trainer};
use barnraise_protocol::account::AccountError;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::CodecError;
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::gradient::{Offer, Prepared};
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::Moment;
use barnraise_swarm::compression::Compressor;
use barnraise_swarm::contributor::LateWork;

use crate::accounting::Accountant;
use crate::platform::Platform;
use crate::trial::Verdict;

/// Why a computation gave nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ComputeError {
    /// The model, the batch or the device.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A gradient that no peer may send.
    #[error("the gradient cannot be sent: {0}")]
    Codec(#[from] CodecError),
    /// The loss of an exploded model.
    #[error("the loss of the gradient is {0}")]
    Loss(f32),
    /// What it is of cannot be said.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// The trainer lost count of what the state machine counted.
    #[error("the trainer accumulated {got} samples, {want} were counted")]
    Samples {
        /// Of the state machine.
        want: u32,
        /// Of the trainer.
        got: u32,
    },
}

impl ComputeError {
    /// Where a NaN or an infinity was; past the end for the loss.
    pub(crate) fn not_finite_at(&self) -> Option<u64> {
        match self {
            Self::Model(ModelError::NotFinite { index }) => Some(*index as u64),
            Self::Codec(CodecError::NotFinite { index }) => Some(*index as u64),
            Self::Loss(_) => Some(u64::MAX),
            _ => None,
        }
    }
}

/// Computes what the run wants, on `device`. Whoever computes a contribution once more has it made here, too.
///
/// # Errors
/// A model, or local steps, that there cannot be; a device that does not have them.
pub fn trainer(run: &RunDescription, device: ComputeDevice) -> Result<Trainer, ModelError> {
    // What others compute once more is to be the same.
    let device = if run.recomputed { device.with_precision(Precision::Single)? } else { device };
    let trainer = Trainer::new(&run.model, DataShape::of(&run.manifest.samples), device)?;
    let Some(steps) = &run.local_steps else { return Ok(trainer) };
    let trainer = trainer.with_local_steps(&run.model, steps)?;
    Ok(if run.recomputed { trainer.forgetful() } else { trainer })
}

/// Makes contributions to a run of gradients.
pub(crate) fn compressor(run: &RunDescription) -> Compressor {
    let n_values = run.n_parameters as usize;
    let mut compressor =
        Compressor::new(run.gradient_codec, run.compression, n_values, run.target_batch_size);
    // Where what was lost over a slow link is still owed, a fast one brings it.
    if run.local_steps.is_some() || run.slow_links.is_some() {
        compressor.keep_always();
    }
    if run.recomputed {
        compressor.keep_nothing();
    }
    compressor
}

/// What becomes of gradients whose epoch is over. What others compute once more goes into no other contribution.
pub(crate) fn late_work(run: &RunDescription, compressor: &Compressor) -> LateWork {
    match (run.recomputed && run.local_steps.is_some(), compressor.keeps()) {
        (true, _) => LateWork::ByItself,
        (false, true) => LateWork::WithNext,
        (false, false) => LateWork::Dropped,
    }
}

/// What came of a computation.
pub(crate) struct ComputeOutcome {
    pub(crate) trainer: Trainer,
    pub(crate) done: Done,
}

/// Which computation, and its result.
pub(crate) enum Done {
    Batch { n_samples: u32, took: Moment, is_ended: bool, result: Result<(), ModelError> },
    Gradient { naming: Naming, took: Moment, result: Result<MeanGradient, ComputeError> },
    Trial { result: Result<Verdict, ModelError> },
    Prediction { request: u32, epoch: u64, result: Result<Vec<f32>, ModelError> },
}

/// One forward and backward pass on the parameters of `epoch`. Everything that waits is let run first: on a CPU
/// in a browser the pass holds the only thread. A device that queues passes is waited for where `is_ended`.
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
    ComputeOutcome { trainer, done: Done::Batch { n_samples, took, is_ended, result } }
}

/// Name and place of a gradient.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Naming {
    /// `None`: it is too late to be offered.
    pub(crate) contribution_id: Option<u64>,
    pub(crate) epoch: u64,
    pub(crate) n_samples: u32,
}

/// Takes the mean gradient. On a GPU the passes that are still queued are waited for here.
pub(crate) async fn gradient<P: Platform>(
    platform: &P,
    mut trainer: Trainer,
    naming: Naming,
) -> ComputeOutcome {
    let began = platform.now();
    let result = take(&mut trainer, naming.n_samples).await;
    let took = platform.now().saturating_sub(began);
    ComputeOutcome { trainer, done: Done::Gradient { naming, took, result } }
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

/// Encodes a gradient with what its contributor still owed, and says what it is of where that is wanted.
pub(crate) fn prepare(
    compressor: &mut Compressor,
    accountant: Option<&mut Accountant>,
    contribution_id: u64,
    epoch: u64,
    mean: MeanGradient,
) -> Result<Prepared, ComputeError> {
    let MeanGradient { values, n_samples, loss, .. } = mean;
    let n_values = values.len() as u64;
    let bytes = compressor.compress(values, n_samples, epoch)?;
    let (codec, transfer) = (compressor.codec(), Transfer::of(&bytes));
    let offer = Offer { contribution_id, epoch, n_samples, loss, n_values, codec, transfer };
    let (account, samples) = match accountant {
        Some(accountant) => {
            let (account, samples) = accountant.sign(&offer)?;
            (Some(account), samples)
        }
        None => (None, Vec::new()),
    };
    Ok(Prepared { offer, account, bytes, samples })
}

/// Class probabilities of one image.
pub(crate) async fn predict(
    mut trainer: Trainer,
    request: u32,
    epoch: u64,
    pixels: Vec<u8>,
) -> ComputeOutcome {
    trainer.show_loaded();
    let result = trainer.predict(&pixels, 1).await;
    ComputeOutcome { trainer, done: Done::Prediction { request, epoch, result } }
}
