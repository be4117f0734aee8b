//! Tables and ratings of the operator's own, from a CSV file with a head line.
//!
//! A column of numbers is brought to mean 0 and deviation 1 by its training rows; a missing number is the mean. A column
//! of words becomes one number for each word, 1 where it stands. Deterministic: the same file, settings and seed give the
//! same samples. Blocking: call it from a thread that may block.

pub mod other;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::path::{Path, PathBuf};

use barnraise_protocol::columns::{
    Column, ColumnContent, DataColumns, ITEM_NAMES_BYTES_MAX, NoNumber, RatingColumns, Scale, TableColumns,
    number,
};
use barnraise_protocol::dataset::{
    COLUMNS_MAX, LABEL_BYTES_MAX, RATED_MAX, RatingShape, Ratings, RowTargets, SampleKind, Samples,
    TableRows, TableShape, TableTarget,
};
use barnraise_swarm::random::SplitMix64;
use serde::{Deserialize, Serialize};

use super::TrainingData;

/// Most classes: a label is one byte.
const CLASSES_MAX: usize = 256;
/// Most words of a column that are numbers of their own.
const WORDS_MAX: usize = 256;
/// Most bytes of all samples: they are in memory.
const BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// One of so many rows may be broken.
const BROKEN_PART: usize = 20;

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
    /// Values with commas, semicolons or tabs between them, and the names of the columns in the first line.
    pub file: PathBuf,
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

/// A file of ratings.
#[derive(Debug, Clone, PartialEq)]
pub struct RatingSettings {
    /// Display name.
    pub name: String,
    /// As of [`TableSettings::file`].
    pub file: PathBuf,
    /// The columns of who rates, what is rated, and how.
    pub columns: [String; 3],
    /// Share of the ratings that is held out, 0 to 1.
    pub held_out: f64,
    /// Seed of what is held out.
    pub seed: u64,
}

/// Why a table cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: csv::Error,
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
        reason: String,
    },
    /// Too many broken rows to be a few bad ones.
    #[error(
        "{n_broken} of {n_rows} rows of {} cannot be read, more than one in {BROKEN_PART}; the first is line {line}: \
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
        line: u64,
        /// What is wrong with it.
        reason: String,
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
    #[error("{} gives {n_bytes} bytes of samples, at most {BYTES_MAX} are supported", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Of all samples.
        n_bytes: u64,
    },
}

/// Cells of a file by row, without its head.
struct Cells {
    names: Vec<String>,
    /// Each with its line.
    rows: Vec<(u64, csv::StringRecord)>,
    broken: BrokenRows,
}

/// Rows that were left out.
#[derive(Default)]
struct BrokenRows {
    n: usize,
    first: Option<(u64, String)>,
}

impl BrokenRows {
    fn add(&mut self, line: u64, reason: impl FnOnce() -> String) {
        self.n += 1;
        self.first.get_or_insert_with(|| (line, reason()));
    }
}

impl Cells {
    fn read(path: &Path) -> Result<Self, TableError> {
        let failed = |source| TableError::File { path: path.to_owned(), source };
        let of_system = |error: std::io::Error| failed(csv::Error::from(error));
        let mut file = BufReader::new(File::open(path).map_err(of_system)?);
        let mut head = String::new();
        file.read_line(&mut head).map_err(of_system)?;
        file.rewind().map_err(of_system)?;
        let count = |byte: char| head.matches(byte).count();
        let delimiter = [',', ';', '\t'].into_iter().max_by_key(|&byte| count(byte)).unwrap_or(',');
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(delimiter as u8)
            .trim(csv::Trim::All)
            .flexible(true)
            .from_reader(file);
        let names: Vec<String> = reader.headers().map_err(failed)?.iter().map(str::to_owned).collect();
        let (mut rows, mut broken) = (Vec::new(), BrokenRows::default());
        for record in reader.records() {
            match record {
                Ok(record) => {
                    let line = record.position().map_or(0, csv::Position::line);
                    match record.len() == names.len() {
                        true => rows.push((line, record)),
                        false => broken.add(line, || {
                            format!("it has {} values, the head has {}", record.len(), names.len())
                        }),
                    }
                }
                Err(error) if matches!(error.kind(), csv::ErrorKind::Utf8 { .. }) => {
                    let line = error.position().map_or(0, csv::Position::line);
                    broken.add(line, || "it is not UTF-8".to_owned());
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(Self { names, rows, broken })
    }

    fn column(&self, path: &Path, name: &str) -> Result<usize, TableError> {
        let found = self.names.iter().position(|known| known == name);
        found.ok_or_else(|| TableError::NoColumn {
            path: path.to_owned(),
            name: name.to_owned(),
            names: self.names.clone(),
        })
    }

    /// Where the columns are.
    fn places(&self, path: &Path, columns: &TableColumns) -> Result<Vec<usize>, TableError> {
        columns.columns.iter().map(|column| self.column(path, &column.name)).collect()
    }

    /// Drops the rows of which `read` gives a reason.
    fn retain(&mut self, read: impl Fn(&csv::StringRecord) -> Result<(), String>) {
        let broken = &mut self.broken;
        self.rows.retain(|(line, record)| match read(record) {
            Ok(()) => true,
            Err(reason) => {
                broken.add(*line, || reason);
                false
            }
        });
    }

    /// Refuses a file with too few rows, or with too many broken ones.
    fn check(&self, path: &Path) -> Result<(), TableError> {
        self.check_broken(path)?;
        match self.rows.len() {
            0 | 1 => Err(TableError::TooFew { path: path.to_owned(), got: self.rows.len() }),
            _ => Ok(()),
        }
    }

    /// Refuses a file with too many broken rows, and logs a few.
    fn check_broken(&self, path: &Path) -> Result<(), TableError> {
        let n_rows = self.rows.len() + self.broken.n;
        if let Some((line, reason)) = self.broken.first.clone() {
            let (path, n_broken) = (path.to_owned(), self.broken.n);
            if n_broken * BROKEN_PART > n_rows {
                return Err(TableError::Broken { path, n_broken, n_rows, line, reason });
            }
            tracing::warn!(path = %path.display(), n_broken, line, reason, "rows are left out; of the first one");
        }
        Ok(())
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &str> + Clone {
        self.rows.iter().map(move |(_, record)| record.get(column).unwrap_or_default())
    }
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
    pub fn load(&self) -> Result<TrainingData, TableError> {
        let path = &self.file;
        let mut cells = Cells::read(path)?;
        let target = cells.column(path, &self.target)?;
        for name in self.columns.keys() {
            cells.column(path, name)?;
        }
        let is_class = self.is_class;
        cells.retain(|record| match record.get(target).unwrap_or_default() {
            "" => Err("what is to be told is missing".to_owned()),
            cell if !is_class && number(cell).is_none() => {
                Err(format!("{cell:?} is to be told, a number is wanted"))
            }
            _ => Ok(()),
        });
        cells.check(path)?;
        let is_held = held_out(cells.rows.len(), self.held_out, self.seed);
        let columns = self.columns(&cells, target, &is_held)?;
        let n_columns = columns.names().len();
        let n_bytes = cells.rows.len() as u64 * (n_columns as u64 + 1) * 4;
        if n_bytes > BYTES_MAX {
            return Err(TableError::TooLarge { path: path.clone(), n_bytes });
        }
        let classes = self.classes(&cells, target)?;
        let places = cells.places(path, &columns)?;
        let told = |row: usize| cells.rows[row].1.get(target).unwrap_or_default();
        let part = |wanted: bool| -> Result<Samples, TableError> {
            let rows = || (0..cells.rows.len()).filter(|&row| is_held[row] == wanted);
            let values = rows().map(|row| values(&columns, &places, &cells.rows[row].1));
            let values = values.collect::<Result<Vec<_>, _>>().map_err(|error| self.refused(error))?.concat();
            let targets = match &classes {
                Some(classes) => RowTargets::Classes(
                    rows().map(|row| classes.binary_search(&told(row)).unwrap_or_default() as u8).collect(),
                ),
                None => RowTargets::Values {
                    n_values: 1,
                    values: rows().map(|row| number(told(row)).unwrap_or_default()).collect(),
                },
            };
            Ok(Samples::Rows(TableRows { n_columns, values, targets }))
        };
        let target = match &classes {
            Some(classes) => TableTarget::Class(classes.iter().map(|&name| name.to_owned()).collect()),
            None => TableTarget::Values(vec![self.target.clone()]),
        };
        let (train, test) = (part(false)?, part(true)?);
        let kind = SampleKind::Rows(TableShape { columns: columns.names(), target });
        let (name, columns) = (self.name.clone(), Some(DataColumns::Table(columns)));
        Ok(TrainingData { name, kind, train, test, vocabulary: None, columns })
    }

    fn refused(&self, NoNumber { column, cell }: NoNumber) -> TableError {
        let reason = format!("{cell:?} is no number");
        TableError::Column { path: self.file.clone(), column, reason }
    }

    /// All columns but what is to be told, as those to train on have them.
    fn columns(&self, cells: &Cells, target: usize, is_held: &[bool]) -> Result<TableColumns, TableError> {
        let mut columns = Vec::new();
        for (index, name) in cells.names.iter().enumerate().filter(|(index, _)| *index != target) {
            let refused =
                |reason: String| TableError::Column { path: self.file.clone(), column: name.clone(), reason };
            if name.len() > LABEL_BYTES_MAX {
                return Err(refused(format!("its name is longer than {LABEL_BYTES_MAX} bytes")));
            }
            let trained =
                || cells.cells(index).zip(is_held).filter(|(_, held)| !**held).map(|(cell, _)| cell);
            let is_number = || cells.cells(index).all(|cell| cell.is_empty() || number(cell).is_some());
            let kind = self.columns.get(name).copied();
            let kind = kind.unwrap_or_else(|| match is_number() {
                true => ColumnKind::Number,
                false => ColumnKind::Category,
            });
            if kind != ColumnKind::Ignored && cells.names[..index].contains(name) {
                return Err(refused("there is another one of this name".to_owned()));
            }
            let content = match kind {
                ColumnKind::Ignored => continue,
                ColumnKind::Number if !is_number() => {
                    let odd = cells.cells(index).find(|cell| !cell.is_empty() && number(cell).is_none());
                    return Err(refused(format!("{:?} is no number", odd.unwrap_or_default())));
                }
                ColumnKind::Number => ColumnContent::Number(Scale::of(trained().filter_map(number))),
                ColumnKind::Category => {
                    let words = words(cells.cells(index)).map_err(refused)?;
                    let scale =
                        |word: &str| Scale::of(trained().map(move |cell| f32::from(u8::from(cell == word))));
                    ColumnContent::Words(
                        words.into_iter().map(|word| (word.to_owned(), scale(word))).collect(),
                    )
                }
            };
            columns.push(Column { name: name.clone(), content });
        }
        let columns = TableColumns { target: self.target.clone(), columns };
        match columns.names().len() {
            1..=COLUMNS_MAX => Ok(columns),
            got => Err(TableError::Column {
                path: self.file.clone(),
                column: self.target.clone(),
                reason: format!(
                    "it is to be told from {got} numbers of a row, 1 to {COLUMNS_MAX} are wanted"
                ),
            }),
        }
    }

    fn classes<'a>(&self, cells: &'a Cells, target: usize) -> Result<Option<Vec<&'a str>>, TableError> {
        if !self.is_class {
            return Ok(None);
        }
        let classes: BTreeSet<&str> = cells.cells(target).collect();
        let reason = match classes.len() {
            2..=CLASSES_MAX if classes.iter().all(|name| name.len() <= LABEL_BYTES_MAX) => {
                return Ok(Some(classes.into_iter().collect()));
            }
            2..=CLASSES_MAX => format!("the name of a class is longer than {LABEL_BYTES_MAX} bytes"),
            got => format!(
                "it has {got} different values; 2 to {CLASSES_MAX} classes are wanted, or a model with the loss \
                \"regression\" for numbers"
            ),
        };
        Err(TableError::Column { path: self.file.clone(), column: self.target.clone(), reason })
    }
}

/// The different words of a column, sorted; the reason where they cannot be numbers of their own.
fn words<'a>(cells: impl Iterator<Item = &'a str>) -> Result<BTreeSet<&'a str>, String> {
    let words: BTreeSet<&str> = cells.collect();
    let ignored = "say \"ignored\" in data.table.columns to leave it out";
    if words.len() > WORDS_MAX {
        let got = words.len();
        return Err(format!("{got} different words, at most {WORDS_MAX} are supported; {ignored}"));
    }
    match words.iter().any(|word| word.len() > LABEL_BYTES_MAX) {
        true => Err(format!("a word is longer than {LABEL_BYTES_MAX} bytes; {ignored}")),
        false => Ok(words),
    }
}

/// The numbers of a row. `places`: where its columns are in the file.
fn values(columns: &TableColumns, places: &[usize], row: &csv::StringRecord) -> Result<Vec<f32>, NoNumber> {
    columns.row(|column| places.get(column).and_then(|&place| row.get(place)).unwrap_or_default())
}

impl RatingSettings {
    /// Reads the ratings and holds some out.
    ///
    /// # Errors
    /// As [`TableSettings::load`].
    pub fn load(&self) -> Result<TrainingData, TableError> {
        let path = &self.file;
        let mut cells = Cells::read(path)?;
        let [user, item, rating] = &self.columns;
        let [user, item, rating] =
            [cells.column(path, user)?, cells.column(path, item)?, cells.column(path, rating)?];
        cells.retain(|record| {
            let cell = |column: usize| record.get(column).unwrap_or_default();
            match (cell(user), cell(item), number(cell(rating))) {
                ("", _, _) | (_, "", _) => Err("who or what it is of is missing".to_owned()),
                (_, _, None) => Err(format!("the rating is {:?}, a number is wanted", cell(rating))),
                _ => Ok(()),
            }
        });
        cells.check(path)?;
        let numbered = |column: usize| {
            let names: BTreeSet<&str> = cells.cells(column).collect();
            let numbers: BTreeMap<&str, u32> = names.into_iter().zip(0..).collect();
            match numbers.len() <= RATED_MAX as usize {
                true => Ok(numbers),
                false => Err(TableError::Column {
                    path: path.clone(),
                    column: cells.names[column].clone(),
                    reason: format!("{} different values, at most {RATED_MAX} are supported", numbers.len()),
                }),
            }
        };
        let (users, items) = (numbered(user)?, numbered(item)?);
        let is_held = held_out(cells.rows.len(), self.held_out, self.seed);
        let part = |wanted: bool| {
            let mut part = Ratings::default();
            for ((_, record), _) in cells.rows.iter().zip(&is_held).filter(|(_, held)| **held == wanted) {
                let cell = |column: usize| record.get(column).unwrap_or_default();
                part.users.push(users.get(cell(user)).copied().unwrap_or_default());
                part.items.push(items.get(cell(item)).copied().unwrap_or_default());
                part.ratings.push(number(cell(rating)).unwrap_or_default());
            }
            Samples::Ratings(part)
        };
        let (train, test) = (part(false), part(true));
        let shape = RatingShape { n_users: users.len() as u32, n_items: items.len() as u32 };
        let (name, kind) = (self.name.clone(), SampleKind::Ratings(shape));
        let columns = Some(DataColumns::Ratings(self.rating_columns(items.keys(), cells.cells(rating))));
        Ok(TrainingData { name, kind, train, test, vocabulary: None, columns })
    }

    fn rating_columns<'a>(
        &self,
        items: impl Iterator<Item = &'a &'a str> + Clone,
        given: impl Iterator<Item = &'a str> + Clone,
    ) -> RatingColumns {
        let [user, item, rating] = self.columns.clone();
        let given = given.filter_map(number);
        let range = [given.clone().fold(f32::INFINITY, f32::min), given.fold(f32::NEG_INFINITY, f32::max)];
        let n_bytes: usize = items.clone().map(|item| item.len()).sum();
        let items = match n_bytes <= ITEM_NAMES_BYTES_MAX {
            true => items.map(|&item| item.to_owned()).collect(),
            false => Vec::new(),
        };
        RatingColumns { user, item, rating, range, items }
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
            file,
            target: "kind".into(),
            is_class: true,
            columns: BTreeMap::new(),
            held_out: 0.25,
            seed: 1,
        };
        change(&mut settings);
        settings.load()
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
        let told = said("a,kind\n1,x\n2,1\n3,1\n", |settings| settings.is_class = false);
        assert!(told.contains("line 2: \"x\" is to be told, a number is wanted"), "{told}");
        assert!(table("", |_| {}).is_err() && said("kind\nx\ny\n", |_| {}).contains("from 0 numbers"));
    }

    #[test]
    fn a_few_broken_rows_are_left_out() {
        let good: String = (0..40).map(|n| format!("{n},{}\n", ["x", "y"][n % 2])).collect();
        let data = table(&format!("a,kind\n{good}7\n"), |_| {}).unwrap();
        assert_eq!(rows(&data.train).n_samples() + rows(&data.test).n_samples(), 40);
    }

    #[test]
    fn ratings_number_who_rates_and_what_is_rated() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ratings.tsv");
        std::fs::write(
            &file,
            "who\twhat\tstars\nann\tbread\t5\nbob\tsoup\t2\nann\tsoup\t3.5\nbob\tbread\t4\n",
        )
        .unwrap();
        let columns = ["who", "what", "stars"].map(str::to_owned);
        let settings = RatingSettings { name: "Food".into(), file, columns, held_out: 0.25, seed: 2 };
        let data = settings.load().unwrap();
        assert_eq!(data.kind, SampleKind::Ratings(RatingShape { n_users: 2, n_items: 2 }));
        let (Samples::Ratings(train), Samples::Ratings(test)) = (&data.train, &data.test) else { panic!() };
        let all = [train, test].map(|part| part.users.iter().zip(&part.items).zip(&part.ratings));
        let mut all: Vec<_> =
            all.into_iter().flatten().map(|((user, item), &rating)| (*user, *item, rating)).collect();
        all.sort_by(|a, b| a.partial_cmp(b).unwrap());
        assert_eq!(all, [(0, 0, 5.0), (0, 1, 3.5), (1, 0, 4.0), (1, 1, 2.0)]);
        assert_eq!(test.ratings.len(), 1);
        let strange = RatingSettings { columns: ["who", "what", "x"].map(str::to_owned), ..settings };
        assert!(strange.load().unwrap_err().to_string().contains("no column \"x\""));
    }
}
