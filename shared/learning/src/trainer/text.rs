//! Training on text: masked language modelling (Devlin et al. 2019, §3.1).

use barnraise_protocol::dataset::TokenShape;

use super::flight::Targets;
use super::{Evaluation, Trainer};
use crate::batch;
use crate::data_shape::DataShape;
use crate::engine::Input;
use crate::error::ModelError;
use crate::masking::{EVALUATION_DRAW, MaskedTokens};
use crate::statistics::{self, Statistics};

impl Trainer {
    /// Adds the gradient of a micro-batch of text, summed over its sequences: for each, the mean cross-entropy of its
    /// masked tokens. `draw`, sequence and seed select those.
    ///
    /// # Shapes
    /// - `ids`: `[n_sequences, length]`, each below the size of the vocabulary
    ///
    /// # Errors
    /// As of [`Self::accumulate`].
    pub async fn accumulate_tokens(&mut self, ids: &[u16], draw: u64) -> Result<(), ModelError> {
        let shape = self.tokens()?;
        let n_samples = batch::check_tokens(ids, shape, self.layout.batch_samples_max())?;
        let n_samples = self.prepare(n_samples)?;
        let masked = MaskedTokens::of(ids, shape, self.seed, draw);
        let answers = Targets::Labels(masked.targets.clone());
        self.step(Input::Masked(&masked), answers, n_samples).await
    }

    /// Loss and accuracy of the predictions of masked tokens, in chunks; the same tokens every time.
    ///
    /// # Shapes
    /// - `ids`: `[n_sequences, length]`, each below the size of the vocabulary
    pub async fn evaluate_tokens(&self, ids: &[u16]) -> Result<Evaluation, ModelError> {
        let shape = self.tokens()?;
        batch::check_tokens(ids, shape, usize::MAX)?;
        let mut total = Statistics::default();
        let length = usize::from(shape.length);
        for ids in ids.chunks(self.chunk_samples() * length) {
            let masked = MaskedTokens::of(ids, shape, self.seed, EVALUATION_DRAW);
            let logits = self.logits(Input::Masked(&masked), ids.len() / length).await?;
            total.add(Statistics::of(&logits, &masked.targets));
        }
        Ok(total.evaluation())
    }

    /// Predictions for some positions of one sequence.
    ///
    /// # Shapes
    /// - `ids`: `[length]`, each below the size of the vocabulary; the mask token at the positions to predict
    /// - `positions`: each below `length`
    /// - returns `[n_positions, vocabulary]`, each row sums to 1
    ///
    /// # Errors
    /// Another length, a token or position out of range, a lost device.
    pub async fn fill(&self, ids: &[u16], positions: &[u32]) -> Result<Vec<f32>, ModelError> {
        let shape = self.tokens()?;
        batch::check_tokens(ids, shape, 1)?;
        let (length, got) = (usize::from(shape.length), positions.len());
        if positions.is_empty() || positions.iter().any(|&at| at as usize >= length) {
            return Err(ModelError::TokenCount { length, got });
        }
        let masked =
            MaskedTokens { inputs: ids.to_vec(), positions: positions.to_vec(), targets: Vec::new() };
        let mut probabilities = self.logits(Input::Masked(&masked), 1).await?;
        statistics::softmax_rows(&mut probabilities, shape.vocabulary.into());
        Ok(probabilities)
    }

    fn tokens(&self) -> Result<TokenShape, ModelError> {
        match self.data {
            DataShape::Tokens(tokens) => Ok(tokens),
            DataShape::Images { .. } => Err(ModelError::WrongData { got: "text" }),
        }
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
