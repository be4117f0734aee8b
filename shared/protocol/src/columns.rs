//! How the columns of an operator's table or ratings became samples, so that a row which nobody trained on is read in the
//! same way: `GET /api/columns.json` of an open run.
//!
//! Names of users are not in it: they may be people.

pub mod ratings;
pub mod rows;

use serde::{Deserialize, Serialize};

use crate::dataset::{
    COLUMNS_MAX, LABEL_BYTES_MAX, PREPROCESSING_BYTES_MAX, RatingShape, SampleKind, TableShape, TableTarget,
};

/// Most bytes of the names of all items; those of more items are left out.
pub const ITEM_NAMES_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest file of columns, in bytes: that of names in which each byte is escaped.
pub const COLUMNS_BYTES_MAX: u64 = PREPROCESSING_BYTES_MAX;

/// How the columns of a file become samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataColumns {
    /// Of a table.
    Table(TableColumns),
    /// Of ratings.
    Ratings(RatingColumns),
}

/// The columns of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableColumns {
    /// Name of the column that is to be told.
    pub target: String,
    /// The columns that it is told from, in the order of their numbers.
    pub columns: Vec<Column>,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Its name in the head of the file.
    pub name: String,
    /// What becomes of its cells.
    pub content: ColumnContent,
}

/// What becomes of the cells of a column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ColumnContent {
    /// A number; a missing one is the mean.
    Number(Scale),
    /// A number for each word: 1 for the one that stands there, 0 for the others. An empty cell may be a word, too.
    Words(Vec<(String, Scale)>),
}

/// Brings a number to mean 0 and deviation 1 over the rows that were trained on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// Mean.
    pub mean: f64,
    /// Standard deviation, above zero.
    pub deviation: f64,
}

/// The columns of ratings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RatingColumns {
    /// Name of the column of who rates.
    pub user: String,
    /// Name of the column of what is rated.
    pub item: String,
    /// Name of the column of the numbers that they gave.
    pub rating: String,
    /// The lowest and the highest number that was given.
    pub range: [f32; 2],
    /// Name of each item by its number; none where they are too many.
    pub items: Vec<String>,
}

/// A cell that is no number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column {column:?}: a number is wanted, {cell:?} came")]
pub struct NoNumber {
    /// Its column.
    pub column: String,
    /// What came.
    pub cell: String,
}

/// Columns that are not those of the samples.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the columns are not those of the run's data: {0}")]
pub struct OtherColumns(&'static str);

/// A finite number.
pub fn number(cell: &str) -> Option<f32> {
    cell.trim().parse::<f32>().ok().filter(|value| value.is_finite())
}

impl Scale {
    /// Of some values.
    pub fn of(values: impl Iterator<Item = f32> + Clone) -> Self {
        let n = values.clone().count().max(1) as f64;
        let mean = values.clone().map(f64::from).sum::<f64>() / n;
        let variance = values.map(|value| (f64::from(value) - mean).powi(2)).sum::<f64>() / n;
        Self { mean, deviation: if variance > 0.0 { variance.sqrt() } else { 1.0 } }
    }

    /// The value in deviations from the mean.
    pub fn standard(self, value: f32) -> f32 {
        ((f64::from(value) - self.mean) / self.deviation) as f32
    }

    fn is_usable(self) -> bool {
        self.mean.is_finite() && self.deviation.is_finite() && self.deviation > 0.0
    }
}

impl Column {
    /// Names of its numbers.
    pub fn names(&self) -> Vec<String> {
        match &self.content {
            ColumnContent::Number(_) => vec![self.name.clone()],
            ColumnContent::Words(words) => {
                let name = |word: &str| {
                    let mut name = format!("{}={word}", self.name);
                    name.truncate(name.floor_char_boundary(LABEL_BYTES_MAX));
                    name
                };
                words.iter().map(|(word, _)| name(word)).collect()
            }
        }
    }

    /// Appends the numbers of a cell. A word that was never trained on is none of those that were; a missing one is as in
    /// the mean row.
    ///
    /// # Errors
    /// No number, where one is wanted.
    pub fn push(&self, cell: &str, values: &mut Vec<f32>) -> Result<(), NoNumber> {
        let cell = cell.trim();
        match &self.content {
            ColumnContent::Number(_) if cell.is_empty() => values.push(0.0),
            ColumnContent::Number(scale) => match number(cell) {
                Some(value) => values.push(scale.standard(value)),
                None => return Err(NoNumber { column: self.name.clone(), cell: cell.to_owned() }),
            },
            ColumnContent::Words(words)
                if cell.is_empty() && words.iter().all(|(word, _)| !word.is_empty()) =>
            {
                values.extend(words.iter().map(|_| 0.0));
            }
            ColumnContent::Words(words) => {
                let value =
                    |(word, scale): &(String, Scale)| scale.standard(if word == cell { 1.0 } else { 0.0 });
                values.extend(words.iter().map(value));
            }
        }
        Ok(())
    }
}

impl TableColumns {
    /// The numbers of a row, in the order of the model's input. `cell` gives the cell of a column by its index.
    ///
    /// # Errors
    /// The first cell that is no number.
    pub fn row<'a>(&self, cell: impl Fn(usize) -> &'a str) -> Result<Vec<f32>, NoNumber> {
        let mut values = Vec::new();
        for (index, column) in self.columns.iter().enumerate() {
            column.push(cell(index), &mut values)?;
        }
        Ok(values)
    }

    /// Names of all numbers of a row.
    pub fn names(&self) -> Vec<String> {
        self.columns.iter().flat_map(Column::names).collect()
    }
}

impl DataColumns {
    /// Compares them with the samples of the run.
    ///
    /// # Errors
    /// Others, or scales that are no numbers.
    pub fn check(&self, samples: &SampleKind) -> Result<(), OtherColumns> {
        match (self, samples) {
            (Self::Table(columns), SampleKind::Rows(shape)) => columns.check(shape),
            (Self::Ratings(columns), SampleKind::Ratings(shape)) => columns.check(*shape),
            _ => Err(OtherColumns("they are of data of another kind")),
        }
    }
}

impl TableColumns {
    fn check(&self, TableShape { columns, target }: &TableShape) -> Result<(), OtherColumns> {
        if self.columns.len() > COLUMNS_MAX || self.names() != *columns {
            return Err(OtherColumns("they have other names"));
        }
        let is_other = |names: &[String]| *names != [self.target.clone()];
        if matches!(target, TableTarget::Values(names) if is_other(names)) {
            return Err(OtherColumns("another one is to be told"));
        }
        let scales = self.columns.iter().flat_map(|column| match &column.content {
            ColumnContent::Number(scale) => vec![*scale],
            ColumnContent::Words(words) => words.iter().map(|(_, scale)| *scale).collect(),
        });
        match scales.into_iter().all(Scale::is_usable) {
            true => Ok(()),
            false => Err(OtherColumns("a mean or deviation is no number")),
        }
    }
}

impl RatingColumns {
    /// Name of an item, or its number where names are not known.
    pub fn item(&self, item: u32) -> String {
        self.items.get(item as usize).cloned().unwrap_or_else(|| item.to_string())
    }

    /// Number of an item by its name, or by its number where names are not known.
    pub fn find(&self, name: &str) -> Option<u32> {
        let name = name.trim();
        match self.items.is_empty() {
            true => name.parse().ok(),
            // They are sorted.
            false => u32::try_from(self.items.binary_search_by(|item| item.as_str().cmp(name)).ok()?).ok(),
        }
    }

    /// A rating as somebody could give it.
    pub fn clamped(&self, rating: f32) -> f32 {
        let [lowest, highest] = self.range;
        rating.max(lowest).min(highest)
    }

    fn check(&self, RatingShape { n_items, .. }: RatingShape) -> Result<(), OtherColumns> {
        let [lowest, highest] = self.range;
        if !(lowest.is_finite() && highest.is_finite() && lowest <= highest) {
            return Err(OtherColumns("the range of ratings is none"));
        }
        if !self.items.is_empty() && self.items.len() != n_items as usize {
            return Err(OtherColumns("there are other items"));
        }
        match self.items.is_sorted() {
            true => Ok(()),
            false => Err(OtherColumns("the items are not sorted")),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    pub(super) fn flowers() -> TableColumns {
        let scale = |mean, deviation| Scale { mean, deviation };
        let words = vec![("red".to_owned(), scale(0.25, 0.5)), ("white".to_owned(), scale(0.75, 0.5))];
        TableColumns {
            target: "kind".into(),
            columns: vec![
                Column { name: "length".into(), content: ColumnContent::Number(scale(2.0, 4.0)) },
                Column { name: "colour".into(), content: ColumnContent::Words(words) },
            ],
        }
    }

    fn shape() -> SampleKind {
        let columns = ["length", "colour=red", "colour=white"].map(str::to_owned).into();
        SampleKind::Rows(TableShape { columns, target: TableTarget::Class(vec!["rose".into()]) })
    }

    fn ratings(items: &[&str]) -> RatingColumns {
        RatingColumns {
            user: "user".into(),
            item: "film".into(),
            rating: "stars".into(),
            range: [0.5, 5.0],
            items: items.iter().map(|&item| item.to_owned()).collect(),
        }
    }

    fn of_two() -> SampleKind {
        SampleKind::Ratings(RatingShape { n_users: 9, n_items: 2 })
    }

    #[test]
    fn a_row_is_read_as_those_that_were_trained_on() {
        let row = |cells: [&'static str; 2]| flowers().row(|column| cells[column]);
        assert_eq!(row(["10", "white"]).unwrap(), [2.0, -0.5, 0.5]);
        assert_eq!(row(["", "red"]).unwrap(), [0.0, 1.5, -1.5], "a missing number is the mean");
        assert_eq!(row([" -2 ", "blue"]).unwrap(), [-1.0, -0.5, -1.5], "nobody has seen a blue one");
        assert_eq!(row(["", ""]).unwrap(), [0.0; 3], "the mean row");
        let said = row(["long", "red"]).unwrap_err().to_string();
        assert_eq!(said, "column \"length\": a number is wanted, \"long\" came");
        assert!(row(["inf", "red"]).is_err() && row(["NaN", "red"]).is_err());
    }

    #[test]
    fn columns_of_other_data_are_refused() {
        let check = |columns: TableColumns| DataColumns::Table(columns).check(&shape());
        assert_eq!(check(flowers()), Ok(()));
        let mut fewer = flowers();
        fewer.columns.pop();
        assert!(check(fewer).is_err());
        let mut broken = flowers();
        broken.columns[0].content = ColumnContent::Number(Scale { mean: 0.0, deviation: 0.0 });
        assert!(check(broken).is_err());
        let value = TableTarget::Values(vec!["size".into()]);
        let SampleKind::Rows(mut other) = shape() else { unreachable!() };
        other.target = value;
        assert!(DataColumns::Table(flowers()).check(&SampleKind::Rows(other)).is_err());
        for (items, is_good) in
            [(&["Jaws", "Psycho"][..], true), (&[], true), (&["Psycho", "Jaws"], false), (&["Jaws"], false)]
        {
            assert_eq!(DataColumns::Ratings(ratings(items)).check(&of_two()).is_ok(), is_good, "{items:?}");
        }
        assert!(DataColumns::Ratings(ratings(&[])).check(&shape()).is_err());
        assert_eq!(ratings(&["Jaws", "Psycho"]).find("Psycho"), Some(1));
        assert_eq!((ratings(&["Jaws"]).find("Alien"), ratings(&[]).find("7")), (None, Some(7)));
        assert_eq!([0.0, 3.0, 9.0].map(|rating| ratings(&[]).clamped(rating)), [0.5, 3.0, 5.0]);
        assert_eq!((ratings(&["Jaws"]).item(0), ratings(&[]).item(7)), ("Jaws".into(), "7".into()));
    }

    #[test]
    fn a_scale_is_the_mean_and_deviation_of_the_values() {
        for (values, mean, deviation) in [
            (&[1.0, 1.0, 5.0, 5.0][..], 3.0, 2.0),
            // They say nothing, and are not divided by zero.
            (&[7.0, 7.0], 7.0, 1.0),
            (&[], 0.0, 1.0),
        ] {
            assert_eq!(Scale::of(values.iter().copied()), Scale { mean, deviation }, "{values:?}");
        }
    }

    #[test]
    fn a_scale_that_gives_no_numbers_is_refused() {
        for (mean, deviation, is_good) in [
            (-3.0, 0.5, true),
            (f64::NAN, 1.0, false),
            (f64::INFINITY, 1.0, false),
            (0.0, f64::NAN, false),
            (0.0, f64::INFINITY, false),
            (0.0, 0.0, false),
            (0.0, -1.0, false),
        ] {
            let mut columns = flowers();
            columns.columns[0].content = ColumnContent::Number(Scale { mean, deviation });
            let checked = DataColumns::Table(columns).check(&shape());
            assert_eq!(checked.is_ok(), is_good, "mean {mean}, deviation {deviation}");
        }
    }

    #[test]
    fn a_table_has_so_many_columns_at_most() {
        // It has no numbers: their names are the same with any number of such columns.
        let wordless = Column { name: "note".into(), content: ColumnContent::Words(Vec::new()) };
        for (n_columns, is_good) in [(COLUMNS_MAX, true), (COLUMNS_MAX + 1, false)] {
            let mut columns = flowers();
            columns.columns.resize(n_columns, wordless.clone());
            assert_eq!(DataColumns::Table(columns).check(&shape()).is_ok(), is_good, "{n_columns} columns");
        }
    }

    #[test]
    fn ratings_are_in_a_range() {
        for (range, is_good) in [
            ([0.5, 5.0], true),
            ([3.0, 3.0], true),
            ([5.0, 0.5], false),
            ([0.5, f32::INFINITY], false),
            ([f32::NEG_INFINITY, 5.0], false),
            ([0.5, f32::NAN], false),
        ] {
            let columns = RatingColumns { range, ..ratings(&[]) };
            assert_eq!(DataColumns::Ratings(columns).check(&of_two()).is_ok(), is_good, "{range:?}");
        }
    }
}
