//! Quorum: a Byzantine-robust step is not made before most peers have reported.
//!
//! Otherwise a peer that claims many samples at once would reach the target alone, in every epoch, before the
//! others have computed anything, and be aggregated with nobody. So claims count toward the target as they weigh
//! in [`crate::robust::centered_clip`]: up to the median peer's. The median is over all peers with a session, most of
//! which must have reported. An epoch waits once for peers that report nothing, as long as for peers that report and
//! do not deliver. The next epoch does not wait for them until they report. The price: a run goes at the pace of its
//! median peer.

use std::collections::{BTreeMap, BTreeSet};

use super::CollectionRound;
use crate::robust::{Aggregation, lower_median};
use crate::{Moment, PeerKey};

/// How long an epoch with enough claims waits for peers that have not reported yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// The claims are not enough yet.
    Unneeded,
    Until(Moment),
    /// The epoch no longer waits for them.
    Over,
}

impl CollectionRound {
    /// Whether the samples that are claimed or counted suffice for a step.
    pub(super) fn is_enough(&mut self, now: Moment) -> bool {
        let n_elsewhere = self.other_aggregators.n_samples;
        let target = u64::from(self.config.target_batch_size).saturating_sub(n_elsewhere);
        if self.n_samples() < target {
            return false;
        }
        match self.config.aggregation {
            Aggregation::Mean | Aggregation::MeanOfAddresses { .. } => {
                if self.patience == Patience::Over || self.n_expected() >= target {
                    return true;
                }
            }
            Aggregation::CenteredClip { .. } if self.n_believed() >= target => return true,
            Aggregation::CenteredClip { .. } => {}
        }
        if self.patience == Patience::Unneeded {
            self.patience = Patience::Until(now + self.patience_with_claims());
        }
        false
    }

    /// Samples of the coming step that count toward the target: all, or at most the median peer's of each peer.
    pub fn n_samples_believed(&self) -> u64 {
        match self.config.aggregation {
            Aggregation::Mean | Aggregation::MeanOfAddresses { .. } => self.n_samples(),
            Aggregation::CenteredClip { .. } => self.n_believed(),
        }
    }

    /// Ends the wait for silent peers if its deadline has passed. Returns whether it ended just now.
    pub(super) fn end_patience(&mut self, now: Moment) -> bool {
        let is_over = matches!(self.patience, Patience::Until(deadline) if deadline <= now);
        if is_over {
            self.patience = Patience::Over;
            let claiming: BTreeSet<PeerKey> =
                self.claims().into_iter().filter(|(_, n)| *n > 0).map(|(peer, _)| peer.clone()).collect();
            for (peer, contributor) in &mut self.contributors {
                contributor.is_silent = !claiming.contains(peer);
            }
        }
        is_over
    }

    /// Samples of each peer with a session or a contribution: counted, on their way, and reported.
    fn claims(&self) -> BTreeMap<&PeerKey, u64> {
        let mut claims: BTreeMap<&PeerKey, u64> =
            self.counted_samples.iter().map(|(peer, &n)| (peer, n)).collect();
        for flight in self.in_flight.values() {
            *claims.entry(&flight.peer).or_default() += u64::from(flight.offer.n_samples);
        }
        for (peer, contributor) in &self.contributors {
            *claims.entry(peer).or_default() += u64::from(contributor.outstanding);
        }
        claims
    }

    /// Samples claimed, of each peer up to the median peer's.
    fn n_believed(&self) -> u64 {
        let claims = self.claims();
        let mut sizes: Vec<u64> =
            claims.iter().filter(|&(peer, &n)| n > 0 || self.is_awaited(peer)).map(|(_, &n)| n).collect();
        // Of two peers it cannot be decided which one is dishonest.
        let cap = if sizes.len() < 3 { None } else { lower_median(&mut sizes, u64::cmp) };
        sizes.iter().map(|&n| n.min(cap.unwrap_or(u64::MAX))).sum()
    }

    /// Whether a peer that has not reported in this epoch is expected to.
    fn is_awaited(&self, peer: &PeerKey) -> bool {
        let is_silent = self.contributors.get(peer).is_none_or(|contributor| contributor.is_silent);
        self.patience != Patience::Over && !is_silent
    }
}
