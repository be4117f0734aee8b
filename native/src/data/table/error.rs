//! Why a table or ratings cannot be learned from.

use std::path::{Path, PathBuf};

use barnraise_protocol::columns::rows::{BrokenRows, MissingColumns, shown};
use barnraise_protocol::dataset::{COLUMNS_MAX, LABEL_BYTES_MAX, RATED_MAX};

use super::{BROKEN_PART, BYTES_MAX, CLASSES_MAX, WORDS_MAX};
use crate::data::file::DataFileError;
use crate::data::parquet::ParquetFileError;

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
    #[error("column {column:?} of {}: {reason}{}", path.display(), reason.remedy())]
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
        "{} of {n_rows} rows of {} cannot be read, more than one in {BROKEN_PART}: {broken}",
        broken.n(),
        path.display()
    )]
    Broken {
        /// The file.
        path: PathBuf,
        /// All rows.
        n_rows: usize,
        /// Those that cannot be used.
        broken: Box<BrokenRows>,
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

impl TableError {
    /// A file without columns that are wanted: the first of them is named.
    pub(super) fn no_column(path: &Path, MissingColumns { missing, got, .. }: MissingColumns) -> Self {
        let name = missing.into_iter().next().unwrap_or_default();
        Self::NoColumn { path: path.to_owned(), name, names: got }
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
    #[error("{got} different words, at most {WORDS_MAX} are supported")]
    ManyWords {
        /// Words.
        got: usize,
    },
    /// A word that no manifest has.
    #[error("a word is longer than {LABEL_BYTES_MAX} bytes")]
    LongWord,
    /// Not one value in each row.
    #[error("booleans, numbers and strings are read, this is a list, a group or of another type")]
    Nested,
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
    /// What to do, behind what is wrong.
    fn remedy(&self) -> &'static str {
        match self {
            Self::ManyWords { .. } | Self::LongWord | Self::LongName | Self::Nested => {
                "; say \"ignored\" in data.table.columns to leave it out"
            }
            Self::Twice
            | Self::Number { .. }
            | Self::Width { .. }
            | Self::LongClass
            | Self::Classes { .. }
            | Self::Rated { .. } => "",
        }
    }

    pub(super) fn number(got: &str) -> Self {
        Self::Number { got: shown(got) }
    }
}
