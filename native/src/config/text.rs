//! `[data.text]`: files of text to train on.

use std::path::PathBuf;

use barnraise_protocol::dataset::{SEQUENCE_TOKENS, SPECIAL_TOKENS};
use serde::{Deserialize, Serialize};

use super::Invalid;
use crate::data::text::{TextSettings, TextSource};

/// Smallest vocabulary; with fewer tokens a masked one is hardly worth guessing.
const VOCABULARY_MIN: u16 = 50;
const SOURCES_MAX: usize = 64;

/// `[data.text]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextSection {
    /// Name for people.
    pub name: String,
    /// Tokens of the vocabulary, at most.
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
            vocabulary: self.vocabulary,
            sequence_tokens: self.sequence_tokens,
            held_out: self.held_out,
            seed,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        super::check::text("data.text", &self.name, 100)?;
        let vocabulary = VOCABULARY_MIN + SPECIAL_TOKENS..=u16::MAX;
        Invalid::check_range("data.text.vocabulary", self.vocabulary, vocabulary)?;
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
