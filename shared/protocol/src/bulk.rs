//! Bulk bytes on a stream, pulled by the receiver.
//!
//! The holder announces a [`Transfer`]; the puller asks for ranges of chunks and so grants credit.
//! At most [`WINDOW_CHUNKS`] chunks are in flight on every transport, however much that buffers. A transfer that
//! was cut goes on at the first missing chunk on another stream. A chunk on the wire:
//!
//! ```text
//! +---------+---------+------------------+
//! | index   | length  | bytes            |
//! | u32, LE | u32, LE | length bytes     |
//! +---------+---------+------------------+
//! ```
//!
//! A chunk has no checksum: every transport authenticates what it carries, and the SHA-256 covers the whole.
//!
//! A holder that no longer has the bytes sends the reason in place of a chunk, under an index that no chunk has, and
//! ends the stream.

use std::ops::Range;
use std::sync::Arc;

use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use serde::{Deserialize, Serialize};

use crate::framing::{self, FrameError};
use crate::hash::{Hasher, Sha256Hash};
use crate::pieces::Pieces;

/// Bytes of each chunk but the last.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Most chunks that may be asked for and not yet here: the credit of a transfer.
pub const WINDOW_CHUNKS: u32 = 32;
/// Chunks that one request asks for: few, so that most of the window is always under way.
const PULL_CHUNKS: u32 = 4;
/// Largest [`Pull`].
const PULL_BYTES_MAX: usize = 64;
pub(crate) const CHUNK_HEADER_BYTES: usize = 8;
/// In place of a chunk's index: the bytes are gone, the reason follows.
const WITHDRAWN: u32 = u32::MAX;
/// Longest reason, in bytes.
const REASON_BYTES_MAX: usize = 256;

const _: () = assert!(PULL_CHUNKS > 0 && PULL_CHUNKS * 2 <= WINDOW_CHUNKS);

/// Bytes that can be pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Length.
    pub n_bytes: u64,
    /// SHA-256 of all of them.
    pub sha256: Sha256Hash,
}

impl Transfer {
    /// The transfer of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self { n_bytes: bytes.len() as u64, sha256: Sha256Hash::of(bytes) }
    }
}

/// Puller to holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pull {
    /// Send these chunks.
    Chunks {
        /// Index of the first.
        first: u32,
        /// How many, at most [`WINDOW_CHUNKS`].
        count: u32,
    },
    /// No more are wanted.
    Done,
}

/// Why a transfer ended early.
#[derive(Debug, thiserror::Error)]
pub enum BulkError {
    /// Announced larger than it may be.
    #[error("a transfer of {got} bytes, at most {max} are allowed here")]
    TooLarge {
        /// Limit.
        max: u64,
        /// Announced.
        got: u64,
    },
    /// A chunk that was not asked for, or of another length than its index implies.
    #[error("chunk {got_index} of {got_bytes} bytes came, chunk {want_index} of {want_bytes} was asked for")]
    WrongChunk {
        /// Index asked for.
        want_index: u32,
        /// Length of that chunk.
        want_bytes: usize,
        /// Index that came.
        got_index: u32,
        /// Announced length.
        got_bytes: usize,
    },
    /// All chunks came, and they are not what was announced.
    #[error("the bytes have SHA-256 {got}, announced was {want}")]
    Hash {
        /// Announced.
        want: Sha256Hash,
        /// Of what came.
        got: Sha256Hash,
    },
    /// The puller asked for chunks that do not exist, or for too many.
    #[error(
        "{count} chunks from {first} on were asked for, there are {n_chunks}, at most {WINDOW_CHUNKS} at once"
    )]
    BadPull {
        /// First index asked for.
        first: u32,
        /// Count asked for.
        count: u32,
        /// Chunks of the transfer.
        n_chunks: u32,
    },
    /// The puller asked for everything more than twice.
    #[error("the same chunks were asked for again and again")]
    RepeatedPulls,
    /// The holder no longer has the bytes, with the reason: request the transfer anew.
    #[error("the transfer ended: {0}")]
    Withdrawn(Withdrawn),
    /// A message failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The stream failed.
    #[error("stream: {0}")]
    Io(#[from] std::io::Error),
}

/// What bytes are put into as they arrive.
pub trait Arrived: Default {
    /// Number of bytes.
    fn n_bytes(&self) -> usize;

    /// Adds bytes at the end.
    fn push(&mut self, bytes: &[u8]);
}

impl Arrived for Vec<u8> {
    fn n_bytes(&self) -> usize {
        self.len()
    }

    fn push(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Arrived for Pieces {
    fn n_bytes(&self) -> usize {
        self.len()
    }

    fn push(&mut self, bytes: &[u8]) {
        self.push(bytes);
    }
}

/// What has arrived of a transfer. Kept by its owner, so that a cut stream costs no byte twice.
#[derive(Debug, Clone)]
pub struct Partial<B = Vec<u8>> {
    transfer: Transfer,
    bytes: B,
    /// Hash of `bytes`, computed while more of them arrive.
    hasher: Hasher,
}

impl Partial {
    /// Starts with no byte of `transfer`, which must be of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// [`BulkError::TooLarge`].
    pub fn new(transfer: Transfer, bytes_max: u64) -> Result<Self, BulkError> {
        Self::start(transfer, bytes_max)
    }

    /// What is here, from the beginning; not compared with the transfer's hash yet.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Partial<Pieces> {
    /// As [`Partial::new`], of bytes that need not lie in one place.
    ///
    /// # Errors
    /// [`BulkError::TooLarge`].
    pub fn in_pieces(transfer: Transfer, bytes_max: u64) -> Result<Self, BulkError> {
        Self::start(transfer, bytes_max)
    }
}

impl<B: Arrived> Partial<B> {
    fn start(transfer: Transfer, bytes_max: u64) -> Result<Self, BulkError> {
        // Chunk indices are u32: 256 TiB are out of reach, but a peer may announce anything.
        let max = bytes_max.min(u64::from(u32::MAX) * CHUNK_BYTES as u64);
        if transfer.n_bytes > max {
            return Err(BulkError::TooLarge { max, got: transfer.n_bytes });
        }
        Ok(Self { transfer, bytes: B::default(), hasher: Hasher::default() })
    }

    /// What is being transferred.
    pub fn transfer(&self) -> Transfer {
        self.transfer
    }

    /// Bytes that are here.
    pub fn n_bytes(&self) -> u64 {
        self.bytes.n_bytes() as u64
    }

    fn next_chunk(&self) -> u32 {
        (self.bytes.n_bytes() / CHUNK_BYTES) as u32
    }

    fn push(&mut self, chunk: &[u8]) {
        self.bytes.push(chunk);
        self.hasher.update(chunk);
    }

    fn finish(&mut self) -> Result<B, BulkError> {
        let bytes = std::mem::take(&mut self.bytes);
        let got = std::mem::take(&mut self.hasher).finish();
        let want = self.transfer.sha256;
        if got == want { Ok(bytes) } else { Err(BulkError::Hash { want, got }) }
    }
}

fn n_chunks(n_bytes: u64) -> u32 {
    n_bytes.div_ceil(CHUNK_BYTES as u64) as u32
}

fn chunk_len(n_bytes: u64, index: u32) -> usize {
    (n_bytes - u64::from(index) * CHUNK_BYTES as u64).min(CHUNK_BYTES as u64) as usize
}

/// Pulls what is missing of `partial` and returns all bytes, checked against the hash.
///
/// After each chunk `on_progress` gets the number of bytes that arrived so far. On an error `partial` keeps
/// all complete chunks; on a wrong hash it is emptied, since any chunk may be wrong, and the conversation can go on.
pub async fn pull<S, B>(
    stream: &mut S,
    partial: &mut Partial<B>,
    mut on_progress: impl FnMut(u64),
) -> Result<B, BulkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Arrived,
{
    let n_bytes = partial.transfer.n_bytes;
    let end = n_chunks(n_bytes);
    let mut asked = partial.next_chunk();
    let mut next = asked;
    // A chunk is added to `partial` when it is whole, so that dropping this future loses only that one.
    let mut chunk = vec![0; CHUNK_BYTES.min(n_bytes as usize)];
    while next < end {
        while asked < end && asked - next <= WINDOW_CHUNKS - PULL_CHUNKS {
            let count = PULL_CHUNKS.min(end - asked);
            framing::write(stream, &Pull::Chunks { first: asked, count }, PULL_BYTES_MAX).await?;
            asked += count;
        }
        let chunk = &mut chunk[..chunk_len(n_bytes, next)];
        read_chunk(stream, next, chunk).await?;
        partial.push(chunk);
        on_progress(partial.n_bytes());
        next += 1;
    }
    framing::write(stream, &Pull::Done, PULL_BYTES_MAX).await?;
    partial.finish()
}

/// Declines the announced transfer without pulling a byte.
pub async fn decline<S: AsyncWrite + Unpin>(stream: &mut S) -> Result<(), BulkError> {
    Ok(framing::write(stream, &Pull::Done, PULL_BYTES_MAX).await?)
}

/// Reads the chunk `want_index`, which fills `chunk`.
pub(crate) async fn read_chunk<S: AsyncRead + Unpin>(
    stream: &mut S,
    want_index: u32,
    chunk: &mut [u8],
) -> Result<(), BulkError> {
    let mut header = [0; CHUNK_HEADER_BYTES];
    stream.read_exact(&mut header).await?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (got_index, got_bytes) = (word(0), word(4) as usize);
    let want_bytes = chunk.len();
    if got_index == WITHDRAWN && got_bytes <= REASON_BYTES_MAX {
        let mut reason = vec![0; got_bytes];
        stream.read_exact(&mut reason).await?;
        return Err(BulkError::Withdrawn(Withdrawn(String::from_utf8_lossy(&reason).into_owned())));
    }
    if (got_index, got_bytes) != (want_index, want_bytes) {
        return Err(BulkError::WrongChunk { want_index, want_bytes, got_index, got_bytes });
    }
    Ok(stream.read_exact(chunk).await?)
}

/// Why announced or requested bytes are gone, in words for the puller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Withdrawn(String);

impl Withdrawn {
    /// `reason` also says what to do. A long one is cut to what a chunk carries.
    pub fn because(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// A source of bytes that is read a chunk at a time, so that a slow puller costs the memory of one chunk.
pub trait ChunkSource: Send + Sync {
    /// Length of all bytes.
    fn n_bytes(&self) -> u64;

    /// Reads a range within them; the error is the reason why they are gone, for the puller.
    fn read(&self, range: Range<u64>) -> impl Future<Output = Result<Vec<u8>, Withdrawn>> + Send;
}

impl ChunkSource for Vec<u8> {
    fn n_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, range: Range<u64>) -> impl Future<Output = Result<Vec<u8>, Withdrawn>> + Send {
        std::future::ready(in_memory(self, range))
    }
}

impl ChunkSource for Arc<[u8]> {
    fn n_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, range: Range<u64>) -> impl Future<Output = Result<Vec<u8>, Withdrawn>> + Send {
        std::future::ready(in_memory(self, range))
    }
}

/// Reads a range of bytes in memory.
///
/// # Errors
/// A range beyond the end; does not happen.
pub fn in_memory(bytes: &[u8], range: Range<u64>) -> Result<Vec<u8>, Withdrawn> {
    let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
    let found = range.and_then(|(start, end)| bytes.get(start..end));
    found.map(<[u8]>::to_vec).ok_or_else(|| Withdrawn::because("there are fewer bytes than were announced"))
}

/// Sends the chunks of `bytes` that the puller asks for until it says that it is done.
///
/// After each chunk `on_progress` gets the number of bytes sent so far, repeats included.
pub async fn serve<S>(stream: &mut S, bytes: &[u8], on_progress: impl FnMut(u64)) -> Result<(), BulkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let chunk = |range| std::future::ready(in_memory(bytes, range));
    serve_chunks(stream, bytes.len() as u64, chunk, on_progress).await
}

/// As [`serve`], with bytes that are read when they are asked for. If they are gone, the puller gets the reason and the
/// stream ends.
pub async fn serve_source<S>(stream: &mut S, held: &impl ChunkSource) -> Result<(), BulkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    serve_chunks(stream, held.n_bytes(), |range| held.read(range), |_| ()).await
}

async fn serve_chunks<S, F>(
    stream: &mut S,
    n_bytes: u64,
    chunk: impl Fn(Range<u64>) -> F,
    mut on_progress: impl FnMut(u64),
) -> Result<(), BulkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Result<Vec<u8>, Withdrawn>>,
{
    let n_chunks = n_chunks(n_bytes);
    let mut credit = u64::from(n_chunks) * 2 + u64::from(WINDOW_CHUNKS);
    let mut n_sent = 0;
    loop {
        let (first, count) = match framing::read(stream, PULL_BYTES_MAX).await? {
            Pull::Done => return Ok(()),
            Pull::Chunks { first, count } => (first, count),
        };
        let end = first.checked_add(count).filter(|&end| end <= n_chunks);
        let Some(end) = end.filter(|_| (1..=WINDOW_CHUNKS).contains(&count)) else {
            return Err(BulkError::BadPull { first, count, n_chunks });
        };
        credit = credit.checked_sub(u64::from(count)).ok_or(BulkError::RepeatedPulls)?;
        for index in first..end {
            let start = u64::from(index) * CHUNK_BYTES as u64;
            let range = start..start + chunk_len(n_bytes, index) as u64;
            let read = chunk(range).await;
            if let Err(reason) = &read {
                let reason = reason.0.as_bytes();
                let reason = &reason[..reason.len().min(REASON_BYTES_MAX)];
                stream.write_all(&packed(WITHDRAWN, reason)).await?;
                stream.close().await?;
            }
            let chunk = read.map_err(BulkError::Withdrawn)?;
            stream.write_all(&packed(index, &chunk)).await?;
            n_sent += chunk.len() as u64;
            on_progress(n_sent);
        }
        stream.flush().await?;
    }
}

/// Sends all of `bytes` without being asked, in the chunks of a pull: at most [`WINDOW_CHUNKS`], which is all that may be under
/// way. The receiver knows their transfer.
pub(crate) async fn push<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> Result<(), BulkError> {
    for (index, chunk) in (0..).zip(bytes.chunks(CHUNK_BYTES)) {
        stream.write_all(&packed(index, chunk)).await?;
    }
    Ok(stream.flush().await?)
}

/// Reads the bytes of `transfer`, of at most `bytes_max` bytes, that the other side pushes, and checks them against the hash.
pub(crate) async fn read_pushed<S: AsyncRead + Unpin>(
    stream: &mut S,
    transfer: Transfer,
    bytes_max: u64,
) -> Result<Vec<u8>, BulkError> {
    let mut partial = Partial::new(transfer, bytes_max)?;
    let mut chunk = vec![0; CHUNK_BYTES.min(transfer.n_bytes as usize)];
    for index in 0..n_chunks(transfer.n_bytes) {
        let chunk = &mut chunk[..chunk_len(transfer.n_bytes, index)];
        read_chunk(stream, index, chunk).await?;
        partial.push(chunk);
    }
    partial.finish()
}

/// A chunk with its header in one buffer: two writes might travel in two packets.
#[must_use]
pub fn packed(index: u32, chunk: &[u8]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(CHUNK_HEADER_BYTES + chunk.len());
    packed.extend([0; CHUNK_HEADER_BYTES]);
    packed.extend_from_slice(chunk);
    put_header(index, &mut packed);
    packed
}

/// Writes the header into the space before the bytes of a chunk.
pub(crate) fn put_header(index: u32, packed: &mut [u8]) {
    if let Some((header, chunk)) = packed.split_first_chunk_mut::<CHUNK_HEADER_BYTES>() {
        header[..4].copy_from_slice(&index.to_le_bytes());
        header[4..].copy_from_slice(&(chunk.len() as u32).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_transfer_is_as_large_as_allowed_and_as_its_chunks_have_numbers() {
        let refused = |n_bytes, bytes_max| {
            let started = Partial::new(Transfer { n_bytes, sha256: Sha256Hash([0; 32]) }, bytes_max);
            started.err().map(|error| error.to_string())
        };
        for (max, bytes_max) in [(10, 10), (281_474_976_645_120, u64::MAX)] {
            assert_eq!(refused(max, bytes_max), None);
            let got = max + 1;
            let said = format!("a transfer of {got} bytes, at most {max} are allowed here");
            assert_eq!(refused(got, bytes_max), Some(said));
        }
    }

    #[test]
    fn what_has_arrived_can_be_read_before_the_rest_comes() {
        let mut partial = Partial::new(Transfer::of(b"a transfer"), 10).unwrap();
        assert_eq!(partial.bytes(), b"");
        partial.push(b"a tr");
        assert_eq!((partial.bytes(), partial.n_bytes()), (&b"a tr"[..], 4));
    }

    #[tokio::test]
    async fn the_reason_of_bytes_that_are_gone_is_short() {
        for (n_bytes, is_read) in [(0, true), (256, true), (257, false)] {
            let reason = "r".repeat(n_bytes);
            let sent = packed(WITHDRAWN, reason.as_bytes());
            let error = read_chunk(&mut sent.as_slice(), 0, &mut [0; 9]).await.unwrap_err();
            let got = matches!(&error, BulkError::Withdrawn(got) if got.0 == reason);
            assert_eq!(got, is_read, "{n_bytes} bytes: {error}");
        }
    }

    #[test]
    fn a_chunk_on_its_way_takes_the_memory_of_one() {
        let chunk = packed(0, &vec![0; CHUNK_BYTES]);
        assert!(chunk.capacity() < 2 * CHUNK_BYTES, "{}", chunk.capacity());
    }
}
