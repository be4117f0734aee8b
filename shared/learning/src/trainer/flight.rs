//! Passes that are queued on the device: what comes back of them, and which of them are made again.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::PoisonError;

use futures::future::{MaybeDone, maybe_done};

use super::{IN_FLIGHT_MAX, Trainer};
use crate::engine::{Arithmetic, Input, KeptInput, LogitsRead};
use crate::error::ModelError;
use crate::statistics::Statistics;

/// A pass whose logits are on their way to the host.
pub(super) struct InFlight {
    read: MaybeDone<LogitsRead>,
    answers: Answers,
    /// Of mixed precision: what is needed to make it again.
    mixed: Option<Mixed>,
}

/// A pass in mixed precision.
struct Mixed {
    input: KeptInput,
    scale: f32,
}

/// What is to be made of what a pass gives.
pub(super) enum Answers {
    /// It gives logits; these are right.
    Labels(Vec<u16>),
    /// It gives losses.
    Judged,
}

impl Answers {
    fn statistics(&self, values: &[f32]) -> Statistics {
        match self {
            Self::Labels(labels) => Statistics::of(values, labels),
            Self::Judged => Statistics::of_losses(values),
        }
    }
}

impl Trainer {
    /// Queues a pass over `n_samples`, counts them, and waits for passes before; a local step is made.
    pub(super) async fn step(
        &mut self,
        input: Input<'_>,
        answers: Answers,
        n_samples: u32,
    ) -> Result<(), ModelError> {
        self.n_samples = self.n_samples.saturating_add(n_samples);
        let scale = self.scaler.as_ref().map(|scaler| scaler.scale());
        self.launch(input, answers, scale.map(|scale| Mixed { input: KeptInput::of(input), scale })).await;
        if self.local.is_some() {
            return self.step_locally(n_samples).await;
        }
        self.settle(IN_FLIGHT_MAX).await
    }

    async fn launch(&mut self, input: Input<'_>, answers: Answers, mixed: Option<Mixed>) {
        let arithmetic = match &mixed {
            Some(Mixed { scale, .. }) => Arithmetic::Mixed { scale: *scale },
            None => Arithmetic::Single,
        };
        let mut read = maybe_done(self.engine.step(input, arithmetic));
        // Polled once, the read is queued behind this pass and does not wait for later ones.
        let _ = futures::poll!(&mut read);
        self.in_flight().push_back(InFlight { read, answers, mixed });
    }

    pub(super) fn in_flight(&mut self) -> &mut VecDeque<InFlight> {
        self.in_flight.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until at most `n_left` passes are in flight, counts those that are done, and has those made again whose
    /// gradient was not finite. With each of them the scale falls, to where a pass is made in single precision: so it
    /// ends.
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
