//! The `sampled` conversation: peers of a run without a server ask each other whether they are live, tell each other who
//! takes part, and push models to the members of a sample (MoDEST §3).
//!
//! ```text
//! dialler -> acceptor   Ping                     acceptor -> dialler   Pong
//! dialler -> acceptor   Meet: a view, a digest   acceptor -> dialler   View: what the dialler lacks
//! dialler -> acceptor   Offer: task and model    acceptor -> dialler   Declined, Busy, or Wanted with a digest
//! dialler -> acceptor   View: what the acceptor lacks
//!                                                acceptor -> dialler   Compare: a seed
//! dialler -> acceptor   Sketch of the model
//!                                                acceptor -> dialler   Pull, Declined or Busy; after Pull it pulls the model
//! ```
//!
//! A sketch is asked for where a trainer compares the averages of several aggregators before it takes one: the hash in the offer has
//! fixed the model before its sender knows the seed.
//!
//! A stream carries any number of requests, one after the other. The model is that of [`crate::bulk`]. An overtaken task, or a
//! model that another aggregator has pushed already, is declined before a byte of it travels.

mod activity;
mod membership;
mod sketch;
mod view;

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::bulk::{self, ChunkSource, Partial, Transfer};
use crate::error::ConversationError;
use crate::framing::{self, FrameError};

pub use self::activity::{
    ACTIVITY_ROUNDS_MAX, ActivityChain, ActivityProof, ActivityToken, PEER_PREFIX_BYTES, PeerPrefix,
};
pub use self::membership::{
    Aggregates, JoinedEvent, MEMBER_ADDRESS_BYTES_MAX, MEMBER_ADDRESSES_MAX, Membership, MembershipError,
    MembershipEvent, SampledRoles,
};
pub use self::sketch::{ModelSketch, SKETCH_VALUES};
pub use self::view::{DIGEST_BYTES_MAX, REGISTERED_MAX, VIEW_BYTES_MAX, View, ViewDigest};

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/sampled/5";
/// Latest round that any peer speaks of: a run of a round each microsecond gets there in 290,000 years. What goes beyond is left
/// aside, so that no sum of rounds overflows.
pub const ROUND_MAX: u64 = u64::MAX / 2;
/// Largest message of this conversation: a view and a digest.
pub const MESSAGE_BYTES_MAX: usize = VIEW_BYTES_MAX + DIGEST_BYTES_MAX + 64;

/// What the receiver of a model is to do with it (MoDEST algorithm 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SampledTask {
    /// Train it on local data, as a member of this round's sample.
    Train {
        /// The round.
        round: u64,
    },
    /// Average it with the other models of the round before, as an aggregator of this round.
    Aggregate {
        /// The round.
        round: u64,
    },
}

impl SampledTask {
    /// The round.
    pub fn round(self) -> u64 {
        match self {
            Self::Train { round } | Self::Aggregate { round } => round,
        }
    }
}

/// A model that can be pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelOffer {
    /// What it is for.
    pub task: SampledTask,
    /// Its encoded parameters.
    pub transfer: Transfer,
}

/// Dialler to acceptor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum DiallerToAcceptor {
    /// Are you live for this round?
    Ping {
        /// The round that is sampled.
        round: u64,
    },
    /// What the dialler tells, its own membership first, and what it knows already.
    Meet(View, ViewDigest),
    /// Here is a model.
    Offer(ModelOffer),
    /// After [`AcceptorToDialler::Wanted`].
    View(View),
    /// Of the offered model, after [`AcceptorToDialler::Compare`].
    Sketch(ModelSketch),
}

/// Acceptor to dialler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AcceptorToDialler {
    /// Live.
    Pong {
        /// Echo.
        round: u64,
    },
    /// What the dialler lacks.
    View(View),
    /// The model is to be pulled. The digest is of what the acceptor knows.
    Wanted(ViewDigest),
    /// The task is overtaken, done, or not this peer's; or the peer has left.
    Declined,
    /// The models that are pulled now are enough. One of them may not come: the offer may be repeated.
    Busy,
    /// The sketch of the offered model by this seed is to come, after [`DiallerToAcceptor::View`].
    Compare {
        /// Unknown to all until then.
        seed: u64,
    },
    /// The model is pulled now, after [`DiallerToAcceptor::View`].
    Pull,
}

/// What a sender is told after its view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferTurn {
    /// Its model is compared with those of others: [`AcceptorToDialler::Compare`].
    Compare {
        /// Of the sketch.
        seed: u64,
    },
    /// Its model is pulled.
    Pull,
    /// It is not wanted.
    Declined,
    /// It is not wanted now.
    Busy,
}

impl OfferTurn {
    fn message(self) -> AcceptorToDialler {
        match self {
            Self::Compare { seed } => AcceptorToDialler::Compare { seed },
            Self::Pull => AcceptorToDialler::Pull,
            Self::Declined => AcceptorToDialler::Declined,
            Self::Busy => AcceptorToDialler::Busy,
        }
    }
}

/// How a push ended, where the stream did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushEnd {
    /// The receiver has the model.
    Delivered,
    /// It does not want it.
    Declined,
    /// It does not want it now.
    Busy,
}

/// Asks whether the peer at the other end is live for a round.
///
/// # Errors
/// It is not, or the stream failed.
pub async fn ping<S>(stream: &mut S, round: u64) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match ask(stream, &DiallerToAcceptor::Ping { round }).await? {
        AcceptorToDialler::Pong { round: echo } if echo == round => Ok(()),
        _ => Err(ConversationError::Unexpected("something else than the pong to a ping")),
    }
}

/// Tells the peer at the other end a view, and returns what it knows beyond `digest`.
///
/// # Errors
/// It takes no part, or the stream failed.
pub async fn meet<S>(stream: &mut S, view: View, digest: ViewDigest) -> Result<View, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match ask(stream, &DiallerToAcceptor::Meet(view, digest)).await? {
        AcceptorToDialler::View(view) => Ok(view),
        _ => Err(ConversationError::Unexpected("something else than a view")),
    }
}

/// Pushes a model of the encoded `bytes`. `view_for` returns what the receiver lacks by its digest, `sketch` that of the model as the
/// receiver decodes it, by a seed.
///
/// # Errors
/// The stream failed.
pub async fn push<S>(
    stream: &mut S,
    task: SampledTask,
    (transfer, bytes): (Transfer, &impl ChunkSource),
    view_for: impl AsyncFnOnce(ViewDigest) -> View,
    sketch: impl AsyncFnOnce(u64) -> Result<ModelSketch, ConversationError>,
) -> Result<PushEnd, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let unexpected = || ConversationError::Unexpected("something else than the answer to an offer");
    let digest = match ask(stream, &DiallerToAcceptor::Offer(ModelOffer { task, transfer })).await? {
        AcceptorToDialler::Wanted(digest) => digest,
        other => return refusal(&other).ok_or_else(unexpected),
    };
    let mut answer = ask(stream, &DiallerToAcceptor::View(view_for(digest).await)).await?;
    if let AcceptorToDialler::Compare { seed } = answer {
        answer = ask(stream, &DiallerToAcceptor::Sketch(sketch(seed).await?)).await?;
    }
    if answer != AcceptorToDialler::Pull {
        return refusal(&answer).ok_or_else(unexpected);
    }
    bulk::serve_source(stream, bytes).await?;
    Ok(PushEnd::Delivered)
}

fn refusal(answer: &AcceptorToDialler) -> Option<PushEnd> {
    match answer {
        AcceptorToDialler::Declined => Some(PushEnd::Declined),
        AcceptorToDialler::Busy => Some(PushEnd::Busy),
        _ => None,
    }
}

/// The next request of the dialler; `None` where it closed the stream.
///
/// # Errors
/// The stream failed, or a view or a sketch came that was not asked for.
pub async fn next_request<S>(stream: &mut S) -> Result<Option<DiallerToAcceptor>, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match framing::read(stream, MESSAGE_BYTES_MAX).await {
        Ok(DiallerToAcceptor::View(_) | DiallerToAcceptor::Sketch(_)) => {
            Err(ConversationError::Unexpected("a view or a sketch that was not asked for"))
        }
        Ok(request) => Ok(Some(request)),
        Err(FrameError::Closed) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Answers a request.
///
/// # Errors
/// The stream failed.
pub async fn respond<S>(stream: &mut S, response: &AcceptorToDialler) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    Ok(framing::write(stream, response, MESSAGE_BYTES_MAX).await?)
}

/// After [`AcceptorToDialler::Wanted`]: reads the view, and pulls the model of exactly `n_bytes`; `None` where it is not wanted after all.
///
/// - `on_view`: what comes next, after the view; `None` where the sender has not proven enough: then no byte of the model is asked for.
///   It may take its time
/// - `on_sketch`: the same after the sketch, where that was asked for
///
/// # Errors
/// A sender that has not proven enough, another length, another hash, or the stream failed.
pub async fn receive<S>(
    stream: &mut S,
    transfer: Transfer,
    n_bytes: u64,
    on_view: impl AsyncFnOnce(View) -> Option<OfferTurn>,
    on_sketch: impl AsyncFnOnce(ModelSketch) -> Option<OfferTurn>,
) -> Result<Option<Vec<u8>>, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let DiallerToAcceptor::View(view) = framing::read(stream, MESSAGE_BYTES_MAX).await? else {
        return Err(ConversationError::Unexpected("something else than a view"));
    };
    if transfer.n_bytes != n_bytes {
        return Err(ConversationError::Mismatch {
            what: "bytes of a model",
            want: n_bytes,
            got: transfer.n_bytes,
        });
    }
    let mut turn = on_view(view).await;
    if let Some(compare @ OfferTurn::Compare { .. }) = turn {
        respond(stream, &compare.message()).await?;
        let DiallerToAcceptor::Sketch(sketch) = framing::read(stream, MESSAGE_BYTES_MAX).await? else {
            return Err(ConversationError::Unexpected("something else than a sketch"));
        };
        turn = on_sketch(sketch).await;
    }
    let turn =
        turn.ok_or(ConversationError::Unexpected("a sender that does not prove what its model needs"))?;
    respond(stream, &turn.message()).await?;
    if turn != OfferTurn::Pull {
        return Ok(None);
    }
    let mut partial = Partial::new(transfer, n_bytes)?;
    Ok(Some(bulk::pull(stream, &mut partial, |_| ()).await?))
}

async fn ask<S>(stream: &mut S, request: &DiallerToAcceptor) -> Result<AcceptorToDialler, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, request, MESSAGE_BYTES_MAX).await?;
    Ok(framing::read(stream, MESSAGE_BYTES_MAX).await?)
}
