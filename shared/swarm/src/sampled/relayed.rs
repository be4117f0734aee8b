//! Peers that others reach through a relay alone: when they aggregate, and who believes them.
//!
//! They come after those that can be dialled. Any key may say that it is one, and few do, so that its place among them shows little:
//! who is offered an average by one first asks those that can be dialled.

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::sampled::{Aggregates, Membership, SampledRoles, SampledTask};

use super::SampledPeer;
use super::sampling::{SILENT_MAX, Sampling};
use crate::Moment;

/// An answer, or that there was none, is believed for so many times the time that a ping has.
const BELIEVED_PINGS: u32 = 8;

/// Whether those that can be dialled are live: some of them are asked, all at once.
#[derive(Debug)]
pub(super) struct Dialled {
    since: Moment,
    sampling: Sampling,
}

impl Dialled {
    pub(super) fn sampling_mut(&mut self) -> &mut Sampling {
        &mut self.sampling
    }
}

impl SampledPeer {
    /// `SAMPLE(k, a)`, of the peers that aggregate: those that can be dialled first, unless the run has stood still with them.
    pub(super) fn aggregators(&self, now: Moment, round: u64) -> Sampling {
        let (mut candidates, relayed): (Vec<PublicKey>, Vec<PublicKey>) =
            self.candidates(round, SampledRoles::is_aggregator).into_iter().partition(|candidate| {
                self.joining.is_run_still() || self.aggregates(candidate) == Aggregates::Dialled
            });
        let n_first = candidates.len();
        candidates.extend(relayed);
        let n = (self.settings.n_aggregators, 1);
        let candidates = (candidates, n_first);
        Sampling::in_turn(now, self.peer, round, n, candidates, self.settings.ping_timeout)
    }

    /// Place of an aggregator among those of its kind in the order of a round; `None` of one that is none.
    pub(super) fn aggregator_place(&self, of: &PublicKey, round: u64, within: (u64, u64)) -> Option<usize> {
        let kind = self.aggregates(of);
        let is_alike = |roles: SampledRoles| roles.is_aggregator() && roles.aggregates == kind;
        self.registry.place(of, round, within, is_alike)
    }

    /// Whether a peer aggregates, and for whom.
    pub(super) fn aggregates(&self, peer: &PublicKey) -> Aggregates {
        let joined = self.registry.membership(peer).and_then(Membership::joined);
        joined.map_or(Aggregates::Never, |joined| joined.roles.aggregates)
    }

    /// Whether the sender may be the one to average, as far as that hangs on how it is reached. Where this peer does not know yet, it
    /// asks those that can be dialled, and knows when the sender offers its average again.
    pub(super) fn is_believed(&mut self, now: Moment, from: PublicKey, task: SampledTask) -> bool {
        let SampledTask::Train { round } = task else { return true };
        if from == self.peer || self.aggregates(&from) != Aggregates::Relayed || self.joining.is_run_still() {
            return true;
        }
        let others_come_here = self.identity.roles.aggregates == Aggregates::Dialled
            && self.aggregation.round() > 0
            && self.aggregation.round().saturating_add(self.settings.activity_window) > round;
        !others_come_here && self.are_dialled_silent(now, round)
    }

    /// Whether none of those that can be dialled has answered lately, or there is none.
    fn are_dialled_silent(&mut self, now: Moment, round: u64) -> bool {
        let believed = self.settings.ping_timeout.saturating_mul(BELIEVED_PINGS);
        if self.dialled.as_ref().is_none_or(|dialled| dialled.since + believed < now) {
            let mut candidates = self.candidates(round, |roles| roles.aggregates == Aggregates::Dialled);
            candidates.retain(|candidate| *candidate != self.peer);
            candidates.truncate(SILENT_MAX);
            let n = (candidates.len(), 1);
            let sampling = Sampling::new(now, self.peer, round, n, candidates, self.settings.ping_timeout);
            self.dialled = Some(Dialled { since: now, sampling });
        }
        let Some(dialled) = &mut self.dialled else { return false };
        dialled.sampling.on_timeout(now);
        dialled.sampling.retry_at().is_some()
    }
}
