//! Evaluation on the held-out test set, beside training: its own thread with its own trainer.

use std::collections::HashMap;

use barnraise_learning::{ComputeDevice, DataShape, Evaluation, FrozenWeights, ModelError, Trainer};
use barnraise_protocol::dataset::{RowTargets, Samples, TableRows};
use barnraise_protocol::run::ModelSpec;
use barnraise_protocol::run::model::graph::Loss;
use barnraise_relay::memory::give_back;
use futures::executor::block_on;
use tokio::sync::watch;

use super::clock::WallClock;
use super::events::EventSender;
use super::experts::AskedExperts;
use super::models::Publisher;
use super::states::PublishedState;
use crate::computing::frees_much;
use crate::data::TrainingData;

/// Most labelled samples that features are compared with.
const REFERENCE_SAMPLES_MAX: usize = 5000;
/// Most held-out samples that are compared.
const NEIGHBOUR_TESTS_MAX: usize = 2000;

/// An evaluation of some parameters, for the driver.
#[derive(Debug, Clone, Copy)]
pub struct Evaluated {
    /// Their epoch.
    pub epoch: u64,
    /// On the held-out set.
    pub evaluation: Evaluation,
}

/// Evaluates the newest parameters at an interval.
pub(crate) struct Evaluator {
    /// The held-out samples.
    pub test: Samples,
    /// Labelled training samples whose features the held-out ones are compared with, for a model that learns without
    /// labels.
    pub reference: Option<Samples>,
    /// The network.
    pub model: ModelSpec,
    /// The weights that it does not train, where it has such.
    pub frozen: Option<FrozenWeights>,
    /// Sizes of a sample.
    pub data: DataShape,
    /// Device to compute on.
    pub device: ComputeDevice,
    /// Steps between two evaluations; each is of the newest parameters.
    pub every_epochs: u64,
    /// Where its experts are, for a model whose experts peers host.
    pub experts: Option<AskedExperts>,
    /// Receives evaluated models, in a run that shares them.
    pub publisher: Option<Publisher>,
    /// Dates the evaluations.
    pub clock: WallClock,
}

impl Evaluator {
    /// Evaluates until the driver has ended. Blocks: call it on its own thread.
    pub(crate) fn run(
        self,
        mut state: watch::Receiver<PublishedState>,
        driver: &EventSender<Evaluated>,
    ) -> Result<(), ModelError> {
        let mut next = 0;
        loop {
            let newest = state.borrow_and_update().clone();
            let epoch = newest.header.epoch;
            if epoch >= next {
                next = epoch + self.every_epochs;
                let evaluation = self.evaluate(&newest.parameters)?;
                if let Some(publisher) = &self.publisher {
                    publisher.publish(epoch, (self.clock)(), evaluation, &newest.parameters);
                }
                if frees_much(newest.parameters.len()) {
                    give_back();
                }
                if block_on(driver.send(Evaluated { epoch, evaluation })).is_err() {
                    return Ok(());
                }
            }
            if block_on(state.changed()).is_err() {
                return Ok(());
            }
        }
    }

    /// Its trainer is gone afterwards: between evaluations a model takes no memory here.
    fn evaluate(&self, parameters: &[f32]) -> Result<Evaluation, ModelError> {
        let frozen = self.frozen.as_ref();
        let mut trainer = Trainer::with_frozen(&self.model, self.data, frozen, self.device.clone())?;
        trainer.load_parameters(parameters)?;
        match &self.experts {
            Some(experts) => experts.with(async |port| self.evaluated(&trainer.with_experts(port)).await),
            None => block_on(self.evaluated(&trainer)),
        }
    }

    async fn evaluated(&self, trainer: &Trainer) -> Result<Evaluation, ModelError> {
        match (&self.reference, &self.test) {
            (Some(Samples::Images(reference)), Samples::Images(test)) => {
                trainer.evaluate_neighbours(reference, test).await
            }
            _ => trainer.evaluate_samples(&self.test).await,
        }
    }
}

/// The samples that a model of this kind is evaluated on: held-out samples, and the reference for their features. All
/// held-out samples for a classifier; for nearest neighbours an even selection of both that takes seconds.
pub(crate) fn evaluated_on(loss: &Loss, data: TrainingData) -> (Samples, Option<Samples>) {
    match loss {
        Loss::Swav(_) => {
            let reference = evenly(&data.train, REFERENCE_SAMPLES_MAX);
            (evenly(&data.test, NEIGHBOUR_TESTS_MAX), Some(reference))
        }
        Loss::Classification | Loss::Regression | Loss::CausalLanguageModel | Loss::MaskedLanguageModel => {
            (data.test, None)
        }
    }
}

/// Accuracy of a model that always gives the commonest label, the commonest token, or the mean; `None` without samples.
pub(crate) fn majority_accuracy(test: &Samples) -> Option<f32> {
    let answers: Vec<u32> = match test {
        Samples::Images(images) => images.labels.iter().copied().map(u32::from).collect(),
        Samples::Tokens(sequences) => sequences.ids.clone(),
        Samples::Rows(TableRows { targets: RowTargets::Classes(labels), .. }) => {
            labels.iter().copied().map(u32::from).collect()
        }
        // The mean explains nothing.
        Samples::Rows(_) | Samples::Ratings(_) => return (test.n_samples() > 0).then_some(0.0),
    };
    let mut counts: HashMap<u32, u64> = HashMap::new();
    answers.iter().for_each(|answer| *counts.entry(*answer).or_default() += 1);
    let commonest = *counts.values().max()?;
    Some(commonest as f32 / answers.len() as f32)
}

fn evenly(samples: &Samples, max: usize) -> Samples {
    let n_samples = samples.n_samples();
    let n_taken = n_samples.min(max);
    let mut taken = samples.none_of();
    (0..n_taken).for_each(|index| taken.push(samples, index * n_samples / n_taken));
    taken
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use barnraise_protocol::dataset::{ImageShape, LabelledImages, SampleKind, TokenSequences};
    use barnraise_protocol::run::model::graph::SwavLoss;

    use super::*;

    fn data() -> TrainingData {
        let part = |n: usize| {
            let pixels = (0..n).map(|sample| (sample / 100) as u8).collect();
            Samples::Images(LabelledImages { images: pixels, labels: vec![0; n] })
        };
        let shape = ImageShape { height: 1, width: 1, channels: 1 };
        let kind = SampleKind::Images { shape, class_names: vec!["a".into()] };
        TrainingData {
            name: "data".into(),
            kind,
            train: part(25_000),
            test: part(500),
            tokenizer: None,
            columns: None,
            stream: None,
        }
    }

    #[test]
    fn the_commonest_answer_is_the_baseline() {
        let images =
            |labels: Vec<u8>| Samples::Images(LabelledImages { images: vec![0; labels.len()], labels });
        assert_eq!(majority_accuracy(&images(vec![1, 0, 1, 2])), Some(0.5));
        let ids = vec![7, 7, 7, 3];
        assert_eq!(majority_accuracy(&Samples::Tokens(TokenSequences { length: 2, ids })), Some(0.75));
        assert_eq!(majority_accuracy(&images(Vec::new())), None);
    }

    #[test]
    fn neighbours_are_taken_evenly_and_only_where_they_vote() {
        assert_eq!(evaluated_on(&Loss::Classification, data()), (data().test, None));
        let swav = Loss::Swav(SwavLoss {
            features: "pool".into(),
            small_crops: 0,
            small_side: 2,
            queue_samples: 0,
            queue_after: 0,
            frozen_epochs: 0,
        });
        let (test, reference) = evaluated_on(&swav, data());
        assert_eq!(test, data().test);
        let Some(Samples::Images(reference)) = reference else { panic!("no pictures to compare with") };
        assert_eq!(reference.labels.len(), REFERENCE_SAMPLES_MAX);
        assert_eq!(reference.images[..26], [[0; 20].as_slice(), &[1; 6]].concat());
        assert_eq!(reference.images.last(), Some(&249));
    }
}
