//! The backbone's handlers of libp2p streams: one accept loop per protocol, a task per stream.
//!
//! Each handler reads with a limit, waits with a limit, and passes what it received to the core. None of
//! them decides anything. Access is checked in one place, [`accept`], by the gate.

mod gradients;

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::access;
use barnraise_protocol::bulk;
use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::gradient::ContributionRefusal;
use barnraise_protocol::receipt::ReceiptError;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::{ConversationError, Refusal, contribute, evidence, gradient, run, shard, state};
use barnraise_relay::tasks::TaskSet;
use barnraise_relay::{Node, NodeError, Paced, Violation};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::PeerKey;
use barnraise_swarm::guard::PaceLimits;
use futures::future::{Abortable, Either};
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, StreamExt};
use libp2p::{PeerId, Stream};
use tokio::sync::{mpsc, oneshot, watch};

use super::core::{CoreEvent, SESSION_MESSAGES_MAX};
use super::ledger::SharedLedger;
use super::metrics::Metrics;
use super::recomputation::EvidenceStore;
use super::recomputation::exchange::serve_evidence;
use super::recomputation::queue::Recomputing;
use super::states::States;
use crate::config::ConversationsSection;
use crate::data::shards::ShardStore;
use crate::host::access::{Access, Conversation, Exclusion, Pass, converse};
use crate::host::addresses::AddressGroups;
use crate::host::contributions::{Issuer, NameRecorder, WorkMeter};
use crate::host::run::RunTasks;
use crate::net::transfer_slots::TransferSlots;
use crate::net::violations;
use gradients::take_gradients;

/// An access stream that is idle for this long is closed. Renewals open streams of their own.
const ACCESS_IDLE_MAX: Duration = Duration::from_secs(30);

/// Shared state of the handlers.
#[derive(Clone)]
pub(super) struct Services {
    /// The run.
    pub description: Arc<RunDescription>,
    /// Newest parameters.
    pub states: States,
    /// Claimed work, so that none counts twice.
    pub ledger: SharedLedger,
    /// The data.
    pub shards: Arc<ShardStore>,
    /// Events to the core.
    pub core: mpsc::Sender<CoreEvent>,
    /// Access control.
    pub access: Access,
    /// Opens streams to the run's authority, and knows the paths of peers.
    pub node: Node,
    /// Counters for the operator.
    pub metrics: Metrics,
    /// Signs receipts.
    pub issuer: Issuer,
    /// Display names of contributors.
    pub names: NameRecorder,
    /// Measures this aggregator's work.
    pub work: Arc<WorkMeter>,
    /// Limits on streams and their pace.
    pub conversations: ConversationsSection,
    /// Groups peers by their addresses.
    pub addresses: AddressGroups,
    /// Recomputes contributions, where the run asks for it.
    pub recomputing: Option<Recomputing>,
    /// Evidence against convicted peers.
    pub evidence: EvidenceStore,
}

/// A stream in both directions.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Duplex for S {}

/// The peer on the other side of a stream, and its access.
struct Caller {
    peer: PeerId,
    pass: Pass,
}

/// Why a stream ended early. Only for the log: the peer was sent a refusal where that was possible.
#[derive(Debug, thiserror::Error)]
enum StreamError {
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
struct StreamSlots {
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
enum AccessPolicy {
    /// For everybody: the run's description, and requests for access.
    Open,
    /// For peers with access; encodes the refusal of others.
    Gated(fn(&Exclusion) -> Result<Vec<u8>, FrameError>),
}

/// Accepts every conversation on `node` until it shuts down.
pub(super) fn serve(
    services: &Services,
    contributors_max: u32,
    tasks: &mut RunTasks,
) -> Result<(), NodeError> {
    let (per_peer, n_contributors) = (services.conversations.per_peer, contributors_max as usize);
    let n_of_strangers = (STREAMS_OF_STRANGERS * n_contributors).max(STREAMS_OF_STRANGERS_MIN);
    let slots = StreamSlots {
        members: Arc::new(TransferSlots::new(STREAMS_PER_CONTRIBUTOR * n_contributors, per_peer)),
        strangers: Arc::new(TransferSlots::new(n_of_strangers, STREAMS_PER_STRANGER)),
    };
    accept(services, tasks, run::PROTOCOL, AccessPolicy::Open, &slots, describe)?;
    for before in run::OLDER_PROTOCOLS {
        let tell = |services, _, stream| tell_version(services, stream);
        accept(services, tasks, before, AccessPolicy::Open, &slots, tell)?;
    }
    accept(services, tasks, access::PROTOCOL, AccessPolicy::Open, &slots, grant_access)?;
    let no_state = |refusal: &Exclusion| {
        let message = state::BackboneToContributor::Refused(refusal.into());
        framing::encode(&message, state::MESSAGE_BYTES_MAX)
    };
    accept(services, tasks, state::PROTOCOL, AccessPolicy::Gated(no_state), &slots, send_state)?;
    let no_shard = |refusal: &Exclusion| {
        let message = shard::BackboneToContributor::Refused(refusal.into());
        framing::encode(&message, shard::MESSAGE_BYTES_MAX)
    };
    accept(services, tasks, shard::PROTOCOL, AccessPolicy::Gated(no_shard), &slots, send_shards)?;
    let no_session = |refusal: &Exclusion| {
        let message = contribute::BackboneToContributor::Refused(refusal.into());
        framing::encode(&message, contribute::MESSAGE_BYTES_MAX)
    };
    let session = |services: Services, caller: Caller, stream| async move {
        let group = services.addresses.group_of(&services.node, caller.peer).await;
        hold_session(services, caller, group, stream).await
    };
    accept(services, tasks, contribute::PROTOCOL, AccessPolicy::Gated(no_session), &slots, session)?;
    let no_gradient = |refusal: &Exclusion| {
        let message = gradient::BackboneToContributor::Refused(ContributionRefusal::NoAccess(refusal.into()));
        framing::encode(&message, gradient::MESSAGE_BYTES_MAX)
    };
    let gradients = |services: Services, caller: Caller, stream| async move {
        let group = services.addresses.group_of(&services.node, caller.peer).await;
        take_gradients(services, caller, group, stream).await
    };
    accept(services, tasks, gradient::PROTOCOL, AccessPolicy::Gated(no_gradient), &slots, gradients)?;
    accept(services, tasks, evidence::PROTOCOL, AccessPolicy::Open, &slots, give_evidence)
}

/// Handles a stream as [`serve`] does, without a node; returns the violation that it ended with.
#[cfg(test)]
pub(super) async fn answer<S: Duplex>(
    services: Services,
    (peer, group): (PeerId, AddressGroup),
    protocol: &'static str,
    stream: S,
) -> Option<Violation> {
    let caller = Caller { peer, pass: Pass::always() };
    let ended = match protocol {
        run::PROTOCOL => describe(services, caller, stream).await,
        state::PROTOCOL => send_state(services, caller, stream).await,
        shard::PROTOCOL => send_shards(services, caller, stream).await,
        contribute::PROTOCOL => hold_session(services, caller, group, stream).await,
        gradient::PROTOCOL => take_gradients(services, caller, group, stream).await,
        // As a node that does not speak it.
        _ => Ok(()),
    };
    ended.err().as_ref().and_then(StreamError::violation)
}

fn accept<F>(
    services: &Services,
    tasks: &mut RunTasks,
    protocol: &'static str,
    policy: AccessPolicy,
    slots: &StreamSlots,
    handle: impl Fn(Services, Caller, Stream) -> F + Send + 'static,
) -> Result<(), NodeError>
where
    F: Future<Output = Result<(), StreamError>> + Send + 'static,
{
    let mut incoming = services.node.accept(protocol)?;
    let (services, slots) = (services.clone(), slots.clone());
    // It ends with the node.
    tasks.spawn(async move {
        let conversations = TaskSet::default();
        while let Some((peer, stream)) = incoming.next().await {
            let access = services.access.gate.check(peer);
            let pool = if access.is_ok() { &slots.members } else { &slots.strangers };
            let Some((slot, registration)) = TransferSlots::take(pool, peer) else {
                tracing::debug!(%peer, protocol, "no slot for another stream");
                services.node.report(peer, Violation::Streams);
                continue;
            };
            let conversation = match (access, policy) {
                (Ok(pass), _) => Either::Left(handle(services.clone(), Caller { peer, pass }, stream)),
                (Err(_), AccessPolicy::Open) => {
                    let caller = Caller { peer, pass: Pass::always() };
                    Either::Left(handle(services.clone(), caller, stream))
                }
                (Err(refusal), AccessPolicy::Gated(frame)) => {
                    let stream = Paced::new(stream, services.conversations.pace());
                    Either::Right(turn_away(stream, frame(&refusal)))
                }
            };
            let node = services.node.clone();
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

impl StreamError {
    /// What it says of the other side.
    fn violation(&self) -> Option<Violation> {
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
    async fn while_admitted<T>(&mut self, conversation: impl Future<Output = T>) -> Result<T, StreamError> {
        tokio::select! {
            output = conversation => Ok(output),
            reason = self.pass.ended() => Err(reason.into()),
        }
    }
}

async fn describe<S: Duplex>(services: Services, _: Caller, stream: S) -> Result<(), StreamError> {
    let mut stream = Paced::new(stream, services.conversations.pace());
    Ok(run::answer(&mut stream, &services.description).await?)
}

/// Answers a contributor of an older protocol version.
async fn tell_version(services: Services, stream: Stream) -> Result<(), StreamError> {
    let mut stream = Paced::new(stream, services.conversations.pace());
    Ok(run::answer_older_version(&mut stream).await?)
}

async fn send_state<S: Duplex>(services: Services, mut caller: Caller, stream: S) -> Result<(), StreamError> {
    let mut stream = Paced::new(stream, services.conversations.pace());
    let (states, pace) = (&services.states, stream.pace());
    let served = state::serve(&mut stream, |epoch| states.read(epoch), || pace.wait());
    Ok(caller.while_admitted(served).await??)
}

async fn send_shards<S: Duplex>(
    services: Services,
    mut caller: Caller,
    stream: S,
) -> Result<(), StreamError> {
    let mut stream = Paced::new(stream, services.conversations.pace());
    let (shards, metrics, pace) = (&services.shards, &services.metrics, &stream.pace());
    let lookup = |id: shard::ShardId| async move {
        let bytes = shards.get(id).await.map_err(Refusal::unavailable)?;
        let entry = id.entry(shards.manifest()).ok_or(Refusal::NoShard)?;
        let transfer = bulk::Transfer { n_bytes: entry.n_bytes.into(), sha256: entry.sha256 };
        metrics.on_shard(transfer.n_bytes);
        pace.answer();
        Ok((transfer, Arc::from(&*bytes)))
    };
    let served = shard::serve(&mut stream, lookup, || pace.wait());
    Ok(caller.while_admitted(served).await??)
}

async fn give_evidence(services: Services, caller: Caller, stream: Stream) -> Result<(), StreamError> {
    let group = services.addresses.group_of(&services.node, caller.peer).await;
    let mut stream = Paced::new(stream, services.conversations.pace());
    Ok(serve_evidence(&services.evidence, group, &mut stream).await?)
}

async fn grant_access(services: Services, caller: Caller, stream: Stream) -> Result<(), StreamError> {
    let Services { access, node, conversations, .. } = services;
    let idle = conversations.idle_timeout.min(ACCESS_IDLE_MAX);
    let mut stream = Paced::new(stream, PaceLimits { idle, ..conversations.pace() });
    Ok(converse(&Conversation { access, node }, caller.peer, &mut stream).await?)
}

async fn hold_session<S: Duplex>(
    services: Services,
    mut caller: Caller,
    group: AddressGroup,
    stream: S,
) -> Result<(), StreamError> {
    use contribute::{BackboneToContributor as Down, ContributorToBackbone as Up, MESSAGE_BYTES_MAX};
    let peer = caller.peer;
    let key = PeerKey(peer.to_bytes());
    let patience = services.conversations.patience();
    let mut stream = Paced::duplex(stream, services.conversations.pace());
    let pace = stream.pace();
    let join = match framing::read(&mut stream, MESSAGE_BYTES_MAX).await? {
        Up::Join(join) if join.device_name.chars().count() <= contribute::DEVICE_NAME_CHARS_MAX => join,
        Up::Join(_) => return refuse(&mut stream, Refusal::DeviceName).await,
        Up::Report(_) => return refuse(&mut stream, Refusal::NotJoined).await,
    };
    let (messages, mut outgoing) = mpsc::channel(SESSION_MESSAGES_MAX);
    let (answer, session) = oneshot::channel();
    let (device, device_name, name) = (join.device, join.device_name.clone(), join.name.clone());
    let event = CoreEvent::Join { peer: key.clone(), group, join, messages, answer };
    send(&services.core, event).await?;
    let session = match session.await.map_err(|_| StreamError::ShuttingDown)? {
        Ok(session) => session,
        Err(refusal) => return refuse(&mut stream, refusal).await,
    };
    tracing::info!(%peer, ?device, name = device_name, "contributor joined");
    services.names.on_join(peer, name);
    let (mut reader, mut writer) = stream.split();
    let (newest, mut reported) = watch::channel(None);
    let hear = async {
        loop {
            pace.wait();
            match framing::read(&mut reader, MESSAGE_BYTES_MAX).await? {
                Up::Report(report) => drop(newest.send_replace(Some(report))),
                Up::Join(_) => return Err(StreamError::JoinedTwice),
            }
        }
    };
    let pass_on = async {
        loop {
            // The sender lives as long as this future.
            reported.changed().await.map_err(|_| StreamError::ShuttingDown)?;
            let report = reported.borrow_and_update().clone();
            if let Some(report) = report {
                let (handled, done) = oneshot::channel();
                send(&services.core, CoreEvent::Report { peer: key.clone(), report, handled }).await?;
                // One report of each peer in the core's queue: a flood of them keeps nobody waiting, and
                // of those that come meanwhile the newest counts.
                let _ = done.await;
            }
        }
    };
    let speak = async {
        while let Some(message) = outgoing.recv().await {
            let write = framing::write::<Down, _>(&mut writer, &message, MESSAGE_BYTES_MAX);
            within(patience, write).await??;
        }
        Err(StreamError::ShuttingDown)
    };
    let ended: Result<(), StreamError> = tokio::select! {
        ended = hear => ended,
        ended = pass_on => ended,
        ended = speak => ended,
        reason = caller.pass.ended() => Err(reason.into()),
    };
    tracing::info!(%peer, "contributor left");
    send(&services.core, CoreEvent::Leave { peer: key.clone(), session }).await?;
    if let Err(StreamError::AccessEnded(reason)) = &ended {
        within(patience, say_goodbye(&mut writer, reason.into())).await??;
    }
    match ended {
        Err(StreamError::Frame(FrameError::Closed)) => Ok(()),
        ended => ended,
    }
}

async fn refuse<S: Duplex>(stream: &mut Paced<S>, refusal: Refusal) -> Result<(), StreamError> {
    stream.pace().answer();
    Ok(say_goodbye(stream, refusal).await?)
}

/// `future`, with a time limit.
async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, StreamError> {
    tokio::time::timeout(limit, future).await.map_err(|_| StreamError::Stalled(limit))
}

async fn say_goodbye<S: AsyncWrite + Unpin>(stream: &mut S, refusal: Refusal) -> Result<(), FrameError> {
    let message = contribute::BackboneToContributor::Refused(refusal);
    framing::write(stream, &message, contribute::MESSAGE_BYTES_MAX).await?;
    // Dropped open, it would be reset, and the reason would not arrive.
    Ok(stream.close().await?)
}

async fn send(core: &mpsc::Sender<CoreEvent>, event: CoreEvent) -> Result<(), StreamError> {
    core.send(event).await.map_err(|_| StreamError::ShuttingDown)
}
