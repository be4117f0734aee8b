//! The `expert-audits` conversation: a trainer shows a backbone answers of experts, which computes one of them once more from the
//! expert's checkpoint. The paper's hosts are trusted (Learning@home §3.3); ours are strangers.
//!
//! ```text
//! trainer -> backbone   AuditOffer: of which experts, at which steps, it has answers
//! backbone -> trainer   Wanted, Nothing or Refused
//! trainer -> backbone   where one is wanted: what its host has signed, then the tensors of request and answer
//! backbone -> trainer   Taken or Refused
//! ```
//!
//! What comes of it is not told. One audit a stream.

use futures::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use serde::{Deserialize, Serialize};

use super::answers::SignedAnswer;
use super::checkpoints::CheckpointVersion;
use super::place::ExpertPlace;
use super::{DIMENSIONS_MAX, TENSOR_BYTES_MAX};
use crate::access::PublicKey;
use crate::bulk::{self, BulkError};
use crate::framing::{self, FrameError};
use crate::hash::Sha256Hash;
use crate::receipt::RUN_ID_BYTES_MAX;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/expert-audits/1";
/// Largest message of this conversation: an offer of [`ANSWERS_MAX`] answers.
pub const MESSAGE_BYTES_MAX: usize = 8 * 1024;
/// Most answers in an offer.
pub const ANSWERS_MAX: usize = 64;

const _: () =
    assert!(RUN_ID_BYTES_MAX + ANSWERS_MAX * (32 + 3 + 1 + 3 * DIMENSIONS_MAX + 20) <= MESSAGE_BYTES_MAX);

/// An answer that a trainer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedAnswer {
    /// Of this host.
    pub host: PublicKey,
    /// Of this expert.
    pub place: ExpertPlace,
    /// Of these parameters.
    pub version: CheckpointVersion,
}

/// Trainer to backbone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditOffer {
    /// The run.
    pub run_id: String,
    /// What it has; at most [`ANSWERS_MAX`].
    pub answers: Vec<OfferedAnswer>,
}

/// Backbone to trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditReply {
    /// To an offer: this one.
    Wanted {
        /// Index among the offered.
        index: u8,
    },
    /// To an offer: none of them can be checked now.
    Nothing,
    /// To an answer: it is checked.
    Taken,
    /// To any message.
    Refused(AuditRefusal),
}

/// Why answers are not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum AuditRefusal {
    /// Another run, or one without hosted experts.
    #[error("there are no such experts here")]
    Unknown,
    /// As many are checked as this backbone checks at a time, or this peer offers too often.
    #[error("enough answers are checked at the moment: offer others later")]
    Busy,
    /// The peer has shown no valid token of the run.
    #[error("this peer has shown no valid access token of the run here, or the operator has blocked it")]
    NoAccess,
    /// Another answer than the one that was offered, or not signed by its host.
    #[error("the answer is not the one that was offered, or its host has not signed it")]
    Forged,
}

/// An answer with its tensors, which are encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptAnswer {
    /// What the host has signed.
    pub signed: SignedAnswer,
    /// As the request had them.
    pub inputs: Vec<u8>,
    /// As the answer had them.
    pub answer: Vec<u8>,
}

/// Why an audit ended early.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A message failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A tensor failed.
    #[error(transparent)]
    Bulk(#[from] BulkError),
    /// The stream failed.
    #[error("stream: {0}")]
    Io(#[from] std::io::Error),
    /// The backbone declined.
    #[error(transparent)]
    Refused(#[from] AuditRefusal),
    /// An answer to another question, or an index beyond the offer.
    #[error("the reply does not belong to the offer")]
    Unexpected,
}

impl KeptAnswer {
    /// What is said of it before it is wanted.
    pub fn offered(&self) -> OfferedAnswer {
        let SignedAnswer { host, place, version, .. } = self.signed;
        OfferedAnswer { host, place, version }
    }

    /// Bytes of its tensors.
    pub fn n_bytes(&self) -> usize {
        self.inputs.len() + self.answer.len()
    }
}

/// Offers answers. Returns which one the backbone wants, if it wants one: that is given by [`give`].
///
/// # Errors
/// A refusal, a reply that is none, or a stream that failed.
pub async fn offer<S>(stream: &mut S, offer: &AuditOffer) -> Result<Option<usize>, AuditError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, offer, MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        AuditReply::Wanted { index } if usize::from(index) < offer.answers.len() => Ok(Some(index.into())),
        AuditReply::Nothing => Ok(None),
        AuditReply::Refused(refusal) => Err(refusal.into()),
        AuditReply::Wanted { .. } | AuditReply::Taken => Err(AuditError::Unexpected),
    }
}

/// Gives the answer that is wanted.
///
/// # Errors
/// A refusal, a reply that is none, or a stream that failed.
pub async fn give<S>(stream: &mut S, answer: &KeptAnswer) -> Result<(), AuditError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &answer.signed, MESSAGE_BYTES_MAX).await?;
    bulk::push(stream, &answer.inputs).await?;
    bulk::push(stream, &answer.answer).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        AuditReply::Taken => Ok(()),
        AuditReply::Refused(refusal) => Err(refusal.into()),
        AuditReply::Wanted { .. } | AuditReply::Nothing => Err(AuditError::Unexpected),
    }
}

/// Reads an offer. Whose it is, and how often it comes, is the caller's to check.
///
/// # Errors
/// A message that is none, or more than [`ANSWERS_MAX`] answers.
pub async fn receive<S: AsyncRead + Unpin>(stream: &mut S) -> Result<AuditOffer, AuditError> {
    let offer: AuditOffer = framing::read(stream, MESSAGE_BYTES_MAX).await?;
    match offer.answers.len() <= ANSWERS_MAX {
        true => Ok(offer),
        false => Err(AuditError::Unexpected),
    }
}

/// Replies.
///
/// # Errors
/// The stream failed.
pub async fn reply<S: AsyncWrite + Unpin>(stream: &mut S, reply: AuditReply) -> Result<(), AuditError> {
    Ok(framing::write(stream, &reply, MESSAGE_BYTES_MAX).await?)
}

/// Says that the answer at `index` of an offer is wanted, and reads it: at most twice [`TENSOR_BYTES_MAX`]. It is one of this
/// [model](super::model_hash).
///
/// # Errors
/// Another answer than was offered, one that its host has not signed, other bytes, or a stream that failed.
pub async fn take<S>(
    stream: &mut S,
    (offer, model): (&AuditOffer, Sha256Hash),
    index: usize,
) -> Result<KeptAnswer, AuditError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let wanted = offer.answers.get(index).ok_or(AuditError::Unexpected)?;
    let of_wire = u8::try_from(index).map_err(|_| AuditError::Unexpected)?;
    reply(stream, AuditReply::Wanted { index: of_wire }).await?;
    let signed: SignedAnswer = framing::read(stream, MESSAGE_BYTES_MAX).await?;
    let SignedAnswer { host, place, version, .. } = signed;
    if (OfferedAnswer { host, place, version }) != *wanted || !signed.is_signed(&offer.run_id, model) {
        return Err(AuditRefusal::Forged.into());
    }
    let inputs = bulk::read_pushed(stream, signed.inputs, TENSOR_BYTES_MAX as u64).await?;
    let answer = bulk::read_pushed(stream, signed.answer, TENSOR_BYTES_MAX as u64).await?;
    Ok(KeptAnswer { signed, inputs, answer })
}

/// Ends an audit with a refusal.
///
/// # Errors
/// The stream failed.
pub async fn refuse<S: AsyncWrite + Unpin>(stream: &mut S, refusal: AuditRefusal) -> Result<(), AuditError> {
    reply(stream, AuditReply::Refused(refusal)).await?;
    Ok(stream.close().await?)
}
