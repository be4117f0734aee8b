//! Tests whether peers can be dialled (AutoNAT v2), and dials no third party on their behalf.
//!
//! The requester names the address to dial, so it could have this node dial where only this node gets through: its
//! private network, or its machine. A private address is therefore dialled only where this node may dial such
//! addresses at all, and where the requester's connection comes from that very address. DNS names and relayed addresses
//! are not tested, because both may lead anywhere.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::Instant;

use barnraise_swarm::guard::RateLimiter;
use libp2p::autonat::v2::server;
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm,
};
use libp2p::{Multiaddr, PeerId};

use super::Reach;
use super::routing::{Scope, scope_of};
use crate::guard_metrics::{GuardMetrics, Violation};
use crate::source::is_relayed;
use crate::source::source;

/// Dials for one address (a /64 of IPv6) in a minute: a node has a handful of addresses.
const DIALS_PER_MINUTE: u32 = 30;
/// Addresses whose latest dials are remembered.
const ADDRESSES_MAX: usize = 10_000;

/// Why an address is not tested.
#[derive(Debug, thiserror::Error)]
enum DialBackRefusal {
    #[error("an address of its own is wanted, dialled directly; got {0}")]
    Foreign(Multiaddr),
    #[error("{DIALS_PER_MINUTE} addresses were tested for it within a minute already")]
    TooOften,
}

/// libp2p's AutoNAT server, whose dials are checked.
pub(super) struct DialBackBehaviour {
    server: server::Behaviour,
    reach: Reach,
    metrics: GuardMetrics,
    /// Source addresses of the connected peers.
    observed: HashMap<PeerId, Vec<(ConnectionId, IpAddr)>>,
    dials: HashSet<ConnectionId>,
    lately: RateLimiter<IpAddr>,
    started: Instant,
}

impl DialBackBehaviour {
    pub(super) fn new(reach: Reach, metrics: GuardMetrics) -> Self {
        Self {
            server: server::Behaviour::default(),
            reach,
            metrics,
            observed: HashMap::new(),
            dials: HashSet::new(),
            lately: RateLimiter::new(DIALS_PER_MINUTE, ADDRESSES_MAX),
            started: Instant::now(),
        }
    }

    fn check(&mut self, peer: PeerId, addresses: &[Multiaddr]) -> Result<(), DialBackRefusal> {
        let observed = self.observed.get(&peer).map_or(&[][..], Vec::as_slice);
        let observed: Vec<IpAddr> = observed.iter().map(|(_, address)| *address).collect();
        let reach = self.reach.scope();
        if let Some(address) = addresses.iter().find(|address| !may_test(address, &observed, reach)) {
            return Err(DialBackRefusal::Foreign(address.clone()));
        }
        // All of one peer: it cannot have more by several connections.
        let key = observed.first().and_then(|address| source(&Multiaddr::from(*address)));
        match key.is_some_and(|key| self.lately.take(self.started.elapsed(), &key)) {
            true => Ok(()),
            false => Err(DialBackRefusal::TooOften),
        }
    }
}

/// Whether an address may be dialled for a requester whose connections come from `observed`.
fn may_test(address: &Multiaddr, observed: &[IpAddr], reach: Scope) -> bool {
    let Some(ip) = host(address).filter(|_| !is_relayed(address)) else { return false };
    match scope_of(ip) {
        Scope::Everywhere => !observed.is_empty(),
        scope => scope <= reach && observed.contains(&ip),
    }
}

fn host(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(IpAddr::from(ip).to_canonical()),
        _ => None,
    }
}

impl NetworkBehaviour for DialBackBehaviour {
    type ConnectionHandler = THandler<server::Behaviour>;
    type ToSwarm = server::Event;

    fn handle_pending_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        if self.dials.remove(&connection)
            && let Some(peer) = peer
            && let Err(refusal) = self.check(peer, addresses)
        {
            tracing::debug!(%peer, %refusal, "an address is not tested");
            self.metrics.count(Violation::ForeignAddress, 1);
            return Err(ConnectionDenied::new(refusal));
        }
        self.server.handle_pending_outbound_connection(connection, peer, addresses, role)
    }

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let handler = self.server.handle_established_inbound_connection(connection, peer, local, remote)?;
        if let Some(address) = host(remote).filter(|_| !is_relayed(remote)) {
            self.observed.entry(peer).or_default().push((connection, address));
        }
        Ok(handler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.server.handle_established_outbound_connection(connection, peer, address, role, port)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        let ended = match &event {
            FromSwarm::ConnectionClosed(closed) => Some((Some(closed.peer_id), closed.connection_id)),
            FromSwarm::ListenFailure(failure) => Some((failure.peer_id, failure.connection_id)),
            _ => None,
        };
        if let Some((Some(peer), connection)) = ended
            && let Some(observed) = self.observed.get_mut(&peer)
        {
            observed.retain(|(of, _)| *of != connection);
            if observed.is_empty() {
                self.observed.remove(&peer);
            }
        }
        self.server.on_swarm_event(event);
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        self.server.on_connection_handler_event(peer, connection, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<server::Event, THandlerInEvent<Self>>> {
        let polled = self.server.poll(cx);
        if let Poll::Ready(ToSwarm::Dial { opts }) = &polled {
            self.dials.insert(opts.connection_id());
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures::StreamExt as _;
    use libp2p::autonat::v2::client;
    use libp2p::identity::Keypair;
    use libp2p::swarm::{NewExternalAddrCandidate, SwarmEvent};
    use libp2p::{Swarm, identify};

    use super::*;
    use crate::node::testing;

    fn may(address: &str, observed: &[&str], reach: Scope) -> bool {
        let observed: Vec<IpAddr> = observed.iter().map(|address| address.parse().unwrap()).collect();
        may_test(&address.parse().unwrap(), &observed, reach)
    }

    #[test]
    fn nobody_has_this_node_knock_in_a_network_that_is_not_its_own() {
        let stranger = ["203.0.113.7"];
        for reach in [Scope::Everywhere, Scope::Network, Scope::Machine] {
            for address in [
                "/ip4/127.0.0.1/tcp/22",
                "/ip4/0.0.0.0/tcp/22",
                "/ip4/192.168.1.1/tcp/80",
                "/ip4/10.0.0.1/udp/53/quic-v1",
                "/ip4/169.254.169.254/tcp/80",
                "/ip4/100.64.0.1/tcp/80",
                "/ip6/::1/tcp/22",
                "/ip6/::ffff:10.0.0.1/tcp/22",
                "/ip6/fe80::1/tcp/22",
                "/ip6/fd00::1/tcp/22",
                "/dns4/router.lan/tcp/80",
                "/dns/localhost/tcp/80",
            ] {
                assert!(!may(address, &stranger, reach), "{address} with {reach:?}");
            }
            assert!(may("/ip4/198.51.100.7/tcp/4001", &stranger, reach));
        }
    }

    #[test]
    fn a_network_of_ones_own_tests_its_own() {
        let (own, other) = (["192.168.1.7"], ["192.168.1.8"]);
        assert!(may("/ip4/192.168.1.7/tcp/4001", &own, Scope::Network));
        assert!(!may("/ip4/192.168.1.7/tcp/4001", &other, Scope::Network), "of another one in it");
        assert!(!may("/ip4/192.168.1.7/tcp/4001", &own, Scope::Everywhere), "which only reaches it");
        assert!(may("/ip4/127.0.0.1/tcp/4001", &["127.0.0.1"], Scope::Machine), "on one machine");
        assert!(!may("/ip4/127.0.0.1/tcp/22", &["127.0.0.1"], Scope::Network), "a proxy that is not named");
    }

    #[test]
    fn nothing_is_dialled_through_others() {
        let relay = "/ip4/198.51.100.7/tcp/4001/p2p/12D3KooWGQmdpzHXCqLno4mMxWXKNFQHASBeF99gTm2JR8Vu5Bdc";
        assert!(!may(&format!("{relay}/p2p-circuit"), &["203.0.113.7"], Scope::Everywhere));
        assert!(!may(relay, &[], Scope::Everywhere), "for somebody who is not here directly");
    }

    /// Says which protocols it speaks.
    #[derive(NetworkBehaviour)]
    struct WithIdentify<B: NetworkBehaviour> {
        identify: identify::Behaviour,
        inner: B,
    }

    /// Listens at an address of this machine.
    async fn swarm<B: NetworkBehaviour>(inner: B) -> (Swarm<WithIdentify<B>>, Multiaddr) {
        let keypair = Keypair::generate_ed25519();
        let identify = identify::Config::new("/test/1".to_owned(), keypair.public());
        let behaviour = WithIdentify { identify: identify::Behaviour::new(identify), inner };
        let mut swarm = testing::swarm(&keypair, behaviour);
        let address = testing::listen(&mut swarm).await;
        (swarm, address)
    }

    #[tokio::test]
    async fn a_stranger_learns_nothing_of_ports_elsewhere() {
        let (reach, metrics) = (Reach::default(), GuardMetrics::default());
        reach.addresses.set(vec!["/ip4/127.0.0.1/tcp/1".parse().unwrap()]);
        let (mut server, address) = swarm(DialBackBehaviour::new(reach, metrics.clone())).await;
        let (mut client, _) = swarm(client::Behaviour::default()).await;
        let listener = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let elsewhere = Multiaddr::from(listener.local_addr().unwrap().ip())
            .with(Protocol::Tcp(listener.local_addr().unwrap().port()));
        let candidate = NewExternalAddrCandidate { addr: &elsewhere };
        client.behaviour_mut().inner.on_swarm_event(FromSwarm::NewExternalAddrCandidate(candidate));
        client.dial(address).unwrap();
        let tested = loop {
            tokio::select! {
                _ = server.select_next_some() => {}
                event = client.select_next_some() => {
                    if let SwarmEvent::Behaviour(WithIdentifyEvent::Inner(event)) = event
                        && event.tested_addr == elsewhere
                    {
                        break event;
                    }
                }
            }
        };
        assert_eq!((tested.tested_addr, tested.result.is_err()), (elsewhere, true));
        assert!(listener.accept().is_err(), "no peer dialled it");
        assert_eq!(metrics.n_counted(Violation::ForeignAddress), 1);
    }
}
