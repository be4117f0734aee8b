//! Why a table or ratings cannot be learned from.

use std::fmt;
use std::path::PathBuf;

use barnraise_protocol::columns::NoNumber;
use barnraise_protocol::dataset::{COLUMNS_MAX, LABEL_BYTES_MAX, RATED_MAX};

use super::{BROKEN_PART, BYTES_MAX, CLASSES_MAX, WORDS_MAX};
use crate::data::file::DataFileError;
use crate::data::parquet::ParquetFileError;

/// Characters of a value that an error shows.
const SHOWN_CHARS: usize = 80;

/// Why a table cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file cannot be had.
    #[error(transparent)]
    File(#[from] DataFileError),
    /// The CSV file cannot be read.
    #[error("{}: {source}", path.display())]
    Csv {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: csv::Error,
    },
    /// The Parquet file cannot be read.
    #[error("{}: {source}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ParquetFileError,
    },
    /// No column of this name.
    #[error("{} has no column {name:?}; it has {}", path.display(), names.join(", "))]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// What is wanted.
        name: String,
        /// Those of the file.
        names: Vec<String>,
    },
    /// A column that cannot be learned from.
    #[error("column {column:?} of {}: {reason}", path.display())]
    Column {
        /// The file.
        path: PathBuf,
        /// Its name.
        column: String,
        /// Why not.
        reason: ColumnError,
    },
    /// Too many broken rows to be a few bad ones.
    #[error(
        "{n_broken} of {n_rows} rows of {} cannot be read, more than one in {BROKEN_PART}; the first is {place}: \
        {reason}",
        path.display()
    )]
    Broken {
        /// The file.
        path: PathBuf,
        /// Rows that cannot be used.
        n_broken: usize,
        /// All rows.
        n_rows: usize,
        /// Of the first broken one.
        place: RowPlace,
        /// What is wrong with it.
        reason: RowError,
    },
    /// Too few rows to train on some and hold out others.
    #[error("{} has {got} rows that can be read, at least 2 are wanted", path.display())]
    TooFew {
        /// The file.
        path: PathBuf,
        /// Rows.
        got: usize,
    },
    /// More than may be in memory.
    #[error("{} takes more than {BYTES_MAX} bytes of memory, which are supported", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

/// Where a row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowPlace {
    /// Of CSV, from 1 for the head.
    Line(u64),
    /// Of Parquet, from 1.
    Row(u64),
}

impl fmt::Display for RowPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Row(row) => write!(f, "row {row}"),
        }
    }
}

/// What is wrong with a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// More or fewer values than columns.
    #[error("it has {got} values, the head has {want}")]
    Length {
        /// Columns.
        want: usize,
        /// Values.
        got: usize,
    },
    /// No text.
    #[error("it is not UTF-8")]
    NotUtf8,
    /// Nothing in the column that is to be told.
    #[error("what is to be told is missing")]
    NoTarget,
    /// A word in the column that is to be told, for a model that tells numbers.
    #[error("{got:?} is to be told, a number is wanted")]
    Target {
        /// The beginning of what is there.
        got: String,
    },
    /// A word in a column of numbers.
    #[error(transparent)]
    Number(#[from] NoNumber),
    /// A class that the model does not tell.
    #[error("{got:?} is none of the classes: {names}")]
    Class {
        /// The beginning of what is there.
        got: String,
        /// Of the model.
        names: String,
    },
    /// An item that the run does not know.
    #[error("the run does not know {got:?}")]
    Item {
        /// The beginning of what is there.
        got: String,
    },
    /// A rating of nobody, or of nothing.
    #[error("who or what it is of is missing")]
    NoRated,
    /// No rating.
    #[error("the rating is {got:?}, a number is wanted")]
    Rating {
        /// The beginning of what is there.
        got: String,
    },
}

impl RowError {
    pub(super) fn target(got: &str) -> Self {
        Self::Target { got: shown(got) }
    }

    pub(super) fn class(got: &str, names: &[String]) -> Self {
        Self::Class { got: shown(got), names: names.join(", ") }
    }

    pub(super) fn item(got: &str) -> Self {
        Self::Item { got: shown(got) }
    }

    pub(super) fn rating(got: &str) -> Self {
        Self::Rating { got: shown(got) }
    }
}

/// Why a column cannot be learned from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ColumnError {
    /// A name that no manifest has.
    #[error("its name is longer than {LABEL_BYTES_MAX} bytes")]
    LongName,
    /// Two columns that a row's values are found by.
    #[error("there is another one of this name")]
    Twice,
    /// The configuration says that it holds numbers.
    #[error("{got:?} is no number")]
    Number {
        /// The beginning of what is there.
        got: String,
    },
    /// Free text, or the like.
    #[error(
        "{got} different words, at most {WORDS_MAX} are supported; say \"ignored\" in data.table.columns to leave it out"
    )]
    ManyWords {
        /// Words.
        got: usize,
    },
    /// A word that no manifest has.
    #[error(
        "a word is longer than {LABEL_BYTES_MAX} bytes; say \"ignored\" in data.table.columns to leave it out"
    )]
    LongWord,
    /// Nothing to tell the target from, or too much.
    #[error("it is to be told from {got} numbers of a row, 1 to {COLUMNS_MAX} are wanted")]
    Width {
        /// Numbers of a row.
        got: usize,
    },
    /// A class with a name that no manifest has.
    #[error("the name of a class is longer than {LABEL_BYTES_MAX} bytes")]
    LongClass,
    /// Not as many classes as a model can tell apart.
    #[error(
        "it has {got} different values; 2 to {CLASSES_MAX} classes are wanted, or a model with the loss \
        \"regression\" for numbers"
    )]
    Classes {
        /// Different values.
        got: usize,
    },
    /// Too many that rate or are rated.
    #[error("{got} different values, at most {RATED_MAX} are supported")]
    Rated {
        /// Different values.
        got: usize,
    },
}

impl ColumnError {
    pub(super) fn number(got: &str) -> Self {
        Self::Number { got: shown(got) }
    }
}

fn shown(value: &str) -> String {
    value.chars().take(SHOWN_CHARS).collect()
}
