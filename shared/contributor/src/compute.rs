//! What a contributor does on its device, each with the trainer handed in and handed back.

use barnraise_learning::{Batch, ModelError, Trainer};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::{CodecError, TensorCodec};
use barnraise_protocol::gradient::Offer;
use barnraise_swarm::Moment;

use crate::network::Prepared;
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

/// What came of a computation.
pub(crate) struct ComputeOutcome {
    pub(crate) trainer: Trainer,
    pub(crate) done: Done,
}

/// Which computation, and its result.
pub(crate) enum Done {
    Batch { n_samples: u32, took: Moment, result: Result<(), ModelError> },
    Gradient { took: Moment, result: Result<Prepared, ComputeError> },
    Trial { result: Result<Verdict, ModelError> },
    Prediction { request: u32, epoch: u64, result: Result<Vec<f32>, ModelError> },
}

/// One forward and backward pass. Everything that waits is let run first: on a CPU in a browser the
/// pass holds the only thread.
pub(crate) async fn batch<P: Platform>(platform: &P, mut trainer: Trainer, batch: Batch) -> ComputeOutcome {
    platform.yield_now().await;
    let began = platform.now();
    let n_samples = batch.labels.len() as u32;
    let result = trainer.accumulate(&batch).await;
    let took = platform.now().saturating_sub(began);
    ComputeOutcome { trainer, done: Done::Batch { n_samples, took, result } }
}

/// Name and place of a contribution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Naming {
    pub(crate) contribution_id: u64,
    pub(crate) epoch: u64,
    pub(crate) n_samples: u32,
    pub(crate) codec: TensorCodec,
}

/// Takes the mean gradient and encodes it. On a GPU the passes that are still queued are waited for here.
pub(crate) async fn gradient<P: Platform>(
    platform: &P,
    mut trainer: Trainer,
    naming: Naming,
) -> ComputeOutcome {
    let began = platform.now();
    let result = prepare(&mut trainer, naming).await;
    let took = platform.now().saturating_sub(began);
    ComputeOutcome { trainer, done: Done::Gradient { took, result } }
}

async fn prepare(trainer: &mut Trainer, naming: Naming) -> Result<Prepared, ComputeError> {
    let want = naming.n_samples;
    let Some(mean) = trainer.take_mean_gradient().await? else {
        return Err(ComputeError::Samples { want, got: 0 });
    };
    if mean.n_samples != want {
        return Err(ComputeError::Samples { want, got: mean.n_samples });
    }
    if !mean.loss.is_finite() {
        return Err(ComputeError::Loss(mean.loss));
    }
    let bytes = naming.codec.encode(&mean.values)?;
    let offer = Offer {
        contribution_id: naming.contribution_id,
        epoch: naming.epoch,
        n_samples: naming.n_samples,
        loss: mean.loss,
        n_values: mean.values.len() as u64,
        codec: naming.codec,
        transfer: Transfer::of(&bytes),
    };
    Ok(Prepared { offer, bytes })
}

/// Class probabilities of one image.
pub(crate) async fn predict(trainer: Trainer, request: u32, epoch: u64, pixels: Vec<u8>) -> ComputeOutcome {
    let result = trainer.predict(&pixels, 1).await;
    ComputeOutcome { trainer, done: Done::Prediction { request, epoch, result } }
}
