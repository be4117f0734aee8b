//! The `experts` conversation: a trainer has an expert compute, and the expert's host answers (Learning@home §3.3).
//!
//! ```text
//! trainer -> host   ExpertRequest, then its tensor: the input rows; for a backward pass the gradient's rows after them
//! host -> trainer   Rows, then their tensor: the output, or the gradient of the input; or Refused, at any moment
//! ```
//!
//! One request a stream, since streams cost little: a slow expert holds up no other, and all that are under way run side by
//! side. A host keeps no activation between the passes (Learning@home appendix C), so that a backward pass brings its input.
//!
//! A tensor is pushed: its chunks, which are those of [`crate::bulk`], follow the message at once. A pull would cost another
//! round trip in each direction. No tensor is larger than the window of a pull, so that as much is under way as there; a
//! trainer with more rows makes several requests. Its SHA-256 is in the message.
//!
//! Nothing here computes, decides, or knows where an expert is hosted: that is in [`crate::dht::experts`].

mod answers;
pub mod audits;
pub mod checkpoints;
pub mod leases;
mod place;
mod tensors;

use futures::future::{self, Either};
use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use serde::{Deserialize, Serialize};

pub use self::answers::{AnswerSigner, SignedAnswer, model_hash, parameters_hash};
use self::checkpoints::CheckpointVersion;
pub use self::place::{
    DIMENSIONS_MAX, ExpertCopy, ExpertPlace, ExpertPrefix, ExpertUid, GRID_SIDE_MAX, GridShape, LayerId,
    PlaceError,
};
pub use self::tensors::{ExpertRows, ExpertTensors, PreparedRequest, PreparedRows};
use crate::access::{AccessRefusal, Signature};
use crate::bulk::{self, BulkError, CHUNK_BYTES, Transfer, WINDOW_CHUNKS};
use crate::codec::TensorCodec;
use crate::framing::{self, FrameError};
use crate::receipt::RUN_ID_BYTES_MAX;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/experts/4";
/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 512;
/// Largest tensor of a request or an answer, encoded: all of it is under way at once.
pub const TENSOR_BYTES_MAX: usize = CHUNK_BYTES * WINDOW_CHUNKS as usize;

// A run id, a hash, and eight numbers of ten bytes at most; a uid has an index of three bytes for each dimension.
const _: () = assert!(RUN_ID_BYTES_MAX + 64 + 8 * 10 + DIMENSIONS_MAX * 3 < MESSAGE_BYTES_MAX);

/// What an expert is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ExpertPass {
    /// Compute the output of the input rows.
    Forward,
    /// Compute the gradient of the input from that of the output, and step by that of the parameters.
    Backward,
}

/// Trainer to host, followed by the tensor: `[n_rows, input_values]`; for a backward pass also `[n_rows, output_values]`, both
/// encoded by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertRequest {
    /// The run, at most [`RUN_ID_BYTES_MAX`] bytes.
    pub run_id: String,
    /// Number that the trainer gives to one request only: an expert counts none twice, though it is sent again. Its upper half is a
    /// session of the trainer, drawn at random, and within one it grows.
    pub request_id: u64,
    /// The layer.
    pub layer: LayerId,
    /// The expert.
    pub uid: ExpertUid,
    /// What it is to do.
    pub pass: ExpertPass,
    /// Of a backward pass: steps behind the parameters that gave the output, as [`HostToTrainer::Rows`] said. The expert moves less
    /// by a gradient that others have overtaken.
    pub n_steps: u64,
    /// Rows, at least 1.
    pub n_rows: u32,
    /// Values of a row of the input, at least 1.
    pub input_values: u32,
    /// Values of a row of the output, at least 1.
    pub output_values: u32,
    /// Encoding of all tensors of request and answer: one that is dense.
    pub codec: TensorCodec,
    /// The encoded tensors, one after the other.
    pub transfer: Transfer,
}

/// Host to trainer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostToTrainer {
    /// The expert has computed; the rows follow.
    Rows {
        /// Of the parameters that computed them.
        version: CheckpointVersion,
        /// `[n_rows, output_values]` of a forward pass, `[n_rows, input_values]` of a backward pass, encoded as the request.
        transfer: Transfer,
        /// Of the host: what it gave to which rows ([`SignedAnswer`]).
        signature: Signature,
    },
    /// Not computed.
    Refused(ExpertRefusal),
}

/// Why an expert does not compute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ExpertRefusal {
    /// This host does not have the expert, or not this run.
    #[error("the expert is not hosted here")]
    Unknown,
    /// As many requests wait as the host's limits allow.
    #[error("the expert is busy: ask again in {retry_after_ms} ms, or another host")]
    Busy {
        /// When it may be asked again.
        retry_after_ms: u32,
    },
    /// The request was counted before.
    #[error("the request was counted already")]
    Duplicate,
    /// A NaN or an infinity in the request or in the result.
    #[error("a value is not finite")]
    NotFinite,
    /// Rows of another length than the expert takes or gives, or none.
    #[error("{got} values a row, or rows, came; the expert has {want}")]
    Shape {
        /// Of the expert.
        want: u64,
        /// In the request.
        got: u64,
    },
    /// The host leaves soon, and takes nothing new.
    #[error("the host is leaving: ask another one")]
    Draining,
    /// A tensor over the limit.
    #[error("a tensor of {got} bytes, at most {max} are taken in one request")]
    TooLarge {
        /// Limit.
        max: u64,
        /// Of the request or of its answer.
        got: u64,
    },
    /// A codec that is not dense.
    #[error("{got:?} does not carry activations: use f32, f16 or int8")]
    Codec {
        /// Of the request.
        got: TensorCodec,
    },
    /// A tensor of another length than its rows take.
    #[error("{got} bytes are announced, the rows take {want}")]
    Bytes {
        /// Of the rows.
        want: u64,
        /// Announced.
        got: u64,
    },
    /// The same request waits, or is computed.
    #[error("the request is in progress: ask again in {retry_after_ms} ms whether it was counted")]
    InProgress {
        /// When it may be over.
        retry_after_ms: u32,
    },
    /// The device failed, or the result was not finite. A backward pass was not counted.
    #[error("the expert failed to compute the request")]
    Failed,
    /// The trainer has shown this host no valid token of the run.
    #[error("no access at this host: {0}")]
    NoAccess(AccessRefusal),
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExpertRequestError {
    /// A message failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A tensor failed.
    #[error(transparent)]
    Bulk(#[from] BulkError),
    /// The stream failed.
    #[error("stream: {0}")]
    Io(#[from] std::io::Error),
    /// The host declined.
    #[error(transparent)]
    Refused(#[from] ExpertRefusal),
    /// An answer before the request was there.
    #[error("the host answered a request that it did not have")]
    Early,
    /// An answer of another length than its rows take.
    #[error("the host announced {got} bytes of rows, they take {want}")]
    AnswerBytes {
        /// Of the rows in the request's codec.
        want: u64,
        /// Announced.
        got: u64,
    },
}

impl ExpertRequest {
    /// Checks all that a host can tell without the expert: codec, rows, and the bytes of request and answer. A request that
    /// passes never makes a host allocate more than [`TENSOR_BYTES_MAX`] for a tensor, and four times that once decoded.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), ExpertRefusal> {
        if self.run_id.len() > RUN_ID_BYTES_MAX {
            return Err(ExpertRefusal::Unknown);
        }
        if !self.codec.carries_state() {
            return Err(ExpertRefusal::Codec { got: self.codec });
        }
        if self.n_rows == 0 || self.input_values == 0 || self.output_values == 0 {
            return Err(ExpertRefusal::Shape { want: 1, got: 0 });
        }
        let max = TENSOR_BYTES_MAX as u64;
        let (want, answer) = (self.request_bytes(), self.answer_bytes());
        if want.max(answer) > max {
            return Err(ExpertRefusal::TooLarge { max, got: want.max(answer) });
        }
        match self.transfer.n_bytes {
            got if got == want => Ok(()),
            got => Err(ExpertRefusal::Bytes { want, got }),
        }
    }

    /// Bytes of the tensors that follow it.
    fn request_bytes(&self) -> u64 {
        let inputs = self.encoded_bytes(self.input_values);
        match self.pass {
            ExpertPass::Forward => inputs,
            ExpertPass::Backward => inputs.saturating_add(self.encoded_bytes(self.output_values)),
        }
    }

    /// Bytes of the tensor that follows its answer.
    pub fn answer_bytes(&self) -> u64 {
        self.encoded_bytes(self.answer_values())
    }

    /// Values of a row of the answer.
    fn answer_values(&self) -> u32 {
        match self.pass {
            ExpertPass::Forward => self.output_values,
            ExpertPass::Backward => self.input_values,
        }
    }

    /// Values of all rows; `usize::MAX` where they are too many to be counted.
    fn n_values(&self, row_values: u32) -> usize {
        usize::try_from(u64::from(self.n_rows) * u64::from(row_values)).unwrap_or(usize::MAX)
    }

    fn encoded_bytes(&self, row_values: u32) -> u64 {
        self.codec.encoded_len(self.n_values(row_values)) as u64
    }
}

/// Has an expert compute. The tensor of the answer is checked against its hash, and not decoded: see
/// [`PreparedRequest::decode`]. The stream is not to be used again.
///
/// # Errors
/// A refusal, an invalid answer, or a stream that failed: the request may or may not count.
pub async fn ask<S>(stream: &mut S, prepared: &PreparedRequest) -> Result<ExpertRows, ExpertRequestError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut reader, mut writer) = stream.split();
    let answer = {
        let sending = std::pin::pin!(send(&mut writer, prepared));
        let answering = std::pin::pin!(framing::read(&mut reader, MESSAGE_BYTES_MAX));
        match future::select(sending, answering).await {
            Either::Left((Ok(()), answering)) => answering.await?,
            // A host that has refused reads no further; its reason may be here already.
            Either::Left((Err(error), answering)) => match answering.await {
                Ok(HostToTrainer::Refused(refusal)) => return Err(refusal.into()),
                _ => return Err(error),
            },
            Either::Right((answer, _)) => match answer? {
                HostToTrainer::Refused(refusal) => return Err(refusal.into()),
                HostToTrainer::Rows { .. } => return Err(ExpertRequestError::Early),
            },
        }
    };
    match answer {
        HostToTrainer::Refused(refusal) => Err(refusal.into()),
        HostToTrainer::Rows { version, transfer, signature } => {
            let want = prepared.request().answer_bytes();
            if transfer.n_bytes != want {
                return Err(ExpertRequestError::AnswerBytes { want, got: transfer.n_bytes });
            }
            let bytes = bulk::read_pushed(&mut reader, transfer, want).await?;
            Ok(ExpertRows { version, signature, transfer, bytes })
        }
    }
}

async fn send<S>(stream: &mut S, prepared: &PreparedRequest) -> Result<(), ExpertRequestError>
where
    S: AsyncWrite + Unpin,
{
    framing::write(stream, prepared.request(), MESSAGE_BYTES_MAX).await?;
    Ok(bulk::push(stream, prepared.bytes()).await?)
}

/// Reads a request. Its tensor follows, once [`ExpertRequest::check`] and the host's own limits let it in:
/// [`receive_tensors`].
///
/// # Errors
/// A message that is no request.
pub async fn receive<S: AsyncRead + Unpin>(stream: &mut S) -> Result<ExpertRequest, ExpertRequestError> {
    Ok(framing::read(stream, MESSAGE_BYTES_MAX).await?)
}

/// Reads the tensors of `request`, still encoded: see [`ExpertRequest::decode`].
///
/// # Errors
/// A request that does not pass [`ExpertRequest::check`], another hash, or a stream that failed.
pub async fn receive_tensors<S>(
    stream: &mut S,
    request: &ExpertRequest,
) -> Result<Vec<u8>, ExpertRequestError>
where
    S: AsyncRead + Unpin,
{
    request.check()?;
    Ok(bulk::read_pushed(stream, request.transfer, TENSOR_BYTES_MAX as u64).await?)
}

/// Answers a request with what its expert has computed, and ends the stream.
///
/// # Errors
/// The stream failed: the trainer may ask again.
pub async fn reply<S>(stream: &mut S, rows: &PreparedRows) -> Result<(), ExpertRequestError>
where
    S: AsyncWrite + Unpin,
{
    let PreparedRows { version, transfer, signature, bytes } = rows;
    let answer = HostToTrainer::Rows { version: *version, transfer: *transfer, signature: *signature };
    framing::write(stream, &answer, MESSAGE_BYTES_MAX).await?;
    bulk::push(stream, bytes).await?;
    Ok(stream.close().await?)
}

/// Declines a request, whether or not its tensor came, and ends the stream.
///
/// # Errors
/// The stream failed.
pub async fn refuse<S>(stream: &mut S, refusal: ExpertRefusal) -> Result<(), ExpertRequestError>
where
    S: AsyncWrite + Unpin,
{
    framing::write(stream, &HostToTrainer::Refused(refusal), MESSAGE_BYTES_MAX).await?;
    Ok(stream.close().await?)
}
