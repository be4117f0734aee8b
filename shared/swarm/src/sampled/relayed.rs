//! Peers that others reach through a relay alone: when they aggregate, and who believes them.
//!
//! They come after those that can be dialled. Any key may say that it is one, and few do, so that its place among them shows little:
//! who is offered an average by one first asks those that can be dialled.

use std::collections::BTreeSet;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::sampled::{Aggregates, Membership, SampledRoles, SampledTask};

use super::SampledPeer;
use super::sampling::Sampling;
use crate::Moment;

/// Most peers that can be dialled and were not heard of late that are asked: to say that one can be dialled costs nothing.
const UNHEARD_MAX: usize = 16;
/// Most that are asked at once whether they are live.
const ASKED_MAX: usize = 16;
/// An answer, or that there was none, is believed for so many times the time that a ping has.
const BELIEVED_PINGS: u32 = 8;

/// Whether those that can be dialled are live.
#[derive(Debug, Default)]
pub(super) struct Dialled {
    /// Some of them, asked all at once.
    asked: Option<(Moment, Sampling)>,
    /// The latest round of which a tab offered an average while one of them was live, and since when.
    refused: Option<(u64, Moment)>,
}

impl Dialled {
    pub(super) fn sampling_mut(&mut self) -> Option<&mut Sampling> {
        self.asked.as_mut().map(|(_, sampling)| sampling)
    }
}

impl SampledPeer {
    /// `SAMPLE(k, a)`, of the peers that aggregate: those that can be dialled first, unless the run has stood still with them. Of those
    /// that were not heard of late, a few.
    pub(super) fn aggregators(&self, now: Moment, round: u64) -> Sampling {
        if self.is_among_neighbors() {
            return self.receivers(now, round);
        }
        let is_still = self.joining.is_run_still(round);
        let mut candidates = self.candidates(round, SampledRoles::is_aggregator);
        let is_dialled = |peer: &PublicKey| self.aggregates(peer) == Aggregates::Dialled;
        if !candidates.iter().all(is_dialled) {
            let (heard, mut n_unheard) = (self.heard(), 0);
            candidates.retain(|candidate| {
                let is_unheard =
                    is_dialled(candidate) && *candidate != self.peer && !heard.contains(candidate);
                n_unheard += usize::from(is_unheard);
                !is_unheard || n_unheard <= UNHEARD_MAX
            });
        }
        let (first, relayed): (Vec<PublicKey>, Vec<PublicKey>) =
            candidates.into_iter().partition(|candidate| is_still || is_dialled(candidate));
        let n_first = first.len();
        let candidates = ([first, relayed].concat(), n_first);
        Sampling::in_turn(
            now,
            self.peer,
            round,
            (self.settings.n_aggregators, 1),
            candidates,
            self.settings.ping_timeout,
        )
    }

    /// Place of an aggregator in the order of a round among those of its kind, which is never worse than that among all; `None` of one that
    /// is none.
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

    fn heard(&self) -> BTreeSet<PublicKey> {
        self.registry.heard(self.settings.activity_window)
    }

    /// Whether the sender may be the one to average, as far as that hangs on how it is reached. Where this peer does not know yet, it
    /// asks those that can be dialled, and knows when the sender offers its average again. One of them may be back since the trainers
    /// asked: where nothing comes of it for some rounds' time, the tab is believed after all.
    pub(super) fn is_believed(&mut self, now: Moment, from: PublicKey, task: SampledTask) -> bool {
        let SampledTask::Train { round } = task else { return true };
        let is_alike = from == self.peer || self.aggregates(&from) != Aggregates::Relayed;
        if is_alike || self.joining.is_run_still(round) {
            return true;
        }
        let others_come_here = self.identity.roles.aggregates == Aggregates::Dialled
            && self.aggregation.round() > 0
            && self.aggregation.round().saturating_add(self.settings.activity_window) > round;
        let are_live = if others_come_here { Some(true) } else { self.are_dialled_live(now) };
        if are_live != Some(true) || self.is_far(round) {
            return are_live == Some(false);
        }
        match self.dialled.refused {
            // Twice the time after which who can be dialled averages what it has.
            Some((refused, since)) if refused == round => since.saturating_add(2 * self.some_rounds()) <= now,
            Some((refused, _)) if refused > round => false,
            _ => {
                self.dialled.refused = Some((round, now));
                false
            }
        }
    }

    /// Whether one of those that can be dialled has answered lately; `None` while they are asked. Those that were heard of late are
    /// asked first.
    fn are_dialled_live(&mut self, now: Moment) -> Option<bool> {
        let believed = self.settings.ping_timeout.saturating_mul(BELIEVED_PINGS);
        if self.dialled.asked.as_ref().is_none_or(|(since, _)| since.saturating_add(believed) < now) {
            let round = self.round_of_many().saturating_add(1);
            let mut candidates = self.candidates(round, |roles| roles.aggregates == Aggregates::Dialled);
            candidates.retain(|candidate| *candidate != self.peer);
            let heard = self.heard();
            candidates.sort_by_key(|candidate| !heard.contains(candidate));
            candidates.truncate(ASKED_MAX);
            let n = (candidates.len(), 1);
            let sampling = Sampling::new(now, self.peer, round, n, candidates, self.settings.ping_timeout);
            self.dialled.asked = Some((now, sampling));
        }
        let sampling = self.dialled.sampling_mut()?;
        sampling.on_timeout(now);
        let are_live = sampling.are_first_enough();
        (are_live || sampling.retry_at().is_some()).then_some(are_live)
    }
}
