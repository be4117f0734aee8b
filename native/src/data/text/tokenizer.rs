//! A unigram vocabulary (Kudo 2018) of the run's own text, and the encoding of text as its tokens.
//!
//! Trained by the `tokenizers` crate on the most frequent words. Its result is sorted afterwards, because the order of
//! its maps is random: the same text gives the same vocabulary everywhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use barnraise_learning::unigram::Vocabulary;
use barnraise_learning::words;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{SEPARATOR_TOKEN, SPECIAL_TOKENS, UNKNOWN_TOKEN};
use serde::{Deserialize, Serialize};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::utils::parallelism::set_parallelism;

/// Raised when the same text and settings give another vocabulary.
const VERSION: u32 = 1;
/// Most words that the vocabulary is trained on, the most frequent ones.
const WORDS_MAX: usize = 50_000;
/// Pieces at the start of training, for each at its end.
const SEEDS_PER_PIECE: usize = 10;
/// Share of the vocabulary that single characters may take.
const CHARACTERS_SHARE: usize = 4;
/// Longest piece.
const PIECE_CHARS_MAX: usize = 16;
/// Names of the special tokens, by their ids. Pieces contain no white space, so no piece has such a name.
pub(crate) const SPECIAL_NAMES: [&str; SPECIAL_TOKENS as usize] =
    ["<unknown token>", "<masked token>", "<end of text>"];
/// Largest file of a vocabulary that is read.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Why the vocabulary cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// From the library.
    #[error("the vocabulary cannot be made: {0}")]
    Train(String),
    /// The cache.
    #[error("{}: {source}", path.display())]
    Cache {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// A vocabulary and its tokens' log-probabilities.
pub struct Tokenizer {
    model: Unigram,
    ids: HashMap<String, u16>,
}

/// Content of a cache file.
#[derive(Serialize, Deserialize)]
struct CachedTokenizer {
    version: u32,
    /// After the special tokens, in the order of their ids.
    pieces: Vec<(String, f64)>,
}

impl Tokenizer {
    /// Trains `vocabulary` tokens on texts.
    pub fn train<'a>(texts: impl Iterator<Item = &'a str>, vocabulary: u16) -> Result<Self, TokenizerError> {
        let n_pieces = usize::from(vocabulary.saturating_sub(SPECIAL_TOKENS));
        let words = frequent_words(texts, n_pieces / CHARACTERS_SHARE);
        let failed = |error: &dyn std::fmt::Display| TokenizerError::Train(error.to_string());
        let trainer = UnigramTrainer::builder()
            .show_progress(false)
            .vocab_size(n_pieces as u32)
            .max_piece_length(PIECE_CHARS_MAX)
            .seed_size(n_pieces * SEEDS_PER_PIECE)
            .build()
            .map_err(|error| failed(&error))?;
        // Sums over several threads would depend on which of them was done first.
        set_parallelism(false);
        let mut model = Unigram::default();
        trainer.do_train(words, &mut model).map_err(|error| failed(&error))?;
        Self::of(in_order(model.iter().cloned().collect()))
    }

    /// Loads the file named by `key` in `cache`, or trains and stores it. A damaged file is replaced.
    pub fn cached(
        cache: &Path,
        key: &Sha256Hash,
        train: impl FnOnce() -> Result<Self, TokenizerError>,
    ) -> Result<Self, TokenizerError> {
        let folder = cache.join("vocabularies");
        let path = folder.join(format!("{key}.json"));
        if let Some(pieces) = read_kept(&path) {
            return Self::of(pieces);
        }
        tracing::info!("training a vocabulary on the text");
        let tokenizer = train()?;
        let failed = |source| TokenizerError::Cache { path: path.clone(), source };
        let text = keep(tokenizer.pieces()).map_err(|error| failed(error.into()))?;
        std::fs::create_dir_all(&folder).map_err(failed)?;
        // The process id keeps two programs that share the cache from writing into one file.
        let part = folder.join(format!("{key}.part-{}", std::process::id()));
        std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, &path)).map_err(failed)?;
        Ok(tokenizer)
    }

    fn of(pieces: Vec<(String, f64)>) -> Result<Self, TokenizerError> {
        let named = SPECIAL_NAMES.map(|name| (name.to_owned(), 0.0));
        let all: Vec<(String, f64)> = named.into_iter().chain(pieces).collect();
        let ids = all.iter().enumerate().map(|(id, (piece, _))| {
            let id = u16::try_from(id).map_err(|_| TokenizerError::Train("too many pieces".into()))?;
            Ok((piece.clone(), id))
        });
        let ids = ids.collect::<Result<HashMap<_, _>, TokenizerError>>()?;
        let model = Unigram::from(all, Some(UNKNOWN_TOKEN.into()), false);
        let model = model.map_err(|error| TokenizerError::Train(error.to_string()))?;
        Ok(Self { model, ids })
    }

    /// The vocabulary for export.
    pub fn export(&self) -> Vocabulary {
        Vocabulary { pieces: self.pieces() }
    }

    fn pieces(&self) -> Vec<(String, f64)> {
        self.model.iter().skip(SPECIAL_TOKENS.into()).cloned().collect()
    }

    /// Number of tokens, special ones included.
    pub fn vocabulary(&self) -> u16 {
        u16::try_from(self.ids.len()).unwrap_or(u16::MAX)
    }

    /// The most likely tokens of the documents, with a separator after each document.
    pub fn encode_all(&self, documents: &[String]) -> Result<Vec<u16>, TokenizerError> {
        let mut words: HashMap<String, Vec<u16>> = HashMap::new();
        let mut all = Vec::new();
        let mut result = Ok(());
        for document in documents {
            words::each(document, |word| {
                if let Some(ids) = words.get(word) {
                    all.extend_from_slice(ids);
                    return;
                }
                match self.encode_word(word) {
                    Ok(ids) => {
                        all.extend_from_slice(&ids);
                        words.insert(word.to_owned(), ids);
                    }
                    Err(error) => result = Err(error),
                }
            });
            all.push(SEPARATOR_TOKEN);
        }
        result.map(|()| all)
    }

    fn encode_word(&self, word: &str) -> Result<Vec<u16>, TokenizerError> {
        let pieces = self.model.encode(word).map_err(|error| TokenizerError::Train(error.to_string()))?;
        Ok(pieces.iter().map(|piece| self.ids.get(piece).copied().unwrap_or(UNKNOWN_TOKEN)).collect())
    }
}

/// `None` where the file is missing, or is no vocabulary of this version.
fn read_kept(path: &Path) -> Option<Vec<(String, f64)>> {
    if std::fs::metadata(path).ok()?.len() > FILE_BYTES_MAX {
        return None;
    }
    kept(&std::fs::read(path).ok()?)
}

/// Encodes a vocabulary for the cache.
pub(super) fn keep(pieces: Vec<(String, f64)>) -> serde_json::Result<String> {
    serde_json::to_string(&CachedTokenizer { version: VERSION, pieces })
}

/// Decodes a cached vocabulary; `None` where it is of another version or damaged.
pub(super) fn kept(bytes: &[u8]) -> Option<Vec<(String, f64)>> {
    let kept: CachedTokenizer = serde_json::from_slice(bytes).ok()?;
    let n_distinct = kept.pieces.iter().map(|(piece, _)| piece).collect::<BTreeSet<_>>().len();
    let is_whole = kept.version == VERSION
        && !kept.pieces.is_empty()
        && n_distinct == kept.pieces.len()
        && kept.pieces.len() <= usize::from(u16::MAX - SPECIAL_TOKENS)
        && kept.pieces.iter().all(|(piece, score)| !piece.is_empty() && score.is_finite());
    is_whole.then_some(kept.pieces)
}

/// The most frequent words of the most frequent characters, with their counts. Each of the characters is a word as well:
/// if training dropped a character, some pieces would have no alternative, and pruning would never end.
fn frequent_words<'a>(texts: impl Iterator<Item = &'a str>, characters_max: usize) -> Vec<(String, u32)> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for text in texts {
        words::each(text, |word| match counts.get_mut(word) {
            Some(count) => *count = count.saturating_add(1),
            None => {
                counts.insert(word.to_owned(), 1);
            }
        });
    }
    let mut characters: BTreeMap<char, u64> = BTreeMap::new();
    for (word, count) in &counts {
        for character in word.chars() {
            *characters.entry(character).or_default() += u64::from(*count);
        }
    }
    let mut characters: Vec<(char, u64)> = characters.into_iter().collect();
    characters.sort_by_key(|&(character, count)| (std::cmp::Reverse(count), character));
    let known: BTreeSet<char> = characters.into_iter().take(characters_max).map(|(c, _)| c).collect();
    let mut words: Vec<(String, u32)> =
        counts.into_iter().filter(|(word, _)| word.chars().all(|c| known.contains(&c))).collect();
    words.sort_by(|(a, n_a), (b, n_b)| n_b.cmp(n_a).then_with(|| a.cmp(b)));
    words.truncate(WORDS_MAX);
    words.extend(known.into_iter().map(|character| (character.to_string(), 1)));
    words
}

/// Pieces by score, then by name: the trainer's last step goes through a map.
fn in_order(mut pieces: Vec<(String, f64)>) -> Vec<(String, f64)> {
    pieces.retain(|(piece, score)| !piece.is_empty() && piece != "<unk>" && score.is_finite());
    pieces.sort_by(|(a, x), (b, y)| y.total_cmp(x).then_with(|| a.cmp(b)));
    pieces
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_learning::unigram::Unigram as Segmenter;
    use proptest::prelude::*;

    use super::*;

    fn both() -> (Tokenizer, Segmenter) {
        let text = "This is the cat that killed the rat that ate the malt that lay in the house; it's 1913, so \
            naïve cats — and rats — ate 42 malts, unless the farmer's cow tossed the dog. ";
        let tokenizer = Tokenizer::train([text.repeat(50).as_str()].into_iter(), 200).unwrap();
        let segmenter = Segmenter::new(tokenizer.export()).unwrap();
        (tokenizer, segmenter)
    }

    proptest! {
        /// A tab makes the tokens that the backbone made: of anything, of words in any order, of parts of words.
        #[test]
        fn the_segmenter_of_a_tab_makes_the_same_tokens(
            anything in ".{0,60}",
            known in "([Tt]his|cat|rat|hous|malt|that|the|a|e| |, |'s|1913|ï|—|zq){0,30}",
        ) {
            // Trained once for all cases.
            static BOTH: std::sync::OnceLock<(Tokenizer, Segmenter)> = std::sync::OnceLock::new();
            let (tokenizer, segmenter) = BOTH.get_or_init(both);
            for text in [anything, known] {
                let mut want = tokenizer.encode_all(std::slice::from_ref(&text)).unwrap();
                prop_assert_eq!(want.pop(), Some(SEPARATOR_TOKEN));
                prop_assert_eq!(segmenter.encode(&text), want, "{:?}", text);
            }
        }
    }

    /// As it is kept in the cache, and as others get it.
    #[test]
    fn golden_text() {
        let pieces = vec![("\u{2581}the".to_owned(), -1.5), ("cat".to_owned(), -3.0)];
        let golden = r#"{"version":1,"pieces":[["▁the",-1.5],["cat",-3.0]]}"#;
        assert_eq!(keep(pieces.clone()).unwrap(), golden);
        assert_eq!(kept(golden.as_bytes()).as_deref(), Some(&pieces[..]));
        let golden = r#"{"pieces":[["▁the",-1.5],["cat",-3.0]]}"#;
        assert_eq!(serde_json::to_string(&Vocabulary { pieces: pieces.clone() }).unwrap(), golden);
        assert_eq!(serde_json::from_str::<Vocabulary>(golden).unwrap(), Vocabulary { pieces });
    }

    #[test]
    fn the_two_count_the_same_tokens() {
        let (tokenizer, segmenter) = both();
        assert_eq!(segmenter.size(), tokenizer.vocabulary());
        let json = serde_json::to_string(&tokenizer.export()).unwrap();
        let again: Vocabulary = serde_json::from_str(&json).unwrap();
        for ((piece, score), (want, near)) in again.pieces.iter().zip(tokenizer.export().pieces) {
            // Numbers that are read back from text may differ in the last bit.
            assert!(*piece == want && (score - near).abs() < 1e-12, "{piece} {score}, {want} {near}");
        }
    }
}
