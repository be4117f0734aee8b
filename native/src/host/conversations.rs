//! Conversations of a run of any scheme: its description, access, parameters and shards; and how the streams of every
//! conversation are accepted.
//!
//! There is one accept loop for each protocol, and a task for each stream. Access is checked in one place, [`accept`], by
//! the gate. A scheme adds its own conversations.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::access;
use barnraise_protocol::bulk;
use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::receipt::ReceiptError;
use barnraise_protocol::run::SignedRun;
use barnraise_protocol::{ConversationError, Refusal, contribute, run, shard, state};
use barnraise_relay::tasks::TaskSet;
use barnraise_relay::{Node, NodeError, Paced, Violation};
use barnraise_swarm::guard::PaceLimits;
use futures::future::{Abortable, Either};
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, StreamExt};
use libp2p::{PeerId, Stream};

use super::access::{Access, Conversation, Exclusion, Pass, converse};
use super::metrics::RunMetrics;
use super::run::RunTasks;
use super::states::States;
use crate::config::ConversationsSection;
use crate::data::shards::ShardStore;
use crate::net::transfer_slots::TransferSlots;
use crate::net::violations;

/// An access stream that is idle for this long is closed. Renewals open streams of their own.
const ACCESS_IDLE_MAX: Duration = Duration::from_secs(30);

/// What the conversations of every scheme are held with. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RunServices {
    /// The run, with its authority's word for it where this is that.
    pub described: Arc<SignedRun>,
    /// Newest parameters.
    pub states: States,
    /// The data.
    pub shards: Arc<ShardStore>,
    /// Access control.
    pub access: Access,
    /// Opens streams to the run's authority, and knows the paths of peers.
    pub node: Node,
    /// Limits on streams and their pace.
    pub conversations: ConversationsSection,
    /// Counters for the operator.
    pub metrics: RunMetrics,
}

/// A stream in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Duplex for S {}

/// The peer on the other side of a stream, and its access.
pub(crate) struct Caller {
    pub peer: PeerId,
    pub pass: Pass,
}

/// Why a stream ended early. Only for the log: the peer was sent a refusal where that was possible.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("nothing moved for {0:?}")]
    Stalled(Duration),
    #[error("a second Join in one session")]
    JoinedTwice,
    #[error("the transfer took too long, or gave way to another")]
    Abandoned,
    #[error("the backbone is shutting down")]
    ShuttingDown,
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
    #[error("access ended: {0}")]
    AccessEnded(#[from] Exclusion),
}

/// Slots of peers with access, and of peers without.
#[derive(Clone)]
pub(crate) struct StreamSlots {
    members: Arc<TransferSlots>,
    strangers: Arc<TransferSlots>,
}

/// Streams of all contributors at a time, for each contributor that the run admits; it needs five.
const STREAMS_PER_CONTRIBUTOR: usize = 8;
/// Streams at a time of one peer without access; it needs one for the description and one for the token.
const STREAMS_PER_STRANGER: usize = 8;
/// Streams of all peers without access, for each contributor that the run admits.
const STREAMS_OF_STRANGERS: usize = 2;
/// The same where the run admits a few: they all come at once.
const STREAMS_OF_STRANGERS_MIN: usize = 64;

/// Whether a protocol is open to everybody, or how it refuses a peer without access.
#[derive(Clone, Copy)]
pub(crate) enum AccessPolicy {
    /// For everybody: the run's description, and requests for access.
    Open,
    /// For peers with access; encodes the refusal of others.
    Gated(fn(&Exclusion) -> Result<Vec<u8>, FrameError>),
}

impl StreamSlots {
    /// For a run that admits so many contributors.
    pub(crate) fn new(conversations: &ConversationsSection, contributors_max: u32) -> Self {
        let n_contributors = contributors_max as usize;
        let n_of_strangers = (STREAMS_OF_STRANGERS * n_contributors).max(STREAMS_OF_STRANGERS_MIN);
        let n_of_members = STREAMS_PER_CONTRIBUTOR * n_contributors;
        Self {
            members: Arc::new(TransferSlots::new(n_of_members, conversations.per_peer)),
            strangers: Arc::new(TransferSlots::new(n_of_strangers, STREAMS_PER_STRANGER)),
        }
    }
}

/// Accepts the conversations of every scheme until the node shuts down.
pub(crate) fn serve(
    services: &RunServices,
    slots: &StreamSlots,
    tasks: &mut RunTasks,
) -> Result<(), NodeError> {
    accept(services, tasks, run::PROTOCOL, AccessPolicy::Open, slots, describe)?;
    for before in run::OLDER_PROTOCOLS {
        let tell = |services, _, stream| tell_version(services, stream);
        accept(services, tasks, before, AccessPolicy::Open, slots, tell)?;
    }
    accept(services, tasks, access::PROTOCOL, AccessPolicy::Open, slots, grant_access)?;
    let no_state = |refusal: &Exclusion| {
        let message = state::BackboneToContributor::Refused(refusal.into());
        framing::encode(&message, state::MESSAGE_BYTES_MAX)
    };
    accept(services, tasks, state::PROTOCOL, AccessPolicy::Gated(no_state), slots, send_state)?;
    let no_shard = |refusal: &Exclusion| {
        let message = shard::BackboneToContributor::Refused(refusal.into());
        framing::encode(&message, shard::MESSAGE_BYTES_MAX)
    };
    accept(services, tasks, shard::PROTOCOL, AccessPolicy::Gated(no_shard), slots, send_shards)
}

/// Accepts one conversation until the node shuts down. `services` are cloned for each stream.
pub(crate) fn accept<T, F>(
    services: &T,
    tasks: &mut RunTasks,
    protocol: &'static str,
    policy: AccessPolicy,
    slots: &StreamSlots,
    handle: impl Fn(T, Caller, Stream) -> F + Send + 'static,
) -> Result<(), NodeError>
where
    T: AsRef<RunServices> + Clone + Send + 'static,
    F: Future<Output = Result<(), StreamError>> + Send + 'static,
{
    let host = services.as_ref().clone();
    let mut incoming = host.node.accept(protocol)?;
    let (services, slots) = (services.clone(), slots.clone());
    // It ends with the node.
    tasks.spawn(async move {
        let conversations = TaskSet::default();
        while let Some((peer, stream)) = incoming.next().await {
            let access = host.access.gate.check(peer);
            let pool = if access.is_ok() { &slots.members } else { &slots.strangers };
            let Some((slot, registration)) = TransferSlots::take(pool, peer) else {
                tracing::debug!(%peer, protocol, "no slot for another stream");
                host.node.report(peer, Violation::Streams);
                continue;
            };
            let conversation = match (access, policy) {
                (Ok(pass), _) => Either::Left(handle(services.clone(), Caller { peer, pass }, stream)),
                (Err(_), AccessPolicy::Open) => {
                    let caller = Caller { peer, pass: Pass::always() };
                    Either::Left(handle(services.clone(), caller, stream))
                }
                (Err(refusal), AccessPolicy::Gated(frame)) => {
                    let stream = Paced::new(stream, host.conversations.pace());
                    Either::Right(turn_away(stream, frame(&refusal)))
                }
            };
            let node = host.node.clone();
            conversations.spawn(protocol, async move {
                let ended = Abortable::new(conversation, registration).await;
                let violation = match &ended {
                    Ok(ended) => ended.as_ref().err().and_then(StreamError::violation),
                    Err(_) => Some(Violation::StreamGaveWay),
                };
                if let Ok(Err(error)) = ended {
                    tracing::debug!(%peer, protocol, %error, "conversation ended");
                }
                if let Some(violation) = violation {
                    node.report(peer, violation);
                }
                drop(slot);
            });
        }
    });
    Ok(())
}

/// Reads and ignores the first message, then sends a refusal.
async fn turn_away(mut stream: Paced<Stream>, frame: Result<Vec<u8>, FrameError>) -> Result<(), StreamError> {
    let mut header = [0; framing::HEADER_BYTES];
    stream.read_exact(&mut header).await.map_err(FrameError::from)?;
    let n_bytes = framing::decode_header(header, contribute::MESSAGE_BYTES_MAX)?;
    let mut message = (&mut stream).take(n_bytes as u64);
    futures::io::copy(&mut message, &mut futures::io::sink()).await.map_err(FrameError::from)?;
    stream.write_all(&frame?).await.map_err(FrameError::from)?;
    Ok(stream.close().await.map_err(FrameError::from)?)
}

impl AsRef<Self> for RunServices {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl StreamError {
    /// What it says of the other side.
    pub(crate) fn violation(&self) -> Option<Violation> {
        match self {
            Self::Conversation(error) => violations::of_conversation(error),
            Self::Frame(error) => Violation::of_frame(error),
            Self::Stalled(_) => Some(Violation::StalledTransfer),
            Self::JoinedTwice => Some(Violation::UnexpectedMessage),
            Self::Abandoned | Self::ShuttingDown | Self::AccessEnded(_) | Self::Receipt(_) => None,
        }
    }
}

impl Caller {
    /// Runs `conversation` for as long as the caller has access.
    pub(crate) async fn while_admitted<T>(
        &mut self,
        conversation: impl Future<Output = T>,
    ) -> Result<T, StreamError> {
        tokio::select! {
            output = conversation => Ok(output),
            reason = self.pass.ended() => Err(reason.into()),
        }
    }
}

pub(crate) async fn describe<S: Duplex>(
    services: RunServices,
    _: Caller,
    stream: S,
) -> Result<(), StreamError> {
    let mut stream = Paced::new(stream, services.conversations.pace());
    Ok(run::answer(&mut stream, &services.described).await?)
}

/// Answers a contributor of an older protocol version.
async fn tell_version(services: RunServices, stream: Stream) -> Result<(), StreamError> {
    let mut stream = Paced::new(stream, services.conversations.pace());
    Ok(run::answer_older_version(&mut stream).await?)
}

pub(crate) async fn send_state<S: Duplex>(
    services: RunServices,
    mut caller: Caller,
    stream: S,
) -> Result<(), StreamError> {
    let mut stream = Paced::new(stream, services.conversations.pace());
    let (states, pace) = (&services.states, stream.pace());
    let served = state::serve(&mut stream, |epoch| ready(states.read(epoch)), || pace.wait());
    Ok(caller.while_admitted(served).await??)
}

pub(crate) async fn send_shards<S: Duplex>(
    services: RunServices,
    mut caller: Caller,
    stream: S,
) -> Result<(), StreamError> {
    let mut stream = Paced::new(stream, services.conversations.pace());
    let (shards, metrics, pace) = (&services.shards, &services.metrics, &stream.pace());
    let lookup = |id: shard::ShardId| async move {
        let bytes: Arc<[u8]> = match id {
            shard::ShardId::Preprocessing => shards.preprocessing().ok_or(Refusal::NoShard)?,
            id => Arc::from(&*shards.get(id).await.map_err(Refusal::unavailable)?),
        };
        let transfer = id.transfer(shards.manifest()).unwrap_or_else(|| bulk::Transfer::of(&bytes));
        metrics.on_shard(transfer.n_bytes);
        pace.answer();
        Ok((transfer, bytes))
    };
    let served = shard::serve(&mut stream, lookup, || pace.wait());
    Ok(caller.while_admitted(served).await??)
}

async fn grant_access(services: RunServices, caller: Caller, stream: Stream) -> Result<(), StreamError> {
    let RunServices { access, node, conversations, .. } = services;
    let idle = conversations.idle_timeout.min(ACCESS_IDLE_MAX);
    let mut stream = Paced::new(stream, PaceLimits { idle, ..conversations.pace() });
    Ok(converse(&Conversation { access, node }, caller.peer, &mut stream).await?)
}

/// `future`, with a time limit.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, StreamError> {
    tokio::time::timeout(limit, future).await.map_err(|_| StreamError::Stalled(limit))
}
