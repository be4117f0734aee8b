//! The rows of a CSV or Parquet file, as texts.
//!
//! What a Parquet file has as a number is written out, so that both kinds of file with the same content give the same
//! samples. All of a file is in memory, up to a limit.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use barnraise_protocol::columns::TableColumns;

use super::error::{RowError, RowPlace, TableError};
use super::{BROKEN_PART, BYTES_MAX};
use crate::data::parquet::{self, ParquetFile, ParquetFileError, Value};
use crate::data::unpack;

/// Longest first line of a CSV file.
const HEAD_BYTES_MAX: u64 = 16 * 1024 * 1024;
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

/// Rows that were left out.
#[derive(Default)]
struct BrokenRows {
    n: usize,
    first: Option<(RowPlace, RowError)>,
}

impl BrokenRows {
    fn add(&mut self, place: RowPlace, reason: RowError) {
        self.n += 1;
        self.first.get_or_insert((place, reason));
    }
}

impl Cells {
    /// Reads a file: Parquet, or CSV with commas, semicolons or tabs between the values and the columns' names in its
    /// first line, compressed or not. Columns of Parquet that are not `wanted` are empty.
    pub(super) fn read(path: &Path, wanted: impl Fn(&str) -> bool) -> Result<Self, TableError> {
        let failed = |error: io::Error| TableError::Csv { path: path.to_owned(), source: error.into() };
        let mut file = BufReader::new(File::open(path).map_err(failed)?);
        if file.fill_buf().map_err(failed)?.starts_with(&parquet::MAGIC) {
            let broken = |source| TableError::Parquet { path: path.to_owned(), source };
            let file = ParquetFile::open(file.into_inner()).map_err(broken)?;
            return Self::of_parquet(&file, wanted).map_err(broken)?.ok_or_else(|| too_large(path));
        }
        Self::read_text(path, unpack::content(file).map_err(failed)?)
    }

    /// Reads the text of a CSV file; errors name `path`.
    pub(super) fn read_text(path: &Path, text: impl Read) -> Result<Self, TableError> {
        let cells = Self::of_csv(text).map_err(|source| TableError::Csv { path: path.to_owned(), source })?;
        cells.ok_or_else(|| too_large(path))
    }

    /// None if it is too large.
    fn of_csv(text: impl Read) -> Result<Option<Self>, csv::Error> {
        let mut text = BufReader::new(text.take(BYTES_MAX + 1));
        let mut head = String::new();
        text.by_ref().take(HEAD_BYTES_MAX).read_line(&mut head)?;
        let count = |byte: char| head.matches(byte).count();
        let delimiter = [',', ';', '\t'].into_iter().max_by_key(|&byte| count(byte)).unwrap_or(',');
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(delimiter as u8)
            .trim(csv::Trim::All)
            .flexible(true)
            .from_reader(Cursor::new(head).chain(text));
        let names: Vec<String> = reader.headers()?.iter().map(str::to_owned).collect();
        let mut cells = Self { names, rows: Vec::new(), broken: BrokenRows::default(), n_bytes: 0 };
        for record in reader.records() {
            let line =
                |position: Option<&csv::Position>| RowPlace::Line(position.map_or(0, csv::Position::line));
            match record {
                Ok(record) if record.len() == cells.names.len() => {
                    if !cells.push(line(record.position()), record) {
                        return Ok(None);
                    }
                }
                Ok(record) => {
                    let (want, got) = (cells.names.len(), record.len());
                    cells.broken.add(line(record.position()), RowError::Length { want, got });
                }
                Err(error) if matches!(error.kind(), csv::ErrorKind::Utf8 { .. }) => {
                    cells.broken.add(line(error.position()), RowError::NotUtf8);
                }
                Err(error) => return Err(error),
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

    /// Where the columns are.
    pub(super) fn places(&self, path: &Path, columns: &TableColumns) -> Result<Vec<usize>, TableError> {
        columns.columns.iter().map(|column| self.column(path, &column.name)).collect()
    }

    /// Refuses a file with too few rows, or with too many broken ones.
    pub(super) fn check(&self, path: &Path) -> Result<(), TableError> {
        self.check_broken(path)?;
        match self.rows.len() {
            0 | 1 => Err(TableError::TooFew { path: path.to_owned(), got: self.rows.len() }),
            _ => Ok(()),
        }
    }

    /// Refuses a file with too many broken rows, and logs a few.
    pub(super) fn check_broken(&self, path: &Path) -> Result<(), TableError> {
        let n_rows = self.rows.len() + self.broken.n;
        if let Some((place, reason)) = self.broken.first.clone() {
            let (path, n_broken) = (path.to_owned(), self.broken.n);
            if n_broken * BROKEN_PART > n_rows {
                return Err(TableError::Broken { path, n_broken, n_rows, place, reason });
            }
            tracing::warn!(path = %path.display(), n_broken, %place, %reason, "rows are left out; of the first one");
        }
        Ok(())
    }

    pub(super) fn cells(&self, column: usize) -> impl Iterator<Item = &str> + Clone {
        self.rows.iter().map(move |(_, record)| record.get(column).unwrap_or_default())
    }
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
