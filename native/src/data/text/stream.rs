//! A text that is read while the run trains: more than fits into memory or onto the disk.
//!
//! The sources are read lazily, cut into sequences, and interleaved by their weights ([`weights`]). Each shard has the
//! next sequences of this order, so that its number decides its bytes: the same on each backbone with the same sources, as
//! long as no operator changes the weights.
//! The first sequences of each source are held out. A source that ends is read again from its beginning.
//!
//! In memory is a piece of each source, and the shard that is being filled. Blocking: call it from a thread that may block.

mod lazy;
mod weights;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::path::Path;

use barnraise_learning::tokenizer::Tokenizer;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{DataStream, SampleKind, Samples, ShardEntry, TokenSequences, TokenShape};
use serde::{Deserialize, Serialize};

use self::lazy::{LazySource, SourceCursor};
use self::weights::SourceWeights;
use super::{RunTokenizerError, TEST_SEQUENCES_MAX, TextError, TextSettings, TextSource, tokenizer};
use crate::data::TrainingData;

/// Raised when the same sources and settings give other shards.
const LAYOUT_VERSION: u32 = 1;
/// Bytes of text that a vocabulary is trained on, of all sources together: the beginning of each.
const VOCABULARY_BYTES: u64 = 8 * 1024 * 1024;

/// Settings of a text that is streamed.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamSettings {
    /// Sources and tokenizer. Its `held_out` is of no effect.
    pub text: TextSettings,
    /// Shards that are drawn from at a time.
    pub window_shards: u32,
    /// Sequences of each source that are held out: its first ones.
    pub held_out_sequences: u32,
    /// Sequences in each shard.
    pub shard_samples: NonZeroU32,
}

/// Where a stream is, between two shards.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamPosition {
    /// Sequences in all shards so far.
    pub n_sequences: u64,
    /// Of each source, in their order.
    pub sources: Vec<SourcePosition>,
}

/// Where a source of a stream is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcePosition {
    cursor: SourceCursor,
    /// Tokens that were read and are in no sequence yet.
    pending: Vec<u32>,
    /// Sequences of this pass so far, those that are held out included.
    n_sequences: u64,
}

/// A stream of shards.
pub struct StreamReader {
    length: usize,
    shard_samples: usize,
    held_out: u64,
    tokenizer: Tokenizer,
    weights: SourceWeights,
    sources: Vec<StreamedSource>,
    n_sequences: u64,
    /// The shard that is being filled.
    filling: Vec<u32>,
}

struct StreamedSource {
    reader: LazySource,
    pending: VecDeque<u32>,
    n_sequences: u64,
}

impl StreamSettings {
    /// Reads the beginning of each source: the tokenizer and the held-out sequences.
    pub(in crate::data) fn load(&self, cache: &Path) -> Result<TrainingData, TextError> {
        let (file, tokenizer) = self.tokenizer(cache)?;
        let mask = tokenizer.special().mask;
        let length = self.text.sequence_tokens;
        let shape = TokenShape { length, vocabulary: tokenizer.size(), mask };
        let stream = DataStream {
            sources: self.hash(&file)?,
            shard_samples: self.shard_samples.get(),
            window_shards: self.window_shards,
        };
        let mut reading = self.open(tokenizer, &StreamPosition::default());
        let n_each = (TEST_SEQUENCES_MAX / self.text.sources.len().max(1)).max(1) as u32;
        let mut held_out = Vec::new();
        for (source, settings) in reading.sources.iter_mut().zip(&self.text.sources) {
            for _ in 0..self.held_out_sequences.min(n_each) {
                let next = source.next(&reading.tokenizer, length.into(), settings)?;
                let want = (reading.held_out as usize + 1) * usize::from(length);
                held_out.extend(next.ok_or_else(|| source.too_short(settings, want, length.into()))?);
            }
        }
        let sequences = |ids| Samples::Tokens(TokenSequences { length, ids });
        Ok(TrainingData {
            name: self.text.name.clone(),
            kind: SampleKind::Tokens(shape),
            train: sequences(Vec::new()),
            test: sequences(held_out),
            tokenizer: Some(file.into()),
            columns: None,
            stream: Some(stream),
        })
    }

    /// The stream from `position` on. `tokenizer`: the file of [`TrainingData::tokenizer`].
    ///
    /// # Errors
    /// Another file.
    pub fn stream(&self, tokenizer: &[u8], position: &StreamPosition) -> Result<StreamReader, TextError> {
        let tokenizer = Tokenizer::read(tokenizer).map_err(RunTokenizerError::from)?;
        Ok(self.open(tokenizer, position))
    }

    /// Weights of the sources, by their names.
    pub fn weights(&self) -> BTreeMap<String, f64> {
        self.text.sources.iter().map(|source| (source.name.clone(), source.weight)).collect()
    }

    fn open(&self, tokenizer: Tokenizer, position: &StreamPosition) -> StreamReader {
        let nowhere = SourcePosition::default();
        let places = position.sources.iter().chain(std::iter::repeat(&nowhere));
        let sources = self.text.sources.iter().zip(places).map(|(source, place)| StreamedSource {
            reader: LazySource::new(source.file.clone(), &source.field, place.cursor),
            pending: place.pending.iter().copied().collect(),
            n_sequences: place.n_sequences,
        });
        StreamReader {
            length: self.text.sequence_tokens.into(),
            shard_samples: self.shard_samples.get() as usize,
            held_out: self.held_out_sequences.into(),
            tokenizer,
            weights: SourceWeights::new(self.text.sources.iter().map(|source| source.weight), self.text.seed),
            sources: sources.collect(),
            n_sequences: position.n_sequences,
            filling: Vec::new(),
        }
    }

    /// Hash of all that decides what a shard is of.
    fn hash(&self, tokenizer: &[u8]) -> Result<Sha256Hash, TextError> {
        let mut key = LAYOUT_VERSION.to_le_bytes().to_vec();
        key.extend_from_slice(&Sha256Hash::of(tokenizer).0);
        key.extend_from_slice(&self.text.seed.to_le_bytes());
        key.extend_from_slice(&self.text.sequence_tokens.to_le_bytes());
        key.extend_from_slice(&self.held_out_sequences.to_le_bytes());
        key.extend_from_slice(&self.shard_samples.get().to_le_bytes());
        for source in &self.text.sources {
            let hash = source.file.stream_hash().map_err(|error| failed(source, error))?;
            key.extend_from_slice(&hash.0);
            key.extend_from_slice(&Sha256Hash::of(source.field.as_bytes()).0);
            key.extend_from_slice(&source.weight.to_le_bytes());
        }
        Ok(Sha256Hash::of(&key))
    }

    /// The tokenizer that is named, or one that is trained on the beginning of each source.
    fn tokenizer(&self, cache: &Path) -> Result<(Vec<u8>, Tokenizer), TextError> {
        if let Some(path) = &self.text.tokenizer {
            return Ok(tokenizer::existing(path)?);
        }
        let n_each = VOCABULARY_BYTES / self.text.sources.len().max(1) as u64;
        let (mut texts, mut key) = (Vec::new(), self.text.vocabulary.to_le_bytes().to_vec());
        for source in &self.text.sources {
            let mut reader = LazySource::new(source.file.clone(), &source.field, SourceCursor::default());
            let mut n_bytes = 0;
            while n_bytes < n_each
                && let Some(piece) = reader.next().map_err(|error| failed(source, error))?
            {
                n_bytes += piece.text.len() as u64;
                key.extend_from_slice(&Sha256Hash::of(piece.text.as_bytes()).0);
                texts.push(piece.text);
            }
        }
        let train = || tokenizer::train(texts.iter().map(String::as_str), self.text.vocabulary);
        Ok(tokenizer::cached(cache, &key, train)?)
    }
}

fn failed(source: &TextSource, error: impl Into<super::SourceError>) -> TextError {
    TextError::Source { file: source.file.clone(), source: error.into() }
}

impl StreamReader {
    /// Chooses the sources of the next sequences by other weights, of which one is above zero. A source that `weights` does not
    /// name keeps that of `settings`.
    pub fn set_weights(&mut self, settings: &StreamSettings, weights: &BTreeMap<String, f64>) {
        let weight = |source: &TextSource| *weights.get(&source.name).unwrap_or(&source.weight);
        self.weights = SourceWeights::new(settings.text.sources.iter().map(weight), settings.text.seed);
    }

    /// The next shard, compressed. After an error it goes on where it was.
    ///
    /// # Errors
    /// A source that cannot be read, or has too little text.
    pub fn next_shard(&mut self, settings: &StreamSettings) -> Result<(Vec<u8>, ShardEntry), TextError> {
        while self.filling.len() < self.shard_samples * self.length {
            let index = self.weights.pick(self.n_sequences);
            let (Some(source), Some(named)) = (self.sources.get_mut(index), settings.text.sources.get(index))
            else {
                break;
            };
            self.filling.extend(source.next_trained(&self.tokenizer, (self.length, self.held_out), named)?);
            self.n_sequences += 1;
        }
        let length = u16::try_from(self.length).unwrap_or(u16::MAX);
        let samples = Samples::Tokens(TokenSequences { length, ids: std::mem::take(&mut self.filling) });
        Ok(samples.encode()?)
    }

    /// Where it is, after a shard.
    pub fn position(&self) -> StreamPosition {
        let sources = self.sources.iter().map(|source| SourcePosition {
            cursor: source.reader.cursor(),
            pending: source.pending.iter().copied().collect(),
            n_sequences: source.n_sequences,
        });
        StreamPosition { n_sequences: self.n_sequences, sources: sources.collect() }
    }
}

impl StreamedSource {
    /// The next sequence of this pass; none at the end of the source.
    fn next(
        &mut self,
        tokenizer: &Tokenizer,
        length: usize,
        named: &TextSource,
    ) -> Result<Option<Vec<u32>>, TextError> {
        while self.pending.len() < length {
            let read = self.reader.next().map_err(|error| failed(named, error))?;
            let Some(piece) = read else { return Ok(None) };
            self.pending.extend(tokenizer.encode(&piece.text).map_err(RunTokenizerError::from)?);
            self.pending.extend(piece.ends_document.then_some(tokenizer.special().separator));
        }
        self.n_sequences += 1;
        Ok(Some(self.pending.drain(..length).collect()))
    }

    /// The next sequence that is not held out. At the end of the source the next pass begins; what is left of the last
    /// sequence is dropped, so that the first ones are the same in each pass.
    fn next_trained(
        &mut self,
        tokenizer: &Tokenizer,
        (length, held_out): (usize, u64),
        named: &TextSource,
    ) -> Result<Vec<u32>, TextError> {
        loop {
            match self.next(tokenizer, length, named)? {
                Some(sequence) if self.n_sequences > held_out => return Ok(sequence),
                Some(_) => {}
                None if self.n_sequences <= held_out => {
                    let want = (held_out as usize + 1) * length;
                    return Err(self.too_short(named, want, length));
                }
                None => {
                    self.reader.begin_again();
                    self.pending.clear();
                    self.n_sequences = 0;
                }
            }
        }
    }

    fn too_short(&self, named: &TextSource, want: usize, length: usize) -> TextError {
        let got = self.pending.len() + length * self.n_sequences as usize;
        TextError::TooShort { file: named.file.clone(), want, got }
    }
}

#[cfg(test)]
mod tests;
