//! `[data.table]` and `[data.ratings]`: files of rows to learn from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Invalid, held_out};
use crate::data::file::DataFile;
use crate::data::table::{ColumnKind, RatingSettings, TableSettings};

/// `[data.table]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSection {
    /// Name for people; the file's where there is none.
    pub name: Option<String>,
    /// CSV, whose first line names the columns, compressed or not, or Parquet.
    pub file: DataFile,
    /// The column that is to be told: a class, or with the loss `regression` a number.
    pub target: String,
    /// What columns hold, where it is not to be seen from their values.
    #[serde(default)]
    pub columns: BTreeMap<String, ColumnKind>,
    /// Share of the rows that is never trained on.
    #[serde(default = "held_out::default")]
    pub held_out: f64,
}

/// `[data.ratings]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RatingsSection {
    /// Name for people; the file's where there is none.
    pub name: Option<String>,
    /// CSV, whose first line names the columns, compressed or not, or Parquet.
    pub file: DataFile,
    /// The column of who rates.
    #[serde(default = "user")]
    pub user: String,
    /// The column of what is rated.
    #[serde(default = "item")]
    pub item: String,
    /// The column of numbers that they gave.
    #[serde(default = "rating")]
    pub rating: String,
    /// Share of the ratings that is never trained on.
    #[serde(default = "held_out::default")]
    pub held_out: f64,
}

fn user() -> String {
    "user".to_owned()
}

fn item() -> String {
    "item".to_owned()
}

fn rating() -> String {
    "rating".to_owned()
}

impl TableSection {
    /// Settings of the data set; `is_class`: the model tells classes.
    pub(super) fn settings(&self, seed: u64, is_class: bool) -> TableSettings {
        TableSettings {
            name: name(self.name.as_ref(), &self.file),
            file: self.file.clone(),
            target: self.target.clone(),
            is_class,
            columns: self.columns.clone(),
            held_out: self.held_out,
            seed,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        check(["data.table.name", "data.table.held_out"], self.name.as_ref(), self.held_out)
    }
}

impl RatingsSection {
    /// Settings of the data set.
    pub(super) fn settings(&self, seed: u64) -> RatingSettings {
        RatingSettings {
            name: name(self.name.as_ref(), &self.file),
            file: self.file.clone(),
            columns: [&self.user, &self.item, &self.rating].map(Clone::clone),
            held_out: self.held_out,
            seed,
        }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        check(["data.ratings.name", "data.ratings.held_out"], self.name.as_ref(), self.held_out)
    }
}

fn name(given: Option<&String>, file: &DataFile) -> String {
    given.cloned().or_else(|| file.stem()).unwrap_or_else(|| "Table".into())
}

fn check(keys: [&'static str; 2], name: Option<&String>, held_out: f64) -> Result<(), Invalid> {
    let [name_key, held_key] = keys;
    if let Some(name) = name {
        super::check::text(name_key, name, 100)?;
    }
    held_out::check(held_key, held_out)
}
