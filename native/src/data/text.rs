//! Text data: documents from files, a tokenizer, and sequences of tokens.
//!
//! Deterministic: the same files, settings and seed give the same sequences. Each file is bounded and checked, and an
//! error names it. Blocking: call it from a thread that may block.

mod encoding;
#[cfg(test)]
mod fuzz;
mod mix;
mod source;
pub mod stream;
mod tokenizer;

use std::path::{Path, PathBuf};

use barnraise_learning::tokenizer::Tokenizer;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{DatasetError, SampleKind, Samples, TokenSequences, TokenShape};

use super::TrainingData;
use super::file::DataFile;
pub use encoding::EncodingError;
pub use source::SourceError;
pub(crate) use tokenizer::N_SPECIAL;
#[cfg(test)]
pub(crate) use tokenizer::train as train_tokenizer;
pub use tokenizer::{RunTokenizerError, encode_all, existing as existing_tokenizer};

/// Most held-out sequences.
pub const TEST_SEQUENCES_MAX: usize = 512;

/// Where the text is, in files that have several fields.
const TEXT_FIELD: &str = "text";

/// Settings of a text data set.
#[derive(Debug, Clone, PartialEq)]
pub struct TextSettings {
    /// Display name.
    pub name: String,
    /// Files, and their weights.
    pub sources: Vec<TextSource>,
    /// An existing `tokenizer.json`; without one, a vocabulary is trained on the text.
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a vocabulary that is trained, the special ones included; a small text gives fewer.
    pub vocabulary: u32,
    /// Tokens of a sequence.
    pub sequence_tokens: u16,
    /// Share of each source that is held out, 0 to 1.
    pub held_out: f64,
    /// Seed of the order of the sequences.
    pub seed: u64,
}

/// A file with text.
#[derive(Debug, Clone, PartialEq)]
pub struct TextSource {
    /// What an operator calls it; of a stream no two sources have the same.
    pub name: String,
    /// Plain text, JSON lines or Parquet; the first two compressed by gzip or Zstandard, or not.
    pub file: DataFile,
    /// Field of each JSON line, or column of the Parquet file, that has the text.
    pub field: String,
    /// Relative to the other sources: how often a sequence is of this one.
    pub weight: f64,
}

/// Why the text cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file cannot be read.
    #[error("{file}: {source}")]
    Source {
        /// The file.
        file: DataFile,
        /// The error.
        source: SourceError,
    },
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] RunTokenizerError),
    /// A shard of a stream cannot be encoded.
    #[error(transparent)]
    Shard(#[from] DatasetError),
    /// Too little text in a file for a sequence to train on beside those that are held out.
    #[error("{file}: {got} tokens, at least {want} are needed")]
    TooShort {
        /// The file.
        file: DataFile,
        /// Tokens of these sequences.
        want: usize,
        /// Tokens in the file.
        got: usize,
    },
}

/// The documents of files that a run was not made of: plain text, the field `text` of JSON lines, or the column `text` of
/// Parquet files.
///
/// Of several, blank ones are left out.
///
/// # Errors
/// No such file, no text in any, or too much of it.
pub fn documents<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<String>, TextError> {
    let (mut documents, mut bytes_left) = (Vec::new(), source::TEXT_BYTES_MAX);
    for path in paths {
        let path = path.as_ref();
        let failed = |source| TextError::Source { file: path.to_owned().into(), source };
        let read = match source::read(path, TEXT_FIELD, bytes_left) {
            Err(SourceError::Empty) if paths.len() > 1 => continue,
            read => read.map_err(failed)?,
        };
        bytes_left = bytes_left.saturating_sub(n_bytes(&read));
        documents.extend(read);
    }
    Ok(documents)
}

fn n_bytes(documents: &[String]) -> u64 {
    documents.iter().map(|text| text.len() as u64).sum()
}

impl TextSettings {
    /// Reads the sources and the tokenizer, which is trained or taken from `cache` where none is named, and cuts and mixes
    /// the sequences.
    pub fn load(&self, cache: &Path) -> Result<TrainingData, TextError> {
        let mut documents = Vec::with_capacity(self.sources.len());
        let mut bytes_left = source::TEXT_BYTES_MAX;
        for source in &self.sources {
            let path = source.file.local(cache).map_err(SourceError::from);
            let read = path.and_then(|path| source::read(&path, &source.field, bytes_left));
            let read =
                read.map_err(|error| TextError::Source { file: source.file.clone(), source: error })?;
            bytes_left = bytes_left.saturating_sub(n_bytes(&read));
            documents.push(read);
        }
        self.of_documents(documents, cache)
    }

    /// As [`Self::load`], from the contents of the sources, which are plain text.
    pub(crate) fn load_contents(
        &self,
        contents: &[Vec<u8>],
        cache: &Path,
    ) -> Result<TrainingData, TextError> {
        let documents = self.sources.iter().zip(contents).map(|(source, content)| {
            let read = encoding::decode(content).map(|text| vec![text]);
            read.map_err(|error| TextError::Source { file: source.file.clone(), source: error.into() })
        });
        self.of_documents(documents.collect::<Result<_, _>>()?, cache)
    }

    /// Kind of a sample, as far as it is known before the text is read: a vocabulary that is trained may become smaller.
    pub fn shape(&self) -> TokenShape {
        let existing = self.tokenizer.as_ref().and_then(|path| existing_tokenizer(path).ok());
        let (vocabulary, mask) = match existing {
            Some((_, tokenizer)) => (tokenizer.size(), tokenizer.special().mask),
            None => (self.vocabulary, Some(0)),
        };
        TokenShape { length: self.sequence_tokens, vocabulary, mask }
    }

    fn of_documents(&self, documents: Vec<Vec<String>>, cache: &Path) -> Result<TrainingData, TextError> {
        let (file, tokenizer) = self.tokenizer(&documents, cache)?;
        let mask = tokenizer.special().mask;
        let shape = TokenShape { length: self.sequence_tokens, vocabulary: tokenizer.size(), mask };
        let mut parts = Vec::with_capacity(documents.len());
        for (source, documents) in self.sources.iter().zip(documents) {
            let ids = encode_all(&tokenizer, &documents).map_err(RunTokenizerError::from)?;
            parts.push(self.cut(source, &ids)?);
        }
        let (train, test): (Vec<mix::SourceSequences>, Vec<mix::SourceSequences>) = parts.into_iter().unzip();
        let n_train = train.iter().map(|source| source.n_sequences(shape.length)).sum();
        let n_test = test.iter().map(|source| source.n_sequences(shape.length)).sum();
        let samples = |sources: &[mix::SourceSequences], n, salt| {
            let ids = mix::mixed(sources, shape.length, n, self.seed ^ salt);
            Samples::Tokens(TokenSequences { length: shape.length, ids })
        };
        Ok(TrainingData {
            name: self.name.clone(),
            kind: SampleKind::Tokens(shape),
            train: samples(&train, n_train, 0),
            test: samples(&test, TEST_SEQUENCES_MAX.min(n_test), 1),
            tokenizer: Some(file.into()),
            columns: None,
            stream: None,
        })
    }

    /// The tokenizer that is named; else the one from the cache, whose key is a hash of the texts and the vocabulary size,
    /// or a new one.
    fn tokenizer(
        &self,
        documents: &[Vec<String>],
        cache: &Path,
    ) -> Result<(Vec<u8>, Tokenizer), RunTokenizerError> {
        if let Some(path) = &self.tokenizer {
            return tokenizer::existing(path);
        }
        let mut key = Vec::new();
        for document in documents.iter().flatten() {
            key.extend_from_slice(&Sha256Hash::of(document.as_bytes()).0);
        }
        key.extend_from_slice(&self.vocabulary.to_le_bytes());
        let texts = documents.iter().flatten().map(String::as_str);
        tokenizer::cached(cache, &key, || tokenizer::train(texts, self.vocabulary))
    }

    /// Cuts a source into training sequences and held-out ones, which are its end.
    fn cut(
        &self,
        source: &TextSource,
        ids: &[u32],
    ) -> Result<(mix::SourceSequences, mix::SourceSequences), TextError> {
        let length = usize::from(self.sequence_tokens);
        let n_sequences = ids.len() / length.max(1);
        if n_sequences < 2 {
            let file = source.file.clone();
            return Err(TextError::TooShort { file, want: 2 * length, got: ids.len() });
        }
        let n_test = ((n_sequences as f64 * self.held_out) as usize).clamp(1, n_sequences - 1);
        let (train, test) = ids[..n_sequences * length].split_at((n_sequences - n_test) * length);
        let part = |ids: &[u32]| mix::SourceSequences { ids: ids.to_vec(), weight: source.weight };
        Ok((part(train), part(test)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    const RHYME: &str = "This is the cat that killed the rat that ate the malt that lay in the house. ";

    fn settings(folder: &Path) -> TextSettings {
        let source = |name: &str, text: String, weight| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            TextSource { name: name.into(), file: path.into(), field: "text".into(), weight }
        };
        let lines = (0..200).map(|n| format!("{{\"text\": \"The dog, number {n}, worried the cat.\"}}\n"));
        TextSettings {
            name: "Rhymes".into(),
            sources: vec![
                source("rhyme.txt", RHYME.repeat(100), 3.0),
                source("dogs.jsonl", lines.collect(), 1.0),
            ],
            tokenizer: None,
            vocabulary: 120,
            sequence_tokens: 16,
            held_out: 0.1,
            seed: 5,
        }
    }

    #[test]
    fn the_same_files_and_settings_give_the_same_sequences() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        let data = settings.load(&folder.path().join("a")).unwrap();
        let SampleKind::Tokens(shape) = data.kind else { panic!("{:?}", data.kind) };
        assert!(shape.vocabulary > 30 && shape.vocabulary <= 120, "{shape:?}");
        for samples in [&data.train, &data.test] {
            let Samples::Tokens(tokens) = samples else { panic!("no tokens") };
            assert!(tokens.ids.iter().all(|&id| id < shape.vocabulary && id != 1));
        }
        assert!(data.train.n_samples() > 5 * data.test.n_samples());
        // Training again gives the same vocabulary, although the order of maps in the trainer is random.
        let again = settings.load(&folder.path().join("b")).unwrap();
        assert_eq!((&again.train, &again.test), (&data.train, &data.test));
        let cached = settings.load(&folder.path().join("a")).unwrap();
        assert_eq!(cached.train, data.train);
        let other = TextSettings { seed: 6, ..settings }.load(&folder.path().join("a")).unwrap();
        assert_ne!(other.train, data.train);
    }

    #[test]
    fn an_existing_tokenizer_is_used_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let tokenizers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/learning/tests/tokenizers");
        for (name, size, mask) in [("byte-level.json", 700, None), ("word-piece.json", 900, Some(4))] {
            let path = tokenizers.join(name);
            let settings = TextSettings { tokenizer: Some(path.clone()), ..settings(folder.path()) };
            let data = settings.load(&folder.path().join("cache")).unwrap();
            let shape = TokenShape { length: 16, vocabulary: size, mask };
            assert_eq!(data.kind, SampleKind::Tokens(shape));
            assert_eq!(data.tokenizer.unwrap(), std::fs::read(path).unwrap());
            let Samples::Tokens(tokens) = data.train else { panic!("no text") };
            assert!(tokens.ids.iter().all(|&id| id < size && Some(id) != mask));
        }
        assert!(!folder.path().join("cache").exists(), "nothing is trained");
    }

    #[test]
    fn a_vocabulary_is_found_for_a_few_words_that_come_often() {
        let words = ["horse", "house", "farm", "cat", "MacDonald"];
        for n_words in 1..=words.len() {
            let text = words[..n_words].join(" ").repeat(3000);
            for vocabulary in [60, 100, 200, 2000] {
                let file = tokenizer::train([text.as_str()].into_iter(), vocabulary).unwrap();
                let tokenizer = Tokenizer::read(&file).unwrap();
                assert!(tokenizer.size() <= vocabulary);
                let ids = encode_all(&tokenizer, &["horse z".into()]).unwrap();
                assert_eq!(ids.iter().filter(|&&id| id == 0).count(), 1, "z is not known: {ids:?}");
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = settings(folder.path());
        settings.sources[1].field = "body".into();
        let error = settings.load(folder.path()).err().unwrap().to_string();
        assert!(
            error.contains("dogs.jsonl") && error.contains("line 1") && error.contains("body"),
            "{error}"
        );
        let none = folder.path().join("none.txt");
        settings.sources[1].file = none.clone().into();
        let error = settings.load(folder.path()).err().unwrap().to_string();
        assert!(error.contains("none.txt"), "{error}");
        std::fs::write(&none, "Short.").unwrap();
        let error = settings.load(folder.path()).err().unwrap().to_string();
        assert!(error.contains("none.txt") && error.contains("at least 32 are needed"), "{error}");
    }
}
