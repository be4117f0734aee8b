//! The `evidence` conversation: backbones exchange what failed recomputation, with all inputs that it takes to recompute it again.
//!
//! ```text
//! evidence = kind, one byte | what there is of that kind: a contribution, or an answer of an expert
//! ```
//!
//! All that it takes to recompute it is bound by the signature of the peer that it is against, so that a backbone cannot forge
//! evidence. Who asks for it recomputes it to see that it is wrong.

mod answer;
mod contribution;

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

pub use self::answer::{AnswerContents, AnswerEvidence, AnswerHeader};
pub use self::contribution::{ContributionEvidence, EvidenceContents, EvidenceHeader, scheme};
use crate::access::{ConvictedWork, PublicKey};
use crate::bulk::{self, ChunkSource, Partial, Transfer};
use crate::codec::CodecError;
use crate::commitment::CommitmentError;
use crate::dataset::DatasetError;
use crate::error::ConversationError;
use crate::framing;
use crate::refusal::Refusal;
use crate::run::{self, NotRecomputable};
use crate::serving;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/evidence/14";
/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Most entries in a list.
pub const ENTRIES_MAX: usize = 64;
/// Largest header: a description, and an offer with its commitment or a checkpoint with its lease.
const HEADER_BYTES_MAX: usize = run::MESSAGE_BYTES_MAX + 8 * 1024;
/// First byte of evidence of a contribution.
const CONTRIBUTION: u8 = 0;
/// First byte of evidence of an expert's answer.
const ANSWER: u8 = 1;
/// Bytes of the length before the header.
const LENGTH_BYTES: usize = 4;

// A key and a transfer take 32 + 32 + 10 bytes at most.
const _: () = assert!(ENTRIES_MAX * 74 + 16 <= MESSAGE_BYTES_MAX);

/// From the requester.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EvidenceRequest {
    /// Which evidence do you have?
    List,
    /// Send me the evidence against this peer.
    Get(PublicKey),
}

/// From the holder of the evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EvidenceResponse {
    /// At most [`ENTRIES_MAX`], the newest first.
    Listed(Vec<EvidenceEntry>),
    /// The evidence is here; its bytes can be pulled.
    Found(Transfer),
    /// Not here, with the reason.
    Refused(Refusal),
}

/// An entry of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceEntry {
    /// The contributor.
    pub peer: PublicKey,
    /// Length and hash of the evidence.
    pub transfer: Transfer,
}

/// What a peer signed, and the inputs to recompute it.
#[derive(Debug, Clone, PartialEq)]
pub enum Evidence {
    /// A contribution.
    Contribution(Box<ContributionEvidence>),
    /// An answer of an expert.
    Answer(Box<AnswerEvidence>),
}

impl Evidence {
    /// The peer that it is against.
    pub fn peer(&self) -> PublicKey {
        match self {
            Self::Contribution(evidence) => evidence.header.peer,
            Self::Answer(evidence) => evidence.header.answer.host,
        }
    }

    /// What the peer did.
    pub fn work(&self) -> ConvictedWork {
        match self {
            Self::Contribution(evidence) => {
                ConvictedWork::Contribution { epoch: evidence.header.offer.epoch }
            }
            Self::Answer(evidence) => {
                ConvictedWork::ExpertAnswer { n_steps: evidence.header.answer.version.n_steps }
            }
        }
    }

    /// Encodes it, for storage and transfer.
    ///
    /// # Errors
    /// Does not happen.
    pub fn encode(&self) -> Result<Vec<u8>, EvidenceError> {
        let (kind, bytes) = match self {
            Self::Contribution(evidence) => (CONTRIBUTION, evidence.encode()?),
            Self::Answer(evidence) => (ANSWER, evidence.encode()?),
        };
        Ok([&[kind], &bytes[..]].concat())
    }

    /// Decodes it; nothing is verified.
    ///
    /// # Errors
    /// Bytes that are no evidence.
    pub fn decode(bytes: &[u8]) -> Result<Self, EvidenceError> {
        match bytes.split_first() {
            Some((&CONTRIBUTION, rest)) => {
                Ok(Self::Contribution(Box::new(ContributionEvidence::decode(rest)?)))
            }
            Some((&ANSWER, rest)) => Ok(Self::Answer(Box::new(AnswerEvidence::decode(rest)?))),
            Some(_) => Err(EvidenceError::Malformed("an unknown kind")),
            None => Err(EvidenceError::Malformed("it is empty")),
        }
    }
}

/// A header with its length before it, and what follows.
fn with_header(header: &impl Serialize, parts: &[&[u8]]) -> Result<Vec<u8>, EvidenceError> {
    let header = postcard::to_allocvec(header)?;
    let n_bytes = u32::try_from(header.len()).map_err(|_| EvidenceError::Malformed("a huge header"))?;
    Ok([&n_bytes.to_le_bytes()[..], &header, &parts.concat()].concat())
}

/// The header, and what follows it.
fn split_header<H: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<(H, &[u8]), EvidenceError> {
    let (n_bytes, rest) = bytes.split_first_chunk::<LENGTH_BYTES>().ok_or(CUT)?;
    let n_bytes = u32::from_le_bytes(*n_bytes) as usize;
    if n_bytes > HEADER_BYTES_MAX {
        return Err(EvidenceError::Malformed("a huge header"));
    }
    let (header, rest) = rest.split_at_checked(n_bytes).ok_or(CUT)?;
    Ok((postcard::from_bytes(header)?, rest))
}

/// The next `n_bytes`, and what follows them.
fn split_part(bytes: &[u8], n_bytes: u64) -> Result<(&[u8], &[u8]), EvidenceError> {
    usize::try_from(n_bytes).ok().and_then(|n_bytes| bytes.split_at_checked(n_bytes)).ok_or(CUT)
}

const CUT: EvidenceError = EvidenceError::Malformed("it is cut off");

/// Why bytes are no valid evidence.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// Cut off, or not of this format.
    #[error("no evidence: {0}")]
    Malformed(&'static str),
    /// A header that cannot be decoded.
    #[error("the evidence's header cannot be read: {0}")]
    Header(#[from] postcard::Error),
    /// An invalid commitment.
    #[error(transparent)]
    Commitment(#[from] CommitmentError),
    /// An invalid manifest in the run's description.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// A run of another scheme, whose contributions have no commitments.
    #[error("its run is not synchronous")]
    Scheme,
    /// A run whose contributions cannot be recomputed.
    #[error("its run cannot be recomputed: {0}")]
    Run(#[from] NotRecomputable),
    /// An answer and a checkpoint that are not of one expert at one step, or not signed by one host.
    #[error("the peer has not signed both the checkpoint and an answer of the same step")]
    NotSigned,
    /// Other bytes than the peer signed.
    #[error("the {0} is not what the peer signed for")]
    Hash(&'static str),
    /// Values that cannot be decoded.
    #[error("the {0} cannot be read: {1}")]
    Codec(&'static str, CodecError),
}

/// Asks for the list of evidence.
///
/// # Errors
/// A stream that fails, a refusal, or a list of more than [`ENTRIES_MAX`].
pub async fn list<S>(stream: &mut S) -> Result<Vec<EvidenceEntry>, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &EvidenceRequest::List, MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        EvidenceResponse::Listed(listed) if listed.len() <= ENTRIES_MAX => Ok(listed),
        EvidenceResponse::Listed(listed) => {
            let (want, got) = (ENTRIES_MAX as u64, listed.len() as u64);
            Err(ConversationError::Mismatch { what: "pieces of evidence", want, got })
        }
        EvidenceResponse::Refused(refusal) => Err(refusal.into()),
        EvidenceResponse::Found(_) => Err(ConversationError::Unexpected("bytes came, a list was asked for")),
    }
}

/// Pulls the evidence of an entry, of at most `bytes_max` bytes.
///
/// # Errors
/// A stream that fails, a refusal, or another transfer than the entry's.
pub async fn fetch<S>(
    stream: &mut S,
    listed: EvidenceEntry,
    bytes_max: u64,
) -> Result<Vec<u8>, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &EvidenceRequest::Get(listed.peer), MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        EvidenceResponse::Found(transfer) if transfer == listed.transfer => {}
        EvidenceResponse::Found(transfer) => {
            let (want, got) = (listed.transfer.n_bytes, transfer.n_bytes);
            let what = "bytes of evidence, or another hash,";
            return Err(ConversationError::Mismatch { what, want, got });
        }
        EvidenceResponse::Refused(refusal) => return Err(refusal.into()),
        EvidenceResponse::Listed(_) => {
            return Err(ConversationError::Unexpected("a list came, evidence was asked for"));
        }
    }
    let mut partial = Partial::new(listed.transfer, bytes_max)?;
    Ok(bulk::pull(stream, &mut partial, |_| ()).await?)
}

/// Answers on `stream` until the other side closes it. `lookup` returns the answer, and the bytes that
/// [`EvidenceResponse::Found`] names, with it and with no other answer. `on_answered` is called after each answer.
///
/// # Errors
/// A stream that fails.
pub async fn serve<S, F, B>(
    stream: &mut S,
    lookup: impl Fn(EvidenceRequest) -> F,
    on_answered: impl FnMut(),
) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: ChunkSource,
    F: Future<Output = (EvidenceResponse, Option<B>)>,
{
    serving::serve(stream, MESSAGE_BYTES_MAX, lookup, on_answered).await
}
