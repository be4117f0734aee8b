//! The `model` conversation: a peer that aggregates a run and fell behind gets the model of one that did not
//! (DeDLOC §3.1).
//!
//! ```text
//! behind -> ahead    StepAfter a model, or Checkpoint
//! ahead  -> behind   Step, or Checkpoint: the bytes follow, once pulled; UpToDate; or Refused with the reason
//! ```
//!
//! A step carries the averaged gradient that all aggregators applied: a peer that applies it has the same model, bit by
//! bit. If the journal does not reach back that far, or the models diverged, the peer gets a checkpoint. Peers have the
//! same checkpoints: a transfer that was cut goes on with another peer.

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::bulk::{self, Partial, Transfer};
use crate::error::ConversationError;
use crate::framing;
use crate::hash::Sha256Hash;
use crate::matchmaking::{MEMBERS_MAX, ModelVersion};
pub use crate::refusal::ModelRefusal;
use crate::serving;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/model/4";
/// Largest message of this conversation: the members of the largest group fit.
pub const MESSAGE_BYTES_MAX: usize = 24 * 1024;
/// Most bytes of a peer's id.
const PEER_BYTES_MAX: usize = 64;

/// From the peer that is behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelRequest {
    /// The step that was made on this model.
    StepAfter(ModelVersion),
    /// A checkpoint.
    Checkpoint {
        /// Whether to send the newest checkpoint that other peers have too, so that a transfer that is cut can go on
        /// with them; otherwise one of the current model.
        is_shared: bool,
    },
}

/// From the peer that is ahead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ModelResponse {
    /// The bytes that follow are the step's averaged gradient.
    Step(StepHeader),
    /// The bytes that follow are a checkpoint.
    Checkpoint(Transfer),
    /// No step was made on that model yet: this peer has the same one.
    UpToDate,
    /// Not served.
    Refused(ModelRefusal),
}

/// A step with an average over several peers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepHeader {
    /// The epoch that the step ended.
    pub epoch: u64,
    /// Hash of the model before the step.
    pub before: Sha256Hash,
    /// Tells its averaging round from others of that model.
    pub nonce: u64,
    /// Samples behind it.
    pub n_samples: u64,
    /// Mean loss of the samples.
    pub loss: f32,
    /// Bytes of the peer ids of the members whose values are in the average.
    pub members: Vec<Vec<u8>>,
    /// The averaged gradient, as little-endian f32.
    pub transfer: Transfer,
}

/// Result of [`fetch_step`].
#[derive(Debug, Clone, PartialEq)]
pub enum Fetched {
    /// A step and its averaged gradient, as little-endian f32.
    Step(StepHeader, Vec<u8>),
    /// The other side has the same model.
    UpToDate,
    /// The other side has no step on that model.
    Unknown(ModelRefusal),
}

/// Asks for the step after `model`, of `n_parameters` values.
///
/// # Errors
/// A step that does not fit the model, or a stream that fails.
pub async fn fetch_step<S>(
    stream: &mut S,
    model: ModelVersion,
    n_parameters: usize,
) -> Result<Fetched, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &ModelRequest::StepAfter(model), MESSAGE_BYTES_MAX).await?;
    let header = match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        ModelResponse::Step(header) => header,
        ModelResponse::UpToDate => return Ok(Fetched::UpToDate),
        ModelResponse::Refused(refusal) => return Ok(Fetched::Unknown(refusal)),
        ModelResponse::Checkpoint(_) => {
            return Err(ConversationError::Unexpected("a checkpoint came, a step was asked for"));
        }
    };
    let n_bytes = (n_parameters * size_of::<f32>()) as u64;
    let fits = header.epoch == model.epoch
        && header.before == model.hash
        && header.loss.is_finite()
        && header.transfer.n_bytes == n_bytes
        && header.members.len() <= MEMBERS_MAX
        && header.members.iter().all(|peer| peer.len() <= PEER_BYTES_MAX);
    if !fits {
        let what = "bytes of a step, or a step of another model,";
        return Err(ConversationError::Mismatch { what, want: n_bytes, got: header.transfer.n_bytes });
    }
    let mut partial = Partial::new(header.transfer, n_bytes)?;
    let mean = bulk::pull(stream, &mut partial, |_| ()).await?;
    Ok(Fetched::Step(header, mean))
}

/// Pulls a checkpoint of at most `bytes_max` bytes, or the rest of `partial` where this peer has the same one. On an
/// error `partial` keeps what arrived.
///
/// # Errors
/// [`ConversationError::Model`] where the other side refuses, and a stream that fails.
pub async fn fetch_checkpoint<S>(
    stream: &mut S,
    is_shared: bool,
    bytes_max: u64,
    partial: &mut Option<Partial>,
) -> Result<Vec<u8>, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &ModelRequest::Checkpoint { is_shared }, MESSAGE_BYTES_MAX).await?;
    let transfer = match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        ModelResponse::Checkpoint(transfer) => transfer,
        ModelResponse::Refused(refusal) => return Err(refusal.into()),
        ModelResponse::Step(_) | ModelResponse::UpToDate => {
            return Err(ConversationError::Unexpected("no checkpoint came, one was asked for"));
        }
    };
    if partial.as_ref().is_none_or(|cut| cut.transfer() != transfer) {
        *partial = None;
    }
    let cut = match partial {
        Some(cut) => cut,
        None => partial.insert(Partial::new(transfer, bytes_max)?),
    };
    let bytes = bulk::pull(stream, cut, |_| ()).await?;
    *partial = None;
    Ok(bytes)
}

/// An answer, and the bytes that follow it.
pub type ResponseAndBytes = (ModelResponse, Vec<u8>);

/// Serves requests on `stream` until the other side closes it. `lookup` returns the answer and its bytes, which are
/// ignored where the answer has none. `on_answered` is called after each answer.
///
/// # Errors
/// The stream fails, or a message is no request.
pub async fn serve<S, F>(
    stream: &mut S,
    lookup: impl Fn(ModelRequest) -> F,
    on_answered: impl FnMut(),
) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = ResponseAndBytes>,
{
    let answered = move |request: ModelRequest| {
        let found = lookup(request);
        async move {
            let (answer, bytes) = found.await;
            let has_bytes = matches!(answer, ModelResponse::Step(_) | ModelResponse::Checkpoint(_));
            (answer, has_bytes.then_some(bytes))
        }
    };
    serving::serve(stream, MESSAGE_BYTES_MAX, answered, on_answered).await
}
