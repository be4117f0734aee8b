//! The training data: its sources, and how it is cut into shards.
//!
//! It never trusts a file: those of named sets are compared with their known length and SHA-256 before use, those that an
//! operator has fetched with the stated SHA-256, and an operator's own files are bounded and checked while they are read.

pub mod columns;
pub mod download;
pub mod file;
#[cfg(test)]
mod fuzz;
pub mod idx;
pub mod own;
pub mod pairs;
pub mod parquet;
pub mod pictures;
mod resuming;
pub mod sets;
pub mod shards;
mod split;
pub mod streamed;
pub mod table;
pub mod text;
mod unpack;

use std::path::Path;

use barnraise_protocol::columns::DataColumns;
use barnraise_protocol::dataset::{DataStream, SampleKind, Samples};
use bytes::Bytes;

/// A data set in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingData {
    /// Display name.
    pub name: String,
    /// Kind and shape of a sample.
    pub kind: SampleKind,
    /// Samples to train on.
    pub train: Samples,
    /// Held-out samples.
    pub test: Samples,
    /// The `tokenizer.json` of a text.
    pub tokenizer: Option<Bytes>,
    /// How the columns of a table or of ratings became samples.
    pub columns: Option<DataColumns>,
    /// Of data that are read while the run trains: `train` is empty then.
    pub stream: Option<DataStream>,
}

impl TrainingData {
    /// How a file of anybody's becomes such samples:
    /// [`Manifest::preprocessing`](barnraise_protocol::dataset::Manifest::preprocessing).
    ///
    /// # Errors
    /// Does not happen.
    pub fn preprocessing(&self) -> Result<Option<Bytes>, serde_json::Error> {
        Ok(match (&self.kind, &self.tokenizer, &self.columns) {
            (SampleKind::Tokens(_), Some(tokenizer), _) => Some(tokenizer.clone()),
            // Without the names of its items nobody can say what they rated.
            (_, _, Some(DataColumns::Ratings(columns))) if columns.items.is_empty() => None,
            (_, _, Some(columns)) => Some(serde_json::to_vec(columns)?.into()),
            _ => None,
        })
    }
}

/// Why the training data cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A named set.
    #[error(transparent)]
    Named(#[from] Box<sets::SetError>),
    /// The operator's IDX files.
    #[error(transparent)]
    Pairs(#[from] pairs::PairError),
    /// The operator's pictures.
    #[error(transparent)]
    Pictures(#[from] pictures::PicturesError),
    /// The operator's table or ratings.
    #[error(transparent)]
    Table(#[from] table::TableError),
    /// The operator's text.
    #[error(transparent)]
    Text(#[from] text::TextError),
}

/// Source of a run's data.
#[derive(Debug, Clone, PartialEq)]
pub enum DataSource {
    /// A set that fetches itself.
    Named(sets::NamedSettings),
    /// The operator's own pictures in IDX files.
    Pairs(pairs::PairSettings),
    /// The operator's own pictures.
    Pictures(pictures::PictureSettings),
    /// The operator's own table.
    Table(table::TableSettings),
    /// The operator's own ratings.
    Ratings(table::RatingSettings),
    /// The operator's own text.
    Text(text::TextSettings),
    /// The operator's own text, read while the run trains.
    Stream(text::stream::StreamSettings),
}

impl DataSource {
    /// The settings of a stream, if it is one.
    pub fn streamed(&self) -> Option<&text::stream::StreamSettings> {
        match self {
            Self::Stream(settings) => Some(settings),
            _ => None,
        }
    }

    /// Loads the data. Blocking. `cache` is the folder for downloads and derived files.
    pub fn load(&self, cache: &Path) -> Result<TrainingData, LoadError> {
        match self {
            Self::Named(settings) => Ok(settings.load(cache).map_err(Box::new)?),
            Self::Pairs(settings) => Ok(settings.load(cache)?),
            Self::Pictures(settings) => Ok(settings.load(cache)?),
            Self::Table(settings) => Ok(settings.load(cache)?),
            Self::Ratings(settings) => Ok(settings.load(cache)?),
            Self::Text(settings) => Ok(settings.load(cache)?),
            Self::Stream(settings) => Ok(settings.load(cache)?),
        }
    }
}
