//! The `average` conversation: a member of a group gives its share of one part of a vector to the peer that
//! averages the part, and gets the average (DeDLOC §3.2: butterfly all-reduce).
//!
//! ```text
//! member  -> reducer   Join: which group, which part, which attempt, and whose samples are in its values
//! reducer -> member    Granted, or Refused with the reason
//! member  -> reducer   its values, chunk by chunk, at most the granted number ahead of what it got back
//! reducer -> member    the average, chunk by chunk, then Finished
//! ```
//!
//! Both directions run at once. A chunk of the average is the credit for the next chunk of values, so a
//! reducer holds no more than the window of each part, however much the transport buffers. A chunk of
//! values on the wire is that of [`crate::bulk`], its bytes encoded by the codec of the group:
//! [`CHUNK_VALUES`] values, the last one of a part fewer.

use futures::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use serde::{Deserialize, Serialize};

use crate::bulk::{self, BulkError, CHUNK_HEADER_BYTES};
use crate::codec::{CodecError, TensorCodec};
use crate::framing::{self, FrameError};
use crate::hash::Sha256Hash;
use crate::matchmaking::MEMBERS_MAX;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/average/4";
/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 512;
/// Values of each chunk of a part but the last: 64 KiB as f32, so that what is done with one happens in a processor's
/// cache and the first average is soon on its way, and whole blocks of every codec.
pub const CHUNK_VALUES: usize = 16 * 1024;
/// Most chunks that a reducer grants.
pub const WINDOW_CHUNKS_MAX: u32 = 64;

/// Member to reducer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The group's name. Both sides know its members, their weights, the parts and the codec.
    pub group: Sha256Hash,
    /// Position of the part among the group's members.
    pub part: u16,
    /// 0 with the part's own reducer, 1 with its substitute.
    pub attempt: u8,
    /// Samples behind its values: their weight. A member with 0 samples sends nothing and gets the average. In a first
    /// round this is the number that the group has for the member; in a later one, where it sends an average of earlier
    /// rounds, at most that.
    pub n_samples: u64,
    /// Members whose values are in the values that it sends, as positions among all members of the grid. The group is
    /// one of the grid's groups.
    pub behind: MemberSet,
    /// Whether the values are complete: no value of those members is missing.
    pub is_whole: bool,
}

/// Reducer to member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReducerToMember {
    /// Values may be sent, at most this many chunks ahead of the chunks that came back.
    Granted {
        /// 1 to [`WINDOW_CHUNKS_MAX`].
        window_chunks: u32,
    },
    /// Not averaged here.
    Refused(JoinRefusal),
    /// After the last chunk of the average.
    Finished(Finished),
}

/// Members of a group, by their positions in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberSet([u64; MEMBERS_MAX / 64]);

impl MemberSet {
    /// Adds a member. Ignores positions that no group has.
    pub fn insert(&mut self, position: usize) {
        if let Some(word) = self.0.get_mut(position / 64) {
            *word |= 1 << (position % 64);
        }
    }

    /// Whether it has the member at `position`.
    #[must_use]
    pub fn contains(&self, position: usize) -> bool {
        self.0.get(position / 64).is_some_and(|word| word >> (position % 64) & 1 == 1)
    }

    /// Whether it has no member.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.n_members() == 0
    }

    /// Whether all its members are in `other`.
    #[must_use]
    pub fn is_subset_of(self, other: Self) -> bool {
        self.union(other) == other
    }

    /// Number of members.
    #[must_use]
    pub fn n_members(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Members of both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        let mut both = self;
        both.0.iter_mut().zip(other.0).for_each(|(word, others)| *word &= others);
        both
    }

    /// Members of one set or the other.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        let mut both = self;
        both.0.iter_mut().zip(other.0).for_each(|(word, others)| *word |= others);
        both
    }
}

impl FromIterator<usize> for MemberSet {
    fn from_iter<I: IntoIterator<Item = usize>>(positions: I) -> Self {
        let mut set = Self::default();
        positions.into_iter().for_each(|position| set.insert(position));
        set
    }
}

/// Describes a finished average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Members of the group with at least one value in the average.
    pub members: MemberSet,
    /// Samples behind a value, the mean over the part, rounded down: a member that sent half of its values counts by
    /// half, and all samples are behind it only where every value of every member is in it.
    pub n_samples: u64,
    /// Union of [`Join::behind`] of those members.
    pub behind: MemberSet,
    /// Whether every value of every member is in the average, and each member declared its values complete.
    pub is_whole: bool,
}

/// Why a reducer does not average a member's values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum JoinRefusal {
    /// No round of that name is being averaged, nor will be soon.
    #[error("no group of this name is averaging here")]
    UnknownGroup,
    /// The sender is not in the group.
    #[error("this peer is not a member of the group")]
    NotAMember,
    /// Another member averages the part.
    #[error("part {part} is not averaged here in attempt {attempt}")]
    NotReducer {
        /// Echo.
        part: u16,
        /// Echo.
        attempt: u8,
    },
    /// The member has a stream for this part already.
    #[error("this member has joined the part before")]
    Duplicate,
    /// Too many rounds wait here.
    #[error("too many members wait here; try again")]
    Busy,
    /// In a first round another weight than the group's, in a later one a greater weight.
    #[error("{got} samples cannot be behind these values, the group has {want} of this member")]
    Weight {
        /// The group's number of samples for the member.
        want: u64,
        /// The member's claim.
        got: u64,
    },
    /// Members that this one cannot have averaged with, or samples of no member.
    #[error("these members' values cannot be in what this member sends")]
    Behind,
}

/// Why a chunk of values is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// Another chunk or length than expected, or the stream failed.
    #[error(transparent)]
    Bulk(#[from] BulkError),
    /// Values that cannot be decoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Why a member did not join the averaging of a part.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A message failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The reducer declined.
    #[error(transparent)]
    Refused(#[from] JoinRefusal),
    /// A window that no reducer may grant.
    #[error("a window of {window_chunks} chunks was granted, 1 to {WINDOW_CHUNKS_MAX} can be")]
    Window {
        /// Granted.
        window_chunks: u32,
    },
    /// The end came first.
    #[error("the reducer finished before it began")]
    Finished,
}

/// Joins the averaging of a part; returns the window in chunks that the reducer grants.
///
/// # Errors
/// See [`JoinError`].
pub async fn join<S>(stream: &mut S, join: Join) -> Result<u32, JoinError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &join, MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        ReducerToMember::Granted { window_chunks: window @ 1..=WINDOW_CHUNKS_MAX } => Ok(window),
        ReducerToMember::Granted { window_chunks } => Err(JoinError::Window { window_chunks }),
        ReducerToMember::Refused(refusal) => Err(refusal.into()),
        ReducerToMember::Finished(_) => Err(JoinError::Finished),
    }
}

/// Encodes `values` as chunk `index` into `packed`, replacing its content. The codec is a dense one.
///
/// # Errors
/// A value that is not finite; `packed` is invalid then.
pub fn pack_chunk(
    index: u32,
    values: &[f32],
    codec: TensorCodec,
    packed: &mut Vec<u8>,
) -> Result<(), CodecError> {
    packed.resize(CHUNK_HEADER_BYTES + codec.encoded_len(values.len()), 0);
    codec.encode_dense(values, &mut packed[CHUNK_HEADER_BYTES..])?;
    bulk::put_header(index, packed);
    Ok(())
}

/// The encoded values of a packed chunk.
#[must_use]
pub fn encoded(packed: &[u8]) -> &[u8] {
    packed.get(CHUNK_HEADER_BYTES..).unwrap_or_default()
}

/// Writes a packed chunk and flushes it.
///
/// # Errors
/// The stream failed.
pub async fn write_chunk<S: AsyncWrite + Unpin>(stream: &mut S, packed: &[u8]) -> std::io::Result<()> {
    stream.write_all(packed).await?;
    stream.flush().await
}

/// Reads chunk `index` into `values`, `[n_values of the chunk]`; `bytes` is a buffer for reuse by the next call. The
/// codec is a dense one.
///
/// # Errors
/// Another chunk or another length came, or one of its values is not finite; `values` is
/// invalid then.
pub async fn read_chunk<S: AsyncRead + Unpin>(
    stream: &mut S,
    index: u32,
    values: &mut [f32],
    codec: TensorCodec,
    bytes: &mut Vec<u8>,
) -> Result<(), ChunkError> {
    bytes.resize(codec.encoded_len(values.len()), 0);
    bulk::read_chunk(stream, index, bytes).await?;
    Ok(codec.decode_into(bytes, values)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(positions: &[usize]) -> MemberSet {
        positions.iter().copied().collect()
    }

    #[test]
    fn members_are_in_a_set_by_their_positions() {
        let places = [0, 1, 63, 64, 65, 130, MEMBERS_MAX - 1];
        let all = set(&places);
        assert_eq!(all.n_members(), places.len() as u32);
        for position in 0..2 * MEMBERS_MAX {
            assert_eq!(all.contains(position), places.contains(&position), "{position}");
        }
        assert_eq!(set(&[MEMBERS_MAX]), MemberSet::default(), "no group has a member there");
        assert!(set(&[]).is_empty() && !all.is_empty());
    }

    #[test]
    fn sets_are_put_together_and_compared() {
        let (a, b) = (set(&[1, 2, 70]), set(&[2, 3, 70, 200]));
        assert_eq!(a.union(b), set(&[1, 2, 3, 70, 200]));
        assert_eq!(a.intersection(b), set(&[2, 70]));
        assert!(set(&[2, 70]).is_subset_of(a) && a.is_subset_of(a) && set(&[]).is_subset_of(a));
        assert!(!a.is_subset_of(b) && !a.is_subset_of(set(&[2, 70])));
    }
}
