//! Who averages what with whom. Members that hold the same group act alike without another word.

use std::collections::BTreeSet;
use std::ops::Range;

use barnraise_protocol::average::{CHUNK_VALUES, MemberSet, Refusal};
use barnraise_protocol::{Sha256Hash, TensorCodec};

use crate::PeerKey;

pub use barnraise_protocol::matchmaking::MEMBERS_MAX;
/// Most bytes of what a round is called.
const ROUND_BYTES_MAX: usize = 256;

/// Names a group and its round: the hash of all that the members agree on.
pub type GroupId = Sha256Hash;

/// One member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Who.
    pub peer: PeerKey,
    /// Samples behind its values: its weight, or the greatest that it can have where it brings what it has averaged
    /// before. With none it sends nothing, and averages only.
    pub n_samples: u64,
    /// Whether it wants the average, as whoever has samples does: the average is the credit for what it sends.
    pub receives: bool,
    /// Values that it averages; 0 for one that nobody can dial.
    pub n_reduced: u64,
}

/// The members of a round and the parts they average, which follow one another in the order of the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    id: GroupId,
    members: Vec<Member>,
    /// Where the part of each member begins, and where the last one ends.
    starts: Vec<usize>,
    codec: TensorCodec,
    /// Whose values can be in what each member brings.
    reach: Vec<MemberSet>,
    /// What members bring is their own, so that its weight is known.
    is_first: bool,
}

/// What a member brings to a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Brought {
    /// Samples behind its values: their weight.
    pub n_samples: u64,
    /// Whose values are in it: positions among all who average together.
    pub behind: MemberSet,
    /// Nothing is missing in it that anybody else could have.
    pub is_whole: bool,
}

impl Brought {
    /// No values, of a member that had some to bring.
    #[must_use]
    pub fn nothing() -> Self {
        Self { n_samples: 0, behind: MemberSet::default(), is_whole: false }
    }
}

/// What is wrong with a group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// Nobody, or too many.
    #[error("a group has 1 to {MEMBERS_MAX} members, not {0}")]
    Size(usize),
    /// A name without end.
    #[error("the name of a round has at most {ROUND_BYTES_MAX} bytes, not {0}")]
    Round(usize),
    /// One peer in two places.
    #[error("a member is in the group twice")]
    Twice,
    /// Values that nobody averages, or that two do.
    #[error("the parts have {got} values, the vector has {want}")]
    Parts {
        /// Of the vector.
        want: usize,
        /// Sum over the parts.
        got: u64,
    },
    /// A codec that leaves values out, or whose error is too much for an average.
    #[error("averages do not travel as {0:?}")]
    Codec(TensorCodec),
    /// A codec that rounds a value by those beside it, which in another group are others.
    #[error("values that travel as {0:?} are averaged in one group: they would differ from group to group")]
    Blocks(TensorCodec),
    /// A sender without credit.
    #[error("a member that has samples receives the average")]
    DeafSender,
    /// Nothing to average.
    #[error("no member has samples")]
    NoSamples,
}

impl Group {
    /// The group of `members` that averages `n_values` values in the round called `round`, which no other
    /// round of these members is.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn new(
        round: &[u8],
        members: Vec<Member>,
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
            return Err(GroupError::DeafSender);
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

    /// The same as part of a grid: whose values can be in what each member brings, by positions among all in the grid,
    /// and whether that is the member's own.
    pub(super) fn in_grid(self, reach: Vec<MemberSet>, is_first: bool) -> Self {
        Self { reach, is_first, ..self }
    }

    /// What a member brings that has averaged nothing before.
    #[must_use]
    pub fn own(&self, position: usize) -> Brought {
        let n_samples = self.members.get(position).map_or(0, |member| member.n_samples);
        let behind = self.reach.get(position).copied().filter(|_| n_samples > 0).unwrap_or_default();
        Brought { n_samples, behind, is_whole: true }
    }

    /// Whether a member can bring this: it has no more weight than is known of those whose values are in it, and none of
    /// those is elsewhere.
    ///
    /// # Errors
    /// What the member is answered.
    pub fn check(&self, position: usize, brought: &Brought) -> Result<(), Refusal> {
        let (Some(member), Some(reach)) = (self.members.get(position), self.reach.get(position)) else {
            return Err(Refusal::NotAMember);
        };
        let (want, got) = (member.n_samples, brought.n_samples);
        if got > want || self.is_first && got != want {
            return Err(Refusal::Weight { want, got });
        }
        let is_of_nobody = brought.behind.is_empty();
        // Whoever had something to bring and has nothing of it is not whole.
        let is_whole_of_nothing = brought.is_whole && got == 0 && want > 0;
        if !brought.behind.is_subset_of(*reach) || is_of_nobody != (got == 0) || is_whole_of_nothing {
            return Err(Refusal::Behind);
        }
        Ok(())
    }

    /// Those whose values can be in the average: positions among all who average together.
    #[must_use]
    pub fn expected(&self) -> MemberSet {
        let senders = self.members.iter().zip(&self.reach).filter(|(member, _)| member.n_samples > 0);
        senders.fold(MemberSet::default(), |all, (_, reach)| all.union(*reach))
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// All members, in the order of their parts.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// How values travel.
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

    /// The values of a part; empty where there is none.
    #[must_use]
    pub fn part(&self, part: usize) -> Range<usize> {
        match self.starts.get(part..).unwrap_or_default() {
            [start, end, ..] => *start..*end,
            _ => 0..0,
        }
    }

    /// Who averages a part: its own reducer in attempt 0, in attempt 1 the next member that averages
    /// anything and wants the average, which stands by: who does not want it never learns that a reducer has
    /// vanished. Nobody in any other, and nobody else's part in a group with one such reducer.
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

    /// Parts whose reducers average for others only.
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

fn id(round: &[u8], members: &[Member], codec: TensorCodec) -> GroupId {
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
