//! Whether others can dial the node, and so whether it needs a relay. No I/O.
//!
//! A node whose addresses are tested and found closed asks its relays to be reached through them; one that
//! turns out to be open, or has nothing to be dialled for, never does.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use libp2p::Multiaddr;

/// First wait before a relay is asked again; doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// A node that nobody has tested by then counts as closed: a relay may not test, and a router that drops
/// packets lets a test end in nothing.
const PATIENCE: Duration = Duration::from_secs(15);

/// Test results of the node's own addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reachability {
    /// Nothing was tested yet.
    #[default]
    Unknown,
    /// A peer dialled an address of this node successfully.
    Public,
    /// All tested addresses are closed.
    Private,
}

/// State of one relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relay {
    /// To be asked for a reservation at this time.
    Due(Instant),
    /// Asked, or holding a reservation.
    Asked,
}

/// Decides which relays to ask, and when.
#[derive(Debug)]
pub(super) struct Reservations {
    relays: Vec<(Multiaddr, Relay, Duration)>,
    open: HashSet<Multiaddr>,
    is_closed: bool,
    started: Instant,
}

/// What the driver does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReachabilityAction {
    /// Connect, so that the relay can test whether this node can be dialled.
    Dial(Multiaddr),
    /// Ask for a reservation.
    Reserve(Multiaddr),
}

impl Reservations {
    pub(super) fn new(relays: &[Multiaddr], now: Instant) -> Self {
        let relays = relays.iter().map(|relay| (relay.clone(), Relay::Due(now), RETRY_MIN)).collect();
        Self { relays, open: HashSet::new(), is_closed: false, started: now }
    }

    pub(super) fn reachability(&self) -> Reachability {
        match (self.open.is_empty(), self.is_closed) {
            (false, _) => Reachability::Public,
            (true, true) => Reachability::Private,
            (true, false) => Reachability::Unknown,
        }
    }

    /// A test of an address ended. What a test found closed makes the relays due.
    pub(super) fn on_tested(&mut self, address: &Multiaddr, is_open: bool, now: Instant) {
        if is_open {
            self.open.insert(address.clone());
            return;
        }
        self.open.remove(address);
        self.is_closed = true;
        if self.open.is_empty() {
            for (_, relay, _) in &mut self.relays {
                if matches!(relay, Relay::Due(_)) {
                    *relay = Relay::Due(now);
                }
            }
        }
    }

    /// The address is gone.
    pub(super) fn on_expired(&mut self, address: &Multiaddr) {
        self.open.remove(address);
    }

    /// A relay could not be reached, refused, or is gone: asked again later, ever later.
    pub(super) fn on_failed(&mut self, address: &Multiaddr, now: Instant) {
        for (known, relay, wait) in &mut self.relays {
            if known == address {
                *relay = Relay::Due(now + *wait);
                *wait = (*wait * 2).min(RETRY_MAX);
            }
        }
    }

    /// A relay accepted the reservation.
    pub(super) fn on_reserved(&mut self, address: &Multiaddr) {
        for (known, _, wait) in &mut self.relays {
            if known == address {
                *wait = RETRY_MIN;
            }
        }
    }

    /// What is due now; ask until `None`.
    pub(super) fn poll(&mut self, now: Instant) -> Option<ReachabilityAction> {
        self.is_closed |= now >= self.started + PATIENCE;
        let reachability = self.reachability();
        for (address, relay, wait) in &mut self.relays {
            if !matches!(relay, Relay::Due(at) if *at <= now) {
                continue;
            }
            match reachability {
                Reachability::Public => {}
                Reachability::Private => {
                    *relay = Relay::Asked;
                    return Some(ReachabilityAction::Reserve(address.clone()));
                }
                Reachability::Unknown => {
                    *relay = Relay::Due(now + *wait);
                    *wait = (*wait * 2).min(RETRY_MAX);
                    return Some(ReachabilityAction::Dial(address.clone()));
                }
            }
        }
        None
    }

    /// When [`poll`](Self::poll) may have something next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.reachability() == Reachability::Public {
            return None;
        }
        let due = self.relays.iter().filter_map(|(_, relay, _)| match relay {
            Relay::Due(at) => Some(*at),
            Relay::Asked => None,
        });
        due.min()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    fn relay() -> Multiaddr {
        address("/ip4/192.0.2.1/tcp/4001/p2p/12D3KooWGQmdpzHXCqLno4mMxWXKNFQHASBeF99gTm2JR8Vu5Bdc")
    }

    #[test]
    fn a_node_that_can_be_dialled_needs_no_relay() {
        let now = Instant::now();
        let mut reservations = Reservations::new(&[relay()], now);
        assert_eq!(
            reservations.poll(now),
            Some(ReachabilityAction::Dial(relay())),
            "it may be tested through the relay"
        );
        assert_eq!(reservations.poll(now), None, "once");
        reservations.on_tested(&address("/ip4/198.51.100.7/tcp/4001"), true, now);
        assert_eq!(reservations.reachability(), Reachability::Public);
        assert_eq!(reservations.next_deadline(), None);
        assert_eq!(reservations.poll(now + RETRY_MAX), None);
    }

    #[test]
    fn a_closed_node_asks_its_relays_and_asks_again_ever_later() {
        let now = Instant::now();
        let mut reservations = Reservations::new(&[relay()], now);
        assert_eq!(reservations.poll(now), Some(ReachabilityAction::Dial(relay())));
        reservations.on_tested(&address("/ip4/198.51.100.7/tcp/4001"), false, now);
        assert_eq!(reservations.poll(now), Some(ReachabilityAction::Reserve(relay())));
        assert_eq!(reservations.poll(now + RETRY_MAX), None, "asked is asked");
        reservations.on_reserved(&relay());
        reservations.on_failed(&relay(), now);
        assert_eq!(reservations.poll(now), None);
        assert_eq!(reservations.next_deadline(), Some(now + RETRY_MIN));
        assert_eq!(reservations.poll(now + RETRY_MIN), Some(ReachabilityAction::Reserve(relay())));
        reservations.on_failed(&relay(), now);
        assert_eq!(reservations.next_deadline(), Some(now + 2 * RETRY_MIN));
    }

    #[test]
    fn a_node_that_nobody_tests_counts_as_closed_in_the_end() {
        let now = Instant::now();
        let mut reservations = Reservations::new(&[relay()], now);
        assert_eq!(reservations.poll(now), Some(ReachabilityAction::Dial(relay())));
        let (at, reserve) = loop {
            let at = reservations.next_deadline().unwrap();
            match reservations.poll(at) {
                Some(ReachabilityAction::Dial(_)) => {}
                action => break (at, action),
            }
        };
        assert_eq!(reserve, Some(ReachabilityAction::Reserve(relay())));
        assert!(at >= now + PATIENCE);
    }

    #[test]
    fn a_node_that_opens_up_stops_asking_and_one_that_closes_begins() {
        let now = Instant::now();
        let mut reservations = Reservations::new(&[relay()], now);
        let mine = address("/ip4/198.51.100.7/tcp/4001");
        reservations.on_tested(&mine, true, now);
        reservations.on_tested(&address("/ip4/198.51.100.7/udp/4001/quic-v1"), false, now);
        assert_eq!(reservations.reachability(), Reachability::Public, "one open address is enough");
        reservations.on_expired(&mine);
        assert_eq!(reservations.reachability(), Reachability::Private);
        assert_eq!(reservations.poll(now), Some(ReachabilityAction::Reserve(relay())));
    }
}
