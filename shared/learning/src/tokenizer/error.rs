//! Why a tokenizer cannot be used, or not for a text.

use std::error::Error;

use super::BLANKS_MAX;

/// Why a `tokenizer.json` cannot be used, or not for a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// Larger than any that a run can use.
    #[error("tokenizer.json has {got} bytes, at most {max} are read")]
    FileSize {
        /// Most allowed.
        max: usize,
        /// Of the file.
        got: usize,
    },
    /// Not JSON.
    #[error("tokenizer.json is not understood: {0}")]
    Json(String),
    /// A part of the file that is refused.
    #[error("`{part}` of tokenizer.json: {reason}")]
    Part {
        /// Its key.
        part: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// More tokens than any vocabulary of the field, or none.
    #[error("the tokenizer has {got} tokens, 2 to {max} are allowed")]
    Size {
        /// Most allowed.
        max: usize,
        /// Of the file.
        got: usize,
    },
    /// Documents cannot be told apart.
    #[error(
        "no token of tokenizer.json ends a text: <|endoftext|>, </s>, <eos>, [SEP] or its like is wanted in \
         `added_tokens`, there is {got}"
    )]
    NoSeparator {
        /// The names that there are.
        got: String,
    },
    /// A text that is too long to be encoded at once.
    #[error("the text has {got} bytes, at most {max} are tokenized at once")]
    TextLength {
        /// Most allowed.
        max: usize,
        /// Of the text.
        got: usize,
    },
    /// The steps of the file fail on a text.
    #[error("the text cannot be tokenized: {0}")]
    Text(String),
}

impl TokenizerError {
    pub(super) fn part(part: &'static str, reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Part { part, reason: reason.into().to_string() }
    }

    pub(super) fn text(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Text(error.into().to_string())
    }
}

/// Why the blanks of a text cannot be filled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlankError {
    /// No blank, or too many.
    #[error("the text has {got} blanks ({}), 1 to {BLANKS_MAX} can be filled", super::BLANK)]
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
    /// The vocabulary has no token that marks a blank.
    #[error("the tokenizer of this run has no mask token")]
    NoMask,
    /// The text cannot be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}
