//! Bounds the inbound connections from one address, at a time and in a minute, so that one machine takes neither
//! every place nor all the time that handshakes cost.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::Instant;

use barnraise_swarm::Moment;
use barnraise_swarm::guard::RateLimiter;
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandlerInEvent, THandlerOutEvent, ToSwarm,
    dummy,
};
use libp2p::{Multiaddr, PeerId};

use crate::source::source;

/// Addresses whose latest connections are remembered.
const ADDRESSES_MAX: usize = 20_000;

/// Why an address gets no further connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddressRefusal {
    /// The address has as many connections as allowed.
    #[error("{limit} connections from {address} already")]
    TooMany { address: IpAddr, limit: u32 },
    /// The address began as many connections in this minute as allowed.
    #[error("{limit} connections from {address} within a minute already")]
    TooOften { address: IpAddr, limit: u32 },
}

/// Counts connections from their first packet on. Relayed connections are counted at the relay, by its own limits.
pub(super) struct AddressLimitBehaviour {
    limit: u32,
    per_minute: u32,
    started: Instant,
    lately: RateLimiter<IpAddr>,
    of_addresses: HashMap<IpAddr, u32>,
    of_connections: HashMap<ConnectionId, IpAddr>,
}

impl AddressLimitBehaviour {
    /// At most `limit` connections at a time, and `per_minute` begun in a minute.
    pub(super) fn new(limit: u32, per_minute: u32) -> Self {
        Self {
            limit,
            per_minute,
            started: Instant::now(),
            lately: RateLimiter::new(per_minute, ADDRESSES_MAX),
            of_addresses: HashMap::new(),
            of_connections: HashMap::new(),
        }
    }

    fn take(
        &mut self,
        now: Moment,
        connection: ConnectionId,
        remote: &Multiaddr,
    ) -> Result<(), AddressRefusal> {
        let Some(address) = source(remote) else { return Ok(()) };
        let taken = self.of_addresses.get(&address).copied().unwrap_or_default();
        if taken >= self.limit {
            return Err(AddressRefusal::TooMany { address, limit: self.limit });
        }
        if !self.lately.take(now, &address) {
            return Err(AddressRefusal::TooOften { address, limit: self.per_minute });
        }
        self.of_addresses.insert(address, taken + 1);
        self.of_connections.insert(connection, address);
        Ok(())
    }

    fn give_back(&mut self, connection: ConnectionId) {
        let Some(address) = self.of_connections.remove(&connection) else { return };
        if let Some(taken) = self.of_addresses.get_mut(&address) {
            *taken -= 1;
            if *taken == 0 {
                self.of_addresses.remove(&address);
            }
        }
    }
}

impl NetworkBehaviour for AddressLimitBehaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.take(self.started.elapsed(), connection, remote).map_err(ConnectionDenied::new)
    }

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<dummy::ConnectionHandler, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
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

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionClosed(closed) => self.give_back(closed.connection_id),
            FromSwarm::ListenFailure(failure) => self.give_back(failure.connection_id),
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, never: THandlerOutEvent<Self>) {
        match never {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    const NOW: Moment = Duration::ZERO;

    fn remote(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn places_of_an_address_are_bounded_and_given_back() {
        let mut limits = AddressLimitBehaviour::new(2, 1000);
        let (first, second, third) =
            (ConnectionId::new_unchecked(1), ConnectionId::new_unchecked(2), ConnectionId::new_unchecked(3));
        limits.take(NOW, first, &remote("/ip4/10.0.0.1/tcp/1")).unwrap();
        limits.take(NOW, second, &remote("/ip4/10.0.0.1/udp/2/quic-v1")).unwrap();
        let error = limits.take(NOW, third, &remote("/ip4/10.0.0.1/tcp/3")).unwrap_err();
        assert_eq!(error.to_string(), "2 connections from 10.0.0.1 already");
        limits.take(NOW, third, &remote("/ip4/10.0.0.2/tcp/3")).unwrap();
        limits.give_back(first);
        limits.take(NOW, first, &remote("/ip4/10.0.0.1/tcp/3")).unwrap();
        for connection in [first, second, third] {
            limits.give_back(connection);
            limits.give_back(connection);
        }
        assert!(limits.of_addresses.is_empty() && limits.of_connections.is_empty());
    }

    #[test]
    fn an_address_does_not_begin_all_day_long() {
        let mut limits = AddressLimitBehaviour::new(10, 3);
        let mut begun = 0;
        let mut begin = |now, address| {
            begun += 1;
            let connection = ConnectionId::new_unchecked(begun);
            let taken = limits.take(Duration::from_secs(now), connection, &remote(address));
            limits.give_back(connection);
            taken.map_err(|error| error.to_string())
        };
        let greedy = "/ip4/10.0.0.1/tcp/1";
        assert!((0..3).all(|_| begin(0, greedy).is_ok()));
        assert_eq!(begin(0, greedy).unwrap_err(), "3 connections from 10.0.0.1 within a minute already");
        begin(0, "/ip4/10.0.0.2/tcp/1").unwrap();
        begin(20, greedy).unwrap();
        begin(20, greedy).unwrap_err();
    }

    #[test]
    fn neighbours_in_a_64_are_one_source() {
        let of = |text| source(&remote(text));
        assert_eq!(of("/ip6/2001:db8:0:1::1/tcp/1"), of("/ip6/2001:db8:0:1:ffff::2/tcp/1"));
        assert_ne!(of("/ip6/2001:db8:0:1::1/tcp/1"), of("/ip6/2001:db8:0:2::1/tcp/1"));
        assert_eq!(of("/ip6/::ffff:10.0.0.1/tcp/1"), of("/ip4/10.0.0.1/tcp/1"));
        assert_eq!(of("/ip4/10.0.0.1/tcp/1/p2p-circuit"), None);
    }
}
