//! `[data.text]`: files of text to train on.

use std::path::PathBuf;

use barnraise_protocol::dataset::SEQUENCE_TOKENS;
use serde::{Deserialize, Serialize};

use super::{Invalid, held_out};
use crate::data::file::DataFile;
use crate::data::text::{N_SPECIAL, TextSettings, TextSource, existing_tokenizer};

/// Smallest vocabulary; with fewer tokens a masked one is hardly worth guessing.
const VOCABULARY_MIN: u32 = 50;
/// Largest one that is trained.
const VOCABULARY_MAX: u32 = 1 << 18;
const SOURCES_MAX: usize = 64;

/// `[data.text]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextSection {
    /// Name for people; that of the first file where there is none.
    pub name: Option<String>,
    /// A `tokenizer.json`, as those of GPT-2, BERT and T5; with `model.start_from` a folder that has one, that one. Not set: a
    /// vocabulary is trained on the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a vocabulary that is trained, at most.
    #[serde(default = "vocabulary")]
    pub vocabulary: u32,
    /// Tokens of a sequence, the sample of a run on text.
    #[serde(default = "sequence_tokens")]
    pub sequence_tokens: u16,
    /// Share of each file that is never trained on: its end.
    #[serde(default = "held_out::of_text")]
    pub held_out: f64,
    /// The files; none for the text of a named set.
    #[serde(default)]
    pub sources: Vec<SourceSection>,
}

/// `[[data.text.sources]]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSection {
    /// Plain text or JSON lines, compressed by gzip or Zstandard or not, or Parquet.
    pub path: DataFile,
    /// Field of each JSON line, or column of the Parquet file, that has the text.
    #[serde(default = "field")]
    pub field: String,
    /// Share of the sequences that come from this file, relative to the other weights.
    #[serde(default = "weight")]
    pub weight: f64,
}

fn vocabulary() -> u32 {
    8000
}

fn sequence_tokens() -> u16 {
    64
}

fn field() -> String {
    "text".into()
}

fn weight() -> f64 {
    1.0
}

impl Default for TextSection {
    fn default() -> Self {
        Self {
            name: None,
            tokenizer: None,
            vocabulary: vocabulary(),
            sequence_tokens: sequence_tokens(),
            held_out: held_out::of_text(),
            sources: Vec::new(),
        }
    }
}

impl TextSection {
    /// Settings of the data set.
    pub(super) fn settings(&self, seed: u64) -> TextSettings {
        let source = |source: &SourceSection| TextSource {
            file: source.path.clone(),
            field: source.field.clone(),
            weight: source.weight,
        };
        let of_file = || self.sources.first().and_then(|source| source.path.stem());
        TextSettings {
            name: self.name.clone().or_else(of_file).unwrap_or_else(|| "Text".into()),
            sources: self.sources.iter().map(source).collect(),
            tokenizer: self.tokenizer.clone(),
            vocabulary: self.vocabulary,
            sequence_tokens: self.sequence_tokens,
            held_out: self.held_out,
            seed,
        }
    }

    /// - `is_of_set`: the text is that of a named set
    pub(super) fn validate(&self, is_of_set: bool) -> Result<(), Invalid> {
        if let Some(name) = &self.name {
            super::check::text("data.text.name", name, 100)?;
        }
        let vocabulary = VOCABULARY_MIN + N_SPECIAL..=VOCABULARY_MAX;
        Invalid::check_range("data.text.vocabulary", self.vocabulary, vocabulary)?;
        if let Some(path) = &self.tokenizer
            && let Err(error) = existing_tokenizer(path)
        {
            let got = format!("{:?}", path.display().to_string());
            return Err(Invalid::new("data.text.tokenizer", error, got));
        }
        Invalid::check_range("data.text.sequence_tokens", self.sequence_tokens, SEQUENCE_TOKENS)?;
        held_out::check("data.text.held_out", self.held_out)?;
        let n_sources = self.sources.len();
        if is_of_set {
            let want = "none: [data] names a set, whose text it is";
            Invalid::check("data.text.sources", n_sources == 0, want, n_sources)?;
        } else {
            Invalid::check_range("data.text.sources", n_sources, 1..=SOURCES_MAX)?;
        }
        for source in &self.sources {
            let is_weight = source.weight.is_finite() && source.weight > 0.0;
            Invalid::check("data.text.sources", is_weight, "a weight above 0", source.weight)?;
        }
        Ok(())
    }
}
