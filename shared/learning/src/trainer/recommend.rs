//! Ratings of people whom the model does not know: items for them, and learning from what they rated.
//!
//! A rating is taken to be linear in what the model has of a user, as it is in matrix factorization; in another graph
//! this is a step of Gauss and Newton. The users that were trained are the prior: what is had of somebody new is normally
//! distributed about their mean, each value with its own variance, and the model errs as it does on held-out ratings
//! (empirical Bayes, the fold-in of Koren et al. 2009 with the prior of Salakhutdinov and Mnih 2008).
//!
//! Who brings ratings of their own to a run learns from them what the model has of the items. What it would have of the people is found
//! anew for each round, and is no part of what this trainer gives (federated collaborative filtering; Ammad-ud-din et al. 2019). It can
//! be worked out from that (Chai et al. 2019).

use std::collections::BTreeSet;

use barnraise_protocol::dataset::{RatingShape, Ratings};
use barnraise_protocol::run::model::graph::USER;
use barnraise_protocol::run::model::operation::Operation;

use super::Trainer;
use crate::data_shape::DataShape;
use crate::engine::Input;
use crate::error::ModelError;
use crate::graph::TensorPlace;
use crate::parameters::ParameterSegment;

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

/// People who are no users of the run.
#[derive(Debug)]
pub(super) struct Newcomers {
    /// What each of them rated: they take the places of the first users.
    rated: Vec<Vec<(u32, f32)>>,
    /// The parameters that were loaded, while the newcomers are in their places.
    loaded: Option<Vec<f32>>,
}

impl Newcomers {
    /// Other parameters were loaded.
    pub(super) fn on_loaded(&mut self) {
        self.loaded = None;
    }

    pub(super) fn loaded(&self) -> Option<&[f32]> {
        self.loaded.as_deref()
    }
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

    /// From now on the users of what is trained on are people who are no users of the run: numbers 0, 1, and so on. Their ratings
    /// move what the model has of items, and of all together; never what it has of users.
    ///
    /// # Errors
    /// Ratings that are not of this model's shape; a model without local steps, whose gradient is of the parameters that are loaded.
    pub fn with_newcomers(mut self, ratings: &Ratings) -> Result<Self, ModelError> {
        self.check_ratings(ratings, usize::MAX)?;
        if self.local.is_none() {
            return Err(ModelError::WrongData { got: "ratings of newcomers" });
        }
        let n_people = ratings.users.iter().max().map_or(0, |&last| last as usize + 1);
        let mut rated = vec![Vec::new(); n_people];
        for ((&user, &item), &rating) in ratings.users.iter().zip(&ratings.items).zip(&ratings.ratings) {
            rated[user as usize].push((item, rating));
        }
        self.newcomers = Some(Box::new(Newcomers { rated, loaded: None }));
        Ok(self)
    }

    /// Puts the newcomers, as they are most likely by what they rated, in the places of the first users, where they are not yet.
    pub(super) async fn place_newcomers(&mut self) -> Result<(), ModelError> {
        let (Some(newcomers), Some(local)) = (&mut self.newcomers, &self.local) else { return Ok(()) };
        if newcomers.loaded.is_some() {
            return Ok(());
        }
        let (parameters, rated) = (local.epoch_parameters().to_vec(), std::mem::take(&mut newcomers.rated));
        let mut changed = parameters.clone();
        let placed = self.place(&mut changed, &rated, None).await;
        let loaded = self.load_parameters(if placed.is_ok() { &changed } else { &parameters });
        if let Some(newcomers) = &mut self.newcomers {
            newcomers.rated = rated;
            newcomers.loaded = (placed.is_ok() && loaded.is_ok()).then_some(parameters);
        }
        placed.and(loaded)
    }

    /// Takes back what the steps of newcomers moved of users.
    pub(super) fn forget_newcomers(&self, moved: &mut [f32]) {
        if self.newcomers.is_some() {
            self.user_segments().for_each(|segment| moved[segment.range()].fill(0.0));
        }
    }

    /// The items that somebody who is no user of the run would rate best, without those that they rated, and what they
    /// would give them; the best first.
    ///
    /// # Shapes
    /// - `parameters`: the flat vector, which is loaded afterwards
    /// - `rated`: items and what they gave them
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
        let ratings = self.recommend(parameters, rated, loss).await?;
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
    /// - `rated`: items and what they gave them
    /// - `noise`: mean squared error of the model's ratings, where it was measured
    /// - returns `[n_items]`
    ///
    /// # Errors
    /// As of [`Self::predict_ratings`].
    pub(super) async fn recommend(
        &mut self,
        parameters: &[f32],
        rated: &[(u32, f32)],
        noise: Option<f32>,
    ) -> Result<Vec<f32>, ModelError> {
        let DataShape::Ratings(RatingShape { n_items, .. }) = self.data else {
            return Err(ModelError::WrongData { got: "ratings" });
        };
        self.layout().check_length(parameters.len())?;
        let mut changed = parameters.to_vec();
        let predicted = async {
            self.place(&mut changed, &[rated.to_vec()], noise).await?;
            self.load_parameters(&changed)?;
            let items: Vec<u32> = (0..n_items).collect();
            self.predict_ratings(&vec![0; items.len()], &items).await
        };
        let predicted = predicted.await;
        self.load_parameters(parameters)?;
        predicted
    }

    /// Makes the first users of `parameters` people who `rated` so, as far as the ratings tell. Other parameters are loaded afterwards.
    ///
    /// - `noise`: mean squared error of the model's ratings; where it was not measured, that of the mean user's for these people
    async fn place(
        &mut self,
        parameters: &mut [f32],
        rated: &[Vec<(u32, f32)>],
        noise: Option<f32>,
    ) -> Result<(), ModelError> {
        let DataShape::Ratings(RatingShape { n_users, .. }) = self.data else { return Ok(()) };
        let of_users = self.user_values(parameters, n_users as usize);
        let items: BTreeSet<u32> = rated.iter().flatten().map(|&(item, _)| item).collect();
        let items: Vec<u32> = items.into_iter().collect();
        // The mean user, and for each value one who is a deviation away from it.
        let probes: Vec<Option<usize>> =
            std::iter::once(None).chain((0..of_users.places.len()).map(Some)).collect();
        let mut ratings = Vec::with_capacity(probes.len());
        for some in probes.chunks(n_users as usize).filter(|_| !items.is_empty()) {
            for (user, &probe) in some.iter().enumerate() {
                of_users.write(parameters, user, |value| f32::from(u8::from(probe == Some(value))));
            }
            self.load_parameters(parameters)?;
            for user in 0..some.len() {
                ratings.push(self.predict_ratings(&vec![user as u32; items.len()], &items).await?);
            }
        }
        let probed = ProbedRatings { items, ratings };
        let noise = noise.map_or_else(|| probed.error_of_mean_user(rated), f64::from).max(NOISE_MIN);
        for (user, of_one) in rated.iter().enumerate() {
            let of_them = probed.posterior(of_one, noise);
            of_users.write(parameters, user, |value| of_them.get(value).copied().unwrap_or_default());
        }
        Ok(())
    }

    /// The tables of users.
    fn user_segments(&self) -> impl Iterator<Item = &ParameterSegment> {
        let user = self.graph.inputs().iter().position(|input| input.name == USER);
        let tables = self.graph.steps().iter().filter(move |step| {
            matches!(step.op, Operation::Embedding(_)) && step.inputs.first().copied() == user
        });
        let places = tables.filter_map(|step| step.parameters.first().copied());
        let is_trained = |place: &TensorPlace| matches!(place, TensorPlace::Trained(_));
        places.filter(is_trained).map(|place| self.graph.segment(place))
    }

    fn user_values(&self, parameters: &[f32], n_users: usize) -> UserValues {
        let mut of_users = UserValues { places: Vec::new(), means: Vec::new(), deviations: Vec::new() };
        for segment in self.user_segments() {
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

/// What the mean user rates items, and users that are a deviation away from it in one value each.
struct ProbedRatings {
    /// In ascending order.
    items: Vec<u32>,
    /// `[1 + n_values, n_items]`; none without items.
    ratings: Vec<Vec<f32>>,
}

impl ProbedRatings {
    /// How far each rating is from what the mean user gives, and the place of its item.
    fn missing<'r>(&'r self, rated: &'r [(u32, f32)]) -> impl Iterator<Item = (f64, usize)> + 'r {
        rated.iter().filter_map(|&(item, rating)| {
            let at = self.items.binary_search(&item).ok()?;
            Some((f64::from(rating - self.ratings.first()?[at]), at))
        })
    }

    /// Mean squared error of what the mean user gives, for all these people.
    fn error_of_mean_user(&self, rated: &[Vec<(u32, f32)>]) -> f64 {
        let squares =
            rated.iter().flat_map(|of_one| self.missing(of_one)).map(|(missing, _)| missing * missing);
        let (n, sum) = squares.fold((0_u32, 0.0), |(n, sum), square| (n + 1, sum + square));
        sum / f64::from(n.max(1))
    }

    /// How many deviations somebody is from the mean user in each value, most likely: `[n_values]`.
    fn posterior(&self, rated: &[(u32, f32)], noise: f64) -> Vec<f32> {
        let Some((mean, others)) = self.ratings.split_first() else { return Vec::new() };
        let n_values = others.len();
        let (mut precision, mut right) = (vec![vec![0.0; n_values]; n_values], vec![0.0; n_values]);
        (0..n_values).for_each(|value| precision[value][value] = noise);
        let mut slopes = vec![0.0; n_values];
        for (missing, at) in self.missing(rated) {
            slopes.iter_mut().zip(others).for_each(|(slope, other)| *slope = f64::from(other[at] - mean[at]));
            for (row, slope) in slopes.iter().enumerate() {
                right[row] += slope * missing;
                precision[row].iter_mut().zip(&slopes).for_each(|(sum, other)| *sum += slope * other);
            }
        }
        solve(precision, right).into_iter().map(|value| value as f32).collect()
    }
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
