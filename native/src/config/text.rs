//! `[data.text]`: files of text to train on.

use std::path::PathBuf;

use barnraise_protocol::dataset::{SEQUENCE_TOKENS, TokenShape};
use serde::{Deserialize, Serialize};

use super::Invalid;
use crate::data::text::{N_SPECIAL, TextSettings, TextSource, existing_tokenizer};

/// Smallest vocabulary; with fewer tokens a masked one is hardly worth guessing.
const VOCABULARY_MIN: u16 = 50;
const SOURCES_MAX: usize = 64;

/// `[data.text]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextSection {
    /// Name for people.
    pub name: String,
    /// A `tokenizer.json`, as those of GPT-2, BERT and T5. Not set: a vocabulary is trained on the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a vocabulary that is trained, at most.
    #[serde(default = "vocabulary")]
    pub vocabulary: u16,
    /// Tokens of a sequence, the sample of a run on text.
    #[serde(default = "sequence_tokens")]
    pub sequence_tokens: u16,
    /// Share of each file that is never trained on: its end.
    #[serde(default = "held_out")]
    pub held_out: f64,
    /// The files.
    pub sources: Vec<SourceSection>,
}

/// `[[data.text.sources]]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSection {
    /// Plain text or JSON lines, compressed by gzip or not, or Parquet.
    pub path: PathBuf,
    /// Field of each JSON line, or column of the Parquet file, that has the text.
    #[serde(default = "field")]
    pub field: String,
    /// Share of the sequences that come from this file, relative to the other weights.
    #[serde(default = "weight")]
    pub weight: f64,
}

fn vocabulary() -> u16 {
    8000
}

fn sequence_tokens() -> u16 {
    64
}

fn held_out() -> f64 {
    0.02
}

fn field() -> String {
    "text".into()
}

fn weight() -> f64 {
    1.0
}

impl TextSection {
    /// Settings of the data set.
    pub(super) fn settings(&self, seed: u64) -> TextSettings {
        let source = |source: &SourceSection| TextSource {
            path: source.path.clone(),
            field: source.field.clone(),
            weight: source.weight,
        };
        TextSettings {
            name: self.name.clone(),
            sources: self.sources.iter().map(source).collect(),
            tokenizer: self.tokenizer.clone(),
            vocabulary: self.vocabulary,
            sequence_tokens: self.sequence_tokens,
            held_out: self.held_out,
            seed,
        }
    }

    /// The sequences that the section leads to: a vocabulary that is trained may become smaller.
    pub(super) fn shape(&self) -> TokenShape {
        let existing = self.tokenizer.as_ref().and_then(|path| existing_tokenizer(path).ok());
        let (vocabulary, mask) = match existing {
            Some((_, tokenizer)) => (tokenizer.size(), tokenizer.special().mask),
            None => (self.vocabulary, Some(0)),
        };
        TokenShape { length: self.sequence_tokens, vocabulary, mask }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        super::check::text("data.text", &self.name, 100)?;
        let vocabulary = VOCABULARY_MIN + N_SPECIAL..=u16::MAX;
        Invalid::check_range("data.text.vocabulary", self.vocabulary, vocabulary)?;
        if let Some(path) = &self.tokenizer
            && let Err(error) = existing_tokenizer(path)
        {
            let got = format!("{:?}", path.display().to_string());
            return Err(Invalid::new("data.text.tokenizer", error, got));
        }
        Invalid::check_range("data.text.sequence_tokens", self.sequence_tokens, SEQUENCE_TOKENS)?;
        let is_share = self.held_out > 0.0 && self.held_out <= 0.5;
        Invalid::check("data.text.held_out", is_share, "above 0 and at most 0.5", self.held_out)?;
        let n_sources = self.sources.len();
        Invalid::check_range("data.text.sources", n_sources, 1..=SOURCES_MAX)?;
        for source in &self.sources {
            let is_weight = source.weight.is_finite() && source.weight > 0.0;
            Invalid::check("data.text.sources", is_weight, "a weight above 0", source.weight)?;
        }
        Ok(())
    }
}
