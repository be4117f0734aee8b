//! Limits the relayed circuits of one address, so that no address takes all of them with many peer ids.
//!
//! libp2p's relay bounds circuits in all and for each peer, but a peer id costs nothing. Here they are counted by the
//! address of the requester. The relay asks before each ([`RateLimiter`]) and reports its end by an event.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use barnraise_swarm::guard::FairShares;
use libp2p::relay::{Event, RateLimiter, StatusCode};
use libp2p::{Multiaddr, PeerId};

use crate::guard_metrics::{GuardMetrics, Violation};
use crate::source::source;

/// Clones count together.
#[derive(Clone, Debug)]
pub(super) struct Circuits {
    counted: Arc<Mutex<CircuitCounts>>,
    metrics: GuardMetrics,
}

#[derive(Debug)]
struct CircuitCounts {
    shares: FairShares<Option<IpAddr>>,
    /// The source address of each circuit, by requesting peer.
    of_peers: HashMap<PeerId, Vec<Option<IpAddr>>>,
}

impl Circuits {
    /// Allows `n_max` circuits in all.
    pub(super) fn new(n_max: usize, metrics: GuardMetrics) -> Self {
        let counted = CircuitCounts { shares: FairShares::new(n_max), of_peers: HashMap::new() };
        Self { counted: Arc::new(Mutex::new(counted)), metrics }
    }

    fn lock(&self) -> MutexGuard<'_, CircuitCounts> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the counts by an event of the relay.
    #[expect(deprecated, reason = "libp2p has no other word for a circuit that did not come about")]
    pub(super) fn on_event(&self, event: &Event) {
        let ended = match event {
            // Circuits refused for other reasons were never granted here.
            Event::CircuitReqDenied { src_peer_id, status: StatusCode::NoReservation, .. }
            | Event::CircuitReqOutboundConnectFailed { src_peer_id, .. }
            | Event::CircuitReqAcceptFailed { src_peer_id, .. }
            | Event::CircuitClosed { src_peer_id, .. } => src_peer_id,
            _ => return,
        };
        let mut counted = self.lock();
        let CircuitCounts { shares, of_peers } = &mut *counted;
        let Some(own) = of_peers.get_mut(ended) else { return };
        if let Some(address) = own.pop() {
            shares.give_back(&address);
        }
        if own.is_empty() {
            of_peers.remove(ended);
        }
    }

    /// The last connection of a peer ended, and with it its circuits, reported or not.
    pub(super) fn on_gone(&self, peer: &PeerId) {
        let mut counted = self.lock();
        for address in counted.of_peers.remove(peer).unwrap_or_default() {
            counted.shares.give_back(&address);
        }
    }
}

impl RateLimiter for Circuits {
    fn try_next(&mut self, peer: PeerId, address: &Multiaddr, _: Instant) -> bool {
        let address = source(address);
        let mut counted = self.lock();
        if !counted.shares.take(&address) {
            drop(counted);
            self.metrics.count(Violation::CircuitsOfAddress, 1);
            return false;
        }
        counted.of_peers.entry(peer).or_default().push(address);
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn one_address_leaves_circuits_for_the_others_under_any_number_of_names() {
        let mut circuits = Circuits::new(256, GuardMetrics::default());
        let greedy: Multiaddr = "/ip4/203.0.113.7/tcp/1".parse().unwrap();
        let names: Vec<PeerId> = (0..256).map(|_| PeerId::random()).collect();
        let n_granted =
            names.iter().filter(|name| circuits.try_next(**name, &greedy, Instant::now())).count();
        assert_eq!(n_granted, 128);
        let honest: Multiaddr = "/ip4/198.51.100.7/tcp/1".parse().unwrap();
        let peer = PeerId::random();
        assert!((0..16).all(|_| circuits.try_next(peer, &honest, Instant::now())));
        // What ends, comes to nothing or leaves makes room again.
        circuits.on_event(&Event::CircuitClosed { src_peer_id: peer, dst_peer_id: names[0], error: None });
        let status = StatusCode::NoReservation;
        circuits.on_event(&Event::CircuitReqDenied { src_peer_id: peer, dst_peer_id: names[0], status });
        let status = StatusCode::ResourceLimitExceeded;
        circuits.on_event(&Event::CircuitReqDenied { src_peer_id: peer, dst_peer_id: names[0], status });
        assert_eq!(circuits.lock().of_peers[&peer].len(), 14);
        circuits.on_gone(&peer);
        names.iter().for_each(|name| circuits.on_gone(name));
        let mut circuits = circuits.lock();
        assert!(circuits.of_peers.is_empty() && (0..128).all(|_| circuits.shares.take(&None)));
    }
}
