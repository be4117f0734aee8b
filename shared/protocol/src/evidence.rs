//! The `evidence` conversation: backbones exchange contributions that failed recomputation, with all inputs that it
//! takes to recompute them again.
//!
//! ```text
//! evidence = length of the header, u32 little-endian | header, postcard | samples | gradient | parameters
//! ```
//!
//! Everything in it is bound by the peer's signature ([`crate::commitment`]): the run's description with the hashes of
//! the data, the parameters, the samples, the gradient. So a backbone cannot forge evidence against a peer. The
//! requester recomputes the gradient itself to see that it is wrong.

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::access::PublicKey;
use crate::bulk::{self, ChunkSource, Partial, Transfer};
use crate::codec::CodecError;
use crate::commitment::{Commitment, CommitmentError, SampleId, run_hash};
use crate::contribution::Offer;
use crate::dataset::DatasetError;
use crate::error::ConversationError;
use crate::framing;
use crate::hash::Sha256Hash;
use crate::refusal::Refusal;
use crate::run::{self, NotRecomputable, RunDescription, Synchronous};
use crate::serving;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/evidence/12";
/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Most entries in a list.
pub const ENTRIES_MAX: usize = 64;
/// Largest header: a description and an offer with its commitment.
const HEADER_BYTES_MAX: usize = run::MESSAGE_BYTES_MAX + 1024;
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

/// A contribution, the contributor's commitment, and the inputs to recompute it.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    /// Run, contributor, offer and commitment.
    pub header: EvidenceHeader,
    /// The list of samples, encoded.
    pub samples: Vec<u8>,
    /// The gradient, encoded as it was received.
    pub gradient: Vec<u8>,
    /// The parameters, encoded as they were sent.
    pub parameters: Vec<u8>,
}

/// Header of a piece of evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvidenceHeader {
    /// The contributor.
    pub peer: PublicKey,
    /// The run.
    pub run: RunDescription,
    /// The offer of the contribution.
    pub offer: Offer,
    /// The contributor's commitment.
    pub commitment: Commitment,
}

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
    /// Another gradient, or other parameters, than the peer signed.
    #[error("the {0} is not what the peer signed for")]
    Hash(&'static str),
    /// Values that cannot be decoded.
    #[error("the {0} cannot be read: {1}")]
    Codec(&'static str, CodecError),
}

/// The decoded and verified content of a piece of evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct EvidenceContents {
    /// The samples in the order of computation.
    pub samples: Vec<SampleId>,
    /// Their mean gradient, as the contributor claims it: `[n_parameters]`, finite.
    pub gradient: Vec<f32>,
    /// `[n_parameters]`, finite.
    pub parameters: Vec<f32>,
}

impl Evidence {
    /// Encodes it, for storage and transfer.
    ///
    /// # Errors
    /// Does not happen.
    pub fn encode(&self) -> Result<Vec<u8>, EvidenceError> {
        let header = postcard::to_allocvec(&self.header)?;
        let n_bytes = u32::try_from(header.len()).map_err(|_| EvidenceError::Malformed("a huge header"))?;
        let parts: [&[u8]; 5] =
            [&n_bytes.to_le_bytes(), &header, &self.samples, &self.gradient, &self.parameters];
        Ok(parts.concat())
    }

    /// Decodes it; nothing is verified.
    ///
    /// # Errors
    /// Bytes that are no evidence.
    pub fn decode(bytes: &[u8]) -> Result<Self, EvidenceError> {
        let cut = EvidenceError::Malformed("it is cut off");
        let Some((n_bytes, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else { return Err(cut) };
        let n_bytes = u32::from_le_bytes(*n_bytes) as usize;
        if n_bytes > HEADER_BYTES_MAX {
            return Err(EvidenceError::Malformed("a huge header"));
        }
        let Some((header, rest)) = rest.split_at_checked(n_bytes) else { return Err(cut) };
        let header: EvidenceHeader = postcard::from_bytes(header)?;
        let lists = header.commitment.list_bytes(&header.run.data.manifest);
        let Some((samples, rest)) = usize::try_from(lists).ok().and_then(|n| rest.split_at_checked(n)) else {
            return Err(cut);
        };
        let gradient = usize::try_from(header.offer.transfer.n_bytes).ok();
        let Some((gradient, parameters)) = gradient.and_then(|n| rest.split_at_checked(n)) else {
            return Err(cut);
        };
        let (samples, gradient, parameters) = (samples.to_vec(), gradient.to_vec(), parameters.to_vec());
        Ok(Self { header, samples, gradient, parameters })
    }

    /// Verifies that the contributor signed all of it, and decodes its values. The model of the header's run has
    /// `n_parameters`.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn verify(&self, n_parameters: usize) -> Result<EvidenceContents, EvidenceError> {
        let EvidenceHeader { peer, run, offer, commitment } = &self.header;
        run.data.manifest.validate()?;
        let scheme = scheme(run)?;
        scheme.check_recomputable(&run.model.graph)?;
        let is_of_run = scheme.recomputed
            && scheme.takes(offer.codec)
            && offer.n_values == n_parameters as u64
            && scheme.state_codec.carries_state()
            && (1..=scheme.contribution_samples_max).contains(&offer.n_samples);
        if !is_of_run {
            return Err(EvidenceError::Malformed("an offer that its run does not take"));
        }
        commitment.verify(*peer, run_hash(run)?, offer)?;
        if !commitment.allows(run, offer) {
            return Err(EvidenceError::Malformed("parameters of another epoch, or more samples than count"));
        }
        if Transfer::of(&self.gradient) != offer.transfer {
            return Err(EvidenceError::Hash("gradient"));
        }
        if Sha256Hash::of(&self.parameters) != commitment.parameters {
            return Err(EvidenceError::Hash("state"));
        }
        let samples = commitment.samples(&self.samples, &run.data.manifest)?;
        let gradient = offer.codec.decode(&self.gradient, n_parameters);
        let gradient = gradient.map_err(|error| EvidenceError::Codec("gradient", error))?;
        let parameters = scheme.state_codec.decode(&self.parameters, n_parameters);
        let parameters = parameters.map_err(|error| EvidenceError::Codec("state", error))?;
        Ok(EvidenceContents { samples, gradient, parameters })
    }
}

/// The scheme of a run whose contributions there is evidence of.
///
/// # Errors
/// [`EvidenceError::Scheme`].
pub fn scheme(run: &RunDescription) -> Result<&Synchronous, EvidenceError> {
    run.synchronous().ok_or(EvidenceError::Scheme)
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
