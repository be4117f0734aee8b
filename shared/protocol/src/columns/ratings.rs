//! Ratings of people who are no users of the run, read by their columns: by a peer, and by a tab whose visitor brings some. Never
//! opens a file.

use std::collections::BTreeMap;

use super::rows::{BrokenRows, CsvRows, MissingColumns, OwnRowsError, RowError, TooManyPeople};
use super::{RatingColumns, number};
use crate::dataset::{RatingShape, Ratings};

/// Most ratings that a visitor brings: a tab has them in memory.
const OWN_RATINGS_MAX: usize = 1024 * 1024;

/// A rating of an item that the run knows.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherRating {
    /// Who rates; empty where the file is of one.
    pub user: String,
    /// Number of the item.
    pub item: u32,
    /// What it got.
    pub rating: f32,
}

/// Decodes the rows of a file of ratings, whose columns may stand in any order among others. A file without the column of who rates
/// is of one person.
#[derive(Debug)]
pub struct RatingDecoder<'c> {
    columns: &'c RatingColumns,
    n_items: u32,
    /// Where they are in the file.
    item: usize,
    rating: usize,
    user: Option<usize>,
}

impl<'c> RatingDecoder<'c> {
    /// For a file with columns of these names.
    ///
    /// # Errors
    /// No column of what is rated, or of how.
    pub fn new(columns: &'c RatingColumns, n_items: u32, names: &[String]) -> Result<Self, MissingColumns> {
        let place = |wanted: &String| names.iter().position(|name| name == wanted);
        match (place(&columns.item), place(&columns.rating)) {
            (Some(item), Some(rating)) => {
                Ok(Self { columns, n_items, item, rating, user: place(&columns.user) })
            }
            _ => {
                let wanted = [&columns.item, &columns.rating];
                let missing = wanted.into_iter().filter(|name| place(name).is_none()).cloned().collect();
                Err(MissingColumns { missing, wanted: wanted.map(Clone::clone).into(), got: names.to_vec() })
            }
        }
    }

    /// The rating of a row.
    ///
    /// # Errors
    /// An item that the run does not know, no number, or one that is on another scale.
    pub fn rating(&self, record: &csv::StringRecord) -> Result<OtherRating, RowError> {
        let cell = |column: usize| record.get(column).unwrap_or_default();
        let known = self.columns.find(cell(self.item)).filter(|&item| item < self.n_items);
        let item = known.ok_or_else(|| RowError::item(cell(self.item)))?;
        let given = cell(self.rating);
        let rating = number(given).ok_or_else(|| RowError::rating(given))?;
        if self.columns.clamped(rating) != rating {
            return Err(RowError::scale(given, self.columns.range));
        }
        Ok(OtherRating { user: self.user.map(cell).unwrap_or_default().to_owned(), item, rating })
    }
}

/// Ratings of people who are no users of the run: they are numbered as they come. Each file that does not say who rates is of one
/// more.
#[derive(Debug, Clone, Default)]
pub struct PeoplesRatings {
    ratings: Ratings,
    /// By their name, or else by the number of their file.
    people: BTreeMap<(Option<usize>, String), u32>,
}

impl PeoplesRatings {
    /// Appends a rating of a file with this number.
    pub fn push(&mut self, file: usize, rating: OtherRating) {
        let OtherRating { user, item, rating } = rating;
        let (person, next) = ((user.is_empty().then_some(file), user), self.people.len() as u32);
        self.ratings.users.push(*self.people.entry(person).or_insert(next));
        self.ratings.items.push(item);
        self.ratings.ratings.push(rating);
    }

    /// How many ratings there are.
    pub fn n(&self) -> usize {
        self.ratings.ratings.len()
    }

    /// As samples of the run.
    ///
    /// # Errors
    /// There are more people than users.
    pub fn samples(self, shape: RatingShape) -> Result<Ratings, TooManyPeople> {
        let (got, max) = (self.people.len(), shape.n_users);
        if got > max as usize { Err(TooManyPeople { got, max }) } else { Ok(self.ratings) }
    }
}

/// Ratings that a visitor brings, as samples of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnRatings {
    /// One at least.
    pub ratings: Ratings,
    /// Rows that are left out.
    pub broken: BrokenRows,
}

impl OwnRatings {
    /// Reads the text of a CSV file.
    ///
    /// # Errors
    /// A missing column, no row that can be used, or too many, or of too many people.
    pub fn read(text: &[u8], columns: &RatingColumns, shape: RatingShape) -> Result<Self, OwnRowsError> {
        Self::read_within(OWN_RATINGS_MAX, text, columns, shape)
    }

    fn read_within(
        max: usize,
        text: &[u8],
        columns: &RatingColumns,
        shape: RatingShape,
    ) -> Result<Self, OwnRowsError> {
        let rows = CsvRows::read(text)?;
        let decoder = RatingDecoder::new(columns, shape.n_items, rows.names())?;
        let (mut read, mut broken) = (PeoplesRatings::default(), BrokenRows::default());
        for row in rows {
            let (place, record) = row?;
            match record.and_then(|record| decoder.rating(&record)) {
                Ok(rating) => read.push(0, rating),
                Err(reason) => broken.add(place, reason),
            }
            if read.n() > max {
                return Err(OwnRowsError::TooMany { max });
            }
        }
        match read.n() {
            0 => Err(OwnRowsError::none(&broken)),
            _ => Ok(Self { ratings: read.samples(shape)?, broken }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const SHAPE: RatingShape = RatingShape { n_users: 2, n_items: 2 };

    fn columns() -> RatingColumns {
        let [user, item, rating] = ["who", "what", "stars"].map(str::to_owned);
        let items = vec!["bread".into(), "soup".into()];
        RatingColumns { user, item, rating, range: [1.0, 5.0], items }
    }

    fn read(text: &str) -> Result<OwnRatings, OwnRowsError> {
        OwnRatings::read(text.as_bytes(), &columns(), SHAPE)
    }

    #[test]
    fn people_are_numbered_as_they_come_and_without_names_are_one() {
        let two = read("note;stars;what;who\n;4;soup;zoe\n;1.5;bread;ann\n;2;bread;zoe\n").unwrap();
        let want = Ratings { users: vec![0, 1, 0], items: vec![1, 0, 0], ratings: vec![4.0, 1.5, 2.0] };
        assert_eq!(two, OwnRatings { ratings: want, broken: BrokenRows::default() });
        let one = read("what,stars\nsoup,4\ncake,5\nbread,many\nbread,50\n").unwrap();
        assert_eq!(one.ratings, Ratings { users: vec![0], items: vec![1], ratings: vec![4.0] });
        let (place, reason) = one.broken.first().unwrap();
        assert_eq!(format!("{place}: {reason}"), "line 3: the run does not know \"cake\"");
        assert_eq!(one.broken.n(), 3);
        let other_scale = read("what,stars\nbread,50\n").unwrap_err().to_string();
        assert!(other_scale.ends_with("the rating is \"50\", those of the run are 1 to 5"), "{other_scale}");
    }

    #[test]
    fn what_nothing_can_be_learned_from_is_refused() {
        let said = |text: &str| read(text).unwrap_err().to_string();
        assert_eq!(
            said("who,stars\nann,4\n"),
            "it has no column what; wanted are what, stars, it has who, stars"
        );
        assert_eq!(said("what,stars\n"), "rows below the head are wanted, it has none");
        assert!(
            said("what,stars\ncake,4\n").starts_with("none of its 1 rows can be used; the first is line 2")
        );
        let three = said("who,what,stars\nann,soup,4\nbob,soup,4\nzoe,soup,4\n");
        assert_eq!(three, "it has ratings of 3 people, of at most 2 can be learned from here");
    }

    #[test]
    fn items_without_names_have_numbers_below_that_of_the_items() {
        let nameless = RatingColumns { items: Vec::new(), ..columns() };
        let read = OwnRatings::read(b"what,stars\n2,4\n1,4\n", &nameless, SHAPE).unwrap();
        assert_eq!(read.ratings, Ratings { users: vec![0], items: vec![1], ratings: vec![4.0] });
        let (place, reason) = read.broken.first().unwrap();
        assert_eq!(format!("{place}: {reason}"), "line 2: the run does not know \"2\"");
    }

    #[test]
    fn a_visitor_brings_so_many_ratings_at_most() {
        let read = |max| {
            let text = b"what,stars\nsoup,4\ncake,5\nbread,3\n";
            OwnRatings::read_within(max, text, &columns(), SHAPE)
        };
        assert_eq!(read(2).unwrap().ratings.ratings, [4.0, 3.0], "what is left out does not count");
        assert_eq!(read(1).unwrap_err().to_string(), "it has more than 1 ratings");
    }
}
