//! Who is left out round after round: worth a closer look by an operator, or by whoever recomputes a batch.
//!
//! It never punishes: being far off is no evidence that others could check.

use std::collections::BTreeMap;

use super::{PeerOutcome, Verdict};
use crate::PeerKey;

/// Rounds in a row after which a peer is named.
pub const FAR_ROUNDS: u32 = 5;
/// Peers that are remembered. Those that come back near are forgotten.
const PEERS_MAX: usize = 10_000;

/// How many rounds in a row each peer was left out.
#[derive(Debug, Default)]
pub struct FarOff {
    rounds: BTreeMap<PeerKey, u32>,
}

impl FarOff {
    /// A round was aggregated. Returns who was left out for the [`FAR_ROUNDS`]th time in a row just now. A round
    /// without a peer, or in which it shared a place, changes nothing for it.
    pub fn on_round(&mut self, outcomes: &[PeerOutcome]) -> Vec<PeerKey> {
        let mut named = Vec::new();
        for PeerOutcome { peer, outcome, .. } in outcomes.iter().filter(|of| !of.is_shared) {
            if outcome.verdict != Verdict::LeftOut {
                self.rounds.remove(peer);
                continue;
            }
            if self.rounds.len() >= PEERS_MAX && !self.rounds.contains_key(peer) {
                continue;
            }
            let rounds = self.rounds.entry(peer.clone()).or_default();
            *rounds = rounds.saturating_add(1);
            if *rounds == FAR_ROUNDS {
                named.push(peer.clone());
            }
        }
        named
    }

    /// Peers that were left out at least [`FAR_ROUNDS`] times in a row, the last time they took part.
    pub fn n_far(&self) -> usize {
        self.rounds.values().filter(|&&rounds| rounds >= FAR_ROUNDS).count()
    }
}
