//! The conversations of synchronous runs: sessions, gradients and evidence.
//!
//! Each handler reads with a limit, waits with a limit, and passes what it received to the core. None of
//! them decides anything.

mod gradients;

use std::sync::Arc;

use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::gradient::ContributionRefusal;
use barnraise_protocol::{Refusal, contribute, evidence, gradient};
#[cfg(test)]
use barnraise_protocol::{run, shard, state};
#[cfg(test)]
use barnraise_relay::Violation;
use barnraise_relay::{NodeError, Paced};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::PeerKey;
use futures::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
#[cfg(test)]
use libp2p::PeerId;
use libp2p::Stream;
use tokio::sync::{mpsc, oneshot, watch};

use self::gradients::take_gradients;
use super::core::{CoreEvent, SESSION_MESSAGES_MAX};
use super::ledger::SharedLedger;
use super::metrics::Metrics;
use super::recomputation::EvidenceStore;
use super::recomputation::exchange::serve_evidence;
use super::recomputation::queue::Recomputing;
use crate::host::access::Exclusion;
#[cfg(test)]
use crate::host::access::Pass;
use crate::host::addresses::AddressGroups;
use crate::host::contributions::{Issuer, NameRecorder, WorkMeter};
use crate::host::conversations::{
    self, AccessPolicy, Caller, Duplex, RunServices, StreamError, StreamSlots, accept, within,
};
use crate::host::run::RunTasks;

/// Shared state of the handlers.
#[derive(Clone)]
pub(super) struct Services {
    /// For the conversations of every scheme.
    pub host: RunServices,
    /// Claimed work, so that none counts twice.
    pub ledger: SharedLedger,
    /// Events to the core.
    pub core: mpsc::Sender<CoreEvent>,
    /// Counters for the operator.
    pub metrics: Metrics,
    /// Signs receipts.
    pub issuer: Issuer,
    /// Display names of contributors.
    pub names: NameRecorder,
    /// Measures this aggregator's work.
    pub work: Arc<WorkMeter>,
    /// Groups peers by their addresses.
    pub addresses: AddressGroups,
    /// Recomputes contributions, where the run asks for it.
    pub recomputing: Option<Recomputing>,
    /// Evidence against convicted peers.
    pub evidence: EvidenceStore,
}

impl AsRef<RunServices> for Services {
    fn as_ref(&self) -> &RunServices {
        &self.host
    }
}

/// Accepts every conversation on `node` until it shuts down.
pub(super) fn serve(
    services: &Services,
    contributors_max: u32,
    tasks: &mut RunTasks,
) -> Result<(), NodeError> {
    let slots = StreamSlots::new(&services.host.conversations, contributors_max);
    conversations::serve(&services.host, &slots, tasks)?;
    let no_session = |refusal: &Exclusion| {
        let message = contribute::BackboneToContributor::Refused(refusal.into());
        framing::encode(&message, contribute::MESSAGE_BYTES_MAX)
    };
    let session = |services: Services, caller: Caller, stream| async move {
        let group = services.addresses.group_of(&services.host.node, caller.peer).await;
        hold_session(services, caller, group, stream).await
    };
    accept(services, tasks, contribute::PROTOCOL, AccessPolicy::Gated(no_session), &slots, session)?;
    let no_gradient = |refusal: &Exclusion| {
        let message = gradient::BackboneToContributor::Refused(ContributionRefusal::NoAccess(refusal.into()));
        framing::encode(&message, gradient::MESSAGE_BYTES_MAX)
    };
    let gradients = |services: Services, caller: Caller, stream| async move {
        let group = services.addresses.group_of(&services.host.node, caller.peer).await;
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
        run::PROTOCOL => conversations::describe(services.host, caller, stream).await,
        state::PROTOCOL => conversations::send_state(services.host, caller, stream).await,
        shard::PROTOCOL => conversations::send_shards(services.host, caller, stream).await,
        contribute::PROTOCOL => hold_session(services, caller, group, stream).await,
        gradient::PROTOCOL => take_gradients(services, caller, group, stream).await,
        // As a node that does not speak it.
        _ => Ok(()),
    };
    ended.err().as_ref().and_then(StreamError::violation)
}

async fn give_evidence(services: Services, caller: Caller, stream: Stream) -> Result<(), StreamError> {
    let group = services.addresses.group_of(&services.host.node, caller.peer).await;
    let mut stream = Paced::new(stream, services.host.conversations.pace());
    Ok(serve_evidence(&services.evidence, group, &mut stream).await?)
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

async fn say_goodbye<S: AsyncWrite + Unpin>(stream: &mut S, refusal: Refusal) -> Result<(), FrameError> {
    let message = contribute::BackboneToContributor::Refused(refusal);
    framing::write(stream, &message, contribute::MESSAGE_BYTES_MAX).await?;
    // Dropped open, it would be reset, and the reason would not arrive.
    Ok(stream.close().await?)
}

async fn send(core: &mpsc::Sender<CoreEvent>, event: CoreEvent) -> Result<(), StreamError> {
    core.send(event).await.map_err(|_| StreamError::ShuttingDown)
}
