//! Limits the peers that are reached through this relay by their address, so that no address takes all reservations with many
//! peer ids.
//!
//! libp2p's relay bounds reservations in all and for each peer. Here the peers that have any are counted by the address that
//! reserved first. The relay asks before each reservation ([`RateLimiter`]), whether it is a new one or a renewal.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use barnraise_swarm::guard::FairShares;
use libp2p::relay::RateLimiter;
use libp2p::{Multiaddr, PeerId};

use crate::guard_metrics::{GuardMetrics, Violation};
use crate::source::source;

/// No reservation is counted for longer without a renewal, so that the sum of now and this is a time.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Clones count together.
#[derive(Clone, Debug)]
pub(super) struct ReservedPeers {
    counted: Arc<Mutex<ReservedCounts>>,
    duration: Duration,
    metrics: GuardMetrics,
}

#[derive(Debug)]
struct ReservedCounts {
    shares: FairShares<Option<IpAddr>>,
    /// The source address of each peer, and when its last reservation ends unless it is renewed.
    of_peers: HashMap<PeerId, (Option<IpAddr>, Instant)>,
}

impl ReservedPeers {
    /// Allows `n_max` peers in all. Their reservations last for `duration`.
    pub(super) fn new(n_max: usize, duration: Duration, metrics: GuardMetrics) -> Self {
        let counted = ReservedCounts { shares: FairShares::new(n_max), of_peers: HashMap::new() };
        Self { counted: Arc::new(Mutex::new(counted)), duration: duration.min(DURATION_MAX), metrics }
    }

    fn lock(&self) -> MutexGuard<'_, ReservedCounts> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last connection of a peer ended, and with it its reservations.
    pub(super) fn on_gone(&self, peer: &PeerId) {
        let mut counted = self.lock();
        if let Some((address, _)) = counted.of_peers.remove(peer) {
            counted.shares.give_back(&address);
        }
    }
}

impl ReservedCounts {
    /// Forgets those that have not renewed their reservations, and are connected still.
    fn forget_ended(&mut self, now: Instant) {
        let Self { shares, of_peers } = self;
        of_peers.retain(|_, (address, ends_at)| {
            let holds = *ends_at > now;
            if !holds {
                shares.give_back(address);
            }
            holds
        });
    }
}

impl RateLimiter for ReservedPeers {
    fn try_next(&mut self, peer: PeerId, address: &Multiaddr, now: Instant) -> bool {
        let (address, ends_at) = (source(address), now + self.duration);
        let mut counted = self.lock();
        if let Some((_, before)) = counted.of_peers.get_mut(&peer) {
            *before = ends_at;
            return true;
        }
        if !counted.shares.has_slot(&address, 1) {
            counted.forget_ended(now);
        }
        if !counted.shares.take(&address) {
            drop(counted);
            self.metrics.count(Violation::ReservationsOfAddress, 1);
            return false;
        }
        counted.of_peers.insert(peer, (address, ends_at));
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn peers(n: usize) -> Vec<PeerId> {
        (0..n).map(|_| PeerId::random()).collect()
    }

    /// How many of these peers are granted a reservation.
    fn n_granted(reserved: &mut ReservedPeers, of: &[PeerId], from: &str, now: Instant) -> usize {
        let address: Multiaddr = from.parse().unwrap();
        of.iter().filter(|peer| reserved.try_next(**peer, &address, now)).count()
    }

    #[test]
    fn one_address_leaves_reservations_for_the_others_under_any_number_of_names() {
        let now = Instant::now();
        let mut reserved = ReservedPeers::new(64, HOUR, GuardMetrics::default());
        let (greedy, honest) = (peers(64), peers(8));
        assert_eq!(n_granted(&mut reserved, &greedy, "/ip4/203.0.113.7/tcp/1", now), 32);
        assert_eq!(n_granted(&mut reserved, &honest, "/ip4/198.51.100.7/tcp/1", now), 8);
        // Renewals, also over another connection, take nothing more.
        assert_eq!(n_granted(&mut reserved, &honest, "/ip4/198.51.100.7/tcp/2", now), 8);
        assert_eq!(n_granted(&mut reserved, &greedy[..32], "/ip4/203.0.113.7/tcp/2", now), 32);
        assert_eq!(reserved.lock().of_peers.len(), 40);
        honest.iter().chain(&greedy).for_each(|peer| reserved.on_gone(peer));
        assert!(reserved.lock().of_peers.is_empty());
        assert_eq!(
            n_granted(&mut reserved, &greedy, "/ip4/198.51.100.9/tcp/1", now),
            32,
            "all are free again"
        );
    }

    #[test]
    fn a_peer_that_renews_no_reservation_makes_room_also_while_it_is_connected() {
        let now = Instant::now();
        let mut reserved = ReservedPeers::new(8, HOUR, GuardMetrics::default());
        let (silent, renewing, next) = (peers(2), peers(2), peers(4));
        let from = "/ip4/203.0.113.7/tcp/1";
        assert_eq!(n_granted(&mut reserved, &silent, from, now), 2);
        assert_eq!(n_granted(&mut reserved, &renewing, from, now), 2);
        assert_eq!(n_granted(&mut reserved, &renewing, from, now + HOUR / 2), 2);
        assert_eq!(n_granted(&mut reserved, &next, from, now + HOUR - Duration::from_secs(1)), 0);
        assert_eq!(n_granted(&mut reserved, &next, from, now + HOUR), 2);
        assert!(renewing.iter().all(|peer| reserved.lock().of_peers.contains_key(peer)));
    }
}
