//! `[data.text]`: files of text to train on.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use barnraise_protocol::dataset::{SEQUENCE_TOKENS, WINDOW_SHARDS_MAX};
use serde::{Deserialize, Serialize};

use super::{Invalid, as_written, held_out};
use crate::data::file::DataFile;
use crate::data::text::stream::StreamSettings;
use crate::data::text::{N_SPECIAL, TextSettings, TextSource, existing_tokenizer};

/// Smallest vocabulary; with fewer tokens a masked one is hardly worth guessing.
const VOCABULARY_MIN: u32 = 50;
/// Largest one that is trained.
const VOCABULARY_MAX: u32 = 1 << 18;
const SOURCES_MAX: usize = 64;
/// Most held-out sequences of a source of a stream.
const HELD_OUT_SEQUENCES_MAX: u32 = 1 << 16;

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
    /// Where set, the text is read while the run trains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamSection>,
    /// The files; none for the text of a named set.
    #[serde(default)]
    pub sources: Vec<SourceSection>,
}

/// `[data.text.stream]`: the text is read while the run trains, and never all of it is in memory or on the disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamSection {
    /// Shards that contributors draw from at a time. As many more are on the disk, and 64 at least.
    pub window_shards: u32,
    /// Sequences of each source that are never trained on: its first ones, in place of a share of it.
    pub held_out_sequences: u32,
}

impl Default for StreamSection {
    fn default() -> Self {
        Self { window_shards: 256, held_out_sequences: 64 }
    }
}

impl StreamSection {
    /// Settings of a stream of this text.
    pub(super) fn settings(&self, text: TextSettings, shard_samples: NonZeroUsize) -> StreamSettings {
        let shard_samples = u32::try_from(shard_samples.get()).ok().and_then(NonZeroU32::new);
        StreamSettings {
            text,
            window_shards: self.window_shards,
            held_out_sequences: self.held_out_sequences,
            shard_samples: shard_samples.unwrap_or(NonZeroU32::MAX),
        }
    }

    fn validate(&self, is_of_set: bool, sources: &[SourceSection]) -> Result<(), Invalid> {
        Invalid::check_range("data.text.stream.window_shards", self.window_shards, 1..=WINDOW_SHARDS_MAX)?;
        let key = "data.text.stream.held_out_sequences";
        Invalid::check_range(key, self.held_out_sequences, 1..=HELD_OUT_SEQUENCES_MAX)?;
        let want = "none: [data] names a set, which is read as a whole";
        Invalid::check("data.text.stream", !is_of_set, want, as_written(self))?;
        let mut paths = sources.iter().map(|source| source.path.to_string().to_lowercase());
        if let Some(path) = paths.find(|path| path.ends_with(".parquet")) {
            let want = "plain text or JSON lines: a stream does not read Parquet";
            return Err(Invalid::new("data.text.sources", want, format!("{path:?}")));
        }
        let mut names = BTreeSet::new();
        for name in sources.iter().map(SourceSection::name) {
            let is_usable = !name.contains('=') && names.insert(name.clone());
            let want = "for each source of a stream a `name` of its own, without =";
            Invalid::check("data.text.sources", is_usable, want, as_written(&name))?;
        }
        Ok(())
    }
}

/// `[[data.text.sources]]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSection {
    /// By which the weight of a source of a stream is changed while the run trains; that of the file where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Plain text or JSON lines, compressed by gzip or Zstandard or not, or Parquet.
    pub path: DataFile,
    /// Field of each JSON line, or column of the Parquet file, that has the text.
    #[serde(default = "field")]
    pub field: String,
    /// Share of the sequences that come from this file, relative to the other weights.
    #[serde(default = "weight")]
    pub weight: f64,
}

impl SourceSection {
    fn name(&self) -> String {
        self.name.clone().or_else(|| self.path.stem()).unwrap_or_else(|| "text".into())
    }

    fn validate(&self) -> Result<(), Invalid> {
        if let Some(name) = &self.name {
            super::check::text("data.text.sources", name, 100)?;
        }
        let is_weight = self.weight.is_finite() && self.weight > 0.0;
        Invalid::check("data.text.sources", is_weight, "a weight above 0", self.weight)
    }
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
            stream: None,
            sources: Vec::new(),
        }
    }
}

impl TextSection {
    /// Settings of the data set.
    pub(super) fn settings(&self, seed: u64) -> TextSettings {
        let source = |source: &SourceSection| TextSource {
            name: source.name(),
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
        if let Some(stream) = &self.stream {
            stream.validate(is_of_set, &self.sources)?;
        }
        let n_sources = self.sources.len();
        if is_of_set {
            let want = "none: [data] names a set, whose text it is";
            Invalid::check("data.text.sources", n_sources == 0, want, n_sources)?;
        } else {
            Invalid::check_range("data.text.sources", n_sources, 1..=SOURCES_MAX)?;
        }
        self.sources.iter().try_for_each(SourceSection::validate)
    }
}
