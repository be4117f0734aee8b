//! The conversations of synchronous runs, beside those of every scheme: gradients and evidence.
//!
//! Each handler reads with a limit, waits with a limit, and passes what it received to the core. None of
//! them decides anything.

mod gradients;

use std::sync::Arc;

use barnraise_protocol::framing;
use barnraise_protocol::gradient::ContributionRefusal;
#[cfg(test)]
use barnraise_protocol::{contribute, run, shard, state};
use barnraise_protocol::{evidence, gradient};
#[cfg(test)]
use barnraise_relay::Violation;
use barnraise_relay::{NodeError, Paced};
#[cfg(test)]
use barnraise_swarm::AddressGroup;
#[cfg(test)]
use libp2p::PeerId;
use libp2p::Stream;
use tokio::sync::mpsc;

use self::gradients::take_gradients;
use super::core::CoreEvent;
use super::ledger::SharedLedger;
use super::metrics::Metrics;
use super::recomputation::exchange::serve_evidence;
use super::recomputation::queue::Recomputing;
use crate::host::access::Exclusion;
#[cfg(test)]
use crate::host::access::Pass;
use crate::host::contributions::{Issuer, WorkMeter};
#[cfg(test)]
use crate::host::conversations::Duplex;
use crate::host::conversations::{self, AccessPolicy, Caller, RunServices, StreamError, StreamSlots, accept};
use crate::host::evidence::EvidenceStore;
use crate::host::run::RunTasks;
use crate::host::sessions::{self, SessionServices};

/// Shared state of the handlers.
#[derive(Clone)]
pub(super) struct Services {
    /// For the conversations of every scheme.
    pub sessions: SessionServices,
    /// Claimed work, so that none counts twice.
    pub ledger: SharedLedger,
    /// Events to the core.
    pub core: mpsc::Sender<CoreEvent>,
    /// Counters for the operator.
    pub metrics: Metrics,
    /// Signs receipts.
    pub issuer: Issuer,
    /// Measures this aggregator's work.
    pub work: Arc<WorkMeter>,
    /// Recomputes contributions, where the run asks for it.
    pub recomputing: Option<Recomputing>,
    /// Evidence against convicted peers.
    pub evidence: EvidenceStore,
}

impl AsRef<RunServices> for Services {
    fn as_ref(&self) -> &RunServices {
        &self.sessions.host
    }
}

/// Accepts every conversation on `node` until it shuts down.
pub(super) fn serve(
    services: &Services,
    contributors_max: u32,
    tasks: &mut RunTasks,
) -> Result<(), NodeError> {
    let slots = StreamSlots::new(&services.sessions.host.conversations, contributors_max);
    conversations::serve(services.as_ref(), &slots, tasks)?;
    sessions::serve(&services.sessions, &slots, tasks)?;
    let no_gradient = |refusal: &Exclusion| {
        let message = gradient::BackboneToContributor::Refused(ContributionRefusal::NoAccess(refusal.into()));
        framing::encode(&message, gradient::MESSAGE_BYTES_MAX)
    };
    let gradients = |services: Services, caller: Caller, stream| async move {
        let group = services.sessions.group_of(caller.peer).await;
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
        run::PROTOCOL => conversations::describe(services.sessions.host, caller, stream).await,
        state::PROTOCOL => conversations::send_state(services.sessions.host, caller, stream).await,
        shard::PROTOCOL => conversations::send_shards(services.sessions.host, caller, stream).await,
        contribute::PROTOCOL => sessions::hold(services.sessions, caller, group, stream).await,
        gradient::PROTOCOL => take_gradients(services, caller, group, stream).await,
        // As a node that does not speak it.
        _ => Ok(()),
    };
    ended.err().as_ref().and_then(StreamError::violation)
}

async fn give_evidence(services: Services, caller: Caller, stream: Stream) -> Result<(), StreamError> {
    let group = services.sessions.group_of(caller.peer).await;
    let mut stream = Paced::new(stream, services.sessions.host.conversations.pace());
    Ok(serve_evidence(&services.evidence, group, &mut stream).await?)
}

async fn send(core: &mpsc::Sender<CoreEvent>, event: CoreEvent) -> Result<(), StreamError> {
    core.send(event).await.map_err(|_| StreamError::ShuttingDown)
}
