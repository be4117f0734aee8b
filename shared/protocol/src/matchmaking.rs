//! The `matchmaking` conversation: peers that aggregate a run tell each other how they stand, until one of them
//! proposes who averages what with whom (DeDLOC §3.1, appendix B).
//!
//! ```text
//! dialler  -> acceptor   Hello: which run, trained how
//! acceptor -> dialler    Welcome, or Refused with the reason
//! dialler  -> acceptor   Standing whenever something changed, Addresses and Reducers likewise, and Proposal
//! ```
//!
//! Each pair holds two of them, one in each direction, so that neither side reads and writes at once.

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::error::ConversationError;
use crate::framing;
use crate::hash::Sha256Hash;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/matchmaking/4";
/// Largest message of this conversation: a group of the most members there can be fits.
pub const MESSAGE_BYTES_MAX: usize = 32 * 1024;
/// Most addresses of a peer that are told, the best ways first.
pub const ADDRESSES_MAX: usize = 8;
/// Most members of a group.
pub const MEMBERS_MAX: usize = 256;
/// Fewest members that average with each other: one alone averages nothing.
pub const GROUP_SIZE_MIN: u16 = 2;
/// Most native peers that average parts for a group.
pub const REDUCERS_MAX: usize = 16;
/// Most addresses of one of them.
pub const REDUCER_ADDRESSES_MAX: usize = 4;
/// Longest address of one of them.
pub const REDUCER_ADDRESS_BYTES_MAX: usize = 128;

const _: () = assert!(
    REDUCERS_MAX * (REDUCER_ADDRESSES_MAX * (REDUCER_ADDRESS_BYTES_MAX + 2) + 64) < MESSAGE_BYTES_MAX
);

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
    /// Native peers that offered it to average parts: at most [`REDUCERS_MAX`]. Replaces what was told before.
    Reducers(Vec<Reducer>),
}

/// A native peer that averages parts and has no values of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reducer {
    /// Bytes of its peer id.
    pub peer: Vec<u8>,
    /// Bytes per second that it says it can receive.
    pub download_bytes_per_s: f32,
    /// Bytes per second that it says it can send.
    pub upload_bytes_per_s: f32,
    /// Where it can be dialled: at most [`REDUCER_ADDRESSES_MAX`] multiaddresses of at most
    /// [`REDUCER_ADDRESS_BYTES_MAX`] bytes, without its peer id.
    pub addresses: Vec<Vec<u8>>,
}

impl Reducer {
    /// What is wrong with it, if anything.
    ///
    /// # Errors
    /// Too many addresses, one that is too long, or speeds that are none.
    pub fn check(&self) -> Result<(), String> {
        let n = self.addresses.len();
        if n > REDUCER_ADDRESSES_MAX {
            return Err(format!("at most {REDUCER_ADDRESSES_MAX} addresses are taken, not {n}"));
        }
        if let Some(long) = self.addresses.iter().map(Vec::len).find(|len| *len > REDUCER_ADDRESS_BYTES_MAX) {
            return Err(format!("an address has at most {REDUCER_ADDRESS_BYTES_MAX} bytes, not {long}"));
        }
        for speed in [self.download_bytes_per_s, self.upload_bytes_per_s] {
            if !speed.is_finite() || speed <= 0.0 {
                return Err(format!("{speed} bytes per second are none"));
            }
        }
        Ok(())
    }
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
    /// Most members that average with each other at a time, at least [`GROUP_SIZE_MIN`]. With as many as there are
    /// members, or more, they are one group; with fewer they average in a grid of groups, one round after the other.
    pub group_size: u16,
    /// Who, in the order of their parts.
    pub members: Vec<ProposedMember>,
    /// Native peers that average parts for them: their parts come after those of the members.
    pub reducers: Vec<ProposedReducer>,
    /// What the members check the parts of the reducers with, who are not told.
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
    /// themselves; 0 for one that nobody can dial.
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
