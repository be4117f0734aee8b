//! The `expert-checkpoints` conversation: a host gives the newest state of an expert to peers that keep it, and the next host of
//! the expert takes it from them (Learning@home §3.3).
//!
//! ```text
//! holder -> keeper   Offer                      taker -> keeper   Newest            taker -> keeper   Get
//! keeper -> holder   Wanted, then pulls; Kept   keeper -> taker   Found, or None    keeper -> taker   Sent, then is pulled
//!                    or AlreadyKept, Refused
//! ```
//!
//! Any number of questions on a stream, one after the other; the bytes are pulled by [`crate::bulk`], so that a taker goes on at
//! another keeper where one is gone. What is in them is the hosts' own: a keeper neither reads nor computes with it. A checkpoint
//! comes with its lease, which shows that its holder was the expert's host by the grants of the run's backbones, and is signed by
//! that holder.

use std::sync::Arc;
use std::time::Duration;

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use super::leases::{COPIES_MAX, ExpertLease, GRANTORS_MAX, Grantors};
use super::place::ExpertPlace;
use crate::access::{KeyPair, Signature};
use crate::bulk::{self, BulkError, Partial, Transfer};
use crate::framing::{self, FrameError};
use crate::hash::Sha256Hash;
use crate::receipt::RUN_ID_BYTES_MAX;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/expert-checkpoints/4";
/// Largest message of this conversation: for each copy of an expert a lease with the most grants.
pub const MESSAGE_BYTES_MAX: usize = 8192;
/// Most steps of an expert: a thousand a second for 34 years. A checkpoint that claims more would never be followed by a newer one.
pub const STEPS_MAX: u64 = 1 << 40;

/// Pace below which a checkpoint is not worth the slot that it takes.
pub const BYTES_PER_SECOND_MIN: u64 = 16 * 1024;
/// Beside the time that the bytes take.
pub const TRANSFER_GRACE: Duration = Duration::from_secs(30);
/// Longest time of a transfer: at the slowest, six GiB by a link of a home.
pub const TRANSFER_TIMEOUT: Duration = Duration::from_secs(1800);

/// Domain separator: nothing else that a host signs begins with it.
const DOMAIN: &[u8] = b"barnraise expert checkpoint 1\0";

const _: () = assert!(
    RUN_ID_BYTES_MAX + COPIES_MAX as usize * (GRANTORS_MAX * (32 + 10 + 64) + 256) <= MESSAGE_BYTES_MAX
);

/// Which state of a copy of an expert. Of two the later term counts, and of one term the one with more steps. No two copies have the
/// same term.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CheckpointVersion {
    /// Of the lease of the host that stepped it.
    pub term: u64,
    /// Optimizer steps.
    pub n_steps: u64,
}

/// How new a state is, for a host that takes a place: each state of the expert itself is newer than those of its replicas, whose
/// hosts may be anybody and which the expert has averaged with. So a replica that has ended never comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckpointRank {
    is_expert: bool,
    version: CheckpointVersion,
}

/// A checkpoint of an expert, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertCheckpoint {
    /// The lease of the host that made it; it may have expired since.
    pub lease: ExpertLease,
    /// Optimizer steps behind it.
    pub n_steps: u64,
    /// The bytes.
    pub transfer: Transfer,
    /// Of the lease's holder: a keeper cannot give other bytes for them.
    pub signature: Signature,
}

/// Question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointQuestion {
    /// From the expert's host: keep this.
    Offer {
        /// The run.
        run_id: String,
        /// What it is.
        checkpoint: ExpertCheckpoint,
    },
    /// What are the newest checkpoints that you keep of the copies of this expert?
    Newest {
        /// The run.
        run_id: String,
        /// The expert.
        place: ExpertPlace,
    },
    /// Send these bytes.
    Get {
        /// The run.
        run_id: String,
        /// The expert.
        place: ExpertPlace,
        /// Of the bytes.
        sha256: Sha256Hash,
    },
}

/// Answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointAnswer {
    /// To an offer: the bytes are pulled now.
    Wanted,
    /// To an offer: they are stored.
    Kept,
    /// To an offer: the same, or a newer one, is kept.
    AlreadyKept,
    /// To [`CheckpointQuestion::Newest`]: one of each copy, at most [`COPIES_MAX`].
    Found(Vec<ExpertCheckpoint>),
    /// To [`CheckpointQuestion::Get`]: the bytes that may be pulled.
    Sent(Transfer),
    /// To any question.
    Refused(CheckpointRefusal),
}

/// Why a checkpoint is not kept, or not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum CheckpointRefusal {
    /// Another run, or a place that its grids do not have.
    #[error("there is no such expert here")]
    Unknown,
    /// The lease is not one of the run's backbones, or not one of the peer that offers, or the signature is not its own.
    #[error("the lease is not one of the sender")]
    Lease,
    /// More bytes than an expert of that layer has.
    #[error("{got} bytes, a checkpoint of that expert has at most {max}")]
    TooLarge {
        /// Limit.
        max: u64,
        /// Announced.
        got: u64,
    },
    /// No room for the checkpoints of further experts, or no space on the disk.
    #[error("there is no room for another checkpoint")]
    Full,
    /// Other checkpoints are on their way.
    #[error("too many checkpoints are on their way: ask again later")]
    Busy,
    /// The bytes are not kept, or no longer.
    #[error("that checkpoint is not kept here")]
    Gone,
    /// The sender has shown no valid token of the run that lets it host experts.
    #[error("this run is not open: present an access token that lets this peer host experts first")]
    NoAccess,
    /// Fewer bytes than the parameters of an expert of that layer with its optimizer.
    #[error("{got} bytes, a checkpoint of that expert has at least {min}")]
    TooSmall {
        /// Limit.
        min: u64,
        /// Announced.
        got: u64,
    },
}

/// What a keeper said to an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferOutcome {
    /// It has stored the bytes.
    Kept,
    /// It had them, or newer ones.
    AlreadyKept,
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A message failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The transfer failed; what arrived of it is kept.
    #[error(transparent)]
    Bulk(#[from] BulkError),
    /// The keeper declined.
    #[error(transparent)]
    Refused(#[from] CheckpointRefusal),
    /// An answer to another question, or other bytes than were asked for.
    #[error("the answer does not belong to the question")]
    Unexpected,
}

impl ExpertCheckpoint {
    /// A checkpoint of the host with this key, which holds the lease.
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(
        key: &KeyPair,
        run_id: &str,
        (lease, n_steps, transfer): (ExpertLease, u64, Transfer),
    ) -> Result<Self, postcard::Error> {
        let signature = key.sign(&signed_bytes(run_id, &lease, n_steps, transfer)?);
        Ok(Self { lease, n_steps, transfer, signature })
    }

    /// Whether it is of a host that the run's backbones have made that of the expert, then or now, and of no more than
    /// [`STEPS_MAX`] steps.
    #[must_use]
    pub fn is_valid(&self, run_id: &str, grantors: &Grantors) -> bool {
        self.n_steps <= STEPS_MAX && self.is_signed(run_id) && self.lease.verify(run_id, grantors).is_ok()
    }

    /// Whether the holder of its lease has signed it.
    #[must_use]
    pub fn is_signed(&self, run_id: &str) -> bool {
        let Self { lease, n_steps, transfer, signature } = self;
        signed_bytes(run_id, lease, *n_steps, *transfer)
            .is_ok_and(|bytes| lease.holder.has_signed(&bytes, signature))
    }

    /// Which state it is.
    pub fn version(&self) -> CheckpointVersion {
        CheckpointVersion { term: self.lease.term, n_steps: self.n_steps }
    }

    /// How new it is.
    pub fn rank(&self) -> CheckpointRank {
        CheckpointRank { is_expert: self.lease.copy == 0, version: self.version() }
    }
}

impl CheckpointRank {
    /// Of a state of the expert itself.
    pub fn of_expert(version: CheckpointVersion) -> Self {
        Self { is_expert: true, version }
    }
}

/// Longest time of a transfer of so many bytes, at both of its ends.
#[must_use]
pub fn transfer_time(n_bytes: u64) -> Duration {
    (TRANSFER_GRACE + Duration::from_secs(n_bytes / BYTES_PER_SECOND_MIN)).min(TRANSFER_TIMEOUT)
}

fn signed_bytes(
    run_id: &str,
    lease: &ExpertLease,
    n_steps: u64,
    transfer: Transfer,
) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(&(run_id, lease.place, lease.term, n_steps, transfer), DOMAIN.to_vec())
}

impl CheckpointQuestion {
    /// The expert that it is about, where it is one of this run.
    pub fn place(&self, of_run: &str) -> Option<ExpertPlace> {
        let (run_id, place) = match self {
            Self::Offer { run_id, checkpoint } => (run_id, checkpoint.lease.place),
            Self::Newest { run_id, place } | Self::Get { run_id, place, .. } => (run_id, *place),
        };
        (run_id == of_run).then_some(place)
    }
}

/// Offers a checkpoint to a keeper, which pulls the bytes if it wants them.
///
/// # Errors
/// A refusal, or a stream that failed: it may be kept, or not.
pub async fn offer<S>(
    stream: &mut S,
    run_id: &str,
    checkpoint: &ExpertCheckpoint,
    bytes: &Arc<[u8]>,
) -> Result<OfferOutcome, CheckpointError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let question = CheckpointQuestion::Offer { run_id: run_id.to_owned(), checkpoint: checkpoint.clone() };
    match ask(stream, &question).await? {
        CheckpointAnswer::AlreadyKept => return Ok(OfferOutcome::AlreadyKept),
        CheckpointAnswer::Wanted => {}
        _ => return Err(CheckpointError::Unexpected),
    }
    bulk::serve_source(stream, bytes).await?;
    match read(stream).await? {
        CheckpointAnswer::Kept => Ok(OfferOutcome::Kept),
        _ => Err(CheckpointError::Unexpected),
    }
}

/// Asks for the newest checkpoints that a keeper has of an expert's copies. Whether they are valid is still to be checked.
///
/// # Errors
/// A refusal, or a stream that failed.
pub async fn newest<S>(
    stream: &mut S,
    run_id: &str,
    place: ExpertPlace,
) -> Result<Vec<ExpertCheckpoint>, CheckpointError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match ask(stream, &CheckpointQuestion::Newest { run_id: run_id.to_owned(), place }).await? {
        CheckpointAnswer::Found(found)
            if found.len() <= usize::from(COPIES_MAX) && found.iter().all(|it| it.lease.place == place) =>
        {
            Ok(found)
        }
        _ => Err(CheckpointError::Unexpected),
    }
}

/// Pulls what is missing of a checkpoint's bytes, and compares all of them with its hash.
///
/// # Errors
/// A refusal, other bytes, or a stream that failed: `partial` keeps what came.
pub async fn fetch<S>(
    stream: &mut S,
    run_id: &str,
    place: ExpertPlace,
    partial: &mut Partial,
) -> Result<Vec<u8>, CheckpointError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let sha256 = partial.transfer().sha256;
    match ask(stream, &CheckpointQuestion::Get { run_id: run_id.to_owned(), place, sha256 }).await? {
        CheckpointAnswer::Sent(transfer) if transfer == partial.transfer() => {}
        _ => return Err(CheckpointError::Unexpected),
    }
    Ok(bulk::pull(stream, partial, |_| ()).await?)
}

async fn ask<S>(stream: &mut S, question: &CheckpointQuestion) -> Result<CheckpointAnswer, CheckpointError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, question, MESSAGE_BYTES_MAX).await?;
    read(stream).await
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Result<CheckpointAnswer, CheckpointError> {
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        CheckpointAnswer::Refused(refusal) => Err(refusal.into()),
        answer => Ok(answer),
    }
}

/// Reads a question; `None` where the other side closed the stream.
///
/// # Errors
/// A message that is none of this conversation.
pub async fn receive<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<CheckpointQuestion>, FrameError> {
    match framing::read(stream, MESSAGE_BYTES_MAX).await {
        Ok(question) => Ok(Some(question)),
        Err(FrameError::Closed) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Answers a question.
///
/// # Errors
/// The stream failed.
pub async fn reply<S: AsyncWrite + Unpin>(
    stream: &mut S,
    answer: &CheckpointAnswer,
) -> Result<(), FrameError> {
    framing::write(stream, answer, MESSAGE_BYTES_MAX).await
}

/// Says that an offer is wanted, and pulls its bytes: at most `bytes_max`, compared with their hash.
///
/// # Errors
/// A transfer over the limit, other bytes, or a stream that failed.
pub async fn take_offered<S>(
    stream: &mut S,
    transfer: Transfer,
    bytes_max: u64,
) -> Result<Vec<u8>, CheckpointError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut partial = Partial::new(transfer, bytes_max)?;
    reply(stream, &CheckpointAnswer::Wanted).await?;
    Ok(bulk::pull(stream, &mut partial, |_| ()).await?)
}

/// Answers [`CheckpointQuestion::Get`] with bytes, and sends the chunks that are pulled.
///
/// # Errors
/// The stream failed.
pub async fn send<S>(stream: &mut S, transfer: Transfer, bytes: &Arc<[u8]>) -> Result<(), CheckpointError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    reply(stream, &CheckpointAnswer::Sent(transfer)).await?;
    Ok(bulk::serve_source(stream, bytes).await?)
}
