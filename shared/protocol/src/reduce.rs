//! The `reduce` conversation: a native peer offers a backbone to average parts for the run's backbones, and is told of
//! each averaging that it has a part in (DeDLOC §3.2: a peer with `c_i = 0` that aggregates).
//!
//! ```text
//! reducer  -> backbone   Offer: for which run, how fast, where it can be dialled
//! backbone -> reducer    Welcome, or Refused with the reason
//! backbone -> reducer    Round for each averaging that it has a part in, Still now and then
//! ```
//!
//! Values travel in the conversation `average`, between the reducer and each of the backbones. Either side ends the
//! conversation by closing it. A reducer that can be dialled elsewhere than before opens another one, which replaces the
//! one before.

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::codec::TensorCodec;
use crate::error::ConversationError;
use crate::framing;
use crate::matchmaking::Reducer;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/reduce/1";
/// Largest message of this conversation: a group of the most members there can be fits.
pub const MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// What the reducer says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// The run's short name.
    pub run_id: String,
    /// Itself.
    pub reducer: Reducer,
}

/// Backbone to reducer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackboneToReducer {
    /// It is asked from now on.
    Welcome,
    /// It is not, with the reason.
    Refused(String),
    /// It has a part in this.
    Round(Round),
    /// Nothing: the backbone is there.
    Still,
}

/// An averaging, as a member needs to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// What it is called.
    pub name: Vec<u8>,
    /// Who, in the order of their parts.
    pub members: Vec<Member>,
    /// Values of the vector.
    pub n_values: u64,
    /// How values travel.
    pub codec: TensorCodec,
    /// How long the others wait for a member over one part.
    pub patience_ms: u32,
    /// How long a reducer may be silent.
    pub reducer_timeout_ms: u32,
    /// How long all of it may take.
    pub deadline_ms: u32,
}

/// A member of the group that averages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Bytes of its peer id.
    pub peer: Vec<u8>,
    /// Samples behind its values; 0 for one that sends none.
    pub n_samples: u64,
    /// Whether it wants the average.
    pub receives: bool,
    /// Values that it averages for all.
    pub n_reduced: u64,
}

/// Offers to average parts.
///
/// # Errors
/// [`ConversationError::Refused`] with the backbone's reason.
pub async fn offer<S>(stream: &mut S, offer: &Offer) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, offer, MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        BackboneToReducer::Welcome => Ok(()),
        BackboneToReducer::Refused(reason) => Err(ConversationError::Refused(reason)),
        BackboneToReducer::Round(_) | BackboneToReducer::Still => {
            Err(ConversationError::Refused("the backbone began before it answered".to_owned()))
        }
    }
}

/// Hears an offer; `check` says what is wrong with it, if anything.
///
/// # Errors
/// [`ConversationError::Refused`] with that reason, which the other side has been told.
pub async fn welcome<S>(
    stream: &mut S,
    check: impl FnOnce(&Offer) -> Result<(), String>,
) -> Result<Offer, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let offer: Offer = framing::read(stream, MESSAGE_BYTES_MAX).await?;
    let checked = offer.reducer.check().and_then(|()| check(&offer));
    let answer = match &checked {
        Ok(()) => BackboneToReducer::Welcome,
        Err(reason) => BackboneToReducer::Refused(reason.clone()),
    };
    framing::write(stream, &answer, MESSAGE_BYTES_MAX).await?;
    checked.map(|()| offer).map_err(ConversationError::Refused)
}
