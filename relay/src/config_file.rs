//! Reading a configuration file: bounded, and with an error that says where; checking what its types cannot.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

/// Largest configuration file that is read.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

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
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, column, what was wanted.
        source: Box<toml::de::Error>,
    },
}

/// A value that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {got}: {want}")]
pub struct Invalid {
    /// Section and key.
    pub key: &'static str,
    /// What was wanted.
    pub want: String,
    /// What came.
    pub got: String,
}

impl Invalid {
    /// What was wanted of a key, and what came.
    pub fn new(key: &'static str, want: impl Display, got: impl Display) -> Self {
        Self { key, want: want.to_string(), got: got.to_string() }
    }

    /// Nothing where it is `good`.
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
    let parse = |source| ConfigFileError::Parse { path: path.to_owned(), source: Box::new(source) };
    toml::from_str(text).map_err(parse)
}
