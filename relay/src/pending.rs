//! How many handshakes may be under way: a bound that those who never finish cannot turn on others.
//!
//! A newcomer is always admitted; where that is one too many, the oldest handshake ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{AbortHandle, AbortRegistration};

/// The handshakes of one transport; clones share the bound.
#[derive(Clone, Debug)]
pub(crate) struct PendingHandshakes {
    n_max: usize,
    order: Arc<Mutex<Order>>,
}

#[derive(Debug, Default)]
struct Order {
    admitted: u64,
    under_way: BTreeMap<u64, AbortHandle>,
}

/// One place; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    number: u64,
    order: Arc<Mutex<Order>>,
}

impl PendingHandshakes {
    pub(crate) fn new(n_max: usize) -> Self {
        Self { n_max: n_max.max(1), order: Arc::default() }
    }

    /// Admits a handshake, which is to run as a [`futures::future::Abortable`] with the registration.
    pub(crate) fn admit(&self) -> (Ticket, AbortRegistration) {
        let (handle, registration) = AbortHandle::new_pair();
        let mut order = lock(&self.order);
        while order.under_way.len() >= self.n_max {
            let Some((number, oldest)) = order.under_way.pop_first() else { break };
            tracing::debug!(number, "the oldest handshake gives way to a new one");
            oldest.abort();
        }
        let number = order.admitted;
        order.admitted += 1;
        order.under_way.insert(number, handle);
        drop(order);
        (Ticket { number, order: Arc::clone(&self.order) }, registration)
    }

    /// Whether new clients should first prove that their address is their own.
    pub(crate) fn is_busy(&self) -> bool {
        lock(&self.order).under_way.len() * 2 >= self.n_max
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.order).under_way.remove(&self.number);
    }
}

fn lock(order: &Mutex<Order>) -> MutexGuard<'_, Order> {
    order.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::{Abortable, pending};

    use super::*;

    #[test]
    fn one_too_many_ends_the_oldest() {
        let handshakes = PendingHandshakes::new(2);
        let (_first, first) = handshakes.admit();
        let (_second, second) = handshakes.admit();
        let mut first = Abortable::new(pending::<()>(), first);
        let mut second = Abortable::new(pending::<()>(), second);
        assert!((&mut first).now_or_never().is_none());
        let (_third, _registration) = handshakes.admit();
        assert!((&mut first).now_or_never().is_some(), "the oldest should have ended");
        assert!((&mut second).now_or_never().is_none());
        assert_eq!(lock(&handshakes.order).under_way.len(), 2);
    }

    #[test]
    fn a_finished_handshake_frees_its_place() {
        let handshakes = PendingHandshakes::new(2);
        let (ticket, _) = handshakes.admit();
        assert!(handshakes.is_busy());
        drop(ticket);
        assert!(!handshakes.is_busy());
    }
}
