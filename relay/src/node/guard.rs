//! Counts violations of peers, and blocks peers with too many.
//!
//! `swarm::guard` decides how many are tolerated; here a blocked peer is disconnected, and what it dials
//! is denied. It decides about peers only: addresses are bounded in [`super::address_limit`], because many
//! stand behind one.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use barnraise_swarm::guard::{BanLimits, BanList};
use barnraise_swarm::{Moment, PeerKey};
use futures::task::AtomicWaker;
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::{
    CloseConnection, ConnectionDenied, ConnectionId, FromSwarm, ListenError, NetworkBehaviour,
    THandlerInEvent, THandlerOutEvent, ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId, connection_limits, memory_connection_limits};

use super::address_limit::AddressRefusal;
use super::config::NodeLimits;
use crate::guard_metrics::{GuardMetrics, Violation};

/// Peers whose violations are remembered.
const PEERS_MAX: usize = 10_000;

/// A connection of a peer that is blocked.
#[derive(Debug, thiserror::Error)]
#[error("the peer is blocked for a while because of what it sent")]
pub(super) struct Blocked;

/// Records violations; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    metrics: GuardMetrics,
    shared: Arc<GuardState>,
}

#[derive(Debug)]
struct GuardState {
    started: Instant,
    conduct: Mutex<BanList>,
    /// To be disconnected: at most one entry of each peer that is blocked.
    due: Mutex<VecDeque<PeerId>>,
    waker: AtomicWaker,
}

impl Guard {
    pub(super) fn new(limits: &NodeLimits, metrics: GuardMetrics) -> Self {
        let limits = BanLimits {
            bad_messages_per_minute: limits.bad_messages_per_peer_and_minute,
            block: limits.block_duration,
            peers_max: PEERS_MAX,
        };
        let shared = GuardState {
            started: Instant::now(),
            conduct: Mutex::new(BanList::new(limits)),
            due: Mutex::default(),
            waker: AtomicWaker::new(),
        };
        Self { metrics, shared: Arc::new(shared) }
    }

    /// The counters, for violations before a peer is identified.
    pub(super) fn metrics(&self) -> &GuardMetrics {
        &self.metrics
    }

    /// Counts a violation of no particular or an unidentified peer.
    pub(crate) fn count(&self, violation: Violation) {
        self.metrics.count(violation, 1);
    }

    /// Counts `n` violations.
    pub(crate) fn count_many(&self, violation: Violation, n: usize) {
        self.metrics.count(violation, n);
    }

    /// Counts a violation of `peer`, as its own connection attests; disconnects it beyond the limit.
    pub(crate) fn report(&self, peer: PeerId, violation: Violation) {
        self.metrics.count(violation, 1);
        if !violation.is_bad_message() {
            return;
        }
        let (now, key) = (self.now(), PeerKey(peer.to_bytes()));
        let mut conduct = lock(&self.shared.conduct);
        if conduct.on_bad_message(now, &key) {
            tracing::info!(%peer, last = violation.label(), "blocked for a while because of what it sent");
            self.metrics.on_block(conduct.n_blocked(now));
            drop(conduct);
            lock(&self.shared.due).push_back(peer);
            self.shared.waker.wake();
        }
    }

    /// Updates the gauge of blocked peers.
    pub(super) fn refresh(&self) {
        self.metrics.set_blocked(lock(&self.shared.conduct).n_blocked(self.now()));
    }

    /// Counts an inbound connection that the swarm's limits denied.
    pub(super) fn on_listen_error(&self, error: &ListenError) {
        let ListenError::Denied { cause } = error else { return };
        if let Some(violation) = violation_of(cause) {
            self.count(violation);
        }
    }

    fn is_blocked(&self, peer: PeerId) -> bool {
        lock(&self.shared.conduct).is_blocked(self.now(), &PeerKey(peer.to_bytes()))
    }

    fn now(&self) -> Moment {
        self.shared.started.elapsed()
    }
}

fn violation_of(cause: &ConnectionDenied) -> Option<Violation> {
    let cause = std::error::Error::source(cause)?;
    if cause.is::<connection_limits::Exceeded>() {
        return Some(Violation::Connections);
    }
    if cause.is::<memory_connection_limits::MemoryUsageLimitExceeded>() {
        return Some(Violation::Memory);
    }
    if cause.is::<Blocked>() {
        return Some(Violation::Blocked);
    }
    cause.downcast_ref::<AddressRefusal>().map(|refusal| match refusal {
        AddressRefusal::TooMany { .. } => Violation::ConnectionsOfAddress,
        AddressRefusal::TooOften { .. } => Violation::ConnectionRate,
    })
}

/// Disconnects blocked peers and denies their connections.
pub(super) struct GuardBehaviour(Guard);

impl GuardBehaviour {
    pub(super) fn new(guard: Guard) -> Self {
        Self(guard)
    }
}

impl NetworkBehaviour for GuardBehaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<dummy::ConnectionHandler, ConnectionDenied> {
        match self.0.is_blocked(peer) {
            true => Err(ConnectionDenied::new(Blocked)),
            false => Ok(dummy::ConnectionHandler),
        }
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<dummy::ConnectionHandler, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, _: FromSwarm<'_>) {}

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, never: THandlerOutEvent<Self>) {
        match never {}
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        self.0.shared.waker.register(cx.waker());
        match lock(&self.0.shared.due).pop_front() {
            Some(peer_id) => {
                let connection = CloseConnection::All;
                Poll::Ready(ToSwarm::CloseConnection { peer_id, connection })
            }
            None => Poll::Pending,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
