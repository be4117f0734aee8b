//! Ratings: who gave what to what.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

use barnraise_protocol::columns::rows::RowError;
use barnraise_protocol::columns::{DataColumns, ITEM_NAMES_BYTES_MAX, RatingColumns, number};
use barnraise_protocol::dataset::{RATED_MAX, RatingShape, Ratings, SampleKind, Samples};

use super::cells::Cells;
use super::{ColumnError, TableError, held_out};
use crate::data::TrainingData;
use crate::data::file::DataFile;

/// A file of ratings.
#[derive(Debug, Clone, PartialEq)]
pub struct RatingSettings {
    /// Display name.
    pub name: String,
    /// As of [`TableSettings::file`].
    pub file: DataFile,
    /// The columns of who rates, what is rated, and how.
    pub columns: [String; 3],
    /// Share of the ratings that is held out, 0 to 1.
    pub held_out: f64,
    /// Seed of what is held out.
    pub seed: u64,
}

impl RatingSettings {
    /// Reads the ratings and holds some out.
    ///
    /// # Errors
    /// As [`super::TableSettings::load`].
    pub fn load(&self, cache: &Path) -> Result<TrainingData, TableError> {
        let path = &self.file.local(cache)?;
        self.of_cells(path, Cells::read(path, |name| self.columns.iter().any(|wanted| wanted == name))?)
    }

    /// As [`Self::load`], from the text of a CSV file; errors name `path`.
    pub(crate) fn load_text(&self, path: &Path, text: impl Read) -> Result<TrainingData, TableError> {
        self.of_cells(path, Cells::read_text(path, text)?)
    }

    fn of_cells(&self, path: &Path, mut cells: Cells) -> Result<TrainingData, TableError> {
        let [user, item, rating] = &self.columns;
        let [user, item, rating] =
            [cells.column(path, user)?, cells.column(path, item)?, cells.column(path, rating)?];
        cells.retain(|record| {
            let cell = |column: usize| record.get(column).unwrap_or_default();
            match (cell(user), cell(item), number(cell(rating))) {
                ("", _, _) | (_, "", _) => Err(RowError::NoRated),
                (_, _, None) => Err(RowError::rating(cell(rating))),
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
                    path: path.to_owned(),
                    column: cells.names[column].clone(),
                    reason: ColumnError::Rated { got: numbers.len() },
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
        let columns = Some(DataColumns::Ratings(self.columns(items.keys(), cells.cells(rating))));
        Ok(TrainingData { name, kind, train, test, tokenizer: None, columns, stream: None })
    }

    fn columns<'a>(
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
        let settings =
            RatingSettings { name: "Food".into(), file: file.into(), columns, held_out: 0.25, seed: 2 };
        let data = settings.load(folder.path()).unwrap();
        assert_eq!(data.kind, SampleKind::Ratings(RatingShape { n_users: 2, n_items: 2 }));
        let (Samples::Ratings(train), Samples::Ratings(test)) = (&data.train, &data.test) else { panic!() };
        let all = [train, test].map(|part| part.users.iter().zip(&part.items).zip(&part.ratings));
        let mut all: Vec<_> =
            all.into_iter().flatten().map(|((user, item), &rating)| (*user, *item, rating)).collect();
        all.sort_by(|a, b| a.partial_cmp(b).unwrap());
        assert_eq!(all, [(0, 0, 5.0), (0, 1, 3.5), (1, 0, 4.0), (1, 1, 2.0)]);
        assert_eq!(test.ratings.len(), 1);
        let strange = RatingSettings { columns: ["who", "what", "x"].map(str::to_owned), ..settings };
        assert!(strange.load(folder.path()).unwrap_err().to_string().contains("no column \"x\""));
    }
}
