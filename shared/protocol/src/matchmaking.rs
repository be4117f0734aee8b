//! The `matchmaking` conversation: peers that aggregate a run tell each other how they stand, until one of them
//! proposes who averages what with whom (DeDLOC §3.1, appendix B).
//!
//! ```text
//! dialler  -> acceptor   Hello: which run, trained how
//! acceptor -> dialler    Welcome, or Refused with the reason
//! dialler  -> acceptor   Standing whenever something changed, Addresses likewise, and Proposal
//! ```
//!
//! Each pair holds two of them, one in each direction, so that neither side reads and writes at once.

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::error::ConversationError;
use crate::framing;
use crate::hash::Sha256Hash;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/matchmaking/2";
/// Largest message of this conversation: a group of the most members there can be fits.
pub const MESSAGE_BYTES_MAX: usize = 24 * 1024;
/// Most addresses of a peer that are told, the best ways first.
pub const ADDRESSES_MAX: usize = 8;
/// Most members of a group.
pub const MEMBERS_MAX: usize = 256;

/// What the dialler says first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The run's short name.
    pub run_id: String,
    /// Hash of all that makes a step: model, seed, data, optimizer, schedule, batch size. Who differs in any of it
    /// would make another model of the same gradients.
    pub recipe: Sha256Hash,
}

/// What the acceptor answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Go on.
    Welcome,
    /// No, with the reason.
    Refused(String),
}

/// What the dialler says from then on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// How it stands.
    Standing(Standing),
    /// Who averages what with whom.
    Proposal(Proposal),
    /// Where contributors can dial it: at most [`ADDRESSES_MAX`] multiaddresses with its peer id. Replaces what was
    /// told before.
    Addresses(Vec<String>),
}

/// Which model a peer has. Peers whose gradients are to be averaged have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ModelVersion {
    /// Samples behind all its steps. First, so that of two models the one with more samples is the greater.
    pub n_samples_total: u64,
    /// Optimizer steps.
    pub epoch: u64,
    /// Of parameters and optimizer state.
    pub hash: Sha256Hash,
}

/// How an aggregating peer stands.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Which model it has.
    pub model: ModelVersion,
    /// Samples that its contributors have for the coming step: counted, on their way, and reported.
    pub n_samples: u64,
    /// Its contributors.
    pub n_contributors: u32,
    /// All of them together.
    pub samples_per_second: f32,
    /// There are enough samples for a step, as far as it knows: it collects what is reported.
    pub is_closing: bool,
    /// It has collected.
    pub ready: Option<Ready>,
    /// It averages, or gets a model, and takes up no proposal.
    pub is_busy: bool,
    /// Bytes per second that it can receive.
    pub download_bytes_per_s: f32,
    /// Bytes per second that it can send.
    pub upload_bytes_per_s: f32,
    /// Whether others can dial it: it averages a part then.
    pub is_reachable: bool,
}

/// What a peer has to be averaged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// Samples behind its gradient, 0 for one that only averages.
    pub n_samples: u64,
    /// Mean loss of the samples.
    pub loss: f32,
}

/// A group that is to average.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// The model whose gradients are averaged.
    pub model: ModelVersion,
    /// Drawn by who proposes: no other round of these members is called so.
    pub nonce: u64,
    /// Who, in the order of their parts.
    pub members: Vec<ProposedMember>,
    /// Mean loss of all samples.
    pub loss: f32,
}

/// A member of a group, as proposed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedMember {
    /// Bytes of its peer id.
    pub peer: Vec<u8>,
    /// Samples behind its gradient.
    pub n_samples: u64,
    /// Values that it averages for all.
    pub n_reduced: u64,
}

/// Introduces this peer to the one at the other end of `stream`.
///
/// # Errors
/// [`ConversationError::Refused`] with the reason of the other side.
pub async fn introduce<S>(stream: &mut S, hello: &Hello) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, hello, MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        Answer::Welcome => Ok(()),
        Answer::Refused(reason) => Err(ConversationError::Refused(reason)),
    }
}

/// Hears who is at the other end of `stream`; `check` says what is wrong with them, if anything.
///
/// # Errors
/// [`ConversationError::Refused`] with that reason, which the other side has been told.
pub async fn welcome<S>(
    stream: &mut S,
    check: impl FnOnce(&Hello) -> Result<(), String>,
) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let hello = framing::read(stream, MESSAGE_BYTES_MAX).await?;
    let checked = check(&hello);
    let answer = checked.clone().map_or_else(Answer::Refused, |()| Answer::Welcome);
    framing::write(stream, &answer, MESSAGE_BYTES_MAX).await?;
    checked.map_err(ConversationError::Refused)
}
