//! The end of a round: what was collected, and its mean.
//!
//! The mean of a large model takes time, and a robust one much more. A driver that must answer meanwhile takes what was
//! collected and computes it elsewhere.

use std::sync::Arc;

use super::CollectionRound;
use crate::robust::{Aggregate, Aggregation, Contributions, PeerOutcome};

/// Result of a round: the gradient of one optimizer step.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectedMean {
    /// The epoch whose parameters were used.
    pub epoch: u64,
    /// Aggregate of all contributions, `[n_parameters]`: their mean over samples, or the result of the run's
    /// [`Aggregation`] makes of them.
    pub gradient: Vec<f32>,
    /// Samples behind it.
    pub n_samples: u64,
    /// Sequence numbers of its contributions, in the order in which they were summed.
    pub sequences: Vec<u32>,
    /// Mean loss of the samples; where peers are not trusted, the median peer's.
    pub loss: f32,
    /// Aggregation rule of the gradient; a replay of the step needs the same one.
    pub aggregation: Aggregation,
    /// Distance of each peer's gradient, where the aggregation rule measures it.
    pub outcomes: Vec<PeerOutcome>,
}

/// All contributions of a round, of which there is no mean yet. While it lives, none can be added without a copy of them.
#[derive(Debug)]
pub struct Collected {
    epoch: u64,
    sequences: Vec<u32>,
    aggregation: Aggregation,
    n_parameters: usize,
    contributions: Arc<Contributions>,
}

impl Collected {
    /// Aggregates them; zeros where there are none.
    #[must_use]
    pub fn mean(self) -> CollectedMean {
        let Self { epoch, sequences, aggregation, n_parameters, contributions } = self;
        let n_samples = contributions.n_samples();
        let Aggregate { gradient, loss, outcomes } = match n_samples {
            0 => Aggregate { gradient: vec![0.0; n_parameters], loss: 0.0, outcomes: Vec::new() },
            _ => contributions.aggregate(),
        };
        CollectedMean { epoch, gradient, n_samples, sequences, loss, aggregation, outcomes }
    }
}

impl CollectionRound {
    /// Takes what was collected, where a step is the next action: instead of [`CollectionAction::Step`], whose mean is
    /// computed when it is polled.
    ///
    /// [`CollectionAction::Step`]: super::CollectionAction::Step
    pub fn poll_collected(&mut self) -> Option<Collected> {
        let is_next = self.actions.is_empty() && std::mem::take(&mut self.is_mean_due);
        is_next.then(|| self.collected())
    }

    /// The contributions that were counted so far.
    ///
    /// The driver needs them only to repeat a step after a restart; otherwise [`Self::poll_collected`] has them.
    pub fn collected(&self) -> Collected {
        Collected {
            epoch: self.epoch,
            sequences: self.sequences.clone(),
            aggregation: self.config.aggregation,
            n_parameters: self.config.n_parameters,
            contributions: Arc::clone(&self.contributions),
        }
    }

    /// Their aggregate.
    pub fn mean(&self) -> CollectedMean {
        self.collected().mean()
    }
}
