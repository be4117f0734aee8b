//! Accuracy on the held-out test set, beside training: a thread of its own with a trainer of its own.

use barnraise_learning::{ComputeDevice, DataShape, Evaluation, ModelError, Trainer};
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::run::ModelSpec;
use tokio::sync::{mpsc, watch};

use super::core::CoreEvent;
use super::learner::PublishedState;

/// What is evaluated, and how often.
pub(super) struct Evaluator {
    /// The held-out samples.
    pub test: Samples,
    /// The network.
    pub model: ModelSpec,
    /// Sizes of a sample.
    pub data: DataShape,
    /// What computes.
    pub device: ComputeDevice,
    /// Steps between two evaluations; the newest parameters are taken, however late it is.
    pub every_epochs: u64,
}

impl Evaluator {
    /// Evaluates until the core is gone. Blocks: for a thread of its own.
    pub(super) fn run(
        self,
        mut state: watch::Receiver<PublishedState>,
        core: &mpsc::Sender<CoreEvent>,
    ) -> Result<(), ModelError> {
        let mut trainer = Trainer::new(&self.model, self.data, self.device.clone())?;
        let mut next = 0;
        loop {
            let newest = state.borrow_and_update().clone();
            let epoch = newest.header.epoch;
            if epoch >= next {
                next = epoch + self.every_epochs;
                let evaluation = self.evaluate(&mut trainer, &newest.parameters)?;
                if core.blocking_send(CoreEvent::Evaluated { epoch, evaluation }).is_err() {
                    return Ok(());
                }
            }
            if futures::executor::block_on(state.changed()).is_err() {
                return Ok(());
            }
        }
    }

    fn evaluate(&self, trainer: &mut Trainer, parameters: &[f32]) -> Result<Evaluation, ModelError> {
        trainer.load_parameters(parameters)?;
        futures::executor::block_on(trainer.evaluate_samples(&self.test))
    }
}
