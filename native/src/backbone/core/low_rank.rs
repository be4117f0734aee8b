//! Means of several backbones that travel by factors of low rank: from where the next ones start, and what they owe.

use std::sync::Arc;

use anyhow::Context;
use barnraise_learning::ParameterLayout;
use barnraise_swarm::PeerKey;
use barnraise_swarm::compression::ABSENCE_EPOCHS_MAX;
use barnraise_swarm::low_rank::{LowRank, Shape};

use super::super::aggregators::ByFactors;
use super::super::learner::{Learner, LearnerError};
use super::together::Together;
use super::{Core, Storing};
use crate::config::RunConfig;
use crate::storage::checkpoint::Included;
use crate::storage::owed::Owed;

/// How means travel, and from where the next one starts.
pub struct Factors {
    plan: Arc<LowRank>,
    start: Vec<f32>,
}

impl Factors {
    /// Where the last step left off; `None` where means travel whole.
    ///
    /// # Errors
    /// A model that factors of the configured rank do not make smaller, or a store that does not answer.
    pub async fn of(
        config: &RunConfig,
        layout: &ParameterLayout,
        learner: &Learner,
        me: &PeerKey,
        storing: &Storing,
    ) -> anyhow::Result<Option<Self>> {
        let rank = config.aggregators.rank;
        if rank == 0 {
            return Ok(None);
        }
        let plan = plan(layout, rank).context("aggregators.rank")?;
        let mut start = plan.first_start();
        // A mean that came by factors gives them back, so that what was warm before a crash is so after it.
        let last = learner.epoch().checked_sub(1);
        let mean = match last {
            Some(epoch) => storing.journal.mean(epoch).await?,
            None => None,
        };
        if let Some(mean) = mean.and_then(|bytes| learner.decode_mean(&bytes)) {
            start = plan.next_start(&mean, &start);
        }
        if let Some(last) = last_that_owes(learner, me) {
            let owed = storing.owed.read(last, plan.n_values()).await?;
            let norm = owed.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
            tracing::info!(
                epoch = last.epoch,
                norm,
                "what earlier averagings left out comes with the next one"
            );
        }
        Ok(Some(Self { plan: Arc::new(plan), start }))
    }
}

/// Which values of a model travel as factors: its matrices, a convolution's with all that is not its outputs as one
/// dimension (Vogels et al. 2019, section 3).
fn plan(layout: &ParameterLayout, rank: usize) -> Result<LowRank, barnraise_swarm::low_rank::LowRankError> {
    let matrices = layout.segments().iter().filter(|segment| segment.shape.len() > 1);
    let shapes: Vec<Shape> =
        matrices.map(|segment| Shape::of_tensor(segment.offset, &segment.shape)).collect();
    LowRank::new(layout.n_parameters(), &shapes, rank)
}

/// The step after which this peer owes something; what it owes of too long ago was of another model.
fn last_that_owes(learner: &Learner, me: &PeerKey) -> Option<Included> {
    let last = learner.last_step_of(&me.0)?;
    (learner.epoch().saturating_sub(last.epoch) <= ABSENCE_EPOCHS_MAX).then_some(last)
}

impl Together {
    /// Values that others are sent of a mean over `n_parameters`.
    pub(super) fn n_travelling(&self, n_parameters: usize) -> usize {
        self.factors.as_ref().map_or(n_parameters, |factors| factors.plan.n_factor_values())
    }

    /// How the next mean travels; `None`: whole.
    pub(super) fn by_factors(&self, learner: &Learner, owed: &Owed) -> Option<ByFactors> {
        let Factors { plan, start } = self.factors.as_ref()?;
        let last = last_that_owes(learner, &self.me);
        Some(ByFactors { plan: Arc::clone(plan), start: start.clone(), owed: owed.clone(), last })
    }
}

impl Core {
    /// The mean of a step that this peer makes alone, with what it owes: all of it is in the model then.
    pub(super) async fn pay_what_is_owed(
        &self,
        epoch: u64,
        nonce: u64,
        n_samples: u64,
        mean: Vec<f32>,
    ) -> Result<Vec<f32>, LearnerError> {
        let how = self.together.as_ref().and_then(|it| it.by_factors(&self.learner, &self.storing.owed));
        let Some(how) = how else { return Ok(mean) };
        let whole = how.with_owed(&mean, n_samples).await?;
        self.storing.owed.write(Included { epoch, nonce }, &[]).await?;
        Ok(whole)
    }

    /// A step was made by `mean`.
    pub(super) fn start_from(&mut self, mean: &[f32]) {
        if let Some(Factors { plan, start }) = self.together.as_mut().and_then(|it| it.factors.as_mut()) {
            *start = plan.next_start(mean, start);
        }
    }

    /// Checkpoints do not go back beyond `epoch`.
    pub(super) async fn forget_owed_before(&self, epoch: u64) -> Result<(), LearnerError> {
        let Some(together) = &self.together else { return Ok(()) };
        let holds = self.learner.last_step_of(&together.me.0);
        Ok(self.storing.owed.forget_before(epoch, holds).await?)
    }
}
