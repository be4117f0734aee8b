//! Tokenizer for a given unigram vocabulary (Kudo 2018, §3.2): the most likely segmentation of a text.
//!
//! The tokens are those of the `tokenizers` crate, which is too large for a browser: a test compares the two. Blanks in
//! a text become mask tokens. Pure.

use std::collections::{HashMap, HashSet};

use barnraise_protocol::dataset::{MASK_TOKEN, SEPARATOR_TOKEN, SPECIAL_TOKENS, UNKNOWN_TOKEN};
use serde::{Deserialize, Serialize};

use crate::words;

/// How much less likely an unknown character is than the least likely piece, in nats; as in SentencePiece.
const UNKNOWN_PENALTY: f64 = 10.0;
/// A blank: marks a token to predict in a text.
pub const BLANK: &str = "___";
/// Most blanks in a text.
pub const BLANKS_MAX: usize = 8;
/// Longest text, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Longest piece, in bytes.
const PIECE_BYTES_MAX: usize = 256;

/// Pieces and their log-probabilities, after the special tokens and in the order of their ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Vocabulary {
    /// Each once.
    pub pieces: Vec<(String, f64)>,
}

/// Why a vocabulary cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VocabularyError {
    /// An id is two bytes.
    #[error("a vocabulary of {got} pieces, 1 to {max} are allowed")]
    Size {
        /// Most allowed.
        max: usize,
        /// In the vocabulary.
        got: usize,
    },
    /// Empty, too long, there twice, or without a probability.
    #[error("piece {index} of the vocabulary cannot be used")]
    Piece {
        /// Which.
        index: usize,
    },
}

/// Why the blanks of a text cannot be filled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlankError {
    /// No blank, or too many.
    #[error("the text has {got} blanks ({BLANK}), 1 to {BLANKS_MAX} can be filled")]
    Blanks {
        /// In the text.
        got: usize,
    },
    /// More than the model sees at once.
    #[error("the text is too long: {got} tokens, the model sees {max}")]
    Length {
        /// Of a sequence.
        max: usize,
        /// Of the text.
        got: usize,
    },
}

/// A tokenized text whose blanks are mask tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskedText {
    /// One sequence, `[length]`.
    pub ids: Vec<u16>,
    /// Positions of the blanks in `ids`.
    pub blanks: Vec<u32>,
}

/// A vocabulary, ready to be applied.
#[derive(Debug, Clone)]
pub struct Unigram {
    pieces: Vec<String>,
    ids: HashMap<String, (u16, f64)>,
    longest_bytes: usize,
    unknown_score: f64,
}

impl Unigram {
    /// Checks a vocabulary.
    ///
    /// # Errors
    /// It is not one.
    pub fn new(vocabulary: Vocabulary) -> Result<Self, VocabularyError> {
        let (max, got) = (usize::from(u16::MAX - SPECIAL_TOKENS), vocabulary.pieces.len());
        if got == 0 || got > max {
            return Err(VocabularyError::Size { max, got });
        }
        let (mut ids, mut pieces) = (HashMap::with_capacity(got), Vec::with_capacity(got));
        let (mut longest_bytes, mut lowest) = (0, 0.0_f64);
        for (index, (piece, score)) in vocabulary.pieces.into_iter().enumerate() {
            let id = SPECIAL_TOKENS + index as u16;
            let is_good = (1..=PIECE_BYTES_MAX).contains(&piece.len()) && score.is_finite();
            if !is_good || ids.insert(piece.clone(), (id, score)).is_some() {
                return Err(VocabularyError::Piece { index });
            }
            longest_bytes = longest_bytes.max(piece.len());
            lowest = lowest.min(score);
            pieces.push(piece);
        }
        Ok(Self { pieces, ids, longest_bytes, unknown_score: lowest - UNKNOWN_PENALTY })
    }

    /// Tokens that there are, the special ones included.
    pub fn size(&self) -> u16 {
        SPECIAL_TOKENS.saturating_add(u16::try_from(self.pieces.len()).unwrap_or(u16::MAX))
    }

    /// The piece of an id; special tokens have none.
    pub fn piece(&self, id: u16) -> Option<&str> {
        let index = usize::from(id).checked_sub(usize::from(SPECIAL_TOKENS))?;
        self.pieces.get(index).map(String::as_str)
    }

    /// The text of an id as it stands in a text: a space before it where it begins a word. Special tokens have none.
    pub fn text(&self, id: u16) -> String {
        self.piece(id).unwrap_or_default().replace(words::SPACE, " ")
    }

    /// The likeliest tokens of a text.
    pub fn encode(&self, text: &str) -> Vec<u16> {
        let mut ids = Vec::new();
        words::each(text, |word| self.encode_word(word, &mut ids));
        ids
    }

    /// Tokenizes a text with [`BLANK`]s into one sequence of `length` tokens. A shorter text is repeated: the model was
    /// trained on full sequences.
    ///
    /// # Errors
    /// No blank, too many, or too long.
    pub fn encode_with_blanks(&self, text: &str, length: usize) -> Result<MaskedText, BlankError> {
        let n_blanks = text.matches(BLANK).count();
        if n_blanks == 0 || n_blanks > BLANKS_MAX {
            return Err(BlankError::Blanks { got: n_blanks });
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(BlankError::Length { max: length, got: text.len() });
        }
        let (mut ids, mut blanks) = (Vec::new(), Vec::new());
        for (index, part) in text.split(BLANK).enumerate() {
            if index > 0 {
                blanks.push(ids.len() as u32);
                ids.push(MASK_TOKEN);
            }
            ids.extend(self.encode(part));
        }
        if ids.len() > length {
            return Err(BlankError::Length { max: length, got: ids.len() });
        }
        ids.push(SEPARATOR_TOKEN);
        let ids = ids.iter().copied().cycle().take(length).collect();
        Ok(MaskedText { ids, blanks })
    }

    /// The `n` most likely pieces of one prediction, `[vocabulary]`, the most likely first, without special tokens.
    pub fn likeliest(&self, probabilities: &[f32], n: usize) -> Vec<(String, f32)> {
        let of_pieces = probabilities.iter().copied().enumerate().skip(SPECIAL_TOKENS.into());
        let mut ranking: Vec<(usize, f32)> = of_pieces.collect();
        ranking.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let named = ranking.into_iter().filter_map(|(id, share)| {
            let piece = self.piece(u16::try_from(id).ok()?)?;
            Some((shown(piece), share))
        });
        // Different pieces may be shown alike: each text is listed once.
        let mut seen = HashSet::new();
        named.filter(|(piece, _)| seen.insert(piece.clone())).take(n).collect()
    }

    /// Viterbi's algorithm over the positions between characters.
    fn encode_word(&self, word: &str, ids: &mut Vec<u16>) {
        // The best path to each position: start and id of its last piece, and its log-probability.
        let mut paths: Vec<Option<(usize, u16, f64)>> = vec![None; word.len() + 1];
        paths[0] = Some((0, UNKNOWN_TOKEN, 0.0));
        let better = |path: &mut Option<(usize, u16, f64)>, other: (usize, u16, f64)| {
            if path.is_none_or(|known| other.2 > known.2) {
                *path = Some(other);
            }
        };
        for (start, character) in word.char_indices() {
            let Some((_, _, here)) = paths[start] else { continue };
            let one = start + character.len_utf8();
            let last = word.len().min(start + self.longest_bytes);
            let ends = (one..=last).filter(|&end| word.is_char_boundary(end));
            for end in ends {
                if let Some(&(id, score)) = self.ids.get(&word[start..end]) {
                    better(&mut paths[end], (start, id, score + here));
                }
            }
            if !self.ids.contains_key(&word[start..one]) {
                better(&mut paths[one], (start, UNKNOWN_TOKEN, self.unknown_score + here));
            }
        }
        let begin = ids.len();
        let mut end = word.len();
        while end > 0 {
            let Some((start, id, _)) = paths[end] else { break };
            // Unknown characters in a row are one token.
            let is_more = id == UNKNOWN_TOKEN && ids[begin..].last() == Some(&UNKNOWN_TOKEN);
            if !is_more {
                ids.push(id);
            }
            end = start;
        }
        ids[begin..].reverse();
    }
}

/// A piece for people: one that goes on with a word begins with a hyphen.
fn shown(piece: &str) -> String {
    match piece.strip_prefix(words::SPACE) {
        Some(word) if !word.is_empty() => word.to_owned(),
        Some(_) => "(space)".to_owned(),
        None if piece.chars().all(char::is_alphabetic) => format!("-{piece}"),
        None => piece.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn unigram() -> Unigram {
        let pieces = [
            ("\u{2581}the", -1.0),
            ("\u{2581}cat", -2.0),
            ("s", -3.0),
            ("at", -3.5),
            ("\u{2581}", -4.0),
            ("c", -6.0),
        ];
        let pieces = pieces.map(|(piece, score)| (piece.to_owned(), score)).into();
        Unigram::new(Vocabulary { pieces }).unwrap()
    }

    #[test]
    fn the_likeliest_pieces_are_chosen_and_unknown_ones_are_one() {
        let unigram = unigram();
        assert_eq!(unigram.encode("the cats"), [3, 4, 5]);
        assert_eq!(unigram.encode("zzsat xy"), [7, 0, 5, 6, 7, 0]);
        assert!(unigram.encode(" \n").is_empty());
        assert_eq!((unigram.size(), unigram.piece(3), unigram.piece(1)), (9, Some("\u{2581}the"), None));
    }

    #[test]
    fn blanks_become_masks_and_the_text_is_repeated_to_the_end() {
        let unigram = unigram();
        let blanked = unigram.encode_with_blanks("the ___ the ___", 8).unwrap();
        assert_eq!(blanked.ids, [3, MASK_TOKEN, 3, MASK_TOKEN, SEPARATOR_TOKEN, 3, MASK_TOKEN, 3]);
        assert_eq!(blanked.blanks, [1, 3]);
        assert_eq!(unigram.encode_with_blanks("the", 8), Err(BlankError::Blanks { got: 0 }));
        assert_eq!(unigram.encode_with_blanks(&"___ ".repeat(9), 99), Err(BlankError::Blanks { got: 9 }));
        let long = format!("___ {}", "the ".repeat(8));
        assert_eq!(unigram.encode_with_blanks(&long, 8), Err(BlankError::Length { max: 8, got: 9 }));
        assert_eq!(unigram.encode_with_blanks("___", 1).unwrap().ids, [MASK_TOKEN]);
    }

    #[test]
    fn guesses_are_shown_without_special_tokens() {
        let probabilities = [0.5, 0.2, 0.1, 0.05, 0.09, 0.02, 0.03, 0.01, 0.0];
        let shown = unigram().likeliest(&probabilities, 3);
        assert_eq!(shown, [("cat".to_owned(), 0.09), ("the".to_owned(), 0.05), ("-at".to_owned(), 0.03)]);
    }

    #[test]
    fn what_is_no_vocabulary_is_refused() {
        let of = |pieces: &[(&str, f64)]| {
            let pieces = pieces.iter().map(|(piece, score)| ((*piece).to_owned(), *score)).collect();
            Unigram::new(Vocabulary { pieces }).map(|unigram| unigram.size())
        };
        assert!(matches!(of(&[]), Err(VocabularyError::Size { got: 0, .. })));
        for bad in [("", -1.0), ("a", -1.0), ("b", f64::NAN)] {
            assert_eq!(of(&[("a", -1.0), bad]), Err(VocabularyError::Piece { index: 1 }));
        }
        assert_eq!(of(&[("a", -1.0), ("b", -1.0)]), Ok(5));
    }
}
