//! The `evidence` conversation: contributions that were recomputed and are not what their peers signed for, with all
//! that it takes to recompute them once more.
//!
//! ```text
//! evidence = length of the header, u32 little-endian | header, postcard | samples | gradient | parameters
//! ```
//!
//! Everything in it is bound by the peer's signature ([`crate::account`]): the run's description with the hashes of
//! the data, the parameters, the samples, the gradient. So a backbone cannot make up evidence against a peer. That the
//! gradient is wrong is for whoever asks to find out.

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::access::PublicKey;
use crate::account::{Account, AccountError, SampleId, hash_of};
use crate::bulk::{self, Held, Partial, Transfer};
use crate::codec::CodecError;
use crate::dataset::DatasetError;
use crate::error::ConversationError;
use crate::framing;
use crate::gradient::Offer;
use crate::hash::Sha256Hash;
use crate::run::{self, NotRecomputable, RunDescription};
use crate::serving;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/evidence/3";
/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Most pieces of evidence that one peer names.
pub const LISTED_MAX: usize = 64;
/// Largest header: a description and an offer with its account.
const HEADER_BYTES_MAX: usize = run::MESSAGE_BYTES_MAX + 1024;
/// Before the header.
const LENGTH_BYTES: usize = 4;

// A key and a transfer take 32 + 32 + 10 bytes at most.
const _: () = assert!(LISTED_MAX * 74 + 16 <= MESSAGE_BYTES_MAX);

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// What is there?
    List,
    /// Send me what is there against this peer.
    Get(PublicKey),
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// At most [`LISTED_MAX`], the newest first.
    Listed(Vec<Listed>),
    /// The bytes that follow, once pulled.
    Found(Transfer),
    /// Not here, with the reason.
    Refused(String),
}

/// A piece of evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Whose contribution it is.
    pub peer: PublicKey,
    /// The evidence.
    pub transfer: Transfer,
}

/// A contribution, and what its peer signed that it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    /// What it is of.
    pub header: EvidenceHeader,
    /// The list of samples, encoded.
    pub samples: Vec<u8>,
    /// The gradient, as it came.
    pub gradient: Vec<u8>,
    /// The parameters, as they went.
    pub parameters: Vec<u8>,
}

/// What a piece of evidence is of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvidenceHeader {
    /// Who contributed.
    pub peer: PublicKey,
    /// To what.
    pub run: RunDescription,
    /// What.
    pub offer: Offer,
    /// In the peer's words.
    pub account: Account,
}

/// Why something is no evidence.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// Cut off, or not of this format.
    #[error("no evidence: {0}")]
    Malformed(&'static str),
    /// The header.
    #[error("the evidence's header cannot be read: {0}")]
    Header(#[from] postcard::Error),
    /// What the peer signed.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// The data of the run.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The run.
    #[error("its run cannot be recomputed: {0}")]
    Run(#[from] NotRecomputable),
    /// Another gradient or other parameters than were signed for.
    #[error("the {0} is not what the peer signed for")]
    Hash(&'static str),
    /// Values that cannot be read.
    #[error("the {0} cannot be read: {1}")]
    Codec(&'static str, CodecError),
}

/// What is in a piece of evidence, read and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The samples in the order of computation.
    pub samples: Vec<SampleId>,
    /// Their mean gradient, as the peer has it: `[n_parameters]`, finite.
    pub gradient: Vec<f32>,
    /// `[n_parameters]`, finite.
    pub parameters: Vec<f32>,
}

impl Evidence {
    /// As it is kept and travels.
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

    /// Takes the bytes apart; nothing of them is checked beyond that.
    ///
    /// # Errors
    /// They are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, EvidenceError> {
        let cut = EvidenceError::Malformed("it is cut off");
        let Some((n_bytes, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else { return Err(cut) };
        let n_bytes = u32::from_le_bytes(*n_bytes) as usize;
        if n_bytes > HEADER_BYTES_MAX {
            return Err(EvidenceError::Malformed("a huge header"));
        }
        let Some((header, rest)) = rest.split_at_checked(n_bytes) else { return Err(cut) };
        let header: EvidenceHeader = postcard::from_bytes(header)?;
        let lists = header.account.list_bytes(&header.run.manifest);
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

    /// Checks that the peer signed for all of it, and reads it.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn claim(&self) -> Result<Claim, EvidenceError> {
        let EvidenceHeader { peer, run, offer, account } = &self.header;
        run.manifest.validate()?;
        run.check_recomputable()?;
        let is_of_run = run.recomputed
            && run.takes(offer.codec)
            && offer.n_values == run.n_parameters
            && run.state_codec.carries_state()
            && (1..=run.contribution_samples_max).contains(&offer.n_samples);
        if !is_of_run {
            return Err(EvidenceError::Malformed("an offer that its run does not take"));
        }
        account.verify(*peer, hash_of(run)?, offer)?;
        if !account.allows(run, offer) {
            return Err(EvidenceError::Malformed("parameters of another epoch, or more samples than count"));
        }
        if Transfer::of(&self.gradient) != offer.transfer {
            return Err(EvidenceError::Hash("gradient"));
        }
        if Sha256Hash::of(&self.parameters) != account.parameters {
            return Err(EvidenceError::Hash("state"));
        }
        let n_values = run.n_parameters as usize;
        let samples = account.samples(&self.samples, &run.manifest)?;
        let gradient = offer.codec.decode(&self.gradient, n_values);
        let gradient = gradient.map_err(|error| EvidenceError::Codec("gradient", error))?;
        let parameters = run.state_codec.decode(&self.parameters, n_values);
        let parameters = parameters.map_err(|error| EvidenceError::Codec("state", error))?;
        Ok(Claim { samples, gradient, parameters })
    }
}

/// Asks what there is.
///
/// # Errors
/// A stream that fails, a refusal, or more than may be listed.
pub async fn list<S>(stream: &mut S) -> Result<Vec<Listed>, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &Request::List, MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        Answer::Listed(listed) if listed.len() <= LISTED_MAX => Ok(listed),
        Answer::Listed(listed) => {
            let (want, got) = (LISTED_MAX as u64, listed.len() as u64);
            Err(ConversationError::Mismatch { what: "pieces of evidence", want, got })
        }
        Answer::Refused(reason) => Err(ConversationError::Refused(reason)),
        Answer::Found(_) => Err(ConversationError::Refused("bytes came, a list was asked for".into())),
    }
}

/// Pulls one of what was listed, of at most `bytes_max` bytes.
///
/// # Errors
/// A stream that fails, a refusal, or something else than was listed.
pub async fn fetch<S>(stream: &mut S, listed: Listed, bytes_max: u64) -> Result<Vec<u8>, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &Request::Get(listed.peer), MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        Answer::Found(transfer) if transfer == listed.transfer => {}
        Answer::Found(transfer) => {
            let (want, got) = (listed.transfer.n_bytes, transfer.n_bytes);
            let what = "bytes of evidence, or another hash,";
            return Err(ConversationError::Mismatch { what, want, got });
        }
        Answer::Refused(reason) => return Err(ConversationError::Refused(reason)),
        Answer::Listed(_) => {
            return Err(ConversationError::Refused("a list came, evidence was asked for".into()));
        }
    }
    let mut partial = Partial::new(listed.transfer, bytes_max)?;
    Ok(bulk::pull(stream, &mut partial, |_| ()).await?)
}

/// Answers on `stream` until the other side closes it. `lookup` is asked for an answer, and for the bytes that
/// [`Answer::Found`] names, with it and nothing else; `on_answered` is told when the next question is waited for.
///
/// # Errors
/// A stream that fails.
pub async fn serve<S, F, B>(
    stream: &mut S,
    lookup: impl Fn(Request) -> F,
    on_answered: impl FnMut(),
) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Held,
    F: Future<Output = (Answer, Option<B>)>,
{
    serving::serve(stream, MESSAGE_BYTES_MAX, lookup, on_answered).await
}
