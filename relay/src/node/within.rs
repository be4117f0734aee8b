//! Restricts a behaviour that dials addresses from untrusted peers to networks that those peers may name.
//!
//! Kademlia takes addresses from other peers' answers, and hole punching from the remote. They are dialled only
//! within the scope of this node. DNS names are not dialled: they may resolve to any address.

use std::collections::HashSet;
use std::ops::{Deref, DerefMut};
use std::task::{Context, Poll};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm,
};
use libp2p::{Multiaddr, PeerId};

use super::Reach;
use super::routing::{Scope, scope};
use crate::guard_metrics::{GuardMetrics, Violation};

/// Why an address is not dialled.
#[derive(Debug, thiserror::Error)]
#[error("addresses within this node's reach are wanted, got {0}")]
struct Foreign(Multiaddr);

/// Bounds the dials of another behaviour.
pub(super) struct Within<B> {
    inner: B,
    reach: Reach,
    metrics: GuardMetrics,
    dials: HashSet<ConnectionId>,
}

impl<B> Within<B> {
    pub(super) fn new(inner: B, reach: Reach, metrics: GuardMetrics) -> Self {
        Self { inner, reach, metrics, dials: HashSet::new() }
    }
}

impl<B> Deref for Within<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.inner
    }
}

impl<B> DerefMut for Within<B> {
    fn deref_mut(&mut self) -> &mut B {
        &mut self.inner
    }
}

/// Whether a node of this scope may dial an address that an untrusted peer named.
fn may_dial(address: &Multiaddr, reach: Scope) -> bool {
    let is_number = matches!(address.iter().next(), Some(Protocol::Ip4(_) | Protocol::Ip6(_)));
    is_number && scope(address) <= reach
}

impl<B: NetworkBehaviour> NetworkBehaviour for Within<B> {
    type ConnectionHandler = THandler<B>;
    type ToSwarm = B::ToSwarm;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.inner.handle_pending_inbound_connection(connection, local, remote)
    }

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<B>, ConnectionDenied> {
        self.inner.handle_established_inbound_connection(connection, peer, local, remote)
    }

    fn handle_pending_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
        role: Endpoint,
    ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
        let reach = self.reach.scope();
        if self.dials.remove(&connection)
            && let Some(foreign) = addresses.iter().find(|address| !may_dial(address, reach))
        {
            self.metrics.count(Violation::ForeignAddress, 1);
            return Err(ConnectionDenied::new(Foreign(foreign.clone())));
        }
        let mut known = self.inner.handle_pending_outbound_connection(connection, peer, addresses, role)?;
        known.retain(|address| may_dial(address, reach));
        Ok(known)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<B>, ConnectionDenied> {
        self.inner.handle_established_outbound_connection(connection, peer, address, role, port)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        self.inner.on_swarm_event(event);
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<B>,
    ) {
        self.inner.on_connection_handler_event(peer, connection, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<B::ToSwarm, THandlerInEvent<B>>> {
        let polled = self.inner.poll(cx);
        if let Poll::Ready(ToSwarm::Dial { opts }) = &polled {
            self.dials.insert(opts.connection_id());
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::collections::VecDeque;
    use std::net::TcpListener;
    use std::sync::Arc;

    use futures::StreamExt as _;
    use libp2p::identity::Keypair;
    use libp2p::swarm::dial_opts::DialOpts;
    use libp2p::swarm::dummy;
    use tokio::sync::Notify;

    use super::*;
    use crate::node::testing;

    /// A behaviour that dials any address it was told.
    #[derive(Default)]
    struct Gullible {
        known: Vec<Multiaddr>,
        dials: VecDeque<DialOpts>,
        failed: Arc<Notify>,
    }

    impl NetworkBehaviour for Gullible {
        type ConnectionHandler = dummy::ConnectionHandler;
        type ToSwarm = std::convert::Infallible;

        fn handle_pending_outbound_connection(
            &mut self,
            _: ConnectionId,
            _: Option<PeerId>,
            _: &[Multiaddr],
            _: Endpoint,
        ) -> Result<Vec<Multiaddr>, ConnectionDenied> {
            Ok(self.known.clone())
        }

        fn handle_established_inbound_connection(
            &mut self,
            _: ConnectionId,
            _: PeerId,
            _: &Multiaddr,
            _: &Multiaddr,
        ) -> Result<THandler<Self>, ConnectionDenied> {
            Ok(dummy::ConnectionHandler)
        }

        fn handle_established_outbound_connection(
            &mut self,
            _: ConnectionId,
            _: PeerId,
            _: &Multiaddr,
            _: Endpoint,
            _: PortUse,
        ) -> Result<THandler<Self>, ConnectionDenied> {
            Ok(dummy::ConnectionHandler)
        }

        fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
            if let FromSwarm::DialFailure(_) = event {
                self.failed.notify_one();
            }
        }

        fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
            match event {}
        }

        fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
            match self.dials.pop_front() {
                Some(opts) => Poll::Ready(ToSwarm::Dial { opts }),
                None => Poll::Pending,
            }
        }
    }

    /// Whether a node with the address `ours` dials a port of this machine, which it knows or is told to dial.
    async fn dials(ours: &str, is_known: bool) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let there: Multiaddr =
            format!("/ip4/127.0.0.1/tcp/{}", listener.local_addr().unwrap().port()).parse().unwrap();
        let peer = PeerId::random();
        let (known, opts) = match is_known {
            true => (vec![there], DialOpts::peer_id(peer).build()),
            false => (Vec::new(), DialOpts::peer_id(peer).addresses(vec![there]).build()),
        };
        let (reach, metrics) = (Reach::default(), GuardMetrics::default());
        reach.addresses.set(vec![ours.parse().unwrap()]);
        let failed = Arc::new(Notify::new());
        let gullible = Gullible { known, dials: [opts].into(), failed: Arc::clone(&failed) };
        let behaviour = Within::new(gullible, reach, metrics);
        let keypair = Keypair::generate_ed25519();
        let mut swarm = testing::swarm(&keypair, behaviour);
        let (dialled, asked) = tokio::sync::oneshot::channel();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let listening = tokio::spawn(async move {
            let _ = listener.accept().await;
            // The handshake ends here, and with it the dial.
            let _ = dialled.send(());
        });
        loop {
            tokio::select! {
                _ = swarm.select_next_some() => {}
                () = failed.notified() => break,
            }
        }
        listening.abort();
        asked.await.is_ok()
    }

    #[tokio::test]
    async fn what_strangers_name_is_dialled_in_a_network_of_ones_own_alone() {
        for is_known in [true, false] {
            assert!(dials("/ip4/127.0.0.1/tcp/1", is_known).await, "of this machine, known: {is_known}");
            for ours in ["/ip4/203.0.113.7/tcp/1", "/ip4/192.168.1.7/tcp/1"] {
                assert!(!dials(ours, is_known).await, "{ours}, known: {is_known}");
            }
        }
    }

    #[test]
    fn names_are_dialled_by_nobody() {
        for name in ["/dns/localhost/tcp/1", "/dns4/router.lan/tcp/1", "/dnsaddr/run.example"] {
            assert!(!may_dial(&name.parse().unwrap(), Scope::Machine), "{name}");
        }
    }
}
