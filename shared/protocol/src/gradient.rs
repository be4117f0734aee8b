//! The `gradient` conversation: one contribution, offered, pulled and acknowledged.
//!
//! A contribution is the mean gradient over its samples. It is named by its peer and its sequence
//! number, so that offering it again after a lost acknowledgement cannot count it twice: it is answered
//! with the receipt that the first acknowledgement had. A stream carries any number of offers, one after the
//! other.

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::bulk::{self, Transfer};
use crate::codec::TensorCodec;
use crate::error::ConversationError;
use crate::framing;
use crate::receipt::SignedReceipt;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/gradient/2";

/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Contributor to backbone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ContributorToBackbone {
    /// A gradient that is ready to be pulled.
    Offer(Offer),
}

/// What is offered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Chosen by the peer, never used twice by it for another contribution.
    pub contribution_id: u64,
    /// The epoch whose parameters were used.
    pub epoch: u64,
    /// Samples behind the mean: its weight.
    pub n_samples: u32,
    /// Mean loss of those samples.
    pub loss: f32,
    /// Values after decoding.
    pub n_values: u64,
    /// How the values are encoded.
    pub codec: TensorCodec,
    /// Length and hash of the encoded bytes.
    pub transfer: Transfer,
}

/// Backbone to contributor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum BackboneToContributor {
    /// The offer is wanted; pulls follow, then `Accepted` or `Refused`.
    Wanted,
    /// Stored so that a crash does not lose it, and counted, now or when it was offered before: its receipt.
    Accepted(SignedReceipt),
    /// Not counted.
    Refused(Refusal),
}

/// What an accepted contribution added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Echo of the offer.
    pub contribution_id: u64,
    /// Epoch it counted for.
    pub epoch: u64,
    /// Samples it counted for.
    pub n_samples: u32,
}

/// Why a contribution was not counted. Written so that its sender can act on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The gradient belongs to parameters that are no longer, or not yet, current.
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
    /// A weight that no honest contributor has.
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
    /// This contribution counted before, and its receipt is not at hand any more.
    #[error("contribution {contribution_id} was counted before")]
    Duplicate {
        /// Echo of the offer.
        contribution_id: u64,
    },
    /// The bytes that came are not those that were offered.
    #[error("the transfer failed: {0}")]
    Transfer(String),
    /// The peer has no open session in the run.
    #[error("join the run before offering gradients")]
    NotJoined,
    /// The aggregator could not keep the contribution safe, so it did not count it.
    #[error("the aggregator could not store the contribution; offer it again")]
    Storage,
    /// The aggregator has as many contributions in hand as it may hold.
    #[error("the aggregator is busy; offer it again")]
    Busy,
    /// The peer has no access to the run, with the reason.
    #[error("{0}")]
    NoAccess(String),
    /// A gradient so long that no honest one of a run that goes well is.
    #[error("the gradient has length {got}, at most {max} counts")]
    Norm {
        /// Largest Euclidean length that counts.
        max: f32,
        /// Of the values, as decoded.
        got: f32,
    },
}

/// Offers a contribution and sends what is pulled of `bytes`; the answer is the aggregator's. A receipt is not
/// verified.
///
/// # Errors
/// An error says that no answer came: the contribution may or may not count, and should be offered again.
pub async fn offer<S>(
    stream: &mut S,
    offer: &Offer,
    bytes: &[u8],
    on_progress: impl FnMut(u64),
) -> Result<Result<SignedReceipt, Refusal>, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &ContributorToBackbone::Offer(offer.clone()), MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        BackboneToContributor::Wanted => bulk::serve(stream, bytes, on_progress).await?,
        BackboneToContributor::Accepted(receipt) => return Ok(Ok(receipt)),
        BackboneToContributor::Refused(refusal) => return Ok(Err(refusal)),
    }
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        BackboneToContributor::Accepted(receipt) => Ok(Ok(receipt)),
        BackboneToContributor::Refused(refusal) => Ok(Err(refusal)),
        BackboneToContributor::Wanted => {
            Err(ConversationError::Refused("the aggregator asked twice for one contribution".into()))
        }
    }
}
