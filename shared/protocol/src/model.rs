//! The `model` conversation: a peer that aggregates a run and fell behind gets the model of one that did not
//! (DeDLOC §3.1).
//!
//! ```text
//! behind -> ahead    StepAfter a model, or Checkpoint
//! ahead  -> behind   Step, or Checkpoint: the bytes follow, once pulled; UpToDate; or Refused with the reason
//! ```
//!
//! Steps are what all stepped by, so whoever makes them has the same model as the others, bit by bit. Where the
//! journal does not reach back, or another line of models was followed, there is a checkpoint. Peers have the same
//! ones: a transfer that was cut goes on with another peer.

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::bulk::{self, Partial, Transfer};
use crate::error::ConversationError;
use crate::framing;
use crate::hash::Sha256Hash;
use crate::matchmaking::{MEMBERS_MAX, ModelVersion};
use crate::serving;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/model/1";
/// Largest message of this conversation: the members of the largest group fit.
pub const MESSAGE_BYTES_MAX: usize = 24 * 1024;
/// Most bytes of a peer's id.
const PEER_BYTES_MAX: usize = 64;

/// From the peer that is behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The step that was made on this model.
    StepAfter(ModelVersion),
    /// A checkpoint.
    Checkpoint {
        /// The newest one that others have too, so that a transfer that is cut can go on with them; or else one of
        /// now.
        is_shared: bool,
    },
}

/// From the peer that is ahead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The bytes that follow are what the step was made by.
    Step(StepHeader),
    /// The bytes that follow are a checkpoint.
    Checkpoint(Transfer),
    /// No step was made on that model yet: it is the one that this peer has.
    UpToDate,
    /// Not served, with the reason.
    Refused(String),
}

/// A step that several peers made together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepHeader {
    /// The epoch that it ended.
    pub epoch: u64,
    /// The model that it was made on.
    pub before: Sha256Hash,
    /// Names its averaging among those of that model.
    pub nonce: u64,
    /// Samples behind it.
    pub n_samples: u64,
    /// Mean loss of the samples.
    pub loss: f32,
    /// Bytes of the ids of those whose contributions are in it.
    pub members: Vec<Vec<u8>>,
    /// Of the mean, as little-endian f32.
    pub transfer: Transfer,
}

/// What was fetched.
#[derive(Debug, Clone, PartialEq)]
pub enum Fetched {
    /// A step and the mean that it was made by, as little-endian f32.
    Step(StepHeader, Vec<u8>),
    /// The other side has the same model.
    UpToDate,
    /// The other side does not know that model, with its words.
    Unknown(String),
}

/// Asks for the step after `model`, of `n_parameters` values.
///
/// # Errors
/// A step that is not one of that model, and a stream that fails.
pub async fn fetch_step<S>(
    stream: &mut S,
    model: ModelVersion,
    n_parameters: usize,
) -> Result<Fetched, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &Request::StepAfter(model), MESSAGE_BYTES_MAX).await?;
    let header = match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        Answer::Step(header) => header,
        Answer::UpToDate => return Ok(Fetched::UpToDate),
        Answer::Refused(reason) => return Ok(Fetched::Unknown(reason)),
        Answer::Checkpoint(_) => {
            return Err(ConversationError::Refused("a checkpoint came, a step was asked for".into()));
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
        return Err(ConversationError::Refused(format!(
            "a step of epoch {} and {} bytes came, one of epoch {} and {n_bytes} bytes was asked for",
            header.epoch, header.transfer.n_bytes, model.epoch
        )));
    }
    let mut partial = Partial::new(header.transfer, n_bytes)?;
    let mean = bulk::pull(stream, &mut partial, |_| ()).await?;
    Ok(Fetched::Step(header, mean))
}

/// Pulls a checkpoint of at most `bytes_max` bytes, or the rest of `partial` where this peer has the same one. On an
/// error `partial` keeps what arrived.
///
/// # Errors
/// [`ConversationError::Refused`] with the other side's reason, and a stream that fails.
pub async fn fetch_checkpoint<S>(
    stream: &mut S,
    is_shared: bool,
    bytes_max: u64,
    partial: &mut Option<Partial>,
) -> Result<Vec<u8>, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, &Request::Checkpoint { is_shared }, MESSAGE_BYTES_MAX).await?;
    let transfer = match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        Answer::Checkpoint(transfer) => transfer,
        Answer::Refused(reason) => return Err(ConversationError::Refused(reason)),
        Answer::Step(_) | Answer::UpToDate => {
            return Err(ConversationError::Refused("no checkpoint came, one was asked for".into()));
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

/// Bytes to give, and what they are.
pub type Found = (Answer, Vec<u8>);

/// Serves requests on `stream` until the other side closes it. `lookup` answers with what is found and its bytes,
/// which are not looked at where the answer has none; `on_answered` is told when the next request is waited for.
///
/// # Errors
/// The stream fails, or what comes on it is no request.
pub async fn serve<S, F>(
    stream: &mut S,
    lookup: impl Fn(Request) -> F,
    on_answered: impl FnMut(),
) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Found>,
{
    let answered = move |request: Request| {
        let found = lookup(request);
        async move {
            let (answer, bytes) = found.await;
            let has_bytes = matches!(answer, Answer::Step(_) | Answer::Checkpoint(_));
            (answer, has_bytes.then_some(bytes))
        }
    };
    serving::serve(stream, MESSAGE_BYTES_MAX, answered, on_answered).await
}
