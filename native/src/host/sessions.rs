//! The `contribute` conversation, in a run of any scheme: the sessions of its contributors.
//!
//! It reads with a limit, waits with a limit, and passes what it received to the driver. It decides nothing: who may join,
//! and what is said in the session, is the driver's.

use std::collections::BTreeMap;

use barnraise_protocol::access::{AccessRefusal, PublicKey};
use barnraise_protocol::contribute::{self, BackboneToContributor, Join, Report};
use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::{Refusal, RefusalReason};
use barnraise_relay::{NodeError, Paced};
use barnraise_swarm::{AddressGroup, PeerKey};
use futures::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::PeerId;
use tokio::sync::{mpsc, oneshot, watch};

use super::access::Exclusion;
use super::addresses::AddressGroups;
use super::contributions::NameRecorder;
use super::conversations::{
    AccessPolicy, Caller, Duplex, RunServices, StreamError, StreamSlots, accept, within,
};
use super::events::EventSender;
use super::run::RunTasks;

/// Messages that may wait for one contributor; one that reads slower than that is let go.
pub(crate) const SESSION_MESSAGES_MAX: usize = 64;

/// What sessions are held with. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SessionServices {
    /// For the conversations beside them.
    pub host: RunServices,
    /// The driver of the run.
    pub driver: EventSender<SessionEvent>,
    /// Display names of contributors.
    pub names: NameRecorder,
    /// Groups peers by their addresses.
    pub addresses: AddressGroups,
}

/// One session of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionId(u64);

/// The open sessions of a driver, one for each peer.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    open: BTreeMap<PeerKey, (SessionId, mpsc::Sender<BackboneToContributor>)>,
    next: u64,
}

/// What a contributor does in its session.
#[derive(Debug)]
pub enum SessionEvent {
    /// A contributor opens a session.
    Join {
        /// The contributor.
        peer: PeerKey,
        /// The addresses that it counts with.
        group: AddressGroup,
        /// Its first message.
        join: Join,
        /// Messages to it from now on; the session ends when this is dropped.
        messages: mpsc::Sender<BackboneToContributor>,
        /// The session's number, or why there is none.
        answer: oneshot::Sender<Result<SessionId, Refusal>>,
    },
    /// A session ended.
    Leave {
        /// The contributor.
        peer: PeerKey,
        /// Which of its sessions.
        session: SessionId,
    },
    /// A contributor reports how many samples it has computed.
    Report {
        /// The contributor.
        peer: PeerKey,
        /// Its message.
        report: Report,
        /// Dropped once the report is handled.
        handled: oneshot::Sender<()>,
    },
}

impl Sessions {
    /// Opens a session, in place of an earlier one of the peer.
    pub(crate) fn open(&mut self, peer: PeerKey, messages: mpsc::Sender<BackboneToContributor>) -> SessionId {
        let id = SessionId(self.next);
        self.next += 1;
        self.open.insert(peer, (id, messages));
        id
    }

    /// Closes the session of a peer; `false` where it has none.
    pub(crate) fn close(&mut self, peer: &PeerKey) -> bool {
        self.open.remove(peer).is_some()
    }

    /// Whether this session of the peer is open.
    pub(crate) fn has(&self, peer: &PeerKey, session: SessionId) -> bool {
        self.open.get(peer).is_some_and(|(id, _)| *id == session)
    }

    /// Sends to a peer, if it has a session; `false` where it does not read its messages.
    pub(crate) fn send(&self, peer: &PeerKey, message: BackboneToContributor) -> bool {
        self.open.get(peer).is_none_or(|(_, messages)| messages.try_send(message).is_ok())
    }

    /// Sends to all peers; returns those that do not read their messages.
    pub(crate) fn send_to_all(&self, message: &BackboneToContributor) -> Vec<PeerKey> {
        let deaf = |(peer, (_, messages)): (&PeerKey, &(_, mpsc::Sender<_>))| {
            messages.try_send(message.clone()).is_err().then(|| peer.clone())
        };
        self.open.iter().filter_map(deaf).collect()
    }
}

/// Whether a peer that joins means this run, and can be given credit.
pub(crate) fn check_join(run_id: &str, peer: &PeerKey, join: &Join) -> Result<(), Refusal> {
    if join.run_id != run_id {
        let asked = RefusalReason::of(&join.run_id);
        return Err(Refusal::OtherRun { here: RefusalReason::of(run_id), asked });
    }
    match PublicKey::of_peer_id(&peer.0) {
        Some(_) => Ok(()),
        None => Err(AccessRefusal::KeyKind.into()),
    }
}

impl AsRef<RunServices> for SessionServices {
    fn as_ref(&self) -> &RunServices {
        &self.host
    }
}

impl SessionServices {
    /// The addresses that a peer counts with.
    pub(crate) async fn group_of(&self, peer: PeerId) -> AddressGroup {
        self.addresses.group_of(&self.host.node, peer).await
    }

    async fn tell(&self, event: SessionEvent) -> Result<(), StreamError> {
        self.driver.send(event).await.map_err(|_| StreamError::ShuttingDown)
    }
}

/// Accepts sessions until the node shuts down.
pub(crate) fn serve(
    services: &SessionServices,
    slots: &StreamSlots,
    tasks: &mut RunTasks,
) -> Result<(), NodeError> {
    let no_session = |refusal: &Exclusion| {
        let message = BackboneToContributor::Refused(refusal.into());
        framing::encode(&message, contribute::MESSAGE_BYTES_MAX)
    };
    let session = |services: SessionServices, caller: Caller, stream| async move {
        let group = services.group_of(caller.peer).await;
        hold(services, caller, group, stream).await
    };
    accept(services, tasks, contribute::PROTOCOL, AccessPolicy::Gated(no_session), slots, session)
}

/// Holds a session until one of the two ends it.
pub(crate) async fn hold<S: Duplex>(
    services: SessionServices,
    mut caller: Caller,
    group: AddressGroup,
    stream: S,
) -> Result<(), StreamError> {
    use contribute::{BackboneToContributor as Down, ContributorToBackbone as Up, MESSAGE_BYTES_MAX};
    let peer = caller.peer;
    let key = PeerKey(peer.to_bytes());
    let patience = services.host.conversations.patience();
    let mut stream = Paced::duplex(stream, services.host.conversations.pace());
    let pace = stream.pace();
    let join = match framing::read(&mut stream, MESSAGE_BYTES_MAX).await? {
        Up::Join(join) if join.device_name.chars().count() <= contribute::DEVICE_NAME_CHARS_MAX => join,
        Up::Join(_) => return refuse(&mut stream, Refusal::DeviceName).await,
        Up::Report(_) => return refuse(&mut stream, Refusal::NotJoined).await,
    };
    let (messages, mut outgoing) = mpsc::channel(SESSION_MESSAGES_MAX);
    let (answer, session) = oneshot::channel();
    let (device, device_name, name) = (join.device, join.device_name.clone(), join.name.clone());
    let event = SessionEvent::Join { peer: key.clone(), group, join, messages, answer };
    services.tell(event).await?;
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
                services.tell(SessionEvent::Report { peer: key.clone(), report, handled }).await?;
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
    services.tell(SessionEvent::Leave { peer: key.clone(), session }).await?;
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

async fn say_goodbye<S: AsyncWrite + Unpin>(stream: &mut S, refusal: Refusal) -> Result<(), FrameError> {
    let message = contribute::BackboneToContributor::Refused(refusal);
    framing::write(stream, &message, contribute::MESSAGE_BYTES_MAX).await?;
    // Dropped open, it would be reset, and the reason would not arrive.
    Ok(stream.close().await?)
}
