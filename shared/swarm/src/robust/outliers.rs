//! Persistent outliers: peers that are left out round after round, for the operator's attention.
//!
//! It never punishes: a large distance is no evidence that other peers could verify.

use std::collections::BTreeMap;

use super::{ClipVerdict, PeerOutcome};
use crate::PeerKey;

/// Rounds in a row after which a peer is reported.
pub const OUTLIER_ROUNDS: u32 = 5;
/// Most peers that are remembered. A peer that is not left out any more is forgotten.
const PEERS_MAX: usize = 10_000;

/// Number of rounds in a row in which each peer was left out.
#[derive(Debug, Default)]
pub struct OutlierTracker {
    rounds: BTreeMap<PeerKey, u32>,
}

impl OutlierTracker {
    /// A round was aggregated. Returns the peers that were left out for the [`FAR_ROUNDS`]th time in a row. A round
    /// without a peer, or in which it shared a slot, changes nothing for it.
    pub fn on_round(&mut self, outcomes: &[PeerOutcome]) -> Vec<PeerKey> {
        let mut reported = Vec::new();
        for PeerOutcome { peer, outcome, .. } in outcomes.iter().filter(|of| !of.is_shared) {
            if outcome.verdict != ClipVerdict::LeftOut {
                self.rounds.remove(peer);
                continue;
            }
            if self.rounds.len() >= PEERS_MAX && !self.rounds.contains_key(peer) {
                continue;
            }
            let rounds = self.rounds.entry(peer.clone()).or_default();
            *rounds = rounds.saturating_add(1);
            if *rounds == OUTLIER_ROUNDS {
                reported.push(peer.clone());
            }
        }
        reported
    }

    /// Peers that were left out at least [`FAR_ROUNDS`] times in a row, the last time they took part.
    pub fn n_outliers(&self) -> usize {
        self.rounds.values().filter(|&&rounds| rounds >= OUTLIER_ROUNDS).count()
    }
}
