//! The `gradient` conversation: one contribution, offered, pulled and acknowledged.
//!
//! A contribution is the mean gradient over its samples. It is named by its peer and its sequence
//! number, so that offering it again after a lost acknowledgement cannot count it twice: it is answered
//! with the receipt that the first acknowledgement had. A stream carries any number of offers, one after the
//! other.
//!
//! In a run whose contributions are recomputed, an offer comes with its account ([`crate::account`]) and the list of its
//! samples. Which of them are recomputed is decided when all of it is here: too late to make another one. One that is
//! counts when it was found to be what it says, and its sender is told meanwhile that it is looked at.

use std::time::Duration;

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::account::{Account, list_bytes};
use crate::bulk::{self, Transfer};
use crate::codec::TensorCodec;
use crate::error::ConversationError;
use crate::framing;
use crate::receipt::SignedReceipt;
use crate::run::RunDescription;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/gradient/5";

/// Largest message of this conversation, but for the list of samples in an offer.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// How often at least a contributor hears that its contribution is looked at.
pub const CHECKING_EVERY: Duration = Duration::from_secs(3);

/// Largest offer to `run`.
pub fn offer_bytes_max(run: &RunDescription) -> usize {
    let list = if run.recomputed { list_bytes(run.contribution_samples_max, &run.manifest) } else { 0 };
    usize::try_from(list).map_or(MESSAGE_BYTES_MAX, |list| list.saturating_add(MESSAGE_BYTES_MAX))
}

/// Contributor to backbone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ContributorToBackbone {
    /// A gradient that is ready to be pulled, with its account and the list of its samples where the run wants one.
    Offer(Offer, Option<Account>, Vec<u8>),
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
    /// The offer is wanted; pulls follow, then `Checking`, `Accepted` or `Refused`.
    Wanted,
    /// Stored so that a crash does not lose it, and counted, now or when it was offered before: its receipt.
    Accepted(SignedReceipt),
    /// Not counted.
    Refused(Refusal),
    /// The gradient is here and is computed once more before it counts; said again every [`CHECKING_EVERY`], then
    /// `Accepted` or `Refused` follows.
    Checking {
        /// So many of this peer's contributions are recomputed in any case, this one included; 0 for one that was chosen
        /// by chance.
        n_left: u32,
    },
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
    /// In this run each contribution has an account, and this one's is missing or wrong, with the reason.
    #[error("{0}")]
    Account(String),
    /// What it is of was contributed before, by whomever, with the reason.
    #[error("{0}")]
    Repeated(String),
    /// Fewer samples than a pass has, more often than there is something left over.
    #[error("{got} samples offered, at least {min} are wanted: add more to them")]
    TooFew {
        /// A micro-batch of the run.
        min: u32,
        /// What was offered.
        got: u32,
    },
    /// More contributions than a peer, or an address, has for one step.
    #[error(
        "this peer, or its address, has given as many contributions to epoch {epoch} as count: wait for the next"
    )]
    TooMany {
        /// Of which.
        epoch: u64,
    },
}

impl Refusal {
    /// Its reason in a word, for counts.
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
            Self::Account(_) => "account",
            Self::Repeated(_) => "repeated",
            Self::TooFew { .. } => "too_few",
            Self::TooMany { .. } => "too_many",
        }
    }
}

/// A contribution with all that may be pulled of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// What is offered.
    pub offer: Offer,
    /// What it is the gradient of, where the run wants to know.
    pub account: Option<Account>,
    /// The gradient, encoded.
    pub bytes: Vec<u8>,
    /// The list of samples, encoded; empty without an account.
    pub samples: Vec<u8>,
}

/// How far an offer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The contribution is asked for.
    Wanted,
    /// So many of its bytes are sent.
    Sent(u64),
    /// The other side has all of it.
    Delivered,
    /// The other side computes it once more; see [`BackboneToContributor::Checking`].
    Checking(u32),
}

/// Offers a contribution and sends what is pulled of it; the answer is the aggregator's. A receipt is not verified.
///
/// # Errors
/// An error says that no answer came: the contribution may or may not count, and should be offered again.
pub async fn offer<S>(
    stream: &mut S,
    prepared: &Prepared,
    mut on_stage: impl FnMut(Stage),
) -> Result<Result<SignedReceipt, Refusal>, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Prepared { offer, account, bytes, samples } = prepared;
    let message = ContributorToBackbone::Offer(offer.clone(), account.clone(), samples.clone());
    framing::write(stream, &message, MESSAGE_BYTES_MAX.saturating_add(samples.len())).await?;
    let mut answer = framing::read(stream, MESSAGE_BYTES_MAX).await?;
    if answer == BackboneToContributor::Wanted {
        on_stage(Stage::Wanted);
        bulk::serve(stream, bytes, |n_sent| on_stage(Stage::Sent(n_sent))).await?;
        on_stage(Stage::Delivered);
        answer = framing::read(stream, MESSAGE_BYTES_MAX).await?;
        while let (BackboneToContributor::Checking { n_left }, true) = (&answer, account.is_some()) {
            on_stage(Stage::Checking(*n_left));
            answer = framing::read(stream, MESSAGE_BYTES_MAX).await?;
        }
    }
    match answer {
        BackboneToContributor::Accepted(receipt) => Ok(Ok(receipt)),
        BackboneToContributor::Refused(refusal) => Ok(Err(refusal)),
        BackboneToContributor::Wanted | BackboneToContributor::Checking { .. } => {
            Err(ConversationError::Refused("the aggregator asked for what is not to be asked for".into()))
        }
    }
}
