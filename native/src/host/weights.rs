//! Parameters and optimizer of a model, which take time to compute with.
//!
//! They are behind a lock that is only held by what computes, and never on a thread that has to answer, unless the model
//! is small.

use std::sync::{Arc, Mutex, PoisonError};

use barnraise_learning::{Optimizer, OptimizerError, OptimizerState};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::CodecError;
use barnraise_protocol::state::StateHeader;
use barnraise_protocol::{Sha256Hash, TensorCodec};
use sha2::{Digest, Sha256};

use super::states::{PublishedState, StateBytes};
use crate::computing::compute;

/// Values that are hashed at a time: a call for each would cost more than the hash.
const HASHED_VALUES: usize = 1024;

/// Why weights could not be read or replaced.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// An optimizer that cannot work, or a state of another one.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// Parameters that cannot travel.
    #[error("parameters: {0}")]
    Codec(#[from] CodecError),
    /// A checkpoint whose optimizer state cannot be read.
    #[error("optimizer state of the checkpoint: {0}")]
    OptimizerState(#[from] postcard::Error),
    /// A checkpoint that does not fit the model.
    #[error("the checkpoint has {got} parameters, the model has {want}")]
    Parameters {
        /// Of the model.
        want: usize,
        /// Of the checkpoint.
        got: usize,
    },
}

/// Parameters, and the optimizer that steps them.
#[derive(Debug)]
pub(crate) struct Weights {
    optimizer: Optimizer,
    /// Shared with those who read the newest ones: a step makes others.
    parameters: Arc<Vec<f32>>,
}

/// The weights of a driver. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct SharedWeights {
    n_bytes: usize,
    weights: Arc<Mutex<Weights>>,
}

impl SharedWeights {
    pub(crate) fn new(optimizer: Optimizer, parameters: Vec<f32>) -> Self {
        let n_bytes = size_of_val(parameters.as_slice());
        let parameters = Arc::new(parameters);
        Self { n_bytes, weights: Arc::new(Mutex::new(Weights { optimizer, parameters })) }
    }

    /// Computes with the weights, on a thread for it where they are large.
    pub(crate) async fn with<T: Send + 'static>(
        self,
        work: impl FnOnce(&mut Weights) -> T + Send + 'static,
    ) -> T {
        let Self { n_bytes, weights } = self;
        // One that panicked ended the core.
        compute(n_bytes, move || work(&mut weights.lock().unwrap_or_else(PoisonError::into_inner))).await
    }

    /// Holds them, so that nothing can be computed meanwhile.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> std::sync::MutexGuard<'_, Weights> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Weights {
    /// Makes an optimizer step by `mean`, `[n_parameters]`.
    ///
    /// # Errors
    /// It would leave the finite numbers; nothing has changed then.
    pub(crate) fn step(&mut self, mean: &[f32], learning_rate: f32) -> Result<(), OptimizerError> {
        self.parameters = Arc::new(self.optimizer.stepped(&self.parameters, mean, learning_rate)?);
        Ok(())
    }

    /// Replaces both, of a model of the same length.
    ///
    /// # Errors
    /// The state is of another optimizer; nothing has changed then.
    pub(crate) fn replace(
        &mut self,
        parameters: Arc<Vec<f32>>,
        optimizer_state: &[u8],
    ) -> Result<(), WeightsError> {
        let (want, got) = (self.parameters.len(), parameters.len());
        if want != got {
            return Err(WeightsError::Parameters { want, got });
        }
        let state: OptimizerState = postcard::from_bytes(optimizer_state)?;
        self.optimizer.restore(state)?;
        self.parameters = parameters;
        Ok(())
    }

    /// Hash of parameters and optimizer state.
    pub(crate) fn hash(&self) -> Sha256Hash {
        let mut hash = Sha256::new();
        hash_values(&mut hash, &self.parameters);
        let OptimizerState { n_steps, beta_products, moments } = self.optimizer.state();
        hash.update(n_steps.to_le_bytes());
        beta_products.iter().for_each(|product| hash.update(product.to_le_bytes()));
        moments.iter().for_each(|moments| hash_values(&mut hash, moments));
        Sha256Hash(hash.finalize().into())
    }

    /// The parameters as contributors pull them.
    pub(crate) fn publish(&self, epoch: u64, codec: TensorCodec) -> Result<PublishedState, WeightsError> {
        let parameters = self.parameters.clone();
        let bytes = StateBytes::of(&parameters, codec)?;
        let n_values = parameters.len() as u64;
        let header = StateHeader { epoch, n_values, codec, transfer: Transfer::of(&bytes) };
        Ok(PublishedState { header, bytes, parameters })
    }

    /// Parameters, and a copy of the state of the optimizer in its encoding.
    pub(crate) fn copy(&self) -> Result<(Arc<Vec<f32>>, Vec<u8>), WeightsError> {
        Ok((self.parameters.clone(), postcard::to_allocvec(self.optimizer.state())?))
    }
}

/// Adds the number of values, and each as little-endian bytes.
fn hash_values(hash: &mut Sha256, values: &[f32]) {
    hash.update((values.len() as u64).to_le_bytes());
    let mut bytes = [0; 4 * HASHED_VALUES];
    for chunk in values.chunks(HASHED_VALUES) {
        for (bytes, value) in bytes.chunks_exact_mut(4).zip(chunk) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        hash.update(&bytes[..4 * chunk.len()]);
    }
}
