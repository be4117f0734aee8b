//! The `gradient` conversation: one contribution, offered, pulled and acknowledged (DeDLOC §3.1).
//!
//! A contribution is the mean gradient over its samples. It is identified by its peer and its number, so
//! that offering it again after a lost acknowledgement cannot count it twice: the answer is the receipt of
//! the first acknowledgement. A stream carries any number of offers, one after the other.
//!
//! In a run that recomputes contributions, an offer has a commitment ([`crate::commitment`]) and the list of its
//! samples. The backbone selects a contribution for recomputation only after all of it arrived, when the contributor
//! can no longer change it. A suspicious one counts once it passes; until then its sender gets `Checking`.

use std::time::Duration;

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::bulk;
use crate::codec::TensorCodec;
use crate::commitment::{Commitment, list_bytes};
pub use crate::contribution::{Accepted, Offer};
use crate::error::ConversationError;
use crate::framing;
use crate::receipt::{RUN_ID_BYTES_MAX, SignedReceipt};
use crate::refusal::Refusal;
use crate::run::RunDescription;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/gradient/7";

/// Largest message of this conversation, but for the list of samples in an offer.
pub const MESSAGE_BYTES_MAX: usize = 1024;
// A receipt has a run id, two keys and a signature, and seven numbers of ten bytes at most.
const _: () = assert!(RUN_ID_BYTES_MAX + 128 + 7 * 10 < MESSAGE_BYTES_MAX);
/// Longest interval between two `Checking` messages.
pub const CHECKING_INTERVAL: Duration = Duration::from_secs(3);

/// Largest offer to `run`.
pub fn offer_bytes_max(run: &RunDescription) -> usize {
    let recomputed = run.synchronous().filter(|scheme| scheme.recomputed);
    let list = recomputed.map_or(0, |scheme| list_bytes(scheme.contribution_samples_max, &run.data.manifest));
    usize::try_from(list).map_or(MESSAGE_BYTES_MAX, |list| list.saturating_add(MESSAGE_BYTES_MAX))
}

/// Contributor to backbone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ContributorToBackbone {
    /// A gradient that can be pulled; in a run that recomputes, with its commitment and the list of its samples.
    Offer(Offer, Option<Commitment>, Vec<u8>),
}

/// Backbone to contributor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum BackboneToContributor {
    /// The offer is wanted; pulls follow, then `Checking`, `Accepted` or `Refused`.
    Wanted,
    /// The contribution is stored durably and counts, now or since an earlier offer: its receipt.
    Accepted(SignedReceipt),
    /// The contribution does not count.
    Refused(ContributionRefusal),
    /// The gradient arrived and is being recomputed. Repeated every [`CHECKING_INTERVAL`], until `Accepted` or `Refused`
    /// follows.
    Checking {
        /// Contributions that the peer still has on probation, this one included: all of them are recomputed. 0 for one
        /// that is unusual, or of a suspected address.
        n_left: u32,
    },
}

/// Why a contribution was not counted. Written so that its sender can act on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum ContributionRefusal {
    /// A gradient of parameters that are no longer, or not yet, current.
    #[error("the gradient is of epoch {got}, the run is at epoch {want}")]
    Epoch {
        /// The current epoch.
        want: u64,
        /// What was offered.
        got: u64,
    },
    /// Another number of values than the model has.
    #[error("the gradient has {got} values, the model has {want}")]
    Length {
        /// Of the model.
        want: u64,
        /// What was offered.
        got: u64,
    },
    /// More or fewer encoded bytes than that many values need.
    #[error("the gradient takes {got} bytes, {want} are what its values take in this codec")]
    Bytes {
        /// Of that many values in the run's codec.
        want: u64,
        /// What was offered.
        got: u64,
    },
    /// Not the run's codec.
    #[error("gradients travel as {want:?} in this run, this one is {got:?}")]
    Codec {
        /// Of the run.
        want: TensorCodec,
        /// What was offered.
        got: TensorCodec,
    },
    /// A number of samples out of its range.
    #[error("{got} samples claimed, 1 to {max} are allowed")]
    Samples {
        /// Largest allowed.
        max: u32,
        /// What was offered.
        got: u32,
    },
    /// More samples than any device could have computed in the time.
    #[error("{got} samples claimed, at most {max} fit into the time since the last contribution")]
    Rate {
        /// What the limit allows by now.
        max: u32,
        /// What was offered.
        got: u32,
    },
    /// A NaN or an infinity.
    #[error("value {index} of the gradient, or its loss, is not finite")]
    NotFinite {
        /// Position in the flat gradient.
        index: u64,
    },
    /// The contribution counted before, and its receipt is no longer available.
    #[error("contribution {contribution_id} was counted before")]
    Duplicate {
        /// Number in the offer.
        contribution_id: u64,
    },
    /// The bytes that came are not those that were offered.
    #[error("the transfer failed: {0}")]
    Transfer(String),
    /// The peer has no open session in the run.
    #[error("join the run before offering gradients")]
    NotJoined,
    /// The aggregator could not store the contribution durably, so it did not count it.
    #[error("the aggregator could not store the contribution; offer it again")]
    Storage,
    /// The aggregator processes as many contributions as its limits allow.
    #[error("the aggregator is busy; offer it again")]
    Busy,
    /// The peer has no access to the run.
    #[error(transparent)]
    NoAccess(Refusal),
    /// A gradient whose norm is over the limit.
    #[error("the gradient has length {got}, at most {max} counts")]
    Norm {
        /// Largest Euclidean length that counts.
        max: f32,
        /// Of the values, as decoded.
        got: f32,
    },
    /// A commitment that is missing or invalid in a run that recomputes, with the reason.
    #[error("{0}")]
    Commitment(String),
    /// Samples or values that were contributed before, by this or another peer, with the reason.
    #[error("{0}")]
    Repeated(String),
    /// Less than a micro-batch, more often than remainders explain.
    #[error("{got} samples offered, at least {min} are wanted: add more to them")]
    TooFew {
        /// A micro-batch of the run.
        min: u32,
        /// What was offered.
        got: u32,
    },
    /// More contributions to a step than a peer, or an address, is allowed.
    #[error(
        "this peer, or its address, has given as many contributions to epoch {epoch} as count: wait for the next"
    )]
    TooMany {
        /// The epoch.
        epoch: u64,
    },
}

impl ContributionRefusal {
    /// Label for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Epoch { .. } => "epoch",
            Self::Length { .. } => "length",
            Self::Bytes { .. } => "bytes",
            Self::Codec { .. } => "codec",
            Self::Samples { .. } => "samples",
            Self::Rate { .. } => "rate",
            Self::NotFinite { .. } => "not_finite",
            Self::Norm { .. } => "norm",
            Self::Duplicate { .. } => "duplicate",
            Self::Transfer(_) => "transfer",
            Self::NotJoined => "not_joined",
            Self::Storage => "storage",
            Self::Busy => "busy",
            Self::NoAccess(_) => "no_access",
            Self::Commitment(_) => "account",
            Self::Repeated(_) => "repeated",
            Self::TooFew { .. } => "too_few",
            Self::TooMany { .. } => "too_many",
        }
    }
}

/// A contribution with all bytes that can be pulled.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedContribution {
    /// The offer.
    pub offer: Offer,
    /// The commitment, in a run that recomputes.
    pub commitment: Option<Commitment>,
    /// The gradient, encoded.
    pub bytes: Vec<u8>,
    /// The list of samples, encoded; empty without a commitment.
    pub samples: Vec<u8>,
}

/// Progress of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferStage {
    /// The aggregator wants the contribution.
    Wanted,
    /// Bytes sent so far.
    Sent(u64),
    /// The aggregator has all of it.
    Delivered,
    /// The aggregator recomputes it; see [`BackboneToContributor::Checking`].
    Checking(u32),
}

/// Offers a contribution, serves its bytes, and returns the aggregator's answer. The receipt is not verified.
///
/// # Errors
/// No answer came: the contribution may or may not count, and should be offered again.
pub async fn offer<S>(
    stream: &mut S,
    prepared: &PreparedContribution,
    mut on_stage: impl FnMut(OfferStage),
) -> Result<Result<SignedReceipt, ContributionRefusal>, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let PreparedContribution { offer, commitment, bytes, samples } = prepared;
    let message = ContributorToBackbone::Offer(offer.clone(), commitment.clone(), samples.clone());
    framing::write(stream, &message, MESSAGE_BYTES_MAX.saturating_add(samples.len())).await?;
    let mut answer = framing::read(stream, MESSAGE_BYTES_MAX).await?;
    if answer == BackboneToContributor::Wanted {
        on_stage(OfferStage::Wanted);
        bulk::serve(stream, bytes, |n_sent| on_stage(OfferStage::Sent(n_sent))).await?;
        on_stage(OfferStage::Delivered);
        answer = framing::read(stream, MESSAGE_BYTES_MAX).await?;
        while let (BackboneToContributor::Checking { n_left }, true) = (&answer, commitment.is_some()) {
            on_stage(OfferStage::Checking(*n_left));
            answer = framing::read(stream, MESSAGE_BYTES_MAX).await?;
        }
    }
    match answer {
        BackboneToContributor::Accepted(receipt) => Ok(Ok(receipt)),
        BackboneToContributor::Refused(refusal) => Ok(Err(refusal)),
        BackboneToContributor::Wanted | BackboneToContributor::Checking { .. } => {
            Err(ConversationError::Unexpected("the aggregator sent a message out of order"))
        }
    }
}
