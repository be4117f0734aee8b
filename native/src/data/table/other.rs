//! Files that a run was not made of, read as its own was: rows of a table, and ratings. Blocking.

use std::path::Path;

use barnraise_protocol::columns::ratings::{OtherRating, RatingDecoder};
use barnraise_protocol::columns::{RatingColumns, TableColumns};
use barnraise_protocol::dataset::{RowTargets, TableShape};

use super::TableError;
use super::cells::Cells;

/// Rows of a table, each as the model takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherRows {
    /// The head of the file.
    pub names: Vec<String>,
    /// The cells of each row, in the order of the head.
    pub cells: Vec<Vec<String>>,
    /// `[n_rows, n_columns]`
    pub values: Vec<f32>,
    /// What is to be told of each row, where that was asked for.
    pub targets: Option<RowTargets>,
}

/// Reads rows, each with what is to be told of it if that is `wanted`. A few broken ones are left out.
///
/// # Errors
/// No such file, a column that is missing, too many broken rows.
pub fn rows(
    path: &Path,
    columns: &TableColumns,
    shape: &TableShape,
    wanted: bool,
) -> Result<OtherRows, TableError> {
    let mut cells = Cells::read(path, |_| true)?;
    let decoder = cells.decoder(path, columns, wanted.then_some(&shape.target))?;
    cells.retain(|record| decoder.row(record).map(drop));
    cells.check_broken(path)?;
    let (mut values, mut told) = (Vec::with_capacity(cells.rows.len() * shape.columns.len()), Vec::new());
    // Broken rows are gone.
    for (row, of_row) in cells.rows.iter().filter_map(|(_, record)| decoder.row(record).ok()) {
        values.extend(row);
        told.extend(of_row);
    }
    let targets = decoder.targets(told);
    let of_row = |record: &csv::StringRecord| record.iter().map(str::to_owned).collect();
    let all = cells.rows.iter().map(|(_, record)| of_row(record)).collect();
    Ok(OtherRows { names: cells.names, cells: all, values, targets })
}

/// Reads ratings. A file without the column of who rates is of one user. What the run does not know is left out.
///
/// # Errors
/// No such file, a column that is missing, no row that can be used.
pub fn ratings(path: &Path, columns: &RatingColumns, n_items: u32) -> Result<Vec<OtherRating>, TableError> {
    let mut cells = Cells::read(path, |_| true)?;
    let decoder = RatingDecoder::new(columns, n_items, &cells.names);
    let decoder = decoder.map_err(|missing| TableError::no_column(path, missing))?;
    cells.retain(|record| decoder.rating(record).map(drop));
    cells.check_unknown(path)?;
    Ok(cells.rows.iter().filter_map(|(_, record)| decoder.rating(record).ok()).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::columns::{Column, ColumnContent, Scale};
    use barnraise_protocol::dataset::TableTarget;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn flowers(target: TableTarget) -> (TableColumns, TableShape) {
        let scale = Scale { mean: 1.0, deviation: 2.0 };
        let columns = TableColumns {
            target: "kind".into(),
            columns: vec![Column { name: "length".into(), content: ColumnContent::Number(scale) }],
        };
        (columns, TableShape { columns: vec!["length".into()], target })
    }

    #[test]
    fn columns_are_found_by_name_and_what_is_told_may_be_missing() {
        let (columns, shape) = flowers(TableTarget::Class(vec!["daisy".into(), "rose".into()]));
        let with = file("kind;more;length\nrose;x;5\ndaisy;;1\n");
        let read = rows(with.path(), &columns, &shape, true).unwrap();
        assert_eq!(read.values, [2.0, 0.0]);
        assert_eq!(read.targets, Some(RowTargets::Classes(vec![1, 0])));
        assert_eq!(
            (read.names[1].as_str(), &read.cells[0][..]),
            ("more", &["rose", "x", "5"].map(String::from)[..])
        );
        let without = file("length\n3\n");
        let read = rows(without.path(), &columns, &shape, false).unwrap();
        assert_eq!((read.values, read.targets), (vec![1.0], None));
        let said = rows(without.path(), &columns, &shape, true).unwrap_err().to_string();
        assert!(said.contains("no column \"kind\""), "{said}");
        let strange =
            rows(file("kind,length\ntulip,3\n").path(), &columns, &shape, true).unwrap_err().to_string();
        assert!(strange.contains("line 2: \"tulip\" is none of the classes: daisy, rose"), "{strange}");
        let word = rows(file("length\nlong\n").path(), &columns, &shape, false).unwrap_err().to_string();
        assert!(word.contains("line 2: column \"length\": a number is wanted"), "{word}");
        let (columns, shape) = flowers(TableTarget::Values(vec!["kind".into()]));
        let read = rows(file("length,kind\n3,7.5\n").path(), &columns, &shape, true).unwrap();
        assert_eq!(read.targets, Some(RowTargets::Values { n_values: 1, values: vec![7.5] }));
    }

    #[test]
    fn ratings_are_of_items_that_the_run_knows_and_perhaps_of_one_user() {
        let columns = RatingColumns {
            user: "who".into(),
            item: "what".into(),
            rating: "stars".into(),
            range: [1.0, 5.0],
            items: vec!["bread".into(), "soup".into()],
        };
        let read = |text: &str| ratings(file(text).path(), &columns, 2);
        let rating = |user: &str, item, rating| OtherRating { user: user.into(), item, rating };
        assert_eq!(read("what,stars\nsoup,4\n").unwrap(), [rating("", 1, 4.0)]);
        let two = read("who,what,stars\nann,soup,4\nbob,bread,1.5\n").unwrap();
        assert_eq!(two, [rating("ann", 1, 4.0), rating("bob", 0, 1.5)]);
        let said = read("what,stars\ncake,4\n").unwrap_err().to_string();
        assert!(said.contains("the run does not know \"cake\""), "{said}");
    }
}
