//! Goes on with a text token by token, by sampling from what a causal language model predicts.

use crate::engine::TokenCache;
use crate::error::ModelError;
use crate::random::SplitMix64;
use crate::statistics;
use crate::tokenizer::SpecialTokens;
use crate::trainer::Trainer;

/// Logits are divided by it: below 1 the likely tokens become likelier.
const TEMPERATURE: f32 = 0.8;
/// Probability of the likeliest tokens that one is drawn from (nucleus sampling, Holtzman et al. 2020).
const NUCLEUS: f32 = 0.95;

/// A text that goes on, with the keys and values of its tokens (a key-value cache), so that each token costs one.
///
/// Once the model's length is full, it goes on from the newer half of its tokens.
#[derive(Debug, Clone)]
pub struct Continuation {
    cache: TokenCache,
    /// The tokens so far, as many as the model may look at.
    ids: Vec<u32>,
    /// How many of them the model has seen.
    n_seen: usize,
    random: SplitMix64,
    /// Is drawn where the text ends.
    separator: u32,
    /// Are never drawn.
    never: Vec<u32>,
    has_ended: bool,
}

impl Continuation {
    /// Of a text that begins with `prompt`; without one, of a new document. The same seed gives the same continuation on
    /// the same device.
    pub fn of(prompt: &[u32], special: &SpecialTokens, seed: u64) -> Self {
        let separator = special.separator;
        let never = special.all.iter().copied().filter(|&id| id != separator).collect();
        // In the data a document follows a separator.
        let ids = if prompt.is_empty() { vec![separator] } else { prompt.to_vec() };
        let random = SplitMix64 { state: seed };
        Self { cache: TokenCache::default(), ids, n_seen: 0, random, separator, never, has_ended: false }
    }

    /// The next token, never a special one; `None` where the model ends the text.
    ///
    /// # Errors
    /// A model that is none of text from left to right; a token that it does not know; logits that are not finite; a lost
    /// device.
    pub async fn next(&mut self, trainer: &Trainer) -> Result<Option<u32>, ModelError> {
        let length = usize::from(trainer.causal_tokens()?.length);
        if self.has_ended {
            return Ok(None);
        }
        if self.ids.len() > length {
            self.ids.drain(..self.ids.len() - length.div_ceil(2));
            self.cache = TokenCache::default();
            self.n_seen = 0;
        }
        let mut logits = trainer.next_logits(&self.ids[self.n_seen..], &mut self.cache).await?;
        self.n_seen = self.ids.len();
        let id = sample(&mut logits, &self.never, &mut self.random)?;
        self.has_ended = id == self.separator;
        self.ids.push(id);
        Ok((!self.has_ended).then_some(id))
    }
}

/// Draws a token that is not among `never`.
fn sample(logits: &mut [f32], never: &[u32], random: &mut SplitMix64) -> Result<u32, ModelError> {
    if let Some(index) = logits.iter().position(|logit| !logit.is_finite()) {
        return Err(ModelError::NotFinite { index });
    }
    for logit in logits.iter_mut() {
        *logit /= TEMPERATURE;
    }
    for &id in never {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit = f32::MIN;
        }
    }
    statistics::softmax_rows(logits, logits.len());
    let mut ranking: Vec<(usize, f32)> = logits.iter().copied().enumerate().collect();
    ranking.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut n_kept = 0;
    let mut total = 0.0;
    while n_kept < ranking.len() && total < NUCLEUS {
        total += ranking[n_kept].1;
        n_kept += 1;
    }
    let mut left = random.next_unit() * total;
    for &(id, probability) in &ranking[..n_kept] {
        left -= probability;
        if left < 0.0 {
            return Ok(id as u32);
        }
    }
    // Rounding: the last one that is likely enough.
    Ok(ranking[n_kept.saturating_sub(1)].0 as u32)
}

#[cfg(test)]
#[path = "continuation_tests.rs"]
mod tests;
