//! Passes that are queued on the device: reads their results and repeats those that overflowed in half precision.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::PoisonError;

use futures::future::{MaybeDone, maybe_done};

use super::{IN_FLIGHT_MAX, Trainer};
use crate::engine::{Arithmetic, Input, LogitsRead, OwnedInput};
use crate::error::ModelError;
use crate::statistics::Statistics;

/// A pass whose logits are on their way to the host.
pub(super) struct QueuedPass {
    read: MaybeDone<LogitsRead>,
    answers: Targets,
    /// Input and scale to repeat the pass with, in mixed precision only.
    mixed: Option<Mixed>,
}

/// A pass in mixed precision.
struct Mixed {
    input: OwnedInput,
    scale: f32,
}

/// How to turn the values of a pass into statistics.
pub(super) enum Targets {
    /// The values are logits; these are the correct classes.
    Labels(Vec<u16>),
    /// The values are losses.
    Losses,
}

impl Targets {
    fn statistics(&self, values: &[f32]) -> Statistics {
        match self {
            Self::Labels(labels) => Statistics::of(values, labels),
            Self::Losses => Statistics::of_losses(values),
        }
    }
}

impl Trainer {
    /// Queues a pass over `n_samples`, counts them, and waits for passes before; a local step is made.
    pub(super) async fn step(
        &mut self,
        input: Input<'_>,
        answers: Targets,
        n_samples: u32,
    ) -> Result<(), ModelError> {
        self.n_samples = self.n_samples.saturating_add(n_samples);
        let scale = self.scaler.as_ref().map(|scaler| scaler.scale());
        self.launch(input, answers, scale.map(|scale| Mixed { input: OwnedInput::of(input), scale })).await;
        if self.local.is_some() {
            return self.step_locally(n_samples).await;
        }
        self.settle(IN_FLIGHT_MAX).await
    }

    async fn launch(&mut self, input: Input<'_>, answers: Targets, mixed: Option<Mixed>) {
        let arithmetic = match &mixed {
            Some(Mixed { scale, .. }) => Arithmetic::Mixed { scale: *scale },
            None => Arithmetic::Single,
        };
        let mut read = maybe_done(self.engine.step(input, arithmetic));
        // Polled once, the read is queued behind this pass and does not wait for later ones.
        let _ = futures::poll!(&mut read);
        self.in_flight().push_back(QueuedPass { read, answers, mixed });
    }

    pub(super) fn in_flight(&mut self) -> &mut VecDeque<QueuedPass> {
        self.in_flight.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until at most `n_left` passes are in flight and adds up the statistics of those that are done. A pass whose
    /// gradient is not finite is repeated with a smaller scale, at last in single precision, so the loop ends.
    pub(super) async fn settle(&mut self, n_left: usize) -> Result<(), ModelError> {
        while self.in_flight().len() > n_left {
            let Some(mut pass) = self.in_flight().pop_front() else { break };
            (&mut pass.read).await;
            let Some(read) = Pin::new(&mut pass.read).take_output() else { continue };
            self.device.check()?;
            let mut given = read.map_err(|error| self.device.failed(error))?;
            if let (Some(mixed), Some(scaler)) = (pass.mixed, &mut self.scaler) {
                if given.pop() != Some(1.0) {
                    let scale = scaler.on_overflow(mixed.scale);
                    let again = scale.map(|scale| Mixed { input: mixed.input.clone(), scale });
                    self.launch(mixed.input.as_input(), pass.answers, again).await;
                    continue;
                }
                scaler.on_finite(mixed.scale);
            }
            let statistics = pass.answers.statistics(&given);
            self.last_loss = Some(statistics.mean_loss());
            self.finished.add(statistics);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "mixed_tests.rs"]
mod tests;
