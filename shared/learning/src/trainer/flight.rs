//! Passes that are queued on the device: reads their results and repeats those that overflowed in half precision.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::Poll;

use futures::future::{MaybeDone, maybe_done};

use super::Trainer;
use crate::engine::{Arithmetic, Input, OwnedInput, PassRead};
use crate::error::ModelError;
use crate::statistics::Statistics;

/// A pass whose losses are on their way to the host.
pub(super) struct QueuedPass {
    read: MaybeDone<PassRead>,
    /// Input and scale to repeat the pass with, in mixed precision only.
    mixed: Option<Mixed>,
}

/// A pass in mixed precision.
struct Mixed {
    input: OwnedInput,
    seeds: Vec<u64>,
    scale: f32,
}

impl Trainer {
    /// Queues a pass over `n_samples`, counts them, and waits for passes before; a local step is made.
    pub(super) async fn step(
        &mut self,
        input: Input<'_>,
        seeds: Vec<u64>,
        n_samples: u32,
    ) -> Result<(), ModelError> {
        self.n_samples = self.n_samples.saturating_add(n_samples);
        if let Some(replicas) = &mut self.replicas {
            // They compute on the processor, in single precision.
            let read = replicas.step(&mut self.engine, input, seeds, n_samples as usize).await;
            self.queue(read, None).await;
        } else {
            let scale = self.scaler.as_ref().map(|scaler| scaler.scale());
            let again = |scale| Mixed { input: OwnedInput::of(input), seeds: seeds.clone(), scale };
            let mixed = scale.map(again);
            self.launch(input, seeds, mixed).await;
        }
        if self.local.is_some() {
            return self.step_locally(n_samples).await;
        }
        self.settle(self.in_flight_max).await
    }

    async fn launch(&mut self, input: Input<'_>, seeds: Vec<u64>, mixed: Option<Mixed>) {
        let arithmetic = match (&mixed, self.device.precision().half()) {
            (Some(Mixed { scale, .. }), Some(half)) => Arithmetic::Mixed { scale: *scale, half },
            _ => Arithmetic::Single,
        };
        let read = self.engine.step(input, seeds, arithmetic).await;
        self.queue(read, mixed).await;
    }

    async fn queue(&mut self, read: PassRead, mixed: Option<Mixed>) {
        let mut read = maybe_done(read);
        // Polled once, the read is queued behind this pass and does not wait for later ones.
        let _ = futures::poll!(&mut read);
        self.in_flight().push_back(QueuedPass { read, mixed });
    }

    pub(super) fn in_flight(&mut self) -> &mut VecDeque<QueuedPass> {
        self.in_flight.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until at most `n_left` passes are in flight and adds up the statistics of those that are done. A pass whose
    /// gradient is not finite is repeated with a smaller scale, at last in single precision, so the loop ends.
    pub(super) async fn settle(&mut self, n_left: usize) -> Result<(), ModelError> {
        while self.in_flight().len() > n_left {
            // Others go on meanwhile: hosted experts answer in any order.
            poll_fn(|context| {
                let mut passes = self.in_flight().iter_mut();
                let first =
                    passes.next().map_or(Poll::Ready(()), |pass| Pin::new(&mut pass.read).poll(context));
                passes.for_each(|pass| {
                    let _ = Pin::new(&mut pass.read).poll(context);
                });
                first
            })
            .await;
            let Some(mut pass) = self.in_flight().pop_front() else { break };
            let Some(read) = Pin::new(&mut pass.read).take_output() else { continue };
            self.device.check()?;
            let mut given = read.map_err(|error| self.device.failed(error))?;
            if let (Some(mixed), Some(scaler)) = (pass.mixed, &mut self.scaler) {
                if given.pop() != Some(1.0) {
                    let scale = scaler.on_overflow(mixed.scale);
                    let seeds = mixed.seeds.clone();
                    let again = |scale| Mixed { input: mixed.input.clone(), seeds: seeds.clone(), scale };
                    let again = scale.map(again);
                    self.launch(mixed.input.as_input(), seeds, again).await;
                    continue;
                }
                scaler.on_finite(mixed.scale);
            }
            let statistics = Statistics::of(&given);
            self.last_loss = Some(statistics.mean_loss());
            self.finished.add(statistics);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "mixed_tests.rs"]
mod tests;
