//! Averagings by factors of low rank: what earlier ones left out comes along, and what this one leaves out is stored
//! before it counts.

use std::sync::Arc;

use barnraise_averaging::{Averaged, LowRankRound};
use barnraise_protocol::matchmaking::Proposal;
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::Group;
use barnraise_swarm::low_rank::LowRank;
use barnraise_swarm::low_rank::owed::with_owed;

use super::{AveragingError, Heard, Shared};
use crate::storage::checkpoint::Included;
use crate::storage::owed::{Owed, OwedError};

/// How a mean travels by factors.
#[derive(Debug, Clone)]
pub struct ByFactors {
    /// What travels.
    pub plan: Arc<LowRank>,
    /// `[plan.n_start_values()]`. One that others do not have makes a basis that is less good, and no harm.
    pub start: Vec<f32>,
    /// What is owed.
    pub owed: Owed,
    /// The last step that this peer was part of, after which it is owed.
    pub last: Option<Included>,
}

impl ByFactors {
    /// `mean`, `[plan.n_values()]`, over `n_samples`, with what is owed.
    pub async fn with_owed(&self, mean: &[f32], n_samples: u64) -> Result<Vec<f32>, OwedError> {
        let owed = match self.last {
            Some(last) => self.owed.read(last, self.plan.n_values()).await?,
            None => Vec::new(),
        };
        Ok(if owed.is_empty() { mean.to_vec() } else { with_owed(mean, n_samples, &owed) })
    }

    async fn average(
        &self,
        shared: &Shared,
        proposal: &Proposal,
        group: &Group,
        me: &PeerKey,
        mean: Vec<f32>,
    ) -> Result<Averaged, AveragingError> {
        let config = shared.config.averaging();
        let world = (&*shared.hub, &shared.platform, &config);
        let round = LowRankRound { group, me, plan: &self.plan, start: &self.start };
        let own = group.position(me).and_then(|position| group.members().get(position));
        let n_samples = own.map_or(0, |member| member.n_samples);
        if n_samples == 0 {
            // It averages, and has nothing that could be lost.
            let share = round.share(world, &mean, 0).await?;
            return Ok(round.average(world, share).await?);
        }
        let values = self.with_owed(&mean, n_samples).await?;
        let share = round.share(world, &values, n_samples).await?;
        let step = Included { epoch: proposal.model.epoch, nonce: proposal.nonce };
        self.owed.write(step, &share.owed).await?;
        Ok(round.average(world, share).await?)
    }
}

/// Averages as proposed, by factors.
pub(super) async fn average(
    shared: Shared,
    proposal: Proposal,
    group: Group,
    me: PeerKey,
    mean: Vec<f32>,
    how: ByFactors,
) {
    let measuring = shared.speed.begin(&shared.config.averaging(), [&group], &me);
    let averaged = how.average(&shared, &proposal, &group, &me, mean).await.map(Arc::new);
    measuring.end(averaged.as_ref().is_ok_and(|averaged| averaged.is_complete()));
    shared.tell_core(me, Heard::Averaged(proposal, averaged)).await;
}
