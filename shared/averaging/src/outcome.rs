//! The outcome of a round: the average, which members are in it, and what they did wrong.

use barnraise_protocol::average::{Finished, MemberSet};
use barnraise_swarm::PeerKey;

use crate::error::{FaultError, PartError};

/// Outcome of a part.
#[derive(Debug, Clone)]
pub enum PartOutcome {
    /// The part was averaged.
    Averaged {
        /// The members and samples in it.
        finished: Finished,
        /// 0 for the part's own reducer, 1 for the standby reducer.
        attempt: u8,
    },
    /// The part was not averaged; the result has this peer's own values.
    NotAveraged {
        /// Why not.
        error: PartError,
    },
    /// The part is empty, or this peer does not receive it.
    None,
}

/// A protocol violation by a member, which no honest one commits. Its values do not count from there on.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The member.
    pub peer: PeerKey,
    /// Index of the part.
    pub part: usize,
    /// The violation.
    pub error: FaultError,
}

/// The outcome of a round.
#[derive(Debug, Clone)]
pub struct Averaged {
    /// The average, `[n_values]`; in parts that were not averaged this peer's own values.
    pub values: Vec<f32>,
    /// The outcome of each member's part, `[n_members]`.
    pub parts: Vec<PartOutcome>,
    /// Protocol violations of members.
    pub faults: Vec<Fault>,
    /// Bytes of encoded values that this peer sent.
    pub n_bytes_sent: u64,
    /// Bytes of encoded values that this peer received.
    pub n_bytes_received: u64,
}

impl Averaged {
    /// Members whose values are in any part: positions in the group, or in the grid.
    #[must_use]
    pub fn members(&self) -> MemberSet {
        self.finished().fold(MemberSet::default(), |all, finished| all.union(finished.behind))
    }

    /// Members whose values are in every part.
    #[must_use]
    pub fn members_of_all(&self) -> MemberSet {
        self.finished().fold(self.members(), |all, finished| all.intersection(finished.behind))
    }

    /// Whether every part has all values of all members of the group, and their inputs were whole.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_complete() && self.finished().all(|finished| finished.is_whole)
    }

    fn finished(&self) -> impl Iterator<Item = &Finished> {
        self.parts.iter().filter_map(|part| match part {
            PartOutcome::Averaged { finished, .. } => Some(finished),
            PartOutcome::NotAveraged { .. } | PartOutcome::None => None,
        })
    }

    /// Whether every part is averaged.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.not_averaged().next().is_none()
    }

    /// The errors of the parts that are not averaged.
    pub fn not_averaged(&self) -> impl Iterator<Item = &PartError> {
        self.parts.iter().filter_map(|part| match part {
            PartOutcome::NotAveraged { error } => Some(error),
            PartOutcome::Averaged { .. } | PartOutcome::None => None,
        })
    }
}
