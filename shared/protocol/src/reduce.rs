//! The `reduce` conversation: a native peer offers a backbone to average parts for the run's backbones, and is notified
//! of each averaging round in which it has a part (DeDLOC §3.2: a peer with `c_i = 0` that aggregates).
//!
//! ```text
//! reducer  -> backbone   Offer: run, speed and addresses
//! backbone -> reducer    Welcome, or Refused with the reason
//! backbone -> reducer    Round for each averaging round in which it has a part, KeepAlive while the stream is idle
//! ```
//!
//! Values travel in the conversation `average`, between the reducer and each of the backbones. Either side ends the
//! conversation by closing it. A reducer whose addresses changed opens another one, which replaces the previous one.

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::codec::TensorCodec;
use crate::error::ConversationError;
use crate::framing;
use crate::matchmaking::Reducer;
pub use crate::refusal::OfferRefusal;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/reduce/2";
/// Largest message of this conversation: a group of the most members there can be fits.
pub const MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// Message of the reducer: its offer to average parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// The run's short name.
    pub run_id: String,
    /// The reducer's id, speeds and addresses.
    pub reducer: Reducer,
}

/// Backbone to reducer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum BackboneToReducer {
    /// Accepted: the reducer gets parts from now on.
    Welcome,
    /// Refused, or admitted no longer.
    Refused(OfferRefusal),
    /// A round in which the reducer has a part.
    Round(ReducerRound),
    /// Keeps an idle stream alive.
    KeepAlive,
}

/// An averaging round, as its reducers need to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReducerRound {
    /// Name of the round.
    pub name: Vec<u8>,
    /// Its members, in the order of their parts.
    pub members: Vec<RoundMember>,
    /// Values of the vector.
    pub n_values: u64,
    /// Codec of the values.
    pub codec: TensorCodec,
    /// Longest time for which a part waits for a member, in milliseconds.
    pub patience_ms: u32,
    /// Longest silence of a reducer, in milliseconds.
    pub reducer_timeout_ms: u32,
    /// Longest duration of the round, in milliseconds.
    pub deadline_ms: u32,
}

/// A member of the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundMember {
    /// Bytes of its peer id.
    pub peer: Vec<u8>,
    /// Samples behind its values; 0 for one that sends none.
    pub n_samples: u64,
    /// Whether it receives the average.
    pub receives: bool,
    /// Values that it averages for all.
    pub n_reduced: u64,
}

/// Offers to average parts.
///
/// # Errors
/// [`ConversationError::Offer`] where the backbone refuses.
pub async fn offer<S>(stream: &mut S, offer: &Offer) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, offer, MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        BackboneToReducer::Welcome => Ok(()),
        BackboneToReducer::Refused(refusal) => Err(refusal.into()),
        BackboneToReducer::Round(_) | BackboneToReducer::KeepAlive => {
            Err(ConversationError::Unexpected("the backbone began before it answered"))
        }
    }
}

/// Reads a reducer's offer and answers it: refused where it is invalid, or where `check` refuses it.
///
/// # Errors
/// [`ConversationError::Offer`] with the refusal, which was sent to the reducer too.
pub async fn accept<S>(
    stream: &mut S,
    check: impl FnOnce(&Offer) -> Result<(), OfferRefusal>,
) -> Result<Offer, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let offer: Offer = framing::read(stream, MESSAGE_BYTES_MAX).await?;
    let checked = offer.reducer.check().map_err(OfferRefusal::from).and_then(|()| check(&offer));
    let answer = checked.clone().map_or_else(BackboneToReducer::Refused, |()| BackboneToReducer::Welcome);
    framing::write(stream, &answer, MESSAGE_BYTES_MAX).await?;
    checked?;
    Ok(offer)
}
