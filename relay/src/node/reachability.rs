//! Whether others can dial the node, and so whether it needs a relay. No I/O.
//!
//! A node whose addresses are tested and found closed asks its relays to be reached through them; one that
//! turns out to be open, or has nothing to be dialled for, never does. A relay that is insisted on is asked in any case.

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

/// A relay, and how it is asked.
#[derive(Debug)]
struct KnownRelay {
    address: Multiaddr,
    state: Relay,
    /// Before it is asked again.
    wait: Duration,
    /// Also where others can dial this node.
    is_insisted_on: bool,
}

/// Decides which relays to ask, and when.
#[derive(Debug)]
pub(super) struct Reservations {
    relays: Vec<KnownRelay>,
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
        let relays = relays.iter().map(|relay| KnownRelay::new(relay.clone(), false, now)).collect();
        Self { relays, open: HashSet::new(), is_closed: false, started: now }
    }

    /// A relay is asked from now on whether or not others can dial this node, in place of one with the same peer id.
    pub(super) fn insist(&mut self, address: Multiaddr, now: Instant) {
        let peer = address.iter().last();
        self.relays.retain(|known| known.address.iter().last() != peer);
        self.relays.push(KnownRelay::new(address, true, now));
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
            for known in &mut self.relays {
                if matches!(known.state, Relay::Due(_)) {
                    known.state = Relay::Due(now);
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
        for known in self.relays.iter_mut().filter(|known| known.address == *address) {
            known.put_off(now);
        }
    }

    /// A relay accepted the reservation.
    pub(super) fn on_reserved(&mut self, address: &Multiaddr) {
        for known in self.relays.iter_mut().filter(|known| known.address == *address) {
            known.wait = RETRY_MIN;
        }
    }

    /// What is due now; ask until `None`.
    pub(super) fn poll(&mut self, now: Instant) -> Option<ReachabilityAction> {
        self.is_closed |= now >= self.started + PATIENCE;
        let reachability = self.reachability();
        for known in &mut self.relays {
            if !matches!(known.state, Relay::Due(at) if at <= now) {
                continue;
            }
            match reachability {
                _ if known.is_insisted_on => {}
                Reachability::Public => continue,
                Reachability::Private => {}
                Reachability::Unknown => {
                    known.put_off(now);
                    return Some(ReachabilityAction::Dial(known.address.clone()));
                }
            }
            known.state = Relay::Asked;
            return Some(ReachabilityAction::Reserve(known.address.clone()));
        }
        None
    }

    /// When [`poll`](Self::poll) may have something next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let is_public = self.reachability() == Reachability::Public;
        let wanted = self.relays.iter().filter(|known| known.is_insisted_on || !is_public);
        let due = wanted.filter_map(|known| match known.state {
            Relay::Due(at) => Some(at),
            Relay::Asked => None,
        });
        due.min()
    }
}

impl KnownRelay {
    fn new(address: Multiaddr, is_insisted_on: bool, now: Instant) -> Self {
        Self { address, state: Relay::Due(now), wait: RETRY_MIN, is_insisted_on }
    }

    /// It is due again later, ever later.
    fn put_off(&mut self, now: Instant) {
        self.state = Relay::Due(now + self.wait);
        self.wait = (self.wait * 2).min(RETRY_MAX);
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

    #[test]
    fn a_relay_that_is_insisted_on_is_asked_also_where_others_can_dial_the_node() {
        let now = Instant::now();
        let mut reservations = Reservations::new(&[relay()], now);
        reservations.on_tested(&address("/ip4/198.51.100.7/tcp/4001"), true, now);
        assert_eq!(reservations.poll(now), None);
        let elsewhere = address(&relay().to_string().replace("tcp/4001", "udp/4001/quic-v1"));
        reservations.insist(elsewhere.clone(), now);
        assert_eq!(reservations.next_deadline(), Some(now));
        assert_eq!(reservations.poll(now), Some(ReachabilityAction::Reserve(elsewhere.clone())));
        assert_eq!(reservations.poll(now + RETRY_MAX), None, "the same relay is asked once");
        reservations.on_failed(&elsewhere, now);
        assert_eq!(reservations.next_deadline(), Some(now + RETRY_MIN));
        assert_eq!(reservations.reachability(), Reachability::Public);
    }
}
