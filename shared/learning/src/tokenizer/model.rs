//! The model of a file: its vocabulary, and how a word becomes tokens of it.
//!
//! The library trusts its file. So all that it relies on is checked before: the lengths of tokens, that an id is of one
//! token, and that merges make tokens.

use std::collections::{HashMap, HashSet};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokenizers::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;

use super::error::TokenizerError;

/// Most tokens: four times those of the largest vocabularies of the field.
pub(super) const TOKENS_MAX: usize = 1 << 20;
/// Longest token, in bytes.
pub(super) const TOKEN_BYTES_MAX: usize = 512;
/// All tokens together, in bytes.
const VOCABULARY_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Most merges.
const MERGES_MAX: usize = 4 * TOKENS_MAX;
/// Longest word that WordPiece cuts, in characters: the time rises with its third power.
const WORD_CHARS_MAX: u64 = 1000;

const PART: &str = "model";

/// A model that was checked.
pub(super) struct CheckedModel {
    pub(super) model: ModelWrapper,
    /// Stands for what the vocabulary cannot spell.
    pub(super) unknown: Option<u32>,
    /// The highest id, and one.
    pub(super) size: usize,
}

/// Reads the model of a file.
pub(super) fn of(value: &mut Value) -> Result<CheckedModel, TokenizerError> {
    let fields = value.as_object_mut().ok_or_else(|| failed("it is no object"))?;
    let kind = match fields.remove("type") {
        Some(Value::String(kind)) => kind,
        // Files of the library's first versions do not say.
        Some(_) | None => guessed(fields).to_owned(),
    };
    match kind.as_str() {
        "BPE" => bpe(fields),
        "Unigram" => unigram(fields),
        "WordPiece" => word_piece(fields),
        "WordLevel" => word_level(fields),
        other => {
            let other: String = other.chars().take(40).collect();
            Err(failed(format!("`{other}` is not known; there are BPE, Unigram, WordPiece, WordLevel")))
        }
    }
}

fn guessed(fields: &Map<String, Value>) -> &'static str {
    match fields {
        _ if fields.contains_key("merges") => "BPE",
        _ if fields.get("vocab").is_some_and(Value::is_array) => "Unigram",
        _ if fields.contains_key("max_input_chars_per_word") => "WordPiece",
        _ => "WordLevel",
    }
}

fn bpe(fields: &mut Map<String, Value>) -> Result<CheckedModel, TokenizerError> {
    // Encodings by chance are for training by others: here a text has one.
    fields.remove("dropout");
    let vocabulary = Vocabulary::of(fields)?;
    let text = |key| fields.get(key).and_then(Value::as_str).unwrap_or_default();
    let unknown = vocabulary.ids.get(text("unk_token")).copied();
    let prefix = text("continuing_subword_prefix");
    if prefix.len() > TOKEN_BYTES_MAX || text("end_of_word_suffix").len() > TOKEN_BYTES_MAX {
        return Err(failed(format!("an affix has more than {TOKEN_BYTES_MAX} bytes")));
    }
    let merges =
        fields.get("merges").and_then(Value::as_array).ok_or_else(|| failed("`merges` is no list"))?;
    if merges.len() > MERGES_MAX {
        return Err(failed(format!("{} merges, at most {MERGES_MAX} are allowed", merges.len())));
    }
    for (index, merge) in merges.iter().enumerate() {
        let pair = match merge {
            Value::String(merge) => merge.split_once(' '),
            Value::Array(parts) => match parts.as_slice() {
                [Value::String(left), Value::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        let made = pair.and_then(|(left, right)| {
            let is_known = vocabulary.ids.contains_key(left) && vocabulary.ids.contains_key(right);
            is_known.then_some([left, right.strip_prefix(prefix)?].concat())
        });
        if !made.is_some_and(|made| vocabulary.ids.contains_key(made.as_str())) {
            return Err(failed(format!("merge {index} is not of two tokens that make a third")));
        }
    }
    let size = vocabulary.size;
    Ok(CheckedModel { model: ModelWrapper::BPE(read::<BPE>(fields)?), unknown, size })
}

fn unigram(fields: &Map<String, Value>) -> Result<CheckedModel, TokenizerError> {
    let pieces = fields.get("vocab").and_then(Value::as_array).ok_or_else(|| failed("`vocab` is no list"))?;
    let names = pieces.iter().map(|piece| piece[0].as_str());
    check_names(names)?;
    let unknown = fields.get("unk_id").and_then(Value::as_u64);
    let unknown = unknown.map(|id| u32::try_from(id).map_err(failed)).transpose()?;
    let size = pieces.len();
    // Two pieces of one name would have two ids, of which the last would be used.
    let distinct: HashSet<&str> = pieces.iter().filter_map(|piece| piece[0].as_str()).collect();
    if distinct.len() != size {
        return Err(failed("a token is there twice"));
    }
    Ok(CheckedModel { model: ModelWrapper::Unigram(read::<Unigram>(fields)?), unknown, size })
}

fn word_piece(fields: &Map<String, Value>) -> Result<CheckedModel, TokenizerError> {
    let longest = fields.get("max_input_chars_per_word").and_then(Value::as_u64).unwrap_or_default();
    if longest > WORD_CHARS_MAX {
        let reason = format!("`max_input_chars_per_word` is {longest}, at most {WORD_CHARS_MAX} is allowed");
        return Err(failed(reason));
    }
    let prefix = fields.get("continuing_subword_prefix").and_then(Value::as_str).unwrap_or_default();
    if prefix.len() > TOKEN_BYTES_MAX {
        return Err(failed(format!("the prefix has more than {TOKEN_BYTES_MAX} bytes")));
    }
    let (size, unknown) = of_words(fields)?;
    Ok(CheckedModel {
        model: ModelWrapper::WordPiece(read::<WordPiece>(fields)?),
        unknown: Some(unknown),
        size,
    })
}

fn word_level(fields: &Map<String, Value>) -> Result<CheckedModel, TokenizerError> {
    let (size, unknown) = of_words(fields)?;
    Ok(CheckedModel {
        model: ModelWrapper::WordLevel(read::<WordLevel>(fields)?),
        unknown: Some(unknown),
        size,
    })
}

/// Size, and the unknown token, which the vocabulary must have.
fn of_words(fields: &Map<String, Value>) -> Result<(usize, u32), TokenizerError> {
    let vocabulary = Vocabulary::of(fields)?;
    let unknown = fields.get("unk_token").and_then(Value::as_str).unwrap_or_default();
    match vocabulary.ids.get(unknown) {
        Some(&id) => Ok((vocabulary.size, id)),
        None => Err(failed("`unk_token` is not in its vocabulary")),
    }
}

/// Ids by token.
struct Vocabulary<'a> {
    ids: HashMap<&'a str, u32>,
    size: usize,
}

impl<'a> Vocabulary<'a> {
    fn of(fields: &'a Map<String, Value>) -> Result<Self, TokenizerError> {
        let vocab =
            fields.get("vocab").and_then(Value::as_object).ok_or_else(|| failed("`vocab` is no object"))?;
        check_names(vocab.keys().map(|name| Some(name.as_str())))?;
        let (mut ids, mut taken, mut size) = (HashMap::with_capacity(vocab.len()), HashSet::new(), 0);
        for (name, id) in vocab {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.filter(|&id| (id as usize) < TOKENS_MAX).ok_or_else(|| {
                let (max, got) = (TOKENS_MAX, vocab.len());
                match got > max {
                    true => TokenizerError::Size { max, got },
                    false => failed(format!("an id is not a number below {max}")),
                }
            })?;
            if !taken.insert(id) {
                return Err(failed(format!("id {id} is of two tokens")));
            }
            size = size.max(id as usize + 1);
            ids.insert(name.as_str(), id);
        }
        Ok(Self { ids, size })
    }
}

/// Checks how many tokens there are, and how long they are.
fn check_names<'a>(names: impl ExactSizeIterator<Item = Option<&'a str>>) -> Result<(), TokenizerError> {
    let (max, got) = (TOKENS_MAX, names.len());
    if got == 0 || got > max {
        return Err(TokenizerError::Size { max, got });
    }
    let mut n_bytes = 0;
    for name in names {
        let name = name.ok_or_else(|| failed("a token has no name"))?;
        if name.len() > TOKEN_BYTES_MAX {
            return Err(failed(format!(
                "a token has {} bytes, at most {TOKEN_BYTES_MAX} are allowed",
                name.len()
            )));
        }
        n_bytes += name.len();
    }
    match n_bytes <= VOCABULARY_BYTES_MAX {
        true => Ok(()),
        false => Err(failed(format!(
            "the tokens have {n_bytes} bytes, at most {VOCABULARY_BYTES_MAX} are allowed"
        ))),
    }
}

fn read<T: DeserializeOwned>(fields: &Map<String, Value>) -> Result<T, TokenizerError> {
    serde_json::from_value(Value::Object(fields.clone())).map_err(failed)
}

fn failed(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TokenizerError {
    TokenizerError::part(PART, reason)
}
