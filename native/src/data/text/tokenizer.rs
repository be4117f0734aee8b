//! The tokenizer of a run, as a `tokenizer.json`: an existing one, or a unigram vocabulary (Kudo 2018) of the run's own text.
//!
//! It is trained by the `tokenizers` crate on the most frequent words. Its result is sorted afterwards, because the order of
//! its maps is random: the same text gives the same file everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use barnraise_learning::tokenizer::{FILE_BYTES_MAX, Tokenizer, TokenizerError, pieces};
use barnraise_protocol::Sha256Hash;
use serde_json::{Value, json};
use tokenizers::models::unigram::{Unigram, UnigramTrainer};
use tokenizers::utils::parallelism::set_parallelism;

use crate::part;

/// Raised when the same text and settings give another vocabulary.
const VERSION: u32 = 2;
/// Most words that the vocabulary is trained on, the most frequent ones.
const WORDS_MAX: usize = 50_000;
/// Longest word that it is trained on, in characters: a longer one is cut.
const WORD_CHARS_MAX: usize = 48;
/// Pieces at the start of training, for each at its end.
const SEEDS_PER_PIECE: usize = 10;
/// Share of the vocabulary that single characters may take.
const CHARACTERS_SHARE: usize = 4;
/// Longest piece.
const PIECE_CHARS_MAX: usize = 16;
/// Prefix of a word that follows white space, as in SentencePiece.
const SPACE: &str = "\u{2581}";
/// Names of the special tokens, by their ids. Words contain no white space, so no piece has such a name.
const SPECIAL_NAMES: [&str; 3] = ["<unknown token>", "<masked token>", "<end of text>"];
/// Number of special tokens.
pub(crate) const N_SPECIAL: u32 = SPECIAL_NAMES.len() as u32;

/// Why there is no tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum RunTokenizerError {
    /// From the library.
    #[error("the vocabulary cannot be made: {0}")]
    Train(String),
    /// The file, or the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The operator's file cannot be used.
    #[error("{}: {source}", path.display())]
    Existing {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: TokenizerError,
    },
    /// The disk.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// Reads an existing `tokenizer.json`. Returns its bytes as well.
///
/// # Errors
/// A file that is not there, or that cannot be used.
pub fn existing(path: &Path) -> Result<(Vec<u8>, Tokenizer), RunTokenizerError> {
    let failed = |source| RunTokenizerError::File { path: path.to_owned(), source };
    let refused = |source| RunTokenizerError::Existing { path: path.to_owned(), source };
    let got = std::fs::metadata(path).map_err(failed)?.len();
    if got > FILE_BYTES_MAX as u64 {
        let got = usize::try_from(got).unwrap_or(usize::MAX);
        return Err(refused(TokenizerError::FileSize { max: FILE_BYTES_MAX, got }));
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    let tokenizer = Tokenizer::read(&bytes).map_err(refused)?;
    Ok((bytes, tokenizer))
}

/// Trains a vocabulary of at most `vocabulary` tokens on texts, the special ones included. Returns the file.
///
/// # Errors
/// A text without words.
pub(crate) fn train<'a>(
    texts: impl Iterator<Item = &'a str>,
    vocabulary: u32,
) -> Result<Vec<u8>, RunTokenizerError> {
    let n_pieces = vocabulary.saturating_sub(N_SPECIAL) as usize;
    // The file's own steps cut the text: its vocabulary does not matter here.
    let cutter = Tokenizer::read(&encoded(&[("a".to_owned(), 0.0)])?)?;
    let words = frequent_words(&cutter, texts, n_pieces / CHARACTERS_SHARE)?;
    let failed = |error: &dyn std::fmt::Display| RunTokenizerError::Train(error.to_string());
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
    encoded(&in_order(model.iter().cloned().collect()))
}

/// Loads the file named by `key` in `cache`, or trains and stores it. A damaged file is replaced.
///
/// # Errors
/// As of `train`; a cache that cannot be written.
pub(super) fn cached(
    cache: &Path,
    key: &[u8],
    train: impl FnOnce() -> Result<Vec<u8>, RunTokenizerError>,
) -> Result<(Vec<u8>, Tokenizer), RunTokenizerError> {
    let key = Sha256Hash::of(&[key, &VERSION.to_le_bytes()].concat());
    let path = cache.join("vocabularies").join(format!("{key}.json"));
    if let Ok(kept) = existing(&path) {
        return Ok(kept);
    }
    tracing::info!("training a vocabulary on the text");
    let bytes = train()?;
    let tokenizer = Tokenizer::read(&bytes)?;
    part::write(&path, &bytes).map_err(|source| RunTokenizerError::File { path, source })?;
    Ok((bytes, tokenizer))
}

/// The tokens of the documents, with a separator after each, on all processors.
///
/// # Errors
/// A text that the tokenizer cannot spell.
pub fn encode_all(tokenizer: &Tokenizer, documents: &[String]) -> Result<Vec<u32>, TokenizerError> {
    let separator = tokenizer.special().separator;
    // Each piece, and whether a document ends with it.
    let parts: Vec<(&str, bool)> = documents
        .iter()
        .flat_map(|document| {
            let cut: Vec<&str> = pieces(document).collect();
            let n_cut = cut.len();
            cut.into_iter().enumerate().map(move |(index, piece)| (piece, index + 1 == n_cut))
        })
        .collect();
    let encode = |parts: &[(&str, bool)]| {
        let mut ids = Vec::new();
        for &(piece, is_end) in parts {
            ids.extend(tokenizer.encode(piece)?);
            ids.extend(is_end.then_some(separator));
        }
        Ok::<_, TokenizerError>(ids)
    };
    on_all_processors(&parts, encode).map(|encoded| encoded.concat())
}

/// What `work` makes of the parts of a list, in their order.
fn on_all_processors<T: Sync, R: Send, E: Send>(
    list: &[T],
    work: impl Fn(&[T]) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let n_each = list.len().div_ceil(n_threads).max(1);
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = list.chunks(n_each).map(|part| scope.spawn(move || work(part))).collect();
        let done = threads.into_iter().map(|thread| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        done.collect()
    })
}

/// The file, as a text is cut and spelt by it: white space is one space; a run of letters, of digits or of other characters
/// is a word; and a word is its likeliest pieces.
fn encoded(pieces: &[(String, f64)]) -> Result<Vec<u8>, RunTokenizerError> {
    let [unknown, ..] = SPECIAL_NAMES;
    let special = SPECIAL_NAMES.iter().map(|name| json!([name, 0.0]));
    let pieces = pieces.iter().map(|(piece, score)| json!([piece, score]));
    let added: Vec<Value> = SPECIAL_NAMES
        .iter()
        .enumerate()
        .map(|(id, name)| {
            json!({
                "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        })
        .collect();
    let (letters, digits) = ("\\p{Alphabetic}\\p{M}", "\\p{N}");
    let word = format!("{SPACE}?(?:[{letters}]+|{digits}+|[^{letters}{digits}{SPACE}]+)");
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Replace", "pattern": { "Regex": "[\\s\\p{Cc}]+" }, "content": " " },
            { "type": "Strip", "strip_left": true, "strip_right": true },
            { "type": "Prepend", "prepend": SPACE },
            { "type": "Replace", "pattern": { "String": " " }, "content": SPACE },
        ]},
        "pre_tokenizer": {
            "type": "Split", "pattern": { "Regex": word }, "behavior": "Isolated", "invert": false,
        },
        "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": SPACE }, "content": " " },
            { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
        ]},
        "model": {
            "type": "Unigram",
            "unk_id": SPECIAL_NAMES.iter().position(|name| *name == unknown),
            "byte_fallback": false,
            "vocab": special.chain(pieces).collect::<Vec<_>>(),
        },
    });
    serde_json::to_vec(&file).map_err(|error| RunTokenizerError::Train(error.to_string()))
}

/// The most frequent words of the most frequent characters, with their counts. Each of the characters is a word as well:
/// if training dropped a character, some pieces would have no alternative, and pruning would never end.
fn frequent_words<'a>(
    cutter: &Tokenizer,
    texts: impl Iterator<Item = &'a str>,
    characters_max: usize,
) -> Result<Vec<(String, u32)>, TokenizerError> {
    let parts: Vec<&str> = texts.flat_map(pieces).collect();
    let counted = on_all_processors(&parts, |parts| {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for part in parts {
            for word in cutter.words(part)? {
                for word in cut(&word) {
                    match counts.get_mut(word) {
                        Some(count) => *count = count.saturating_add(1),
                        None => {
                            counts.insert(word.to_owned(), 1);
                        }
                    }
                }
            }
        }
        Ok::<_, TokenizerError>(counts)
    })?;
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for (word, count) in counted.into_iter().flatten() {
        let total = counts.entry(word).or_default();
        *total = total.saturating_add(count);
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
    Ok(words)
}

/// A word in parts of at most [`WORD_CHARS_MAX`] characters.
fn cut(mut word: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let end = word.char_indices().nth(WORD_CHARS_MAX).map_or(word.len(), |(at, _)| at);
        let (part, rest) = word.split_at(end);
        word = rest;
        (!part.is_empty()).then_some(part)
    })
}

/// Pieces by score, then by name: the trainer's last step goes through a map.
fn in_order(mut pieces: Vec<(String, f64)>) -> Vec<(String, f64)> {
    pieces.retain(|(piece, score)| !piece.is_empty() && piece != "<unk>" && score.is_finite());
    pieces.sort_by(|(a, x), (b, y)| y.total_cmp(x).then_with(|| a.cmp(b)));
    pieces
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;
