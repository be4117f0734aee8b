//! Tables and ratings of the operator's own, from CSV or Parquet.
//!
//! A column of numbers is brought to mean 0 and deviation 1 by its training rows; a missing number is the mean. A column
//! of words becomes one number for each word, 1 where it stands. Deterministic: the same file, settings and seed give the
//! same samples. Blocking: call it from a thread that may block.

mod cells;
mod error;
pub mod other;
mod ratings;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use barnraise_protocol::columns::rows::RowError;
use barnraise_protocol::columns::{
    Column, ColumnContent, DataColumns, NoNumber, Scale, TableColumns, number,
};
use barnraise_protocol::dataset::{
    COLUMNS_MAX, LABEL_BYTES_MAX, RowTargets, SampleKind, Samples, TableRows, TableShape, TableTarget,
};
use barnraise_swarm::random::SplitMix64;
use serde::{Deserialize, Serialize};

use self::cells::Cells;
pub use self::error::{ColumnError, TableError};
pub use self::ratings::RatingSettings;
use super::TrainingData;
use super::file::DataFile;

/// Most classes: a label is one byte.
const CLASSES_MAX: usize = 256;
/// Most bytes of a file's rows, and of all samples: they are in memory.
const BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// One of so many rows may be broken.
const BROKEN_PART: usize = 20;
/// Rows by which a column is taken for classes or for numbers, and the most whole numbers that are classes.
const ROWS_SEEN: usize = 10_000;
const CLASSES_SEEN: usize = 20;
/// Most words of a column that are numbers of their own.
const WORDS_MAX: usize = 256;

/// What a column holds, where it is not to be seen from its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ColumnKind {
    /// Numbers.
    Number,
    /// Words, or numbers that stand for something, such as a postal code.
    Category,
    /// Nothing to learn from, such as a row's number.
    Ignored,
}

/// A table, and how it becomes samples.
#[derive(Debug, Clone, PartialEq)]
pub struct TableSettings {
    /// Display name.
    pub name: String,
    /// CSV, compressed or not, or Parquet: the first line of CSV names the columns.
    pub file: DataFile,
    /// The column that is to be told.
    pub target: String,
    /// Whether its values are classes, and not numbers.
    pub is_class: bool,
    /// Kinds of columns by name; of others they are seen from the values.
    pub columns: BTreeMap<String, ColumnKind>,
    /// Share of the rows that is held out, 0 to 1.
    pub held_out: f64,
    /// Seed of what is held out.
    pub seed: u64,
}

/// A column of a file, as it looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenColumn {
    /// In the first line of CSV, or of Parquet.
    pub name: String,
    /// Whether its values look like classes: words, or few whole numbers.
    pub is_class: bool,
    /// What a row is told by it, or why it cannot be learned from.
    pub kind: Result<ColumnKind, ColumnError>,
}

/// The columns of a file, to choose one that is to be predicted. Blocking.
///
/// # Errors
/// No table, or one that is too large.
pub fn seen_columns(path: &Path) -> Result<Vec<SeenColumn>, TableError> {
    let nested = cells::nested(path)?;
    let cells = Cells::read(path, |name| !nested.contains(name))?;
    let is_class = |column: usize| {
        let values: BTreeSet<&str> =
            cells.cells(column).filter(|cell| !cell.is_empty()).take(ROWS_SEEN).collect();
        let is_whole = |value: &&str| number(value).is_some_and(|number| number.fract() == 0.0);
        match values.iter().all(|value| number(value).is_some()) {
            true => values.len() <= CLASSES_SEEN && values.iter().all(is_whole),
            false => true,
        }
    };
    let kind = |column: usize, name: &str| {
        if nested.contains(name) {
            return Err(ColumnError::Nested);
        }
        if name.len() > LABEL_BYTES_MAX {
            return Err(ColumnError::LongName);
        }
        match cells.is_number(column) {
            true => Ok(ColumnKind::Number),
            false => words(cells.cells(column)).map(|_| ColumnKind::Category),
        }
    };
    let seen = |(column, name): (usize, &String)| SeenColumn {
        name: name.clone(),
        is_class: is_class(column),
        kind: kind(column, name),
    };
    Ok(cells.names.iter().enumerate().map(seen).collect())
}

/// Which rows are held out: at least one, and not all.
fn held_out(n_rows: usize, share: f64, seed: u64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..n_rows).collect();
    SplitMix64::new(seed).shuffle(&mut order);
    let n_held = ((n_rows as f64 * share).round() as usize).clamp(1, n_rows.saturating_sub(1).max(1));
    let mut is_held = vec![false; n_rows];
    order.into_iter().take(n_held).for_each(|row| is_held[row] = true);
    is_held
}

impl TableSettings {
    /// Reads the table and holds some rows out.
    ///
    /// # Errors
    /// A file without the column, columns that cannot be learned from, too many broken rows.
    pub fn load(&self, cache: &Path) -> Result<TrainingData, TableError> {
        let path = &self.file.local(cache)?;
        let is_ignored = |name: &str| self.columns.get(name) == Some(&ColumnKind::Ignored);
        let mut cells = Cells::read(path, |name| name == self.target || !is_ignored(name))?;
        let target = cells.column(path, &self.target)?;
        for name in self.columns.keys() {
            cells.column(path, name)?;
        }
        let is_class = self.is_class;
        cells.retain(|record| match record.get(target).unwrap_or_default() {
            "" => Err(RowError::NoTarget),
            cell if !is_class && number(cell).is_none() => Err(RowError::target(cell)),
            _ => Ok(()),
        });
        cells.check(path)?;
        let is_held = held_out(cells.rows.len(), self.held_out, self.seed);
        let columns = self.columns(path, &cells, target, &is_held)?;
        let n_columns = columns.names().len();
        let classes = self.classes(path, &cells, target)?;
        let decoder = cells.decoder(path, &columns, None)?;
        let told = |row: usize| cells.rows[row].1.get(target).unwrap_or_default();
        let part = |wanted: bool| -> Result<Samples, TableError> {
            let rows = || (0..cells.rows.len()).filter(|&row| is_held[row] == wanted);
            let mut all = Vec::with_capacity(rows().count() * n_columns);
            for row in rows() {
                let values = decoder.values(&cells.rows[row].1);
                all.extend(values.map_err(|error| refused(path, error))?);
            }
            let targets = match &classes {
                Some(classes) => RowTargets::Classes(
                    rows().map(|row| classes.binary_search(&told(row)).unwrap_or_default() as u8).collect(),
                ),
                None => RowTargets::Values {
                    n_values: 1,
                    values: rows().map(|row| number(told(row)).unwrap_or_default()).collect(),
                },
            };
            Ok(Samples::Rows(TableRows { n_columns, values: all, targets }))
        };
        let target = match &classes {
            Some(classes) => TableTarget::Class(classes.iter().map(|&name| name.to_owned()).collect()),
            None => TableTarget::Values(vec![self.target.clone()]),
        };
        let (train, test) = (part(false)?, part(true)?);
        let kind = SampleKind::Rows(TableShape { columns: columns.names(), target });
        let (name, columns) = (self.name.clone(), Some(DataColumns::Table(columns)));
        Ok(TrainingData { name, kind, train, test, tokenizer: None, columns, stream: None })
    }

    /// All columns but what is to be told, as those to train on have them.
    fn columns(
        &self,
        path: &Path,
        cells: &Cells,
        target: usize,
        is_held: &[bool],
    ) -> Result<TableColumns, TableError> {
        let (mut columns, mut n_numbers) = (Vec::new(), 0);
        let has_room =
            |n_columns: usize| match (cells.rows.len() as u64 * (n_columns as u64 + 1) * 4) <= BYTES_MAX {
                true => Ok(()),
                false => Err(TableError::TooLarge { path: path.to_owned() }),
            };
        for (index, name) in cells.names.iter().enumerate().filter(|(index, _)| *index != target) {
            let refused = |reason| TableError::Column { path: path.to_owned(), column: name.clone(), reason };
            let trained =
                || cells.cells(index).zip(is_held).filter(|(_, held)| !**held).map(|(cell, _)| cell);
            let kind = self.columns.get(name).copied();
            let kind = kind.unwrap_or_else(|| match cells.is_number(index) {
                true => ColumnKind::Number,
                false => ColumnKind::Category,
            });
            if kind != ColumnKind::Ignored && name.len() > LABEL_BYTES_MAX {
                return Err(refused(ColumnError::LongName));
            }
            if kind != ColumnKind::Ignored && cells.names[..index].contains(name) {
                return Err(refused(ColumnError::Twice));
            }
            let content = match kind {
                ColumnKind::Ignored => continue,
                ColumnKind::Number if !cells.is_number(index) => {
                    let odd = cells.cells(index).find(|cell| !cell.is_empty() && number(cell).is_none());
                    return Err(refused(ColumnError::number(odd.unwrap_or_default())));
                }
                ColumnKind::Number => {
                    n_numbers += 1;
                    ColumnContent::Number(Scale::of(trained().filter_map(number)))
                }
                ColumnKind::Category => {
                    let words = words(cells.cells(index)).map_err(refused)?;
                    n_numbers += words.len();
                    has_room(n_numbers)?;
                    let scale =
                        |word: &str| Scale::of(trained().map(move |cell| f32::from(u8::from(cell == word))));
                    let scaled = words.into_iter().map(|word| (word.to_owned(), scale(word)));
                    ColumnContent::Words(scaled.collect())
                }
            };
            has_room(n_numbers)?;
            columns.push(Column { name: name.clone(), content });
        }
        match n_numbers {
            1..=COLUMNS_MAX => Ok(TableColumns { target: self.target.clone(), columns }),
            got => Err(TableError::Column {
                path: path.to_owned(),
                column: self.target.clone(),
                reason: ColumnError::Width { got },
            }),
        }
    }

    fn classes<'a>(
        &self,
        path: &Path,
        cells: &'a Cells,
        target: usize,
    ) -> Result<Option<Vec<&'a str>>, TableError> {
        if !self.is_class {
            return Ok(None);
        }
        let classes: BTreeSet<&str> = cells.cells(target).collect();
        let reason = match classes.len() {
            2..=CLASSES_MAX if classes.iter().all(|name| name.len() <= LABEL_BYTES_MAX) => {
                return Ok(Some(classes.into_iter().collect()));
            }
            2..=CLASSES_MAX => ColumnError::LongClass,
            got => ColumnError::Classes { got },
        };
        Err(TableError::Column { path: path.to_owned(), column: self.target.clone(), reason })
    }
}

fn refused(path: &Path, NoNumber { column, cell }: NoNumber) -> TableError {
    TableError::Column { path: path.to_owned(), column, reason: ColumnError::number(&cell) }
}

/// The different words of a column, sorted.
fn words<'a>(cells: impl Iterator<Item = &'a str>) -> Result<BTreeSet<&'a str>, ColumnError> {
    let words: BTreeSet<&str> = cells.collect();
    if words.len() > WORDS_MAX {
        return Err(ColumnError::ManyWords { got: words.len() });
    }
    match words.iter().any(|word| word.len() > LABEL_BYTES_MAX) {
        true => Err(ColumnError::LongWord),
        false => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;

    fn table(text: &str, change: impl FnOnce(&mut TableSettings)) -> Result<TrainingData, TableError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("table.csv");
        std::fs::write(&file, text).unwrap();
        let mut settings = TableSettings {
            name: "Table".into(),
            file: file.into(),
            target: "kind".into(),
            is_class: true,
            columns: BTreeMap::new(),
            held_out: 0.25,
            seed: 1,
        };
        change(&mut settings);
        settings.load(folder.path())
    }

    fn rows(samples: &Samples) -> &TableRows {
        let Samples::Rows(rows) = samples else { panic!("no rows") };
        rows
    }

    const PETALS: &str = "length, colour, kind\n1.0,red,rose\n3.0,white,daisy\n,red,rose\n2.0,white,daisy\n";

    #[test]
    fn numbers_are_standardized_words_are_numbers_of_their_own_and_classes_have_names() {
        let data = table(PETALS, |_| {}).unwrap();
        let SampleKind::Rows(TableShape { columns, target }) = &data.kind else { panic!("{:?}", data.kind) };
        assert_eq!(columns, &["length", "colour=red", "colour=white"]);
        assert_eq!(target, &TableTarget::Class(vec!["daisy".into(), "rose".into()]));
        let (train, test) = (rows(&data.train), rows(&data.test));
        assert_eq!((train.n_samples(), test.n_samples(), train.n_columns), (3, 1, 3));
        for column in 0..3 {
            let sum: f32 = train.values.iter().skip(column).step_by(3).sum();
            assert!(sum.abs() < 1e-5, "column {column}: {sum}");
        }
        // Red and rose go together, as do white and daisy.
        let RowTargets::Classes(labels) = &train.targets else { panic!() };
        for (row, &label) in train.values.chunks(3).zip(labels) {
            assert_eq!(row[1] > 0.0, label == 1, "{row:?}");
        }
        assert_eq!(table(PETALS, |_| {}).unwrap(), data, "the seed decides");
        let same = table(&PETALS.replace(',', ";"), |_| {}).unwrap();
        assert_eq!(same.train, data.train, "semicolons are understood");
    }

    #[test]
    fn a_number_is_told_and_columns_can_be_said_to_be_something_else() {
        let text = "id,zip,size\n1,100,1.5\n2,200,2.5\n3,100,3.5\n4,200,4.5\n";
        let data = table(text, |settings| {
            (settings.target, settings.is_class) = ("size".into(), false);
            settings.columns.insert("id".into(), ColumnKind::Ignored);
            settings.columns.insert("zip".into(), ColumnKind::Category);
        });
        let data = data.unwrap();
        let SampleKind::Rows(TableShape { columns, target }) = &data.kind else { panic!() };
        assert_eq!(columns, &["zip=100", "zip=200"]);
        assert_eq!(target, &TableTarget::Values(vec!["size".into()]));
        let RowTargets::Values { n_values: 1, values } = &rows(&data.test).targets else { panic!() };
        assert!([1.5, 2.5, 3.5, 4.5].contains(&values[0]));
    }

    #[test]
    fn what_cannot_be_learned_from_is_named() {
        let said = |text: &str, change: fn(&mut TableSettings)| table(text, change).unwrap_err().to_string();
        let missing = said(PETALS, |settings| settings.target = "size".into());
        assert!(missing.contains("no column \"size\"; it has length, colour, kind"), "{missing}");
        let one = said("a,kind\n1,x\n2,x\n", |_| {});
        assert!(one.contains("column \"kind\"") && one.contains("1 different values"), "{one}");
        let word = said(PETALS, |settings| {
            settings.columns.insert("colour".into(), ColumnKind::Number);
        });
        assert!(word.contains("\"red\" is no number"), "{word}");
        let few = said("a,kind\n1,x\n", |_| {});
        assert!(few.contains("1 rows"), "{few}");
        let broken = said("a,kind\n1,x\n2\n3,y\n", |_| {});
        assert!(broken.contains("1 of 3 rows") && broken.contains("line 3: it has 1 values"), "{broken}");
        let two = said("a,kind\n1,x\n2,\n3\n4,\n5,y\n", |_| {});
        let kinds =
            "1 with more or fewer values than the head, 2 without what is to be told; the first is line 3: ";
        assert!(two.contains("3 of 5 rows of ") && two.contains(kinds), "{two}");
        let told = said("a,kind\n1,x\n2,1\n3,1\n", |settings| settings.is_class = false);
        assert!(told.contains("line 2: \"x\" is to be told, a number is wanted"), "{told}");
        assert!(table("", |_| {}).is_err() && said("kind\nx\ny\n", |_| {}).contains("from 0 numbers"));
    }

    #[test]
    fn a_column_with_a_name_that_no_manifest_has_may_be_left_out() {
        let long = "list.".repeat(60);
        let text = PETALS.replacen("colour", &long, 1);
        let error = table(&text, |_| {}).unwrap_err().to_string();
        assert!(error.contains("longer than 256 bytes; say \"ignored\""), "{error}");
        let data = table(&text, |settings| {
            settings.columns.insert(long, ColumnKind::Ignored);
        });
        let SampleKind::Rows(shape) = data.unwrap().kind else { panic!("no rows") };
        assert_eq!(shape.columns, ["length"]);
    }

    #[test]
    fn a_few_broken_rows_are_left_out() {
        let good: String = (0..40).map(|n| format!("{n},{}\n", ["x", "y"][n % 2])).collect();
        let data = table(&format!("a,kind\n{good}7\n"), |_| {}).unwrap();
        assert_eq!(rows(&data.train).n_samples() + rows(&data.test).n_samples(), 40);
    }

    /// Written by pyarrow, as `parquet_gives_the_samples_of_csv` says.
    const FLOWERS: &[u8] = include_bytes!("table/fixtures/flowers.parquet");

    #[test]
    fn parquet_gives_the_samples_of_csv() {
        let mut text = "row,petal,sepal,grown,colour,price,kind\n".to_owned();
        for row in 0..40u64 {
            let petal = if row % 10 == 3 { String::new() } else { (row as f64 / 8.0).to_string() };
            let sepal = if row % 10 == 4 { String::new() } else { (row * row).to_string() };
            let colour = ["red", "white", "blue"][row as usize % 3];
            let price = (row as f64 * 125.0 / 100.0).to_string();
            let kind = ["rose", "daisy"][row as usize % 2];
            let row = u64::MAX - row;
            text += &format!("{row},{petal},{sepal},{},{colour},{price},{kind}\n", row % 4 == 0);
        }
        let change = |settings: &mut TableSettings| {
            settings.columns.insert("row".into(), ColumnKind::Category);
        };
        let want = table(&text, change).unwrap();
        let of_parquet = |bytes: &[u8], change: &dyn Fn(&mut TableSettings)| {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("flowers.parquet");
            std::fs::write(&file, bytes).unwrap();
            table(&text, |settings| {
                change(settings);
                settings.file = file.into();
            })
        };
        let error = of_parquet(FLOWERS, &change).unwrap_err().to_string();
        assert!(error.contains("\"tags.list.element\"") && error.contains("in no list"), "{error}");
        let ignoring = |settings: &mut TableSettings| {
            change(settings);
            settings.columns.insert("tags.list.element".into(), ColumnKind::Ignored);
        };
        assert_eq!(of_parquet(FLOWERS, &ignoring).unwrap(), want);
        for n_bytes in [4, 100, FLOWERS.len() - 1] {
            assert!(matches!(of_parquet(&FLOWERS[..n_bytes], &ignoring), Err(TableError::Parquet { .. })));
        }
    }

    #[test]
    fn a_table_may_be_compressed() {
        let zstd =
            ruzstd::encoding::compress_to_vec(PETALS.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("petals.csv.zst");
        std::fs::write(&file, zstd).unwrap();
        let data = table("", |settings| settings.file = file.into()).unwrap();
        assert_eq!(data, table(PETALS, |_| {}).unwrap());
    }
}
