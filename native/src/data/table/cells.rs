//! The rows of a CSV or Parquet file, as texts.
//!
//! What a Parquet file has as a number is written out, so that both kinds of file with the same content give the same
//! samples. All of a file is in memory, up to a limit.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use barnraise_protocol::columns::rows::{BrokenRows, CsvRows, RowDecoder, RowError, RowPlace};
use barnraise_protocol::columns::{TableColumns, number};
use barnraise_protocol::dataset::TableTarget;

use super::error::TableError;
use super::{BROKEN_PART, BYTES_MAX};
use crate::data::parquet::{self, ParquetFile, ParquetFileError, Value};
use crate::data::unpack;

/// What a row takes beside its text, and each of its values.
const ROW_BYTES: usize = 96;
const VALUE_BYTES: usize = 8;

/// Cells of a file by row, without its head.
pub(super) struct Cells {
    pub(super) names: Vec<String>,
    pub(super) rows: Vec<(RowPlace, csv::StringRecord)>,
    broken: BrokenRows,
    n_bytes: u64,
}

/// A file whose format is known.
enum TableFile {
    Parquet(Box<ParquetFile<File>>),
    /// Compressed or not.
    Csv(BufReader<File>),
}

impl TableFile {
    fn open(path: &Path) -> Result<Self, TableError> {
        let mut file = BufReader::new(File::open(path).map_err(|error| not_csv(path, error))?);
        let is_parquet = file.fill_buf().map_err(|error| not_csv(path, error))?.starts_with(&parquet::MAGIC);
        if !is_parquet {
            return Ok(Self::Csv(file));
        }
        let file = ParquetFile::open(file.into_inner()).map_err(|source| not_parquet(path, source))?;
        Ok(Self::Parquet(Box::new(file)))
    }
}

/// Columns of a Parquet file that are no cells: lists, groups, and types that are not read.
pub(super) fn nested(path: &Path) -> Result<BTreeSet<String>, TableError> {
    let TableFile::Parquet(file) = TableFile::open(path)? else { return Ok(BTreeSet::new()) };
    let names = file.names().into_iter().enumerate();
    Ok(names.filter(|(column, _)| !file.is_flat(*column)).map(|(_, name)| name).collect())
}

impl Cells {
    /// Reads a file: Parquet, or CSV with commas, semicolons or tabs between the values and the columns' names in its
    /// first line, compressed or not. Columns of Parquet that are not `wanted` are empty.
    pub(super) fn read(path: &Path, wanted: impl Fn(&str) -> bool) -> Result<Self, TableError> {
        match TableFile::open(path)? {
            TableFile::Parquet(file) => {
                let read = Self::of_parquet(&file, wanted).map_err(|source| not_parquet(path, source))?;
                read.ok_or_else(|| too_large(path))
            }
            TableFile::Csv(file) => {
                Self::read_text(path, unpack::content(file).map_err(|error| not_csv(path, error))?)
            }
        }
    }

    /// Reads the text of a CSV file; errors name `path`.
    pub(super) fn read_text(path: &Path, text: impl Read) -> Result<Self, TableError> {
        let cells = Self::of_csv(text).map_err(|error| not_csv(path, error))?;
        cells.ok_or_else(|| too_large(path))
    }

    /// None if it is too large.
    fn of_csv(text: impl Read) -> Result<Option<Self>, csv::Error> {
        let rows = CsvRows::read(text.take(BYTES_MAX + 1))?;
        let names = rows.names().to_vec();
        let mut cells = Self { names, rows: Vec::new(), broken: BrokenRows::default(), n_bytes: 0 };
        for row in rows {
            match row? {
                (place, Ok(record)) => {
                    if !cells.push(place, record) {
                        return Ok(None);
                    }
                }
                (place, Err(reason)) => cells.broken.add(place, reason),
            }
        }
        Ok(Some(cells))
    }

    /// None if it is too large.
    fn of_parquet(
        file: &ParquetFile<File>,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Option<Self>, ParquetFileError> {
        let names = file.names();
        let mut cells = Self { names, rows: Vec::new(), broken: BrokenRows::default(), n_bytes: 0 };
        let (mut row, mut text) = (0, String::new());
        for (group, n_rows) in file.groups()?.into_iter().enumerate() {
            let column =
                |(index, name): (usize, &String)| wanted(name).then(|| file.column(group, index)).transpose();
            let mut columns: Vec<_> =
                cells.names.iter().enumerate().map(column).collect::<Result<_, ParquetFileError>>()?;
            for _ in 0..n_rows {
                row += 1;
                let (mut record, mut is_text) = (csv::StringRecord::new(), true);
                for column in &mut columns {
                    text.clear();
                    if let Some(column) = column {
                        is_text &= write(&column.next()?, &mut text);
                    }
                    record.push_field(&text);
                }
                let is_room = match is_text {
                    true => cells.push(RowPlace::Row(row), record),
                    false => cells.leave_out(RowPlace::Row(row), RowError::NotUtf8),
                };
                if !is_room {
                    return Ok(None);
                }
            }
        }
        Ok(Some(cells))
    }

    /// Whether there is room for another row.
    #[must_use]
    fn push(&mut self, place: RowPlace, record: csv::StringRecord) -> bool {
        self.n_bytes += (record.as_slice().len() + record.len() * VALUE_BYTES + ROW_BYTES) as u64;
        self.rows.push((place, record));
        self.n_bytes <= BYTES_MAX
    }

    /// The same of a row that is left out: a short file may have any number of them.
    #[must_use]
    fn leave_out(&mut self, place: RowPlace, reason: RowError) -> bool {
        self.n_bytes += ROW_BYTES as u64;
        self.broken.add(place, reason);
        self.n_bytes <= BYTES_MAX
    }

    pub(super) fn column(&self, path: &Path, name: &str) -> Result<usize, TableError> {
        let found = self.names.iter().position(|known| known == name);
        found.ok_or_else(|| TableError::NoColumn {
            path: path.to_owned(),
            name: name.to_owned(),
            names: self.names.clone(),
        })
    }

    /// Drops the rows of which `read` gives a reason.
    pub(super) fn retain(&mut self, read: impl Fn(&csv::StringRecord) -> Result<(), RowError>) {
        let broken = &mut self.broken;
        self.rows.retain(|(place, record)| match read(record) {
            Ok(()) => true,
            Err(reason) => {
                broken.add(*place, reason);
                false
            }
        });
    }

    /// Decodes the rows, each with what is to be told of it where there is a `target`.
    pub(super) fn decoder<'c>(
        &self,
        path: &Path,
        columns: &'c TableColumns,
        target: Option<&'c TableTarget>,
    ) -> Result<RowDecoder<'c>, TableError> {
        RowDecoder::new(columns, target, &self.names).map_err(|missing| TableError::no_column(path, missing))
    }

    /// Refuses a file with too few rows, or with too many broken ones.
    pub(super) fn check(&self, path: &Path) -> Result<(), TableError> {
        self.check_broken(path)?;
        match self.rows.len() {
            0 | 1 => Err(TableError::TooFew { path: path.to_owned(), got: self.rows.len() }),
            _ => Ok(()),
        }
    }

    /// Refuses a file with too many broken rows; logs how many there are of each kind, and the first.
    pub(super) fn check_broken(&self, path: &Path) -> Result<(), TableError> {
        self.check_left_out(path, self.broken.n() * BROKEN_PART > self.rows.len() + self.broken.n())
    }

    /// As [`Self::check_broken`], of a file with much that the run need not know: it is refused where nothing else is in it.
    pub(super) fn check_unknown(&self, path: &Path) -> Result<(), TableError> {
        self.check_left_out(path, self.rows.is_empty() && self.broken.n() > 0)
    }

    fn check_left_out(&self, path: &Path, is_refused: bool) -> Result<(), TableError> {
        let n_broken = self.broken.n();
        let (n_rows, broken) = (self.rows.len() + n_broken, &self.broken);
        if is_refused {
            let (path, broken) = (path.to_owned(), Box::new(broken.clone()));
            return Err(TableError::Broken { path, n_rows, broken });
        }
        if n_broken > 0 {
            tracing::warn!(path = %path.display(), n_rows, n_broken, %broken, "rows are left out");
        }
        Ok(())
    }

    /// Whether a column has numbers only, some of which may be missing.
    pub(super) fn is_number(&self, column: usize) -> bool {
        self.cells(column).all(|cell| cell.is_empty() || number(cell).is_some())
    }

    pub(super) fn cells(&self, column: usize) -> impl Iterator<Item = &str> + Clone {
        self.rows.iter().map(move |(_, record)| record.get(column).unwrap_or_default())
    }
}

fn not_csv(path: &Path, error: impl Into<csv::Error>) -> TableError {
    TableError::Csv { path: path.to_owned(), source: error.into() }
}

fn not_parquet(path: &Path, source: ParquetFileError) -> TableError {
    TableError::Parquet { path: path.to_owned(), source }
}

fn too_large(path: &Path) -> TableError {
    TableError::TooLarge { path: path.to_owned() }
}

/// Writes a value as CSV has it; `false` if it is no text.
fn write(value: &Value, text: &mut String) -> bool {
    let written = match value {
        Value::Missing => Ok(()),
        // Not a number: missing, too.
        Value::Float(value) if value.is_nan() => Ok(()),
        Value::Double(value) if value.is_nan() => Ok(()),
        Value::Float(value) => write!(text, "{value}"),
        Value::Double(value) => write!(text, "{value}"),
        Value::Bool(value) => write!(text, "{value}"),
        Value::Integer(value) => write!(text, "{value}"),
        Value::Unsigned(value) => write!(text, "{value}"),
        Value::Bytes(bytes) => match str::from_utf8(bytes) {
            Ok(value) => {
                text.push_str(value.trim());
                Ok(())
            }
            Err(_) => return false,
        },
    };
    written.is_ok()
}
