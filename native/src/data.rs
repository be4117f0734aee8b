//! The training data: its sources, and how it is cut into shards.
//!
//! It never trusts a file: those of Fashion-MNIST are compared with their known length and SHA-256 before use, an
//! operator's own files are bounded and checked while they are read.

pub mod download;
pub mod fashion_mnist;
#[cfg(test)]
mod fuzz;
pub mod idx;
pub mod pictures;
pub mod shards;
pub mod table;
pub mod text;

use std::path::Path;

use barnraise_learning::unigram::Vocabulary;
use barnraise_protocol::columns::DataColumns;
use barnraise_protocol::dataset::{SampleKind, Samples};

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
    /// Vocabulary of a text.
    pub vocabulary: Option<Vocabulary>,
    /// How the columns of a table or of ratings became samples.
    pub columns: Option<DataColumns>,
}

/// Why the training data cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Fashion-MNIST.
    #[error(transparent)]
    FashionMnist(#[from] fashion_mnist::DataError),
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
    /// Pictures of garments.
    FashionMnist(fashion_mnist::Sources),
    /// The operator's own pictures.
    Pictures(pictures::PictureSettings),
    /// The operator's own table.
    Table(table::TableSettings),
    /// The operator's own ratings.
    Ratings(table::RatingSettings),
    /// The operator's own text.
    Text(text::TextSettings),
}

impl DataSource {
    /// Loads the data. Blocking. `cache` is the folder for downloads and derived files.
    pub fn load(&self, cache: &Path) -> Result<TrainingData, LoadError> {
        match self {
            Self::FashionMnist(sources) => {
                let specs = fashion_mnist::FileSpecs::fashion_mnist();
                Ok(fashion_mnist::Dataset::load(sources, &specs)?.into())
            }
            Self::Pictures(settings) => Ok(settings.load(cache)?),
            Self::Table(settings) => Ok(settings.load()?),
            Self::Ratings(settings) => Ok(settings.load()?),
            Self::Text(settings) => Ok(settings.load(cache)?),
        }
    }
}
