//! The `average` conversation: a member of a group gives its share of one part of a vector to the peer that
//! averages the part, and gets the average (DeDLOC §3.2: butterfly all-reduce).
//!
//! ```text
//! member  -> reducer   Join: which group, which part, which attempt, and what is behind its values
//! reducer -> member    Granted, or Refused with the reason
//! member  -> reducer   its values, chunk by chunk, at most the granted number ahead of what it got back
//! reducer -> member    the average, chunk by chunk, then Finished
//! ```
//!
//! Both directions run at once. A chunk of the average is the credit for the next chunk of values, so a
//! reducer holds no more than the window of each part, whatever the transport buffers. A chunk of values on
//! the wire is that of [`crate::bulk`], its bytes encoded by the codec of the group:
//! [`CHUNK_VALUES`] values, the last one of a part fewer.

use futures::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use serde::{Deserialize, Serialize};

use crate::bulk::{self, BulkError, CHUNK_HEADER_BYTES};
use crate::codec::{CodecError, TensorCodec};
use crate::error::ConversationError;
use crate::framing;
use crate::hash::Sha256Hash;
use crate::matchmaking::MEMBERS_MAX;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/average/3";
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
    /// The group: its members, their weights, the parts and the codec are what both know by this name.
    pub group: Sha256Hash,
    /// Position of the part among the group's members.
    pub part: u16,
    /// 0 with the part's own reducer, 1 with the one that stands by.
    pub attempt: u8,
    /// Samples behind its values, which are their weight; with none it sends nothing, and gets the average. In a first
    /// round they are the group's own number, and no more than that in a later one, where a member brings what it has
    /// averaged before.
    pub n_samples: u64,
    /// Whose values are in what it sends: positions among all who average together, of whom the group is a part.
    pub behind: MemberSet,
    /// Nothing is missing in what it sends that anybody else could have.
    pub is_whole: bool,
}

/// Reducer to member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReducerToMember {
    /// Values may be sent, this many chunks ahead of what came back.
    Granted {
        /// 1 to [`WINDOW_CHUNKS_MAX`].
        window_chunks: u32,
    },
    /// Not averaged here.
    Refused(Refusal),
    /// After the last chunk of the average.
    Finished(Finished),
}

/// Members of a group, by their positions in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberSet([u64; MEMBERS_MAX / 64]);

impl MemberSet {
    /// Adds a member; nothing where no group has a member at that position.
    pub fn insert(&mut self, position: usize) {
        if let Some(word) = self.0.get_mut(position / 64) {
            *word |= 1 << (position % 64);
        }
    }

    /// Whether the member at `position` is in it.
    #[must_use]
    pub fn contains(&self, position: usize) -> bool {
        self.0.get(position / 64).is_some_and(|word| word >> (position % 64) & 1 == 1)
    }

    /// Whether nobody is in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.n_members() == 0
    }

    /// Whether all who are in it are in the other one.
    #[must_use]
    pub fn is_subset_of(self, other: Self) -> bool {
        self.union(other) == other
    }

    /// How many there are.
    #[must_use]
    pub fn n_members(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Those who are in this one and in the other.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        let mut both = self;
        both.0.iter_mut().zip(other.0).for_each(|(word, others)| *word &= others);
        both
    }

    /// Those who are in this one or in the other.
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

/// What is in an average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Members any of whose values are in it.
    pub members: MemberSet,
    /// Samples behind a value, the mean over the part, rounded down: a member that sent half of its values counts by
    /// half, and all samples are behind it only where every value of every member is in it.
    pub n_samples: u64,
    /// Whose values are in what those members sent; see [`Join::behind`].
    pub behind: MemberSet,
    /// Every value of every member is in it, and each of them said that what it sent was whole.
    pub is_whole: bool,
}

/// Why a share was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// No round of that name is being averaged, nor will be soon.
    #[error("no group of this name is averaging here")]
    UnknownGroup,
    /// The sender is not in the group.
    #[error("this peer is not a member of the group")]
    NotAMember,
    /// The part is averaged by another member.
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
    /// Another weight than the group's in its first round, or a greater one in a later round.
    #[error("{got} samples cannot be behind these values, the group has {want} of this member")]
    Weight {
        /// Of the group.
        want: u64,
        /// Said.
        got: u64,
    },
    /// Values of members whose values cannot be in what this one has averaged, or samples of nobody.
    #[error("these members' values cannot be in what this member sends")]
    Behind,
}

/// Why a chunk of values could not be passed on.
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// The chunk is not what its place needs, or the stream failed.
    #[error(transparent)]
    Bulk(#[from] BulkError),
    /// Its values cannot be.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Asks a reducer to take this peer's share of a part; the window in chunks that it grants.
///
/// # Errors
/// [`ConversationError::Refused`] with the reducer's reason; a window of 0 or above
/// [`WINDOW_CHUNKS_MAX`] is none.
pub async fn join<S>(stream: &mut S, join: Join) -> Result<u32, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &join, MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        ReducerToMember::Granted { window_chunks: window @ 1..=WINDOW_CHUNKS_MAX } => Ok(window),
        ReducerToMember::Granted { window_chunks } => {
            let why =
                format!("a window of {window_chunks} chunks was granted, 1 to {WINDOW_CHUNKS_MAX} can be");
            Err(ConversationError::Refused(why))
        }
        ReducerToMember::Refused(refusal) => Err(ConversationError::Refused(refusal.to_string())),
        ReducerToMember::Finished(_) => {
            Err(ConversationError::Refused("the reducer finished before it began".into()))
        }
    }
}

/// Makes chunk `index` of `values`, as it crosses the wire, in place of what `packed` held. The codec is a dense one.
///
/// # Errors
/// A value that is not finite; what is in `packed` is of no use then.
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

/// What the codec made of the values of a packed chunk.
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

/// Reads chunk `index` into `values`, `[n_values of the chunk]`; `bytes` is what it takes to do so, kept for the
/// next one. The codec is a dense one.
///
/// # Errors
/// Another chunk or another length came, its checksum is wrong, or one of its values is not finite; the values
/// are of no use then.
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
