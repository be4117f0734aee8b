//! Training on text: causal language modelling, or masked (Devlin et al. 2019, §3.1).

use barnraise_protocol::dataset::TokenShape;
use barnraise_protocol::run::model::graph::Loss;

use super::{Evaluation, Trainer};
use crate::batch;
use crate::data_shape::DataShape;
use crate::engine::{Input, TokenCache};
use crate::error::ModelError;
use crate::masking::{EVALUATION_DRAW, MaskedTokens};
use crate::statistics::{self, Statistics};

impl Trainer {
    /// Adds the gradient of a micro-batch of text, summed over its sequences: for each, the mean cross-entropy of the
    /// tokens that are predicted. Those are all but the first, or masked ones, which `draw`, sequence and seed select.
    ///
    /// # Shapes
    /// - `ids`: `[n_sequences, length]`, each below the size of the vocabulary
    ///
    /// # Errors
    /// As of [`Self::accumulate`].
    pub async fn accumulate_tokens(&mut self, ids: &[u32], draw: u64) -> Result<(), ModelError> {
        let shape = self.tokens()?;
        let n_samples = batch::check_tokens(ids, shape, self.layout().batch_samples_max())?;
        let n_samples = self.prepare(n_samples)?;
        let sequences = ids.chunks_exact(shape.length.into());
        let seeds =
            self.seeds(sequences.map(|sequence| sequence.iter().flat_map(|id| id.to_le_bytes())), draw);
        match self.masked(ids, shape, draw) {
            Some(masked) => self.step(Input::Masked(&masked), seeds, n_samples).await,
            None => self.step(Input::Tokens(ids), seeds, n_samples).await,
        }
    }

    /// `None` where tokens are predicted from those before them.
    fn masked(&self, ids: &[u32], shape: TokenShape, draw: u64) -> Option<MaskedTokens> {
        let mask = shape.mask.filter(|_| matches!(self.graph.loss(), Loss::MaskedLanguageModel))?;
        Some(MaskedTokens::of(ids, shape, mask, self.seed, draw))
    }

    /// Loss and accuracy of the predictions of tokens, in chunks; the same masked tokens every time.
    ///
    /// # Shapes
    /// - `ids`: `[n_sequences, length]`, each below the size of the vocabulary
    pub async fn evaluate_tokens(&self, ids: &[u32]) -> Result<Evaluation, ModelError> {
        let shape = self.tokens()?;
        batch::check_tokens(ids, shape, usize::MAX)?;
        let mut total = Statistics::default();
        let length = usize::from(shape.length);
        for ids in ids.chunks(self.chunk_samples() * length) {
            let masked = self.masked(ids, shape, EVALUATION_DRAW);
            let input = masked.as_ref().map_or(Input::Tokens(ids), Input::Masked);
            total.add(self.losses(input).await?);
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
    /// A model that does not predict masked tokens; another length, a token or position out of range, a lost device.
    pub async fn fill(&self, ids: &[u32], positions: &[u32]) -> Result<Vec<f32>, ModelError> {
        let shape = self.tokens()?;
        batch::check_tokens(ids, shape, 1)?;
        if !matches!(self.graph.loss(), Loss::MaskedLanguageModel) {
            return Err(ModelError::WrongData { got: "masked tokens" });
        }
        let (length, got) = (usize::from(shape.length), positions.len());
        if positions.is_empty() || positions.iter().any(|&at| at as usize >= length) {
            return Err(ModelError::TokenCount { length, got });
        }
        let masked =
            MaskedTokens { inputs: ids.to_vec(), positions: positions.to_vec(), targets: Vec::new() };
        let mut probabilities = self.outputs(Input::Masked(&masked), 1).await?;
        statistics::softmax_rows(&mut probabilities, shape.vocabulary as usize);
        Ok(probabilities)
    }

    /// Predictions of the token after a text.
    ///
    /// # Shapes
    /// - `ids`: at least one and at most a sequence, each below the size of the vocabulary
    /// - returns `[vocabulary]`, which sum to 1
    ///
    /// # Errors
    /// A model that does not predict each token from those before it; another length, a token out of range, a lost device.
    pub async fn predict_next(&self, ids: &[u32]) -> Result<Vec<f32>, ModelError> {
        let mut probabilities = self.next_logits(ids, &mut TokenCache::default()).await?;
        let n_ids = probabilities.len();
        statistics::softmax_rows(&mut probabilities, n_ids);
        Ok(probabilities)
    }

    /// Logits of the token after `ids`, which follow those in the cache.
    ///
    /// # Shapes
    /// - `ids`: at least one, each below the size of the vocabulary; with those in the cache at most a sequence
    /// - returns `[vocabulary]`
    pub(crate) async fn next_logits(
        &self,
        ids: &[u32],
        cache: &mut TokenCache,
    ) -> Result<Vec<f32>, ModelError> {
        let shape = self.causal_tokens()?;
        let (length, got) = (usize::from(shape.length), cache.n_tokens() + ids.len());
        if ids.is_empty() || got > length {
            return Err(ModelError::TokenCount { length, got });
        }
        batch::check_ids(ids, shape)?;
        self.computed(self.engine.next(ids, cache).await).await
    }

    /// The data of a model that predicts each token from those before it.
    pub(crate) fn causal_tokens(&self) -> Result<TokenShape, ModelError> {
        match self.graph.loss() {
            Loss::CausalLanguageModel => self.tokens(),
            _ => Err(ModelError::WrongData { got: "a text to go on with" }),
        }
    }

    fn tokens(&self) -> Result<TokenShape, ModelError> {
        match self.data {
            DataShape::Tokens(tokens) => Ok(tokens),
            _ => Err(ModelError::WrongData { got: "text" }),
        }
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
