//! Bounds the handshakes under way, so that peers that never finish cannot lock out other peers.
//!
//! A newcomer is always admitted; where that is one too many, the oldest handshake ends of the address that has
//! the most under way. So a peer that floods from one address ends its own handshakes.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{AbortHandle, AbortRegistration, Abortable};

use crate::guard_metrics::{GuardMetrics, Violation};

/// Source address of a handshake; `None` where it is unknown.
pub(crate) type HandshakeSource = Option<IpAddr>;

/// The handshakes of one transport; clones share the bound.
#[derive(Clone, Debug)]
pub(crate) struct PendingHandshakes {
    n_max: usize,
    queue: Arc<Mutex<HandshakeQueue>>,
    metrics: GuardMetrics,
}

/// Why a handshake did not succeed.
#[derive(Debug)]
pub(crate) enum Unfinished<E> {
    Failed(E),
    TimedOut,
    Evicted,
}

#[derive(Debug, Default)]
struct HandshakeQueue {
    admitted: u64,
    n_under_way: usize,
    under_way: HashMap<HandshakeSource, BTreeMap<u64, AbortHandle>>,
}

/// A handshake under way; its slot is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct HandshakeSlot {
    number: u64,
    source: HandshakeSource,
    queue: Arc<Mutex<HandshakeQueue>>,
}

impl PendingHandshakes {
    pub(crate) fn new(n_max: usize, metrics: GuardMetrics) -> Self {
        Self { n_max: n_max.max(1), queue: Arc::default(), metrics }
    }

    /// Runs a handshake. It is admitted when it begins to run: one that is denied before pushes out no other.
    pub(crate) async fn run<T, E>(
        self,
        source: HandshakeSource,
        timeout: Duration,
        handshake: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Unfinished<E>> {
        let (_slot, registration) = self.admit(source);
        let timed = tokio::time::timeout(timeout, handshake);
        let (violation, ended) = match Abortable::new(timed, registration).await {
            Ok(Ok(Ok(output))) => return Ok(output),
            Ok(Ok(Err(error))) => (Violation::HandshakeFailed, Unfinished::Failed(error)),
            Ok(Err(_)) => (Violation::HandshakeTimeout, Unfinished::TimedOut),
            Err(_) => (Violation::HandshakeGaveWay, Unfinished::Evicted),
        };
        self.metrics.count(violation, 1);
        Err(ended)
    }

    fn admit(&self, source: HandshakeSource) -> (HandshakeSlot, AbortRegistration) {
        let (handle, registration) = AbortHandle::new_pair();
        let mut queue = lock(&self.queue);
        while queue.n_under_way >= self.n_max && queue.end_one() {}
        let number = queue.admitted;
        queue.admitted += 1;
        queue.n_under_way += 1;
        queue.under_way.entry(source).or_default().insert(number, handle);
        drop(queue);
        (HandshakeSlot { number, source, queue: Arc::clone(&self.queue) }, registration)
    }

    /// Whether new clients should first prove that their address is their own.
    pub(crate) fn is_busy(&self) -> bool {
        lock(&self.queue).n_under_way * 2 >= self.n_max
    }
}

impl HandshakeQueue {
    /// Ends the oldest handshake of the source that has the most; on a tie, the oldest of all.
    fn end_one(&mut self) -> bool {
        let oldest = |of_source: &BTreeMap<u64, AbortHandle>| of_source.keys().next().copied();
        let rank =
            |of_source: &BTreeMap<u64, AbortHandle>| (of_source.len(), std::cmp::Reverse(oldest(of_source)));
        let most = self.under_way.iter().max_by_key(|(_, of_source)| rank(of_source));
        let Some((source, number)) = most.and_then(|(source, of_source)| Some((*source, oldest(of_source)?)))
        else {
            return false;
        };
        tracing::debug!(number, ?source, "a handshake gives way to a new one");
        if let Some(handle) = self.remove(source, number) {
            handle.abort();
        }
        true
    }

    fn remove(&mut self, source: HandshakeSource, number: u64) -> Option<AbortHandle> {
        let of_source = self.under_way.get_mut(&source)?;
        let handle = of_source.remove(&number)?;
        if of_source.is_empty() {
            self.under_way.remove(&source);
        }
        self.n_under_way -= 1;
        Some(handle)
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        // None where it gave way.
        let _ = lock(&self.queue).remove(self.source, self.number);
    }
}

fn lock(queue: &Mutex<HandshakeQueue>) -> MutexGuard<'_, HandshakeQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::pending;

    use super::*;

    fn is_running(handshake: &mut Abortable<futures::future::Pending<()>>) -> bool {
        handshake.now_or_never().is_none()
    }

    #[test]
    fn one_too_many_ends_the_oldest() {
        let handshakes = PendingHandshakes::new(2, GuardMetrics::default());
        let (_first, first) = handshakes.admit(None);
        let (_second, second) = handshakes.admit(None);
        let mut first = Abortable::new(pending::<()>(), first);
        let mut second = Abortable::new(pending::<()>(), second);
        assert!(is_running(&mut first));
        let (_third, _registration) = handshakes.admit(None);
        assert!(!is_running(&mut first), "the oldest should have ended");
        assert!(is_running(&mut second));
        assert_eq!(lock(&handshakes.queue).n_under_way, 2);
    }

    #[test]
    fn who_floods_from_one_address_pushes_out_its_own() {
        let handshakes = PendingHandshakes::new(4, GuardMetrics::default());
        let [honest, flooder] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|ip| Some(IpAddr::from(ip)));
        let (ticket, registration) = handshakes.admit(honest);
        let mut slow = Abortable::new(pending::<()>(), registration);
        let tickets: Vec<_> = (0..100).map(|_| handshakes.admit(flooder)).collect();
        assert!(is_running(&mut slow), "the oldest of all, and of one who has one");
        drop((ticket, tickets));
        let queue = lock(&handshakes.queue);
        assert!(queue.n_under_way == 0 && queue.under_way.is_empty());
    }

    #[test]
    fn a_finished_handshake_frees_its_place() {
        let handshakes = PendingHandshakes::new(2, GuardMetrics::default());
        let (ticket, _) = handshakes.admit(None);
        assert!(handshakes.is_busy());
        drop(ticket);
        assert!(!handshakes.is_busy());
    }
}
