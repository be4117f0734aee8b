//! Hands requests for streams to the connections, as part of the swarm.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::task::{Context, Poll};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, NotifyHandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};

use super::Registry;
use super::handler::{Handler, OpenRequest};

/// The behaviour behind [`Node::open`](crate::Node::open) and [`Node::accept`](crate::Node::accept).
pub(crate) struct StreamBehaviour {
    registry: Registry,
    requests: VecDeque<(PeerId, ConnectionId, OpenRequest)>,
}

impl StreamBehaviour {
    pub(crate) fn new(registry: Registry) -> Self {
        Self { registry, requests: VecDeque::new() }
    }

    /// The swarm must be polled after this, as it is by its loop.
    pub(crate) fn open(&mut self, peer: PeerId, connection: ConnectionId, request: OpenRequest) {
        self.requests.push_back((peer, connection, request));
    }
}

impl NetworkBehaviour for StreamBehaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<Handler, ConnectionDenied> {
        Ok(Handler::new(peer, self.registry.clone()))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<Handler, ConnectionDenied> {
        Ok(Handler::new(peer, self.registry.clone()))
    }

    fn on_swarm_event(&mut self, _: FromSwarm<'_>) {}

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, never: THandlerOutEvent<Self>) {
        match never {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        match self.requests.pop_front() {
            // A connection that is gone drops the event, and with it the reply.
            Some((peer_id, connection, event)) => Poll::Ready(ToSwarm::NotifyHandler {
                peer_id,
                handler: NotifyHandler::One(connection),
                event,
            }),
            None => Poll::Pending,
        }
    }
}
