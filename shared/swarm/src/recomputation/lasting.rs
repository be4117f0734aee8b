//! What lasts over a restart of what was found out: who passed its probation, what is usual, which addresses are suspected.
//!
//! No clock has a say in it: of a time there is what is left of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Selection, Usual};
use crate::round::AddressGroup;
use crate::{Moment, PeerKey};

/// All that lasts, as much as is remembered of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Lasting {
    /// Those that were remembered first stand first.
    pub passed: Vec<Passed>,
    /// Likewise.
    pub suspected: Vec<Suspected>,
    /// Euclidean, of the newest gradients that were found right.
    pub lengths: Vec<f64>,
}

/// A key of which something was found right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// Its peer id.
    pub peer: Vec<u8>,
    /// How many of its contributions were.
    pub n_right: u32,
    /// Samples of the largest of them.
    pub largest: u32,
}

/// An address from which a lie came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspected {
    /// Where.
    pub group: AddressGroup,
    /// For so long everything from it is recomputed.
    pub left: Duration,
    /// Lies since a time without any.
    pub n_convicted: u32,
}

impl Lasting {
    /// What both remember at `now`.
    pub fn of(now: Moment, selection: &Selection, usual: &Usual) -> Self {
        let passed = selection.passed().map(|(peer, n_right)| Passed {
            peer: peer.0.clone(),
            n_right,
            largest: usual.largest(peer),
        });
        let (passed, suspected) = (passed.collect(), selection.suspected(now).collect());
        Self { passed, suspected, lengths: usual.lengths().collect() }
    }

    /// Has both remember it, who know nothing yet.
    pub fn restore(self, now: Moment, selection: &mut Selection, usual: &mut Usual) {
        for Passed { peer, n_right, largest } in self.passed {
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

    use super::*;
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
        let (mut selection, mut usual) = (Selection::new(0.0, [1; 32]), Usual::default());
        for (name, n_right) in [(1, PROBATION), (2, 1)] {
            for id in 0..n_right {
                selection.on_right(S, &peer(name), HERE, &offer(id.into()), S);
                usual.on_right(&peer(name), 8, 1.0);
            }
        }
        for _ in 0..=EVIDENCE_MAX {
            selection.on_wrong(100 * S, THERE);
        }
        selection.on_wrong(S, AddressGroup(3));
        let lasting = Lasting::of(100 * S + SUSPICION / 2, &selection, &usual);
        let (mut selection, mut usual) = (Selection::new(0.0, [2; 32]), Usual::default());
        lasting.clone().restore(Moment::ZERO, &mut selection, &mut usual);
        assert_eq!(Lasting::of(Moment::ZERO, &selection, &usual), lasting);

        assert_eq!(selection.choose(S, &peer(1), HERE, &offer(9)), None);
        let probation = |n_left| Some(Reason::Probation { n_left });
        assert_eq!(selection.choose(S, &peer(2), HERE, &offer(9)), probation(PROBATION - 1));
        assert_eq!(selection.choose(S, &peer(3), HERE, &offer(9)), probation(PROBATION));
        assert!(usual.is_usual(&peer(1), 32, 3.9));
        assert!(!usual.is_usual(&peer(1), 33, 1.0) && !usual.is_usual(&peer(1), 8, 4.1));
        // Half of the time has passed, however long it stood still.
        assert_eq!(selection.choose(S, &peer(1), THERE, &offer(9)), Some(Reason::Suspicion));
        assert!(selection.is_suspected(SUSPICION / 2 - S, THERE));
        assert!(!selection.is_suspected(SUSPICION / 2, THERE));
        assert!(!selection.on_wrong(S, THERE), "nor is more evidence kept");
    }
}
