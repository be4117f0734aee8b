//! What a synchronous contributor computes: gradients, and contributions made of them.

use barnraise_learning::{
    ComputeDevice, DataShape, FrozenWeights, MeanGradient, ModelError, Precision, Trainer,
};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::{CodecError, TensorCodec, joined};
use barnraise_protocol::commitment::CommitmentError;
use barnraise_protocol::gradient::{Offer, PreparedContribution};
use barnraise_protocol::run::{RunDescription, Synchronous};
use barnraise_swarm::Moment;
use barnraise_swarm::compression::{Compressor, round_stochastically};
use barnraise_swarm::contributor::LateWork;

use super::commitment::CommitmentSigner;
use crate::platform::Platform;

/// Why a computation failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ComputeError {
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
    pub(super) fn not_finite_at(&self) -> Option<u64> {
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
pub fn trainer(
    run: &RunDescription,
    scheme: &Synchronous,
    frozen: Option<&FrozenWeights>,
    device: ComputeDevice,
) -> Result<Trainer, ModelError> {
    if scheme.recomputed && device.precision() != Precision::Single {
        return Err(ModelError::MixedPrecision);
    }
    let data = DataShape::of(&run.data.manifest.samples);
    let mut trainer = Trainer::with_frozen(&run.model, data, frozen, device)?;
    if let Some(augmentation) = run.data.augmentation {
        trainer = trainer.with_augmentation(augmentation)?;
    }
    let Some(steps) = &scheme.local_steps else { return Ok(trainer) };
    let trainer = trainer.with_local_steps(&run.model, steps)?;
    Ok(if scheme.recomputed { trainer.stateless() } else { trainer })
}

/// The compressor of a run whose model has `n_parameters`: it turns gradients into contributions.
pub(super) fn compressor(scheme: &Synchronous, n_parameters: usize) -> Compressor {
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
pub(super) fn late_work(scheme: &Synchronous, compressor: &Compressor) -> LateWork {
    match (scheme.recomputed && scheme.local_steps.is_some(), compressor.keeps()) {
        (true, _) => LateWork::ByItself,
        (false, true) => LateWork::WithNext,
        (false, false) => LateWork::Dropped,
    }
}

/// A mean gradient, tensor by tensor.
pub(super) type MeanInParts = MeanGradient<Vec<Vec<f32>>>;

/// A gradient that was taken out of the trainer.
pub(super) struct TakenGradient {
    pub(super) naming: GradientLabel,
    pub(super) took: Moment,
    pub(super) result: Result<MeanInParts, ComputeError>,
}

/// Id, epoch and number of samples of a gradient.
#[derive(Debug, Clone, Copy)]
pub(super) struct GradientLabel {
    /// `None` if it is too late to be offered.
    pub(super) contribution_id: Option<u64>,
    pub(super) epoch: u64,
    pub(super) n_samples: u32,
}

/// Takes the mean gradient. On a GPU this waits for queued passes.
pub(super) async fn gradient<P: Platform>(
    platform: &P,
    mut trainer: Trainer,
    naming: GradientLabel,
) -> (Trainer, TakenGradient) {
    let began = platform.now();
    let result = take(&mut trainer, naming.n_samples).await;
    let took = platform.now().saturating_sub(began);
    (trainer, TakenGradient { naming, took, result })
}

async fn take(trainer: &mut Trainer, want: u32) -> Result<MeanInParts, ComputeError> {
    let Some(mean) = trainer.take_mean_in_parts().await? else {
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
pub(super) fn prepare(
    compressor: &mut Compressor,
    signer: Option<&mut CommitmentSigner>,
    contribution_id: u64,
    epoch: u64,
    mean: MeanInParts,
) -> Result<PreparedContribution, ComputeError> {
    let MeanGradient { mut values, n_samples, loss, .. } = mean;
    let n_values = values.iter().map(Vec::len).sum::<usize>() as u64;
    // Other codecs are not rounded, and need not have them in one place.
    if let Some(signer) = signer.as_ref().filter(|_| compressor.encoding() == TensorCodec::Int8) {
        let mut flat = joined(values);
        round_stochastically(&mut flat, compressor.encoding(), signer.rounding_seed());
        values = vec![flat];
    }
    let bytes = compressor.compress_parts(values, n_samples, epoch)?;
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
