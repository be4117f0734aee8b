//! A group of an all-reduce: its members and the part of the vector that each reduces (DeDLOC §3.2). Members that hold
//! the same group need no further agreement.

use std::collections::BTreeSet;
use std::ops::Range;

use barnraise_protocol::average::{CHUNK_VALUES, JoinRefusal, MemberSet};
use barnraise_protocol::{Sha256Hash, TensorCodec};

use crate::PeerKey;

pub use barnraise_protocol::matchmaking::MEMBERS_MAX;
/// Most bytes of a round's name.
const ROUND_BYTES_MAX: usize = 256;

/// Names a group and its round: the hash of all that the members agree on.
pub type GroupId = Sha256Hash;

/// One member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// The member's key.
    pub peer: PeerKey,
    /// Samples behind its values, which are its weight; an upper bound where it sends the mean of an earlier round. A
    /// member with 0 sends nothing and is a reducer only.
    pub n_samples: u64,
    /// Whether it receives the average. A member with samples always does.
    pub receives: bool,
    /// Values that it reduces; 0 for a member that others cannot dial.
    pub n_reduced: u64,
}

/// The members of a round and the parts they average, which follow one another in the order of the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    id: GroupId,
    members: Vec<GroupMember>,
    /// Where the part of each member begins, and where the last one ends.
    starts: Vec<usize>,
    codec: TensorCodec,
    /// The members whose values can be in each member's input.
    reach: Vec<MemberSet>,
    /// First round of a grid, or the only one: inputs are the members' own values, so their weights are known.
    is_first: bool,
}

/// A member's input to a round, without its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberInput {
    /// Samples behind its values: their weight.
    pub n_samples: u64,
    /// The members whose values are in it: positions in the group, or in the grid.
    pub behind: MemberSet,
    /// It lacks no values that another peer could have.
    pub is_whole: bool,
}

impl MemberInput {
    /// The input of a member that should have values and has none.
    #[must_use]
    pub fn nothing() -> Self {
        Self { n_samples: 0, behind: MemberSet::default(), is_whole: false }
    }
}

/// Why members are no valid group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// No members, or too many.
    #[error("a group has 1 to {MEMBERS_MAX} members, not {0}")]
    Size(usize),
    /// The name of the round is too long.
    #[error("the name of a round has at most {ROUND_BYTES_MAX} bytes, not {0}")]
    Round(usize),
    /// One peer is listed twice.
    #[error("a member is in the group twice")]
    Twice,
    /// The parts do not cover the vector exactly.
    #[error("the parts have {got} values, the vector has {want}")]
    Parts {
        /// Of the vector.
        want: usize,
        /// Sum over the parts.
        got: u64,
    },
    /// A sparse codec, or one whose error is too large for an average.
    #[error("codec {0:?} is not supported for averages")]
    Codec(TensorCodec),
    /// A block codec in a grid: it rounds a value by its neighbours, which differ from group to group.
    #[error("block codec {0:?} is not supported in a grid: values would differ from group to group")]
    BlockCodec(TensorCodec),
    /// A member with samples that does not receive the average.
    #[error("a member that has samples receives the average")]
    SenderNotReceiving,
    /// Nothing to average.
    #[error("no member has samples")]
    NoSamples,
}

impl Group {
    /// The group of `members` that averages `n_values` values in the round named `round`. The name is unique among the
    /// rounds of these members.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn new(
        round: &[u8],
        members: Vec<GroupMember>,
        n_values: usize,
        codec: TensorCodec,
    ) -> Result<Self, GroupError> {
        if members.is_empty() || members.len() > MEMBERS_MAX {
            return Err(GroupError::Size(members.len()));
        }
        if round.len() > ROUND_BYTES_MAX {
            return Err(GroupError::Round(round.len()));
        }
        if !codec.carries_state() {
            return Err(GroupError::Codec(codec));
        }
        let peers: BTreeSet<&PeerKey> = members.iter().map(|member| &member.peer).collect();
        if peers.len() < members.len() {
            return Err(GroupError::Twice);
        }
        if members.iter().any(|member| member.n_samples > 0 && !member.receives) {
            return Err(GroupError::SenderNotReceiving);
        }
        let got = members.iter().fold(0u64, |sum, member| sum.saturating_add(member.n_reduced));
        if got != n_values as u64 {
            return Err(GroupError::Parts { want: n_values, got });
        }
        if members.iter().all(|member| member.n_samples == 0) {
            return Err(GroupError::NoSamples);
        }
        let mut starts = vec![0];
        for member in &members {
            // The sum is `n_values`, so each of its terms fits.
            starts.push(starts.last().copied().unwrap_or(0) + member.n_reduced as usize);
        }
        let id = id(round, &members, codec);
        let reach = (0..members.len()).map(|position| MemberSet::from_iter([position])).collect();
        Ok(Self { id, members, starts, codec, reach, is_first: true })
    }

    /// The group within a grid. `reach` are the members whose values can be in each member's input, by positions in the
    /// grid; `is_first` says that the inputs are the members' own values.
    pub(super) fn in_grid(self, reach: Vec<MemberSet>, is_first: bool) -> Self {
        Self { reach, is_first, ..self }
    }

    /// The input of a member with its own values.
    #[must_use]
    pub fn own(&self, position: usize) -> MemberInput {
        let n_samples = self.members.get(position).map_or(0, |member| member.n_samples);
        let behind = self.reach.get(position).copied().filter(|_| n_samples > 0).unwrap_or_default();
        MemberInput { n_samples, behind, is_whole: true }
    }

    /// Checks a member's input: its weight is at most the samples of the members in it, and all of these are within the
    /// member's reach.
    ///
    /// # Errors
    /// The refusal that is sent to the member.
    pub fn check(&self, position: usize, input: &MemberInput) -> Result<(), JoinRefusal> {
        let (Some(member), Some(reach)) = (self.members.get(position), self.reach.get(position)) else {
            return Err(JoinRefusal::NotAMember);
        };
        let (want, got) = (member.n_samples, input.n_samples);
        if got > want || self.is_first && got != want {
            return Err(JoinRefusal::Weight { want, got });
        }
        let is_of_nobody = input.behind.is_empty();
        // An input without values of a member that should have some is not whole.
        let is_whole_of_nothing = input.is_whole && got == 0 && want > 0;
        if !input.behind.is_subset_of(*reach) || is_of_nobody != (got == 0) || is_whole_of_nothing {
            return Err(JoinRefusal::Behind);
        }
        Ok(())
    }

    /// The members whose values can be in the average: positions in the group, or in the grid.
    #[must_use]
    pub fn expected(&self) -> MemberSet {
        let senders = self.members.iter().zip(&self.reach).filter(|(member, _)| member.n_samples > 0);
        senders.fold(MemberSet::default(), |all, (_, reach)| all.union(*reach))
    }

    /// The hash that names the group.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// All members, in the order of their parts.
    #[must_use]
    pub fn members(&self) -> &[GroupMember] {
        &self.members
    }

    /// Codec of the values on the wire.
    #[must_use]
    pub fn codec(&self) -> TensorCodec {
        self.codec
    }

    /// Values of the vector.
    #[must_use]
    pub fn n_values(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The position of a peer.
    #[must_use]
    pub fn position(&self, peer: &PeerKey) -> Option<usize> {
        self.members.iter().position(|member| member.peer == *peer)
    }

    /// The range of a part in the vector; empty where there is none.
    #[must_use]
    pub fn part(&self, part: usize) -> Range<usize> {
        match self.starts.get(part..).unwrap_or_default() {
            [start, end, ..] => *start..*end,
            _ => 0..0,
        }
    }

    /// The reducer of a part: in attempt 0 its own, in attempt 1 the standby reducer. The standby is the next reducer
    /// that receives the average, since one that does not never learns that a reducer has vanished. `None` in further
    /// attempts, and where there is no other such reducer.
    #[must_use]
    pub fn reducer(&self, part: usize, attempt: u8) -> Option<usize> {
        let n = self.members.len();
        let reduces = |position: &usize| !self.part(*position).is_empty();
        let stands_by = |position: &usize| reduces(position) && self.members[*position].receives;
        match attempt {
            _ if !reduces(&part) => None,
            0 => Some(part),
            1 => (part + 1..part + n).map(|position| position % n).find(stands_by),
            _ => None,
        }
    }

    /// Parts whose reducers do not receive the average: untrusted helpers.
    pub fn parts_of_helpers(&self) -> impl Iterator<Item = usize> {
        let is_of_helper = move |part: &usize| !self.members[*part].receives && !self.part(*part).is_empty();
        (0..self.members.len()).filter(is_of_helper)
    }

    /// Samples behind the values of each member.
    #[must_use]
    pub fn n_samples(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.n_samples).collect()
    }
}

/// Values `start..end` of chunk `index` of a part of `n_values` values, within the part.
#[must_use]
pub fn chunk(n_values: usize, index: u32) -> Range<usize> {
    let start = (index as usize).saturating_mul(CHUNK_VALUES).min(n_values);
    start..start.saturating_add(CHUNK_VALUES).min(n_values)
}

/// Chunks of a part of `n_values` values.
#[must_use]
pub fn n_chunks(n_values: usize) -> u32 {
    u32::try_from(n_values.div_ceil(CHUNK_VALUES)).unwrap_or(u32::MAX)
}

fn id(round: &[u8], members: &[GroupMember], codec: TensorCodec) -> GroupId {
    let mut bytes = b"barnraise group 1".to_vec();
    let mut add = |field: &[u8]| {
        bytes.extend((field.len() as u64).to_le_bytes());
        bytes.extend(field);
    };
    add(round);
    add(format!("{codec:?}").as_bytes());
    for member in members {
        add(&member.peer.0);
        add(&member.n_samples.to_le_bytes());
        add(&[u8::from(member.receives)]);
        add(&member.n_reduced.to_le_bytes());
    }
    Sha256Hash::of(&bytes)
}
