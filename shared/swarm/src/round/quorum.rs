//! When a step that bears liars may be made: not before most peers have had their say.
//!
//! Whoever claims many samples at once would otherwise reach the target alone, in every epoch, before the
//! others have computed anything, and be aggregated with nobody. So claims count toward the target as they weigh
//! in [`crate::robust::centered_clip`], up to the median peer's; and the median is that of all who have a
//! session, most of whom have to have reported. For those that report nothing at all an epoch waits once, as long
//! as for those that report and do not deliver; the next one does not, until they do. The price: a run goes at
//! the pace of its median peer.

use std::collections::{BTreeMap, BTreeSet};

use super::AveragingRound;
use crate::robust::{Aggregation, lower_median};
use crate::{Moment, PeerKey};

/// How long an epoch with enough claims waits for peers that have said nothing yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// There are not enough claims yet.
    Unneeded,
    Until(Moment),
    /// They are not waited for any more in this epoch.
    Over,
}

impl AveragingRound {
    /// Whether what is claimed, or counted, makes a step.
    pub(super) fn is_enough(&mut self, now: Moment) -> bool {
        let elsewhere = self.elsewhere.n_samples;
        let target = u64::from(self.config.target_batch_size).saturating_sub(elsewhere);
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

    /// Samples of the coming step that count toward the target: all, or those that are believed.
    pub fn n_samples_believed(&self) -> u64 {
        match self.config.aggregation {
            Aggregation::Mean | Aggregation::MeanOfAddresses { .. } => self.n_samples(),
            Aggregation::CenteredClip { .. } => self.n_believed(),
        }
    }

    /// Whether the patience with silent peers runs out just now.
    pub(super) fn loses_patience(&mut self, now: Moment) -> bool {
        let is_over = matches!(self.patience, Patience::Until(deadline) if deadline <= now);
        if is_over {
            self.patience = Patience::Over;
            let heard: BTreeSet<PeerKey> =
                self.claims().into_iter().filter(|(_, n)| *n > 0).map(|(peer, _)| peer.clone()).collect();
            for (peer, contributor) in &mut self.contributors {
                contributor.is_silent = !heard.contains(peer);
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
        // Of two nobody can say which one lies.
        let cap = if sizes.len() < 3 { None } else { lower_median(&mut sizes, u64::cmp) };
        sizes.iter().map(|&n| n.min(cap.unwrap_or(u64::MAX))).sum()
    }

    /// Whether a peer that has said nothing in this epoch is expected to.
    fn is_awaited(&self, peer: &PeerKey) -> bool {
        let is_silent = self.contributors.get(peer).is_none_or(|contributor| contributor.is_silent);
        self.patience != Patience::Over && !is_silent
    }
}
