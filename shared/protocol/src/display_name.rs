//! The name under which a contributor wants to be shown. Anybody may choose any name: it proves no identity.
//!
//! A name is a line of visible characters that cannot mislead its reader: no control characters, no invisible ones, none
//! that change the direction of writing, no stack of accents.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name, in characters.
pub const NAME_CHARS_MAX: usize = 32;
/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = NAME_CHARS_MAX * 4;
/// Most accents on one letter.
const MARKS_MAX: usize = 2;

/// A name that can be shown.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DisplayName(String);

/// Why a text is no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No visible character.
    #[error("a name has at least one character")]
    Empty,
    /// Too long to be shown.
    #[error("a name has at most {NAME_CHARS_MAX} characters, this one has {got}")]
    TooLong {
        /// Its characters.
        got: usize,
    },
    /// Invisible, or worse.
    #[error("a name has no character like U+{:04X}", u32::from(*.0))]
    Character(char),
    /// More accents on a letter than any language has.
    #[error("a name has at most {MARKS_MAX} accents on a letter")]
    Marks,
}

impl DisplayName {
    /// A name from typed text: spaces around it are dropped, and several in a row become one.
    ///
    /// # Errors
    /// The text is no name.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let mut name = String::new();
        // Bounds the work on text from outside.
        let n_bytes = text.len();
        if n_bytes > 16 * NAME_BYTES_MAX {
            return Err(NameError::TooLong { got: n_bytes });
        }
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            if !name.is_empty() {
                name.push(' ');
            }
            name.push_str(word);
        }
        check(&name)?;
        Ok(Self(name))
    }

    /// As it is shown.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check(name: &str) -> Result<(), NameError> {
    let n_chars = name.chars().count();
    if n_chars > NAME_CHARS_MAX {
        return Err(NameError::TooLong { got: n_chars });
    }
    if let Some(character) = name.chars().find(|&c| !is_visible(c)) {
        return Err(NameError::Character(character));
    }
    if name.chars().all(|c| c == ' ' || is_mark(c)) {
        return Err(NameError::Empty);
    }
    let longest = name.split(|c| !is_mark(c)).map(|marks| marks.chars().count()).max();
    if longest.is_some_and(|marks| marks > MARKS_MAX) { Err(NameError::Marks) } else { Ok(()) }
}

/// Whether a character can be seen, or is a space or an accent, and leaves the others where they are.
fn is_visible(c: char) -> bool {
    if c == ' ' {
        return true;
    }
    // Unicode: controls, other white space, default ignorables, format characters, private use, noncharacters.
    let is_hidden = c.is_control()
        || c.is_whitespace()
        || matches!(u32::from(c),
            0xAD | 0x34F | 0x600..=0x605 | 0x61C | 0x6DD | 0x70F | 0x890..=0x891 | 0x8E2 | 0x115F..=0x1160
            | 0x17B4..=0x17B5 | 0x180B..=0x180F | 0x200B..=0x200F | 0x2028..=0x202E | 0x2060..=0x206F | 0x2800
            | 0x3164 | 0xE000..=0xF8FF | 0xFDD0..=0xFDEF | 0xFE00..=0xFE0E | 0xFEFF | 0xFFA0 | 0xFFF0..=0xFFFF
            | 0x110BD | 0x110CD | 0x13430..=0x1345F | 0x1BCA0..=0x1BCA3 | 0x1D173..=0x1D17A | 0x1FFFE..=0x1FFFF
            | 0xE0000..=0x10_FFFF);
    !is_hidden
}

/// Whether a character is drawn onto the one before it. The selector of pictures counts as one.
fn is_mark(c: char) -> bool {
    matches!(u32::from(c),
        0x300..=0x36F | 0x483..=0x489 | 0x591..=0x5BD | 0x64B..=0x65F | 0xE31 | 0xE34..=0xE3A | 0xE47..=0xE4E
        | 0x1AB0..=0x1AFF | 0x1DC0..=0x1DFF | 0x20D0..=0x20FF | 0xFE0F | 0xFE20..=0xFE2F)
}

impl TryFrom<String> for DisplayName {
    type Error = NameError;

    /// A name as it is kept and travels: exactly what [`DisplayName::new`] makes.
    fn try_from(text: String) -> Result<Self, NameError> {
        let name = Self::new(&text)?;
        // One encoding for each name.
        if name.0 == text { Ok(name) } else { Err(NameError::Character(' ')) }
    }
}

impl FromStr for DisplayName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl From<DisplayName> for String {
    fn from(name: DisplayName) -> Self {
        name.0
    }
}

impl fmt::Display for DisplayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_of_many_languages_are_names() {
        for text in
            ["Ada", "Ægir Ø", "名前", "Эмма", "e\u{301}toile", "🦫", "❤\u{fe0f}", "<b>&amp;", "O'Hara"]
        {
            let name = DisplayName::new(text).unwrap();
            assert_eq!((name.as_str(), name.to_string()), (text, text.to_owned()));
        }
        assert_eq!(DisplayName::new("  Ada   Lovelace ").unwrap().as_str(), "Ada Lovelace");
        assert!(DisplayName::new(&"é".repeat(NAME_CHARS_MAX)).is_ok());
    }

    #[test]
    fn what_cannot_be_seen_or_turns_the_line_is_no_name() {
        let tricks = [
            '\0',
            '\n',
            '\t',
            '\u{202e}',
            '\u{2066}',
            '\u{200b}',
            '\u{200d}',
            '\u{a0}',
            '\u{feff}',
            '\u{e0041}',
        ];
        for trick in tricks {
            assert_eq!(DisplayName::new(&format!("A{trick}a")), Err(NameError::Character(trick)));
        }
        for empty in ["", "   ", "\u{301}"] {
            assert_eq!(DisplayName::new(empty), Err(NameError::Empty));
        }
        assert_eq!(DisplayName::new(&format!("a{}", "\u{301}".repeat(3))), Err(NameError::Marks));
        assert!(DisplayName::new(&format!("a{}", "\u{301}".repeat(2))).is_ok());
        let long = "a".repeat(NAME_CHARS_MAX + 1);
        assert_eq!(DisplayName::new(&long), Err(NameError::TooLong { got: NAME_CHARS_MAX + 1 }));
        assert!(matches!(DisplayName::new(&"a ".repeat(10_000)), Err(NameError::TooLong { .. })));
    }

    #[test]
    fn spaces_are_dropped_of_a_text_of_so_many_bytes_at_most() {
        let spaced = |n_bytes: usize| DisplayName::new(&format!("{:>n_bytes$}", "Ada"));
        assert_eq!(spaced(2048).unwrap().as_str(), "Ada");
        assert_eq!(spaced(2049), Err(NameError::TooLong { got: 2049 }));
    }

    #[test]
    fn what_travels_is_a_name_in_its_one_form() {
        let name = DisplayName::new("Ada Lovelace").unwrap();
        let bytes = postcard::to_allocvec(&name).unwrap();
        assert_eq!(postcard::from_bytes::<DisplayName>(&bytes).unwrap(), name);
        for text in ["Ada  Lovelace", " Ada", "\u{202e}adA", ""] {
            let bytes = postcard::to_allocvec(text).unwrap();
            assert!(postcard::from_bytes::<DisplayName>(&bytes).is_err(), "{text:?}");
        }
    }
}
