//! Training on rows of a table, and on ratings.

use barnraise_protocol::dataset::{RatingShape, Ratings, RowTargets, TableRows};

use super::{Evaluation, Trainer};
use crate::data_shape::{DataShape, RowTarget};
use crate::engine::Input;
use crate::error::ModelError;
use crate::statistics::{self, Statistics};

impl Trainer {
    pub(super) async fn accumulate_rows(&mut self, rows: &TableRows, draw: u64) -> Result<(), ModelError> {
        self.check_rows(rows, self.layout().batch_samples_max())?;
        let n_samples = self.prepare(rows.n_samples())?;
        let samples = rows.values.chunks_exact(rows.n_columns);
        let seeds = self.seeds(samples.map(|row| row.iter().flat_map(|value| value.to_le_bytes())), draw);
        self.step(Input::Rows(rows), seeds, n_samples).await
    }

    pub(super) async fn accumulate_ratings(
        &mut self,
        ratings: &Ratings,
        draw: u64,
    ) -> Result<(), ModelError> {
        self.check_ratings(ratings, self.layout().batch_samples_max())?;
        self.place_newcomers().await?;
        let n_samples = self.prepare(ratings.ratings.len())?;
        let pairs = ratings.users.iter().zip(&ratings.items);
        let bytes = pairs.map(|(user, item)| [user.to_le_bytes(), item.to_le_bytes()].into_iter().flatten());
        let seeds = self.seeds(bytes, draw);
        self.step(Input::Ratings(ratings), seeds, n_samples).await
    }

    /// Loss and accuracy on held-out rows, in chunks. Where values are to be told, the accuracy is the share of their
    /// variance that is explained (R², 0 where it would be negative), which is 0 for a model that always says the mean.
    pub(super) async fn evaluate_rows(&self, rows: &TableRows) -> Result<Evaluation, ModelError> {
        self.check_rows(rows, usize::MAX)?;
        let mut total = Statistics::default();
        for chunk in chunks(rows, self.chunk_samples()) {
            total.add(self.losses(Input::Rows(&chunk)).await?);
        }
        Ok(match &rows.targets {
            RowTargets::Classes(_) => total.evaluation(),
            RowTargets::Values { n_values, values } => total.explaining(values, *n_values),
        })
    }

    /// As [`Self::evaluate_rows`] where values are to be told.
    pub(super) async fn evaluate_ratings(&self, ratings: &Ratings) -> Result<Evaluation, ModelError> {
        self.check_ratings(ratings, usize::MAX)?;
        let mut total = Statistics::default();
        let n = self.chunk_samples();
        let chunks = ratings.users.chunks(n).zip(ratings.items.chunks(n)).zip(ratings.ratings.chunks(n));
        for ((users, items), values) in chunks {
            let chunk = Ratings { users: users.to_vec(), items: items.to_vec(), ratings: values.to_vec() };
            total.add(self.losses(Input::Ratings(&chunk)).await?);
        }
        Ok(total.explaining(&ratings.ratings, 1))
    }

    /// What is to be told of rows: probabilities of classes, or values.
    ///
    /// # Shapes
    /// - `values`: `[n_rows, n_columns]`
    /// - returns `[n_rows, n_classes]`, each row summing to 1, or `[n_rows, n_values]`
    ///
    /// # Errors
    /// A model of other data, rows of another length; a lost device.
    pub async fn predict_rows(&self, values: &[f32]) -> Result<Vec<f32>, ModelError> {
        let DataShape::Rows { n_columns, target } = self.data else {
            return Err(ModelError::WrongData { got: "rows of a table" });
        };
        if values.is_empty() || !values.len().is_multiple_of(n_columns) {
            return Err(ModelError::WrongData { got: "rows of another table" });
        }
        let mut told = Vec::new();
        for values in values.chunks(self.chunk_samples() * n_columns) {
            let (values, targets) = (values.to_vec(), RowTargets::Classes(Vec::new()));
            let rows = TableRows { n_columns, values, targets };
            told.extend(self.outputs(Input::Rows(&rows), rows.n_samples()).await?);
        }
        if let RowTarget::Class(n_classes) = target {
            statistics::softmax_rows(&mut told, n_classes);
        }
        Ok(told)
    }

    fn check_rows(&self, rows: &TableRows, max: usize) -> Result<(), ModelError> {
        let DataShape::Rows { n_columns, target } = self.data else {
            return Err(ModelError::WrongData { got: "rows of a table" });
        };
        let got = rows.n_samples();
        if got == 0 || got > max {
            return Err(ModelError::BatchSize { max, got });
        }
        let fits = match (&rows.targets, target) {
            (RowTargets::Classes(labels), RowTarget::Class(n_classes)) => {
                crate::batch::check_labels(labels, n_classes)?;
                labels.len() == got
            }
            (RowTargets::Values { n_values, values }, RowTarget::Values(wanted)) => {
                *n_values == wanted && values.len() == got * wanted
            }
            _ => false,
        };
        match fits && rows.n_columns == n_columns && rows.values.len() == got * n_columns {
            true => Ok(()),
            false => Err(ModelError::WrongData { got: "rows of another table" }),
        }
    }

    pub(super) fn check_ratings(&self, ratings: &Ratings, max: usize) -> Result<(), ModelError> {
        let DataShape::Ratings(RatingShape { n_users, n_items }) = self.data else {
            return Err(ModelError::WrongData { got: "ratings" });
        };
        let got = ratings.ratings.len();
        if got == 0 || got > max {
            return Err(ModelError::BatchSize { max, got });
        }
        let fits = (ratings.users.len(), ratings.items.len()) == (got, got)
            && ratings.users.iter().all(|&user| user < n_users)
            && ratings.items.iter().all(|&item| item < n_items);
        match fits {
            true => Ok(()),
            false => Err(ModelError::WrongData { got: "ratings of others" }),
        }
    }
}

impl Statistics {
    /// Of mean squared errors of `values`, `[n_rows, n_values]`.
    fn explaining(&self, values: &[f32], n_values: usize) -> Evaluation {
        let loss = self.mean_loss();
        let variance = variance(values, n_values);
        let explained = if variance > 0.0 { 1.0 - f64::from(loss) / variance } else { 0.0 };
        Evaluation { loss, accuracy: explained.max(0.0) as f32 }
    }
}

/// Mean over the columns of `[n_rows, n_values]` of their variance.
fn variance(values: &[f32], n_values: usize) -> f64 {
    let n_values = n_values.max(1);
    let n_rows = (values.len() / n_values).max(1) as f64;
    let of_column = |column: usize| {
        let column = || values.iter().skip(column).step_by(n_values).map(|&value| f64::from(value));
        let mean = column().sum::<f64>() / n_rows;
        column().map(|value| (value - mean) * (value - mean)).sum::<f64>() / n_rows
    };
    (0..n_values).map(of_column).sum::<f64>() / n_values as f64
}

fn chunks(rows: &TableRows, n_samples: usize) -> impl Iterator<Item = TableRows> {
    (0..rows.n_samples()).step_by(n_samples.max(1)).map(move |start| {
        let end = (start + n_samples).min(rows.n_samples());
        let targets = match &rows.targets {
            RowTargets::Classes(labels) => RowTargets::Classes(labels[start..end].to_vec()),
            RowTargets::Values { n_values, values } => RowTargets::Values {
                n_values: *n_values,
                values: values[start * n_values..end * n_values].to_vec(),
            },
        };
        let values = rows.values[start * rows.n_columns..end * rows.n_columns].to_vec();
        TableRows { n_columns: rows.n_columns, values, targets }
    })
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
