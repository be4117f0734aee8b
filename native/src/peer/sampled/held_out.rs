//! Evaluation of the newest model on samples that are trained on nowhere, at the participant that was given them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use barnraise_learning::{ComputeDevice, DataShape, Evaluation, Trainer};
use barnraise_protocol::dataset::{SampleKind, Samples};
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::run::model::graph::Loss;
use futures::executor::block_on;
use tokio::sync::watch;

use crate::host::evaluator::{Evaluated, majority_accuracy};
use crate::peer::display::Display;
use crate::scheme::sampled::driver::SampledDriver;

/// Shortest time between two evaluations.
const REST_MIN: Duration = Duration::from_secs(2);
/// So many times as long as an evaluation takes there is none: the device's time is for training.
const REST: u32 = 10;

/// Samples of `--test`, and what evaluates on them.
pub(super) struct HeldOut {
    samples: Arc<Samples>,
    run: Arc<RunDescription>,
    device: ComputeDevice,
}

impl HeldOut {
    /// # Errors
    /// The run's model says nothing about them: one that learns without labels has no classes, and one of ratings knows the people
    /// alone whose ratings it was trained on.
    pub(super) fn new(samples: Samples, run: &RunDescription, device: ComputeDevice) -> anyhow::Result<Self> {
        let is_of_people = matches!(run.data.manifest.samples, SampleKind::Ratings(_));
        ensure!(
            !is_of_people && !matches!(run.model.graph.loss, Loss::Swav(_)),
            "--test is for a model of labelled pictures, of tables or of texts: what this one is worth is not seen on other samples"
        );
        Ok(Self { samples: Arc::new(samples), run: Arc::new(run.clone()), device })
    }

    /// Accuracy on them of a model that always says the commonest.
    pub(super) fn majority_accuracy(&self) -> Option<f32> {
        majority_accuracy(&self.samples)
    }

    /// Evaluates the newest average now and then. Does not end, but with an error.
    ///
    /// # Errors
    /// The model could not be evaluated on the device.
    pub(super) async fn keep(
        &self,
        driver: &SampledDriver,
        evaluated: &watch::Sender<Option<Evaluated>>,
        display: &Display,
    ) -> anyhow::Result<()> {
        let mut newest = driver.newest();
        loop {
            let began = Instant::now();
            let average = newest.borrow_and_update().clone();
            if let Some((epoch, model)) = average {
                let evaluation = self.evaluate(model).await.context("the model could not be evaluated")?;
                let Evaluation { loss, accuracy } = evaluation;
                let what = self.name_of_accuracy();
                display.say(&format!(
                    "Round {epoch} on the samples of --test: {what} {accuracy:.3}, loss {loss:.3}."
                ));
                evaluated.send_replace(Some(Evaluated { epoch, evaluation }));
            }
            tokio::time::sleep(REST_MIN.max(began.elapsed().saturating_mul(REST))).await;
            if newest.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn name_of_accuracy(&self) -> &'static str {
        match self.run.model.graph.loss {
            Loss::Regression => "R²",
            _ => "accuracy",
        }
    }

    async fn evaluate(&self, model: Arc<[f32]>) -> anyhow::Result<Evaluation> {
        let (samples, run, device) = (Arc::clone(&self.samples), Arc::clone(&self.run), self.device.clone());
        let evaluate = move || {
            let mut trainer = Trainer::new(&run.model, DataShape::of(&run.data.manifest.samples), device)?;
            trainer.load_parameters(&model)?;
            block_on(trainer.evaluate_samples(&samples))
        };
        Ok(tokio::task::spawn_blocking(evaluate).await??)
    }
}
