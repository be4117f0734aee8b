//! Items for somebody whom the model does not know, from a few ratings of theirs.
//!
//! A rating is taken to be linear in what the model has of a user, as it is in matrix factorization; in another graph
//! this is a step of Gauss and Newton. The users that were trained are the prior: what is had of somebody new is normally
//! distributed about their mean, each value with its own variance, and the model errs as it does on held-out ratings
//! (empirical Bayes, the fold-in of Koren et al. 2009 with the prior of Salakhutdinov and Mnih 2008).

use barnraise_protocol::dataset::{RatingShape, Ratings};
use barnraise_protocol::run::model::graph::USER;
use barnraise_protocol::run::model::operation::Operation;

use super::Trainer;
use crate::data_shape::DataShape;
use crate::engine::Input;
use crate::error::ModelError;

/// Most ratings of one person that are looked at.
pub const OWN_RATINGS_MAX: usize = 1000;
/// Mean squared error of ratings where none was measured: a point.
const NOISE_DEFAULT: f32 = 1.0;
/// Smallest variance of an error: with none at all nothing would be weighed.
const NOISE_MIN: f64 = 1e-6;

/// What the model has of users.
struct UserValues {
    /// Position of each value of the first user in the flat vector, and how far the next user's is.
    places: Vec<(usize, usize)>,
    /// Mean of each value over the users.
    means: Vec<f32>,
    /// Standard deviation of each, above zero.
    deviations: Vec<f32>,
}

impl Trainer {
    /// What users rate items.
    ///
    /// # Shapes
    /// - `users`, `items`: `[n]`, each one that there is
    /// - returns `[n]`
    ///
    /// # Errors
    /// A model of other data, a user or item that there is not; a lost device.
    pub async fn predict_ratings(&self, users: &[u32], items: &[u32]) -> Result<Vec<f32>, ModelError> {
        let blank = Ratings { users: users.to_vec(), items: items.to_vec(), ratings: vec![0.0; users.len()] };
        self.check_ratings(&blank, usize::MAX)?;
        let mut predicted = Vec::with_capacity(users.len());
        let n = self.chunk_samples();
        for (users, items) in users.chunks(n).zip(items.chunks(n)) {
            let chunk = Ratings { users: users.to_vec(), items: items.to_vec(), ratings: Vec::new() };
            predicted.extend(self.outputs(Input::Ratings(&chunk), users.len()).await?);
        }
        Ok(predicted)
    }

    /// The items that somebody who is no user of the run would rate best, without those that they rated, and what they
    /// would give them; the best first.
    ///
    /// # Shapes
    /// - `parameters`: the flat vector, which is loaded afterwards
    /// - `rated`: items and what they gave them, at most [`OWN_RATINGS_MAX`] of which are looked at
    /// - `loss`: mean squared error of the model's ratings, where it was measured
    /// - returns at most `n_wanted`
    ///
    /// # Errors
    /// As of [`Self::predict_ratings`].
    pub async fn best_items(
        &mut self,
        parameters: &[f32],
        rated: &[(u32, f32)],
        loss: Option<f32>,
        n_wanted: usize,
    ) -> Result<Vec<(u32, f32)>, ModelError> {
        let ratings = self.recommend(parameters, rated, loss.unwrap_or(NOISE_DEFAULT)).await?;
        let is_new = |item: u32| rated.iter().all(|&(known, _)| known != item);
        let mut best: Vec<(u32, f32)> = (0..).zip(ratings).filter(|(item, _)| is_new(*item)).collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        best.truncate(n_wanted);
        Ok(best)
    }

    /// What somebody would rate each item, who is no user of the run.
    ///
    /// # Shapes
    /// - `parameters`: the flat vector, which is loaded afterwards
    /// - `rated`: items and what they gave them, at most [`OWN_RATINGS_MAX`] of which are looked at
    /// - `noise`: mean squared error of the model's ratings
    /// - returns `[n_items]`
    ///
    /// # Errors
    /// As of [`Self::predict_ratings`].
    pub(super) async fn recommend(
        &mut self,
        parameters: &[f32],
        rated: &[(u32, f32)],
        noise: f32,
    ) -> Result<Vec<f32>, ModelError> {
        let DataShape::Ratings(RatingShape { n_users, n_items }) = self.data else {
            return Err(ModelError::WrongData { got: "ratings" });
        };
        self.layout().check_length(parameters.len())?;
        let rated = &rated[..rated.len().min(OWN_RATINGS_MAX)];
        let of_users = self.user_values(parameters, n_users as usize);
        let mut changed = parameters.to_vec();
        let predicted = self.predict_as(&mut changed, &of_users, rated, noise, n_items).await;
        self.load_parameters(parameters)?;
        predicted
    }

    async fn predict_as(
        &mut self,
        changed: &mut [f32],
        of_users: &UserValues,
        rated: &[(u32, f32)],
        noise: f32,
        n_items: u32,
    ) -> Result<Vec<f32>, ModelError> {
        let DataShape::Ratings(RatingShape { n_users, .. }) = self.data else { return Ok(Vec::new()) };
        let items: Vec<u32> = rated.iter().map(|&(item, _)| item).collect();
        // The mean user, and for each value one who is a deviation away from it.
        let n_values = of_users.places.len();
        let probes: Vec<Option<usize>> = std::iter::once(None).chain((0..n_values).map(Some)).collect();
        let mut ratings: Vec<Vec<f32>> = Vec::with_capacity(probes.len());
        if !rated.is_empty() {
            for some in probes.chunks(n_users as usize) {
                for (user, &probe) in some.iter().enumerate() {
                    of_users.write(changed, user, |value| f32::from(u8::from(probe == Some(value))));
                }
                self.load_parameters(changed)?;
                for user in 0..some.len() {
                    ratings.push(self.predict_ratings(&vec![user as u32; items.len()], &items).await?);
                }
            }
        }
        let given = rated.iter().map(|&(_, rating)| rating);
        let of_them = posterior(&ratings, given, f64::from(noise).max(NOISE_MIN));
        of_users.write(changed, 0, |value| of_them.get(value).copied().unwrap_or_default());
        self.load_parameters(changed)?;
        let items: Vec<u32> = (0..n_items).collect();
        self.predict_ratings(&vec![0; items.len()], &items).await
    }

    fn user_values(&self, parameters: &[f32], n_users: usize) -> UserValues {
        let user = self.graph.inputs().iter().position(|input| input.name == USER);
        let tables = self.graph.steps().iter().filter(|step| {
            matches!(step.op, Operation::Embedding(_)) && step.inputs.first().copied() == user
        });
        let mut of_users = UserValues { places: Vec::new(), means: Vec::new(), deviations: Vec::new() };
        for segment in tables.filter_map(|step| Some(self.graph.segment(*step.parameters.first()?))) {
            let width = segment.len / n_users.max(1);
            for place in segment.offset..segment.offset + width {
                let values =
                    || parameters[place..].iter().step_by(width).take(n_users).map(|&v| f64::from(v));
                let mean = values().sum::<f64>() / n_users as f64;
                let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / n_users as f64;
                if variance > 0.0 && !of_users.places.contains(&(place, width)) {
                    of_users.places.push((place, width));
                    of_users.means.push(mean as f32);
                    of_users.deviations.push(variance.sqrt() as f32);
                }
            }
        }
        of_users
    }
}

impl UserValues {
    /// Makes a user one who is so many deviations from the mean in each value.
    fn write(&self, parameters: &mut [f32], user: usize, deviation: impl Fn(usize) -> f32) {
        let moments = self.means.iter().zip(&self.deviations);
        for (value, (&(place, width), (mean, unit))) in self.places.iter().zip(moments).enumerate() {
            parameters[place + user * width] = mean + unit * deviation(value);
        }
    }
}

/// How many deviations somebody is from the mean user in each value, most likely.
///
/// # Shapes
/// - `ratings`: `[1 + n_values, n_rated]`, of the mean user and of one a deviation away in each value; may be empty
/// - `given`: `[n_rated]`
/// - returns `[n_values]`
fn posterior(ratings: &[Vec<f32>], given: impl Iterator<Item = f32>, noise: f64) -> Vec<f32> {
    let Some((mean, others)) = ratings.split_first() else { return Vec::new() };
    let missing: Vec<f64> = given.zip(mean).map(|(given, mean)| f64::from(given - mean)).collect();
    let slopes: Vec<Vec<f64>> = others
        .iter()
        .map(|other| other.iter().zip(mean).map(|(other, mean)| f64::from(other - mean)).collect())
        .collect();
    let n = missing.len();
    // The covariance of the ratings: as many rows as ratings, of which there are few.
    let mut covariance = vec![vec![0.0; n]; n];
    for (row, values) in covariance.iter_mut().enumerate() {
        for (column, value) in values.iter_mut().enumerate() {
            *value = slopes.iter().map(|slope| slope[row] * slope[column]).sum::<f64>();
        }
        values[row] += noise;
    }
    let weights = solve(covariance, missing);
    let of = |slope: &Vec<f64>| slope.iter().zip(&weights).map(|(a, b)| a * b).sum::<f64>() as f32;
    slopes.iter().map(of).collect()
}

/// Solves `matrix x = right`, of a symmetric positive definite matrix, by Cholesky's decomposition.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let n = right.len();
    for row in 0..n {
        for column in 0..=row {
            let sum: f64 = (0..column).map(|k| matrix[row][k] * matrix[column][k]).sum();
            let rest = matrix[row][column] - sum;
            matrix[row][column] = match row == column {
                true => rest.max(f64::MIN_POSITIVE).sqrt(),
                false => rest / matrix[column][column],
            };
        }
    }
    for row in 0..n {
        let sum: f64 = (0..row).map(|k| matrix[row][k] * right[k]).sum();
        right[row] = (right[row] - sum) / matrix[row][row];
    }
    for row in (0..n).rev() {
        let sum: f64 = (row + 1..n).map(|k| matrix[k][row] * right[k]).sum();
        right[row] = (right[row] - sum) / matrix[row][row];
    }
    right
}

#[cfg(test)]
#[path = "recommend_tests.rs"]
mod tests;
