//! Sizes of the samples that a model is built for. Holds no sample.

use barnraise_protocol::dataset::{
    ImageShape, LabelledImages, RatingShape, Ratings, RowTargets, SampleKind, Samples, TableRows, TableShape,
    TableTarget, TokenSequences, TokenShape,
};
use serde::{Deserialize, Serialize};

/// The sizes that a model's layers depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataShape {
    /// Pictures, each of one class.
    Images {
        /// Of each picture.
        shape: ImageShape,
        /// Classes.
        n_classes: usize,
    },
    /// Sequences of tokens.
    Tokens(TokenShape),
    /// Rows of a table.
    Rows {
        /// Numbers of each row.
        n_columns: usize,
        /// What is to be told of it.
        target: RowTarget,
    },
    /// Ratings of items by users.
    Ratings(RatingShape),
}

/// What is to be told of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowTarget {
    /// One of so many classes.
    Class(usize),
    /// So many values.
    Values(usize),
}

impl DataShape {
    /// The sizes of a data set.
    pub fn of(samples: &SampleKind) -> Self {
        match samples {
            SampleKind::Images { shape, class_names } => {
                Self::Images { shape: *shape, n_classes: class_names.len() }
            }
            SampleKind::Tokens(tokens) => Self::Tokens(*tokens),
            SampleKind::Rows(TableShape { columns, target }) => Self::Rows {
                n_columns: columns.len(),
                target: match target {
                    TableTarget::Class(names) => RowTarget::Class(names.len()),
                    TableTarget::Values(names) => RowTarget::Values(names.len()),
                },
            },
            SampleKind::Ratings(shape) => Self::Ratings(*shape),
        }
    }

    /// Samples without content, to measure the time of a step.
    pub fn blank_samples(self, n_samples: usize) -> Samples {
        match self {
            Self::Images { shape, .. } => {
                let images = vec![0; n_samples.saturating_mul(shape.n_values())];
                Samples::Images(LabelledImages { images, labels: vec![0; n_samples] })
            }
            Self::Tokens(TokenShape { length, .. }) => {
                let ids = vec![0; n_samples.saturating_mul(length.into())];
                Samples::Tokens(TokenSequences { length, ids })
            }
            Self::Rows { n_columns, target } => {
                let targets = match target {
                    RowTarget::Class(_) => RowTargets::Classes(vec![0; n_samples]),
                    RowTarget::Values(n_values) => {
                        RowTargets::Values { n_values, values: vec![0.0; n_samples.saturating_mul(n_values)] }
                    }
                };
                let values = vec![0.0; n_samples.saturating_mul(n_columns)];
                Samples::Rows(TableRows { n_columns, values, targets })
            }
            Self::Ratings(_) => Samples::Ratings(Ratings {
                users: vec![0; n_samples],
                items: vec![0; n_samples],
                ratings: vec![0.0; n_samples],
            }),
        }
    }
}
