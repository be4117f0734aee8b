//! Dials through relays that have not said yet at which address they see this node.
//!
//! A circuit's ends tell each other the addresses that they are seen at, and both dial at once (DCUtR). libp2p takes those
//! known when the circuit opens, and does not ask again: a circuit that opens before its relay has introduced itself
//! (identify) stays one, however open both routers are.

use std::collections::HashSet;
use std::time::Instant;

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

use crate::source::is_relayed;

/// A dial that waits for the introduction of a relay.
#[derive(Debug)]
struct WaitingDial<D> {
    relay: PeerId,
    until: Instant,
    dial: D,
}

/// Which peers have introduced themselves, and the dials (`D`) that wait for one that has not.
#[derive(Debug)]
pub(super) struct Introductions<D> {
    introduced: HashSet<PeerId>,
    waiting: Vec<WaitingDial<D>>,
}

impl<D> Introductions<D> {
    pub(super) fn new() -> Self {
        Self { introduced: HashSet::new(), waiting: Vec::new() }
    }

    /// The first relay on the way to one of these addresses that has not introduced itself, and where to dial it.
    pub(super) fn missing(&self, addresses: &[Multiaddr]) -> Option<(PeerId, Multiaddr)> {
        let relays = addresses.iter().filter_map(relay);
        relays.into_iter().find(|(relay, _)| !self.introduced.contains(relay))
    }

    /// Keeps a dial until the relay has introduced itself, cannot be reached, or it is `until`.
    pub(super) fn wait(&mut self, relay: PeerId, until: Instant, dial: D) {
        self.waiting.push(WaitingDial { relay, until, dial });
    }

    /// A peer introduced itself. Returns the dials that waited for it.
    #[must_use]
    pub(super) fn on_introduced(&mut self, peer: PeerId) -> Vec<D> {
        self.introduced.insert(peer);
        self.take(|waiting| waiting.relay == peer)
    }

    /// The last connection with a peer ended, or none came about. Returns the dials that waited for it, for which a relay
    /// that is out of reach is an error to be told.
    #[must_use]
    pub(super) fn on_gone(&mut self, peer: PeerId) -> Vec<D> {
        self.introduced.remove(&peer);
        self.take(|waiting| waiting.relay == peer)
    }

    /// The dials that have waited for too long.
    #[must_use]
    pub(super) fn due(&mut self, now: Instant) -> Vec<D> {
        self.take(|waiting| waiting.until <= now)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }

    fn take(&mut self, is_over: impl Fn(&WaitingDial<D>) -> bool) -> Vec<D> {
        self.waiting.extract_if(.., |waiting| is_over(waiting)).map(|waiting| waiting.dial).collect()
    }
}

/// The relay of a circuit, and its own address.
fn relay(circuit: &Multiaddr) -> Option<(PeerId, Multiaddr)> {
    if !is_relayed(circuit) {
        return None;
    }
    let address: Multiaddr = circuit.iter().take_while(|part| *part != Protocol::P2pCircuit).collect();
    match address.iter().last() {
        Some(Protocol::P2p(relay)) => Some((relay, address)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use libp2p::identity::Keypair;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn peer() -> PeerId {
        Keypair::generate_ed25519().public().to_peer_id()
    }

    fn through(relay: PeerId) -> Multiaddr {
        format!("/ip4/192.0.2.1/tcp/1/p2p/{relay}/p2p-circuit/p2p/{}", peer()).parse().unwrap()
    }

    #[test]
    fn a_circuit_waits_for_its_relay_and_no_other_address_does() {
        let mut introductions = Introductions::new();
        let (first, second) = (peer(), peer());
        let direct: Multiaddr = format!("/ip4/192.0.2.2/tcp/1/p2p/{}", peer()).parse().unwrap();
        assert_eq!(introductions.missing(std::slice::from_ref(&direct)), None);
        let address: Multiaddr = format!("/ip4/192.0.2.1/tcp/1/p2p/{first}").parse().unwrap();
        assert_eq!(introductions.missing(&[direct, through(first)]), Some((first, address)));
        let now = Instant::now();
        introductions.wait(first, now + PATIENCE, "first");
        introductions.wait(second, now + PATIENCE, "second");
        assert_eq!(introductions.on_introduced(first), ["first"]);
        assert_eq!(introductions.missing(&[through(first)]), None);
        assert_eq!(introductions.next_deadline(), Some(now + PATIENCE));
        // Each connection of a peer begins with an introduction.
        assert!(introductions.on_gone(first).is_empty());
        assert_eq!(introductions.missing(&[through(first)]).map(|(relay, _)| relay), Some(first));
    }

    #[test]
    fn a_relay_that_is_away_or_silent_keeps_nobody() {
        let mut introductions = Introductions::new();
        let (away, silent) = (peer(), peer());
        let now = Instant::now();
        introductions.wait(away, now + PATIENCE, "away");
        introductions.wait(silent, now + PATIENCE, "silent");
        assert_eq!(introductions.on_gone(away), ["away"]);
        assert!(introductions.due(now).is_empty());
        assert_eq!(introductions.due(now + PATIENCE), ["silent"]);
        assert_eq!(introductions.next_deadline(), None);
    }
}
