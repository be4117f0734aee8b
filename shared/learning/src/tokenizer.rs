//! Text to tokens and back by a `tokenizer.json` of the field: byte-level BPE (Sennrich et al. 2016, Radford et al. 2019),
//! unigram (Kudo 2018), WordPiece (Schuster and Nakajima 2012), or whole words.
//!
//! The `tokenizers` crate computes, natively and in a tab. A file may be hostile: its size, its tokens, its steps and what
//! they make of a text are bounded. Random encodings, padding, truncation and templates of special tokens are left out: a
//! text has one encoding. Special tokens are never made of a text that spells them. Pure.

mod charsmap;
mod error;
mod file;
mod model;
mod pattern;
mod steps;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use tokenizers::tokenizer::{
    AddedVocabulary, Model, ModelWrapper, OffsetReferential, OffsetType, PreTokenizedString,
};

pub use self::error::{BlankError, TokenizerError};
use self::steps::{Decoding, Normalization, PreTokenization};
pub use self::stream::TextStream;

/// Largest file, in bytes.
///
/// Gemma's has 33 million.
pub const FILE_BYTES_MAX: usize = 40 * 1024 * 1024;
/// A blank: marks a token to predict in a text.
pub const BLANK: &str = "___";
/// Most blanks in a text.
pub const BLANKS_MAX: usize = 8;
/// Longest text of a visitor, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Longest text that is encoded at once, in bytes. [`pieces`] cuts a document into such.
pub const PIECE_BYTES_MAX: usize = 32 * 1024;

/// Tokens that are no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Follows each document.
    pub separator: u32,
    /// Marks a token to predict.
    pub mask: Option<u32>,
    /// Stands for what the vocabulary cannot spell.
    pub unknown: Option<u32>,
    /// All of them, rising.
    pub all: Vec<u32>,
}

/// A tokenized text whose blanks are mask tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskedText {
    /// One sequence, `[length]`.
    pub ids: Vec<u32>,
    /// Positions of the blanks in `ids`.
    pub blanks: Vec<u32>,
}

/// What a `tokenizer.json` says, ready to be applied.
pub struct Tokenizer {
    added: AddedVocabulary,
    normalization: Normalization,
    pre_tokenization: PreTokenization,
    model: ModelWrapper,
    decoding: Decoding,
    size: u32,
    special: SpecialTokens,
    /// White space that the mask token takes with it, on its left and right.
    mask_strips: [bool; 2],
    /// A token of text: others are shown as they stand after it.
    anchor: Option<u32>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("size", &self.size)
            .field("special", &self.special)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Ids that there are: each is below it.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The tokens that are no text.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// A token as the file spells it.
    pub fn name(&self, id: u32) -> Option<String> {
        self.added.simple_id_to_token(id).or_else(|| self.model.id_to_token(id))
    }

    /// The words of a text as the model gets them, one by one.
    ///
    /// # Errors
    /// As of [`Self::encode`].
    pub fn words(&self, text: &str) -> Result<Vec<String>, TokenizerError> {
        let cut = self.cut(text)?;
        let words = cut.get_splits(OffsetReferential::Normalized, OffsetType::None).into_iter();
        Ok(words.map(|(word, _, _)| word.to_owned()).collect())
    }

    /// The tokens of a text of at most [`PIECE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// A longer text; one that the file's steps make too long or take too long for; one that its vocabulary cannot spell,
    /// where it has no unknown token.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut pieces = self.cut(text)?;
        self.model.tokenize_in_pretokenized(&mut pieces, None).map_err(TokenizerError::text)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None).map_err(TokenizerError::text)?;
        // All ids were compared with the size when the file was read.
        let ids = encoding.get_ids().iter().copied();
        Ok(ids.filter(|&id| id < self.size && Some(id) != self.special.mask).collect())
    }

    fn cut(&self, text: &str) -> Result<PreTokenizedString, TokenizerError> {
        let (max, got) = (PIECE_BYTES_MAX, text.len());
        if got > max {
            return Err(TokenizerError::TextLength { max, got });
        }
        let run = self.normalization.run(got);
        let mut words = self.added.extract_and_normalize(Some(&run), text);
        run.finish()?;
        self.pre_tokenization.apply(&mut words)?;
        Ok(words)
    }

    /// The tokens of the end of a text that is to be gone on with, without the white space after it.
    ///
    /// # Errors
    /// As of [`Self::encode`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let text = text.trim_end();
        let begin = text.ceil_char_boundary(text.len().saturating_sub(TEXT_BYTES_MAX));
        self.encode(&text[begin..])
    }

    /// Tokenizes a text with [`BLANK`]s into one sequence of `length` tokens. A shorter text is repeated: the model was
    /// trained on full sequences.
    ///
    /// # Errors
    /// No blank, too many, or too long; a tokenizer without a mask token.
    pub fn encode_with_blanks(&self, text: &str, length: usize) -> Result<MaskedText, BlankError> {
        let n_blanks = text.matches(BLANK).count();
        if n_blanks == 0 || n_blanks > BLANKS_MAX {
            return Err(BlankError::Blanks { got: n_blanks });
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(BlankError::Length { max: length, got: text.len() });
        }
        let mask = self.special.mask.ok_or(BlankError::NoMask)?;
        let (mut ids, mut blanks) = (Vec::new(), Vec::new());
        for (index, mut part) in text.split(BLANK).enumerate() {
            if index > 0 {
                blanks.push(ids.len() as u32);
                ids.push(mask);
            }
            let [strips_left, strips_right] = self.mask_strips;
            if strips_left && index < n_blanks {
                part = part.trim_end();
            }
            if strips_right && index > 0 {
                part = part.trim_start();
            }
            ids.extend(self.encode(part)?);
        }
        if ids.len() > length {
            return Err(BlankError::Length { max: length, got: ids.len() });
        }
        ids.push(self.special.separator);
        let ids = ids.iter().copied().cycle().take(length).collect();
        Ok(MaskedText { ids, blanks })
    }

    /// The text of tokens; special ones have none.
    ///
    /// # Errors
    /// Steps of the file that make it too long or take too long.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let names = ids.iter().filter(|id| self.special.all.binary_search(id).is_err());
        self.decoding.decode(names.filter_map(|&id| self.name(id)).collect())
    }

    /// A token as it stands in a text: a space before it where it begins a word. Special tokens have none.
    pub fn text(&self, id: u32) -> String {
        let of = |ids: &[u32]| self.decode(ids).unwrap_or_default();
        let Some(anchor) = self.anchor else { return of(&[id]) };
        let (before, both) = (of(&[anchor]), of(&[anchor, id]));
        both.strip_prefix(&before).map(str::to_owned).unwrap_or_else(|| of(&[id]))
    }

    /// The `n` most likely tokens of one prediction, `[vocabulary]`, as people read them and the most likely first, without
    /// special tokens.
    pub fn likeliest(&self, probabilities: &[f32], n: usize) -> Vec<(String, f32)> {
        let mut ranking: Vec<(usize, f32)> = probabilities.iter().copied().enumerate().collect();
        ranking.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let named = ranking.into_iter().filter_map(|(id, share)| {
            let id = u32::try_from(id).ok()?;
            let is_text = self.special.all.binary_search(&id).is_err();
            is_text.then(|| (shown(&self.text(id)), share))
        });
        // Different tokens may be shown alike: each text is listed once.
        let mut seen = HashSet::new();
        named.filter(|(text, _)| !text.is_empty() && seen.insert(text.clone())).take(n).collect()
    }
}

/// A token for people: one that goes on with a word begins with a hyphen.
fn shown(text: &str) -> String {
    match text.trim() {
        "" if text.is_empty() => String::new(),
        "" => "(space)".to_owned(),
        word if !text.starts_with(char::is_whitespace) && word.chars().all(char::is_alphabetic) => {
            format!("-{word}")
        }
        word => word.to_owned(),
    }
}

/// Cuts a document into texts of at most [`PIECE_BYTES_MAX`] bytes, before white space where there is some.
pub fn pieces(document: &str) -> impl Iterator<Item = &str> {
    let mut rest = document;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = match rest.len() <= PIECE_BYTES_MAX {
            true => rest.len(),
            false => {
                let end = rest.floor_char_boundary(PIECE_BYTES_MAX);
                // The white space belongs to what follows it, as in byte-level vocabularies.
                let before = rest[..end].trim_end_matches(|c: char| !c.is_whitespace()).trim_end();
                if before.is_empty() { end } else { before.len() }
            }
        };
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some(piece)
    })
}
