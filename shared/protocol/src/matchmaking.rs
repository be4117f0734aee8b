//! The `matchmaking` conversation: aggregators of a run exchange their status, until one of them proposes a group and
//! the part that each member averages (DeDLOC §3.1, appendix B).
//!
//! ```text
//! dialler  -> acceptor   Hello: the run and its training configuration
//! acceptor -> dialler    Welcome, or Refused with the reason
//! dialler  -> acceptor   Status, Addresses and Reducers after each change, and Proposal
//! ```
//!
//! Each pair holds two of these conversations, one in each direction, so that neither side reads and writes at once.

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::error::ConversationError;
use crate::framing;
use crate::hash::Sha256Hash;
pub use crate::refusal::{HelloRefusal, REDUCER_ADDRESS_BYTES_MAX, REDUCER_ADDRESSES_MAX, ReducerError};

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/matchmaking/7";
/// Largest message of this conversation: a group of the most members there can be fits.
pub const MESSAGE_BYTES_MAX: usize = 32 * 1024;
/// Most addresses of a peer, the best transports first.
pub const ADDRESSES_MAX: usize = 8;
/// Most members of a group.
pub const MEMBERS_MAX: usize = 256;
/// Fewest members of a group: one alone has nothing to average.
pub const GROUP_SIZE_MIN: u16 = 2;
/// Most native peers that average parts for a group.
pub const REDUCERS_MAX: usize = 16;
const _: () = assert!(
    REDUCERS_MAX * (REDUCER_ADDRESSES_MAX * (REDUCER_ADDRESS_BYTES_MAX + 2) + 64) < MESSAGE_BYTES_MAX
);

/// First message of the dialler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The run's short name.
    pub run_id: String,
    /// Hash of all that determines a step: model, seed, data, optimizer, schedule, batch size. Peers with another hash
    /// would make different models of the same gradients.
    pub recipe: Sha256Hash,
}

/// Answer of the acceptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HelloResponse {
    /// Go on.
    Welcome,
    /// No.
    Refused(HelloRefusal),
}

/// Later messages of the dialler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum MatchmakingMessage {
    /// Its status.
    Status(AggregatorStatus),
    /// A proposed group.
    Proposal(Proposal),
    /// Addresses where contributors can dial it: at most [`ADDRESSES_MAX`] multiaddresses with its peer id. Replaces the
    /// previous list.
    Addresses(Vec<String>),
    /// Native peers that offered it to average parts: at most [`REDUCERS_MAX`]. Replaces the previous list.
    Reducers(Vec<Reducer>),
}

/// A native peer that averages parts and has no values of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reducer {
    /// Bytes of its peer id.
    pub peer: Vec<u8>,
    /// Bytes per second that it claims to receive.
    pub download_bytes_per_s: f32,
    /// Bytes per second that it claims to send.
    pub upload_bytes_per_s: f32,
    /// Its addresses: at most [`REDUCER_ADDRESSES_MAX`] multiaddresses of at most [`REDUCER_ADDRESS_BYTES_MAX`] bytes,
    /// without its peer id.
    pub addresses: Vec<Vec<u8>>,
}

impl Reducer {
    /// Checks its addresses and speeds.
    ///
    /// # Errors
    /// Too many addresses, one that is too long, or a speed that is not positive.
    pub fn check(&self) -> Result<(), ReducerError> {
        let n = self.addresses.len();
        if n > REDUCER_ADDRESSES_MAX {
            return Err(ReducerError::Addresses(count(n)));
        }
        if let Some(long) = self.addresses.iter().map(Vec::len).find(|len| *len > REDUCER_ADDRESS_BYTES_MAX) {
            return Err(ReducerError::AddressBytes(count(long)));
        }
        for speed in [self.download_bytes_per_s, self.upload_bytes_per_s] {
            if !speed.is_finite() || speed <= 0.0 {
                return Err(ReducerError::Speed(speed));
            }
        }
        Ok(())
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
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

/// Status of an aggregator.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AggregatorStatus {
    /// Which model it has.
    pub model: ModelVersion,
    /// Samples that its contributors have for the coming step: counted, on their way, and reported.
    pub n_samples: u64,
    /// Its contributors.
    pub n_contributors: u32,
    /// Speed of all of them together.
    pub samples_per_second: f32,
    /// It knows of enough samples for a step and collects the reported gradients.
    pub is_closing: bool,
    /// Set once it has collected them.
    pub ready: Option<Ready>,
    /// It averages, or downloads a model, and accepts no proposal.
    pub is_busy: bool,
    /// Bytes per second that it can receive.
    pub download_bytes_per_s: f32,
    /// Bytes per second that it can send.
    pub upload_bytes_per_s: f32,
    /// Whether other aggregators can dial it. Only then it averages a part.
    pub is_reachable: bool,
}

impl AggregatorStatus {
    /// Of a reachable aggregator that has this model and no contributors, and has measured no speed.
    pub fn new(model: ModelVersion) -> Self {
        Self {
            model,
            n_samples: 0,
            n_contributors: 0,
            samples_per_second: 0.0,
            is_closing: false,
            ready: None,
            is_busy: false,
            download_bytes_per_s: 0.0,
            upload_bytes_per_s: 0.0,
            is_reachable: true,
        }
    }
}

/// The gradient that a peer offers for averaging.
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
    /// Drawn by the proposer: tells this round from all others of these members.
    pub nonce: u64,
    /// Most members that average with each other at a time, at least [`GROUP_SIZE_MIN`]. With as many as there are
    /// members, or more, they are one group; with fewer they average in a grid of groups, one round after the other.
    pub group_size: u16,
    /// The members, in the order of their parts.
    pub members: Vec<ProposedMember>,
    /// Native peers that average parts for them: their parts come after those of the members.
    pub reducers: Vec<ProposedReducer>,
    /// Seed with which the members check the reducers' parts; the reducers do not get it.
    pub check_seed: u64,
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
    /// Values that it averages for all. In a grid the weight by which the members of each group divide the values among
    /// themselves; 0 for a member that cannot be dialled.
    pub n_reduced: u64,
}

/// A native peer that averages a part, as proposed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedReducer {
    /// Bytes of its peer id.
    pub peer: Vec<u8>,
    /// Values that it averages for all.
    pub n_reduced: u64,
}

/// Introduces this peer to the one at the other end of `stream`.
///
/// # Errors
/// [`ConversationError::Hello`] where the other side refuses.
pub async fn introduce<S>(stream: &mut S, hello: &Hello) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, hello, MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        HelloResponse::Welcome => Ok(()),
        HelloResponse::Refused(refusal) => Err(refusal.into()),
    }
}

/// Reads the dialler's [`Hello`] and answers it with what `check` returns.
///
/// # Errors
/// [`ConversationError::Hello`] with the refusal, which was sent to the dialler too.
pub async fn accept<S>(
    stream: &mut S,
    check: impl FnOnce(&Hello) -> Result<(), HelloRefusal>,
) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let hello = framing::read(stream, MESSAGE_BYTES_MAX).await?;
    let checked = check(&hello);
    let answer = checked.clone().map_or_else(HelloResponse::Refused, |()| HelloResponse::Welcome);
    framing::write(stream, &answer, MESSAGE_BYTES_MAX).await?;
    Ok(checked?)
}
