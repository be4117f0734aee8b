//! State of recomputation that survives a restart: verified keys, typical contributions, suspected addresses.
//!
//! It has no points in time, only remaining durations, so that no clock matters.

use serde::{Deserialize, Serialize};

use super::{Selection, SuspectedAddress, TypicalContributions};
use crate::{Moment, PeerKey};

/// State of recomputation that survives a restart.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PersistentRecomputation {
    /// Keys with verified contributions, oldest first.
    pub passed: Vec<VerifiedKey>,
    /// Addresses under suspicion, oldest first.
    pub suspected: Vec<SuspectedAddress>,
    /// Euclidean norms of the newest verified gradients.
    pub lengths: Vec<f64>,
}

/// A key with verified contributions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedKey {
    /// Its peer id.
    pub peer: Vec<u8>,
    /// Number of its verified contributions.
    pub n_right: u32,
    /// Samples of the largest of them.
    pub largest: u32,
}

impl PersistentRecomputation {
    /// The state of both at `now`.
    pub fn of(now: Moment, selection: &Selection, usual: &TypicalContributions) -> Self {
        let passed = selection.passed().map(|(peer, n_right)| VerifiedKey {
            peer: peer.0.clone(),
            n_right,
            largest: usual.largest(peer),
        });
        let (passed, suspected) = (passed.collect(), selection.suspected(now).collect());
        Self { passed, suspected, lengths: usual.lengths().collect() }
    }

    /// Restores both, which are empty.
    pub fn restore(self, now: Moment, selection: &mut Selection, usual: &mut TypicalContributions) {
        for VerifiedKey { peer, n_right, largest } in self.passed {
            let peer = PeerKey(peer);
            usual.restore_largest(&peer, largest);
            selection.restore_passed(peer, n_right);
        }
        self.lengths.into_iter().for_each(|length| usual.restore_length(length));
        self.suspected.into_iter().for_each(|suspected| selection.restore_suspected(now, suspected));
    }
}

#[cfg(test)]
mod tests {
    use barnraise_protocol::TensorCodec;
    use barnraise_protocol::bulk::Transfer;
    use barnraise_protocol::gradient::Offer;

    use std::time::Duration;

    use super::*;
    use crate::AddressGroup;
    use crate::recomputation::{EVIDENCE_MAX, PROBATION, Reason, SUSPICION};

    const HERE: AddressGroup = AddressGroup(1);
    const THERE: AddressGroup = AddressGroup(2);
    const S: Duration = Duration::from_secs(1);

    fn offer(id: u64) -> Offer {
        let (transfer, codec) = (Transfer::of(&id.to_le_bytes()), TensorCodec::F32);
        Offer { contribution_id: id, epoch: 0, n_samples: 8, loss: 1.0, n_values: 2, codec, transfer }
    }

    fn peer(name: u8) -> PeerKey {
        PeerKey(vec![name])
    }

    #[test]
    fn after_a_restart_keys_and_addresses_are_what_they_were() {
        let (mut selection, mut usual) = (Selection::new(0.0, [1; 32]), TypicalContributions::default());
        for (name, n_right) in [(1, PROBATION), (2, 1)] {
            for id in 0..n_right {
                selection.on_verified(S, &peer(name), HERE, &offer(id.into()), S);
                usual.on_verified(&peer(name), 8, 1.0);
            }
        }
        for _ in 0..=EVIDENCE_MAX {
            selection.on_convicted(100 * S, THERE);
        }
        selection.on_convicted(S, AddressGroup(3));
        let lasting = PersistentRecomputation::of(100 * S + SUSPICION / 2, &selection, &usual);
        let (mut selection, mut usual) = (Selection::new(0.0, [2; 32]), TypicalContributions::default());
        lasting.clone().restore(Moment::ZERO, &mut selection, &mut usual);
        assert_eq!(PersistentRecomputation::of(Moment::ZERO, &selection, &usual), lasting);

        let of_known = selection.choose(S, &peer(1), HERE, &offer(9));
        assert!(of_known.is_none_or(|reason| reason == Reason::Chance), "{of_known:?}");
        let probation = |n_left| Some(Reason::Probation { n_left });
        assert_eq!(selection.choose(S, &peer(2), HERE, &offer(9)), probation(PROBATION - 1));
        assert_eq!(selection.choose(S, &peer(3), HERE, &offer(9)), probation(PROBATION));
        assert!(usual.is_typical(&peer(1), 32, 3.9));
        assert!(!usual.is_typical(&peer(1), 33, 1.0) && !usual.is_typical(&peer(1), 8, 4.1));
        // Half of the time has passed, however long it stood still.
        assert_eq!(selection.choose(S, &peer(1), THERE, &offer(9)), Some(Reason::Suspicion));
        assert!(selection.is_suspected(SUSPICION / 2 - S, THERE));
        assert!(!selection.is_suspected(SUSPICION / 2, THERE));
        assert!(!selection.on_convicted(S, THERE), "nor is more evidence kept");
    }
}
