//! `Θ`: the models of a round at an aggregator, and their average (MoDEST algorithm 4, `AVG`). Pure; a driver holds it.

use barnraise_protocol::run::ModelAverage;

use super::SampledModel;
use crate::robust::{WeightedGradient, centered_clip};

/// Models of one round, as they come. A mean needs their sum alone: the memory of two models, however many there are. A clipped mean
/// needs all of them.
#[derive(Debug)]
pub struct CollectedModels {
    kind: ModelAverage,
    round: u64,
    n_models: usize,
    sum: Vec<f64>,
    models: Vec<SampledModel>,
}

impl CollectedModels {
    /// Of no round yet.
    pub fn new(kind: ModelAverage) -> Self {
        Self { kind, round: 0, n_models: 0, sum: Vec::new(), models: Vec::new() }
    }

    /// Most bytes that it holds of `n_models` models with `n_parameters` each.
    pub fn n_bytes_max(kind: ModelAverage, n_models: usize, n_parameters: usize) -> usize {
        match kind {
            ModelAverage::Mean => n_parameters.saturating_mul(size_of::<f64>()),
            ModelAverage::CenteredClip => {
                n_models.saturating_mul(n_parameters).saturating_mul(size_of::<f32>())
            }
        }
    }

    /// Takes one more model of a round, `[n_parameters]`. Those of an earlier round are dropped, and one of an earlier round is left aside.
    pub fn add(&mut self, round: u64, model: &SampledModel) {
        if round < self.round {
            return;
        }
        if round > self.round {
            *self = Self { round, ..Self::new(self.kind) };
        }
        self.n_models += 1;
        match self.kind {
            ModelAverage::Mean => {
                self.sum.resize(model.len(), 0.0);
                self.sum.iter_mut().zip(model.iter()).for_each(|(sum, value)| *sum += f64::from(*value));
            }
            ModelAverage::CenteredClip => self.models.push(model.clone()),
        }
    }

    /// The average of the models of a round, all with the same weight, `[n_parameters]`: finite where they are. `None` where none is here.
    /// Nothing is held after that.
    pub fn take(&mut self, round: u64) -> Option<SampledModel> {
        if round != self.round || self.n_models == 0 {
            return None;
        }
        let Self { n_models, sum, models, .. } =
            std::mem::replace(self, Self { round, ..Self::new(self.kind) });
        Some(match self.kind {
            ModelAverage::Mean => sum.into_iter().map(|sum| (sum / n_models as f64) as f32).collect(),
            ModelAverage::CenteredClip => {
                // Each trainer counts as much as another one.
                let members =
                    models.iter().map(|model| WeightedGradient { values: &model[..], n_samples: 1 });
                centered_clip(&members.collect::<Vec<_>>()).values.into()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;

    fn average(kind: ModelAverage, models: &[SampledModel]) -> SampledModel {
        let mut collected = CollectedModels::new(kind);
        models.iter().for_each(|model| collected.add(1, model));
        collected.take(1).unwrap()
    }

    #[test]
    fn the_mean_of_models_is_finite_where_they_are() {
        let models: Vec<SampledModel> = vec![Arc::new([1.0, f32::MAX]), Arc::new([2.0, f32::MAX])];
        assert_eq!(*average(ModelAverage::Mean, &models), [1.5, f32::MAX]);
        assert_eq!(*average(ModelAverage::Mean, &models[..1]), *models[0]);
    }

    #[test]
    fn one_poisoned_model_of_five_hardly_moves_a_clipped_mean() {
        let honest = |value: f32| -> SampledModel { Arc::new([value, -value, 1.0]) };
        let mut models: Vec<SampledModel> = [0.9, 1.0, 1.1, 1.05].map(honest).to_vec();
        models.push(Arc::new([-1e6, 1e6, 1e6]));
        let clipped = average(ModelAverage::CenteredClip, &models);
        assert!((clipped[0] - 1.0).abs() < 0.2 && (clipped[2] - 1.0).abs() < 0.2, "{clipped:?}");
        assert!(average(ModelAverage::Mean, &models)[0] < -1e5);
    }

    #[test]
    fn a_later_round_drops_what_came_of_an_earlier_one_and_an_average_is_taken_once() {
        for kind in [ModelAverage::Mean, ModelAverage::CenteredClip] {
            let mut collected = CollectedModels::new(kind);
            let model = |value: f32| -> SampledModel { Arc::new([value]) };
            assert_eq!(collected.take(0), None);
            collected.add(3, &model(1.0));
            collected.add(4, &model(5.0));
            collected.add(3, &model(9.0));
            assert_eq!(collected.take(3), None);
            assert_eq!(collected.take(4), Some(model(5.0)));
            assert_eq!(collected.take(4), None);
            collected.add(5, &model(7.0));
            assert_eq!(collected.take(5), Some(model(7.0)));
        }
    }

    /// Two visitors' models weigh no more than one.
    #[test]
    fn a_mean_holds_a_sum_and_no_models() {
        let mut collected = CollectedModels::new(ModelAverage::Mean);
        let model: SampledModel = Arc::new([1.0; 100]);
        for _ in 0..50 {
            collected.add(1, &model);
        }
        assert_eq!(Arc::strong_count(&model), 1);
        assert_eq!(
            collected.sum.capacity() * size_of::<f64>(),
            CollectedModels::n_bytes_max(ModelAverage::Mean, 50, 100)
        );
        assert_eq!(CollectedModels::n_bytes_max(ModelAverage::CenteredClip, 50, 100), 20_000);
    }
}
