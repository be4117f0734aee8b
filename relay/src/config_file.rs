//! Reading a configuration file: bounded, and with an error that says where; checking what its types cannot.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

/// Largest configuration file that is read.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Most characters of a wrong value that an error shows.
const SHOWN_CHARS_MAX: usize = 200;

/// Why a file is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Not TOML, an unknown key, or a value of another type; says where.
    #[error("{}", Located { path, span: span.as_ref(), what: message })]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where in it, as far as that is known.
        span: Option<TextSpan>,
        /// What was wanted there.
        message: String,
    },
}

/// A part of one line of a configuration, as an error shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextSpan {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// Characters that are meant.
    width: usize,
    /// The whole line, without what may be a password.
    text: String,
}

impl TextSpan {
    /// Of a range of bytes in a text; what goes on in later lines is left out.
    #[must_use]
    pub fn of(text: &str, span: &Range<usize>) -> Option<Self> {
        let before = text.get(..span.start)?;
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let rest = text.get(line_start..)?;
        let line = rest.lines().next().unwrap_or_default();
        let n_before = text.get(line_start..span.start)?.chars().count();
        let meant = text.get(span.clone()).and_then(|meant| meant.lines().next()).unwrap_or_default();
        Some(Self {
            line: before.matches('\n').count() + 1,
            column: n_before + 1,
            width: meant.chars().count().max(1),
            text: without_password(line),
        })
    }

    /// Where `section.key` stands in a text that parses, or the innermost table of it that does.
    #[must_use]
    pub fn of_key(text: &str, key: &str) -> Option<Self> {
        let document = toml::de::DeTable::parse(text).ok()?;
        let mut table = document.get_ref();
        let (mut found, mut depth) = (None, 0);
        for part in key.split('.') {
            let Some((name, value)) = table.get_key_value(part) else { break };
            (found, depth) = (Some(name.span()), depth + 1);
            match value.get_ref().as_table() {
                Some(inner) => table = inner,
                None => break,
            }
        }
        // A section without the key does not say where the value stands.
        found.filter(|_| depth > 1).and_then(|span| Self::of(text, &span))
    }
}

impl Display for TextSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let (margin, indent) = (" ".repeat(number.len()), " ".repeat(self.column - 1));
        writeln!(f, " {number} | {}", self.text)?;
        write!(f, " {margin} | {indent}{}", "^".repeat(self.width))
    }
}

/// What is wrong in a file, and where.
#[derive(Debug)]
pub struct Located<'a, T> {
    /// The file.
    pub path: &'a Path,
    /// Where in it, as far as that is known.
    pub span: Option<&'a TextSpan>,
    /// What was wanted there.
    pub what: T,
}

impl<T: Display> Display for Located<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, span, what } = self;
        match span {
            Some(span) => {
                let TextSpan { line, column, .. } = span;
                write!(f, "{}, line {line}, column {column}: {what}\n{span}", path.display())
            }
            None => write!(f, "{}: {what}", path.display()),
        }
    }
}

/// A line is shown, and what stands between `://` and `@` in it is not: `postgres://user:password@host/`.
pub(crate) fn without_password(line: &str) -> String {
    match line.split_once("://").and_then(|(begin, rest)| Some((begin, rest.rsplit_once('@')?))) {
        Some((begin, (_, end))) => format!("{begin}://…@{end}"),
        None => line.to_owned(),
    }
}

/// A value that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {}: {want}", shortened(got))]
pub struct Invalid {
    /// Section and key.
    pub key: &'static str,
    /// What was wanted.
    pub want: String,
    /// What came.
    pub got: String,
}

/// A value as it is shown: of one that is longer than a few lines, such as a whole model, the beginning.
fn shortened(value: &str) -> Cow<'_, str> {
    match value.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => Cow::Owned(format!("{} …", &value[..end])),
        None => Cow::Borrowed(value),
    }
}

impl Invalid {
    /// What was wanted of a key, and what came.
    pub fn new(key: &'static str, want: impl Display, got: impl Display) -> Self {
        Self { key, want: want.to_string(), got: got.to_string() }
    }

    /// Succeeds where the value is `good`.
    ///
    /// # Errors
    /// What was wanted, otherwise.
    pub fn check(key: &'static str, good: bool, want: impl Display, got: impl Display) -> Result<(), Self> {
        if good { Ok(()) } else { Err(Self::new(key, want, got)) }
    }

    /// A number between two others, both included.
    ///
    /// # Errors
    /// The range, where it is not in it.
    pub fn check_range<T: PartialOrd + Display>(
        key: &'static str,
        got: T,
        want: RangeInclusive<T>,
    ) -> Result<(), Self> {
        Self::check(key, want.contains(&got), format_args!("{} to {}", want.start(), want.end()), got)
    }

    /// A duration between two others, both included.
    ///
    /// # Errors
    /// The range, where it is not in it.
    pub fn check_duration(
        key: &'static str,
        got: Duration,
        want: RangeInclusive<Duration>,
    ) -> Result<(), Self> {
        let text = |duration: Duration| humantime_serde::re::humantime::format_duration(duration);
        let range = format!("{} to {}", text(*want.start()), text(*want.end()));
        Self::check(key, want.contains(&got), range, text(got))
    }
}

/// The text of a configuration file.
///
/// # Errors
/// A file that is not there, is no text, or is larger than 1 MiB.
pub fn read_config(path: &Path) -> Result<String, ConfigFileError> {
    let read = |source| ConfigFileError::Read { path: path.to_owned(), source };
    let n_bytes = std::fs::metadata(path).map_err(read)?.len();
    if n_bytes > FILE_BYTES_MAX {
        let text = format!("{n_bytes} bytes, a configuration has at most {FILE_BYTES_MAX}");
        return Err(read(std::io::Error::other(text)));
    }
    std::fs::read_to_string(path).map_err(read)
}

/// What a text says; `path` is named in errors.
///
/// # Errors
/// The line and column of what is not understood, and what was wanted there.
pub fn parse_config<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, ConfigFileError> {
    toml::from_str(text).map_err(|error: toml::de::Error| ConfigFileError::Parse {
        path: path.to_owned(),
        span: error.span().and_then(|span| TextSpan::of(text, &span)),
        message: in_plain_words(&without_password(error.message())),
    })
}

/// The names of Rust's numbers mean nothing to an operator.
fn in_plain_words(message: &str) -> String {
    const WORDS: [(&str, &str); 10] = [
        ("nonzero usize", "a whole number from 1 up"),
        ("a nonzero usize", "a whole number from 1 up"),
        ("u8", "a whole number from 0 to 255"),
        ("u16", "a whole number from 0 to 65535"),
        ("u32", "a whole number from 0 to 4294967295"),
        ("u64", "a whole number from 0 up"),
        ("usize", "a whole number from 0 up"),
        ("i64", "a whole number"),
        ("f32", "a number"),
        ("f64", "a number"),
    ];
    let Some((before, wanted)) = message.split_once("expected ") else { return message.to_owned() };
    let words = WORDS.iter().find(|(rust, _)| *rust == wanted.trim_end());
    words.map_or_else(|| message.to_owned(), |(_, words)| format!("{before}expected {words}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn shown(text: &str, key: &str) -> String {
        TextSpan::of_key(text, key).unwrap().to_string()
    }

    #[test]
    fn the_place_of_a_key_is_found_in_any_notation() {
        assert_eq!(shown("[run]\n\nid = \"x\"", "run.id"), " 3 | id = \"x\"\n   | ^^");
        assert_eq!(shown("run.id = \"x\"", "run.id"), " 1 | run.id = \"x\"\n   |     ^^");
        assert_eq!(shown("\nrun = { id = \"é\" }", "run.id"), " 2 | run = { id = \"é\" }\n   |         ^^");
        assert_eq!(shown("[a.b]\nc = 1", "a.b.c"), " 2 | c = 1\n   | ^");
        assert_eq!(TextSpan::of_key("[run]", "run.id"), None);
        assert_eq!(TextSpan::of_key("[run", "run.id"), None);
    }

    #[test]
    fn of_a_long_value_the_beginning_is_shown() {
        let shown = |got: &str| Invalid::new("model.kind", "another one", got).to_string();
        assert_eq!(shown("\"le-net\""), "model.kind = \"le-net\": another one");
        let long = shown(&"é".repeat(SHOWN_CHARS_MAX + 1));
        assert_eq!(long, format!("model.kind = {} …: another one", "é".repeat(SHOWN_CHARS_MAX)));
    }

    #[test]
    fn a_mistake_that_runs_over_lines_is_shown_by_its_first() {
        let text = "a = [\n  1,\n  2,\n]";
        assert_eq!(TextSpan::of(text, &(4..text.len())).unwrap().to_string(), " 1 | a = [\n   |     ^");
        let end = TextSpan::of("a = ", &(4..4)).unwrap();
        assert_eq!((end.line, end.column), (1, 5));
        assert_eq!(TextSpan::of("é", &(1..1)), None, "no span of the text");
    }

    #[test]
    fn no_password_is_shown() {
        let text = "database = \"postgres://barn:s3cret@db/runs\" x";
        let error = parse_config::<toml::Table>(text, Path::new("run.toml")).unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("postgres://…@db/runs"), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}
