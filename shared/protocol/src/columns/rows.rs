//! Rows of CSV files, read as those of the run's table were: by the operator's machine, and by a tab whose visitor brings a table.
//! Never opens a file.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Chain, Cursor, Read};

use super::{NoNumber, TableColumns, number};
use crate::dataset::{RowTargets, TableRows, TableTarget};

/// Longest first line of a CSV file.
const HEAD_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Most bytes of the numbers of a table that a visitor brings: a tab has them in memory.
const OWN_ROWS_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Characters of a value that an error shows.
const SHOWN_CHARS: usize = 80;

/// Where a row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    /// A rating that nobody gave in the run, as on another scale.
    #[error("the rating is {got:?}, those of the run are {range}")]
    Scale {
        /// The beginning of what is there.
        got: String,
        /// From the lowest to the highest.
        range: String,
    },
}

impl RowError {
    /// What rows have in common that are broken in the same way.
    fn kind(&self) -> &'static str {
        match self {
            Self::Length { .. } => "with more or fewer values than the head",
            Self::NotUtf8 => "in another encoding",
            Self::NoTarget => "without what is to be told",
            Self::Target { .. } => "with a word that is to be told",
            Self::Number(_) => "with a word among numbers",
            Self::Class { .. } => "of an unknown class",
            Self::Item { .. } => "of an unknown item",
            Self::NoRated => "of nobody or nothing",
            Self::Rating { .. } => "without a number as rating",
            Self::Scale { .. } => "on another scale",
        }
    }

    /// A word where a number is to be told.
    pub fn target(got: &str) -> Self {
        Self::Target { got: shown(got) }
    }

    /// A cell that names no class.
    pub fn class(got: &str, names: &[String]) -> Self {
        Self::Class { got: shown(got), names: names.join(", ") }
    }

    /// A name of no item.
    pub fn item(got: &str) -> Self {
        Self::Item { got: shown(got) }
    }

    /// A cell that is no rating.
    pub fn rating(got: &str) -> Self {
        Self::Rating { got: shown(got) }
    }

    /// A rating beyond all of the run.
    pub fn scale(got: &str, [lowest, highest]: [f32; 2]) -> Self {
        Self::Scale { got: shown(got), range: format!("{lowest} to {highest}") }
    }
}

/// The beginning of a value, for an error.
pub fn shown(value: &str) -> String {
    value.chars().take(SHOWN_CHARS).collect()
}

/// Rows that are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BrokenRows {
    /// How many there are, by what is wrong with them.
    reasons: BTreeMap<&'static str, usize>,
    /// In the order of the file.
    first: Option<(RowPlace, RowError)>,
}

impl BrokenRows {
    /// How many there are.
    pub fn n(&self) -> usize {
        self.reasons.values().sum()
    }

    /// The first of them in the file, and what is wrong with it.
    pub fn first(&self) -> Option<&(RowPlace, RowError)> {
        self.first.as_ref()
    }

    /// Counts a row.
    pub fn add(&mut self, place: RowPlace, reason: RowError) {
        *self.reasons.entry(reason.kind()).or_default() += 1;
        if self.first.as_ref().is_none_or(|(first, _)| place < *first) {
            self.first = Some((place, reason));
        }
    }
}

impl fmt::Display for BrokenRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (kind, n_rows)) in self.reasons.iter().enumerate() {
            let comma = if nth == 0 { "" } else { ", " };
            write!(f, "{comma}{n_rows} {kind}")?;
        }
        match &self.first {
            Some((place, reason)) => write!(f, "; the first is {place}: {reason}"),
            None => Ok(()),
        }
    }
}

/// The rows of a CSV file with commas, semicolons or tabs between the values and the columns' names in its first line.
pub struct CsvRows<R> {
    names: Vec<String>,
    records: csv::StringRecordsIntoIter<Chain<Cursor<String>, BufReader<R>>>,
}

impl<R: Read> CsvRows<R> {
    /// Reads the head.
    ///
    /// # Errors
    /// It cannot be read, or is not UTF-8.
    pub fn read(text: R) -> Result<Self, csv::Error> {
        let mut text = BufReader::new(text);
        let mut head = String::new();
        text.by_ref().take(HEAD_BYTES_MAX).read_line(&mut head)?;
        let count = |byte: char| head.matches(byte).count();
        let delimiter = [',', ';', '\t'].into_iter().max_by_key(|&byte| count(byte)).unwrap_or(',');
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(delimiter as u8)
            .trim(csv::Trim::All)
            .flexible(true)
            .from_reader(Cursor::new(head).chain(text));
        let names = reader.headers()?.iter().map(str::to_owned).collect();
        Ok(Self { names, records: reader.into_records() })
    }

    /// Names of the columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

/// Where a row stands, and its cells or what is wrong with it.
pub type PlacedRow = (RowPlace, Result<csv::StringRecord, RowError>);

impl<R: Read> Iterator for CsvRows<R> {
    type Item = Result<PlacedRow, csv::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = |position: Option<&csv::Position>| RowPlace::Line(position.map_or(0, csv::Position::line));
        Some(match self.records.next()? {
            Ok(record) if record.len() == self.names.len() => Ok((line(record.position()), Ok(record))),
            Ok(record) => {
                let (want, got) = (self.names.len(), record.len());
                Ok((line(record.position()), Err(RowError::Length { want, got })))
            }
            Err(error) if matches!(error.kind(), csv::ErrorKind::Utf8 { .. }) => {
                Ok((line(error.position()), Err(RowError::NotUtf8)))
            }
            Err(error) => Err(error),
        })
    }
}

/// A file without columns of the run's table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it has no column {}; wanted are {}, it has {}", .missing.join(", "), .wanted.join(", "), .got.join(", "))]
pub struct MissingColumns {
    /// Those of the wanted ones that it does not have, one at least.
    pub missing: Vec<String>,
    /// What is wanted.
    pub wanted: Vec<String>,
    /// Those of the file.
    pub got: Vec<String>,
}

/// Decodes the rows of a file, whose columns may stand in any order among others.
#[derive(Debug)]
pub struct RowDecoder<'c> {
    columns: &'c TableColumns,
    /// Where they are in the file.
    places: Vec<usize>,
    /// Where to find what is to be told.
    target: Option<(usize, &'c TableTarget)>,
}

impl<'c> RowDecoder<'c> {
    /// For a file with columns of these names; without a `target`, what is to be told may be missing.
    ///
    /// # Errors
    /// A column that the file does not have.
    pub fn new(
        columns: &'c TableColumns,
        target: Option<&'c TableTarget>,
        names: &[String],
    ) -> Result<Self, MissingColumns> {
        let place = |wanted: &str| names.iter().position(|name| name == wanted);
        let inputs = columns.columns.iter().map(|column| &column.name);
        let wanted: Vec<&String> = inputs.chain(target.map(|_| &columns.target)).collect();
        let missing: Vec<String> =
            wanted.iter().filter(|name| place(name).is_none()).map(ToString::to_string).collect();
        if !missing.is_empty() {
            let wanted = wanted.into_iter().cloned().collect();
            return Err(MissingColumns { missing, wanted, got: names.to_vec() });
        }
        let places = columns.columns.iter().filter_map(|column| place(&column.name)).collect();
        let target = target.and_then(|target| Some((place(&columns.target)?, target)));
        Ok(Self { columns, places, target })
    }

    /// The numbers of a row, in the order of the model's input.
    ///
    /// # Errors
    /// The first cell that is no number, where one is wanted.
    pub fn values(&self, record: &csv::StringRecord) -> Result<Vec<f32>, NoNumber> {
        self.columns
            .row(|column| self.places.get(column).and_then(|&place| record.get(place)).unwrap_or_default())
    }

    /// The numbers of a row; and the number that is to be told, or that of the class, where there is a target.
    ///
    /// # Errors
    /// A cell that is not as those of the run's table are.
    pub fn row(&self, record: &csv::StringRecord) -> Result<(Vec<f32>, Option<f32>), RowError> {
        let values = self.values(record)?;
        let told = self.target.map(|(place, target)| told(record.get(place).unwrap_or_default(), target));
        Ok((values, told.transpose()?))
    }

    /// What is to be told of rows, from what [`Self::row`] gave; `None` without a target.
    pub fn targets(&self, told: Vec<f32>) -> Option<RowTargets> {
        let (_, target) = self.target?;
        Some(match target {
            TableTarget::Class(_) => RowTargets::Classes(told.into_iter().map(|class| class as u8).collect()),
            TableTarget::Values(_) => RowTargets::Values { n_values: 1, values: told },
        })
    }
}

/// What is to be told: a number, or that of a class.
fn told(cell: &str, target: &TableTarget) -> Result<f32, RowError> {
    match target {
        TableTarget::Class(names) => match names.iter().position(|name| name == cell) {
            Some(class) => Ok(class as f32),
            None => Err(RowError::class(cell, names)),
        },
        TableTarget::Values(_) => number(cell).ok_or_else(|| RowError::target(cell)),
    }
}

/// A table that a visitor brings, as samples of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnRows {
    /// One at least.
    pub rows: TableRows,
    /// Those that are not as the run's are.
    pub broken: BrokenRows,
}

/// More people than the run has users, in whose places they learn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it has ratings of {got} people, of at most {max} can be learned from here")]
pub struct TooManyPeople {
    /// People.
    pub got: usize,
    /// Users.
    pub max: u32,
}

/// Why nothing can be learned from a table, or from ratings, that a visitor brings.
#[derive(Debug, thiserror::Error)]
pub enum OwnRowsError {
    /// It cannot be read.
    #[error(transparent)]
    Csv(#[from] csv::Error),
    /// It is another table.
    #[error(transparent)]
    Columns(#[from] MissingColumns),
    /// It has a head alone.
    #[error("rows below the head are wanted, it has none")]
    Empty,
    /// None of its rows is as the run's are.
    #[error("none of its {n} rows can be used; the first is {place}: {reason}")]
    Broken {
        /// Its rows.
        n: usize,
        /// Of the first one.
        place: RowPlace,
        /// What is wrong with it.
        reason: RowError,
    },
    /// Ratings of too many.
    #[error(transparent)]
    People(#[from] TooManyPeople),
    /// More ratings than a tab trains on.
    #[error("it has more than {max} ratings")]
    TooMany {
        /// Most that may come.
        max: usize,
    },
    /// More than a tab has room for.
    #[error("its rows take more than {OWN_ROWS_BYTES_MAX} bytes of memory")]
    TooLarge,
}

impl OwnRowsError {
    /// There is no row, but for those that are left out.
    pub(super) fn none(broken: &BrokenRows) -> Self {
        match broken.first().cloned() {
            Some((place, reason)) => Self::Broken { n: broken.n(), place, reason },
            None => Self::Empty,
        }
    }
}

impl OwnRows {
    /// Reads the text of a CSV file whose columns may stand in any order among others. Rows that are not as the run's are left out.
    ///
    /// # Errors
    /// A missing column, no row that can be used, or too many.
    pub fn read(text: &[u8], columns: &TableColumns, target: &TableTarget) -> Result<Self, OwnRowsError> {
        Self::read_within(OWN_ROWS_BYTES_MAX, text, columns, target)
    }

    fn read_within(
        bytes_max: usize,
        text: &[u8],
        columns: &TableColumns,
        target: &TableTarget,
    ) -> Result<Self, OwnRowsError> {
        let rows = CsvRows::read(text)?;
        let decoder = RowDecoder::new(columns, Some(target), rows.names())?;
        let (mut values, mut told, mut broken) = (Vec::new(), Vec::new(), BrokenRows::default());
        for row in rows {
            let (place, record) = row?;
            match record.and_then(|record| decoder.row(&record)) {
                Ok((row, of_row)) => {
                    values.extend(row);
                    told.extend(of_row);
                }
                Err(reason) => broken.add(place, reason),
            }
            if (values.len() + told.len()) * size_of::<f32>() > bytes_max {
                return Err(OwnRowsError::TooLarge);
            }
        }
        if told.is_empty() {
            return Err(OwnRowsError::none(&broken));
        }
        let n_columns = columns.names().len();
        let targets = decoder.targets(told).ok_or(OwnRowsError::Empty)?;
        Ok(Self { rows: TableRows { n_columns, values, targets }, broken })
    }
}

#[cfg(test)]
mod tests;
