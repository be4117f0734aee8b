//! How many handshakes may be under way: a bound that those who never finish cannot turn on others.
//!
//! A newcomer is always admitted; where that is one too many, the oldest handshake ends of the address that has
//! the most under way. So whoever floods from one place pushes out its own.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{AbortHandle, AbortRegistration, Abortable};

use crate::node::{GuardMetrics, Misdeed};

/// Where a handshake comes from, as far as that is known.
pub(crate) type Source = Option<IpAddr>;

/// The handshakes of one transport; clones share the bound.
#[derive(Clone, Debug)]
pub(crate) struct PendingHandshakes {
    n_max: usize,
    order: Arc<Mutex<Order>>,
    metrics: GuardMetrics,
}

/// How a handshake ended that did not succeed.
#[derive(Debug)]
pub(crate) enum Unfinished<E> {
    Failed(E),
    TimedOut,
    GaveWay,
}

#[derive(Debug, Default)]
struct Order {
    admitted: u64,
    n_under_way: usize,
    under_way: HashMap<Source, BTreeMap<u64, AbortHandle>>,
}

/// One place; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    number: u64,
    source: Source,
    order: Arc<Mutex<Order>>,
}

impl PendingHandshakes {
    pub(crate) fn new(n_max: usize, metrics: GuardMetrics) -> Self {
        Self { n_max: n_max.max(1), order: Arc::default(), metrics }
    }

    /// Runs a handshake. It is admitted when it begins to run: one that is denied before pushes out no other.
    pub(crate) async fn run<T, E>(
        self,
        source: Source,
        timeout: Duration,
        handshake: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Unfinished<E>> {
        let (_ticket, registration) = self.admit(source);
        let timed = tokio::time::timeout(timeout, handshake);
        let (misdeed, ended) = match Abortable::new(timed, registration).await {
            Ok(Ok(Ok(output))) => return Ok(output),
            Ok(Ok(Err(error))) => (Misdeed::HandshakeFailed, Unfinished::Failed(error)),
            Ok(Err(_)) => (Misdeed::HandshakeTimeout, Unfinished::TimedOut),
            Err(_) => (Misdeed::HandshakeGaveWay, Unfinished::GaveWay),
        };
        self.metrics.count(misdeed, 1);
        Err(ended)
    }

    fn admit(&self, source: Source) -> (Ticket, AbortRegistration) {
        let (handle, registration) = AbortHandle::new_pair();
        let mut order = lock(&self.order);
        while order.n_under_way >= self.n_max && order.end_one() {}
        let number = order.admitted;
        order.admitted += 1;
        order.n_under_way += 1;
        order.under_way.entry(source).or_default().insert(number, handle);
        drop(order);
        (Ticket { number, source, order: Arc::clone(&self.order) }, registration)
    }

    /// Whether new clients should first prove that their address is their own.
    pub(crate) fn is_busy(&self) -> bool {
        lock(&self.order).n_under_way * 2 >= self.n_max
    }
}

impl Order {
    /// Ends the oldest handshake of whoever has the most, and of those who have as many, the oldest.
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

    fn remove(&mut self, source: Source, number: u64) -> Option<AbortHandle> {
        let of_source = self.under_way.get_mut(&source)?;
        let handle = of_source.remove(&number)?;
        if of_source.is_empty() {
            self.under_way.remove(&source);
        }
        self.n_under_way -= 1;
        Some(handle)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // None where it gave way.
        let _ = lock(&self.order).remove(self.source, self.number);
    }
}

fn lock(order: &Mutex<Order>) -> MutexGuard<'_, Order> {
    order.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert_eq!(lock(&handshakes.order).n_under_way, 2);
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
        let order = lock(&handshakes.order);
        assert!(order.n_under_way == 0 && order.under_way.is_empty());
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
