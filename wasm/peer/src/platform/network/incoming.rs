//! Streams that others open to the tab, accepted into queues. libp2p's own behaviour has room for one: of requests that come in one
//! packet all others would be dropped.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::rc::Rc;
use std::task::{Context, Poll};

use futures::channel::mpsc;
use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::DeniedUpgrade;
use libp2p::core::{Endpoint, UpgradeInfo};
use libp2p::swarm::handler::{ConnectionEvent, FullyNegotiatedInbound};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour,
    SubstreamProtocol, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{InboundUpgrade, Multiaddr, PeerId, Stream, StreamProtocol};
use send_wrapper::SendWrapper;

/// Streams of one protocol that wait to be taken; further ones are reset.
const WAITING_MAX: usize = 128;

type AcceptedProtocols = HashMap<StreamProtocol, mpsc::Sender<(PeerId, Stream)>>;

/// Who accepts which protocol; shared with every connection of the one thread.
#[derive(Debug, Clone, Default)]
pub(super) struct IncomingProtocols(Rc<RefCell<AcceptedProtocols>>);

impl IncomingProtocols {
    /// Streams of a protocol, from now on; `None` where they are accepted already.
    pub(super) fn accept(&self, protocol: StreamProtocol) -> Option<mpsc::Receiver<(PeerId, Stream)>> {
        let mut accepted = self.0.borrow_mut();
        if accepted.get(&protocol).is_some_and(|sender| !sender.is_closed()) {
            return None;
        }
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        accepted.insert(protocol, sender);
        Some(receiver)
    }

    fn names(&self) -> Vec<StreamProtocol> {
        let mut accepted = self.0.borrow_mut();
        accepted.retain(|_, sender| !sender.is_closed());
        accepted.keys().cloned().collect()
    }

    fn deliver(&self, peer: PeerId, stream: Stream, protocol: &StreamProtocol) {
        if let Some(sender) = self.0.borrow_mut().get_mut(protocol) {
            // Where it is full, the remote sees a reset.
            let _ = sender.try_send((peer, stream));
        }
    }
}

/// See the module.
pub struct IncomingBehaviour(SendWrapper<IncomingProtocols>);

impl IncomingBehaviour {
    pub(super) fn new() -> Self {
        Self(SendWrapper::new(IncomingProtocols::default()))
    }

    /// Where protocols are accepted.
    pub(super) fn protocols(&self) -> IncomingProtocols {
        self.0.clone().take()
    }

    fn handler(&self, peer: PeerId) -> IncomingHandler {
        IncomingHandler { peer, protocols: self.0.clone() }
    }
}

/// The streams that come over one connection.
pub struct IncomingHandler {
    peer: PeerId,
    protocols: SendWrapper<IncomingProtocols>,
}

/// Any of these protocols, by its name alone.
#[derive(Clone)]
pub struct AnyProtocol(Vec<StreamProtocol>);

impl UpgradeInfo for AnyProtocol {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<Stream> for AnyProtocol {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

impl ConnectionHandler for IncomingHandler {
    type FromBehaviour = Infallible;
    type ToBehaviour = Infallible;
    type InboundProtocol = AnyProtocol;
    type OutboundProtocol = DeniedUpgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = ();

    fn listen_protocol(&self) -> SubstreamProtocol<AnyProtocol> {
        SubstreamProtocol::new(AnyProtocol(self.protocols.names()), ())
    }

    fn on_behaviour_event(&mut self, never: Infallible) {
        match never {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<DeniedUpgrade, (), Infallible>> {
        Poll::Pending
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<AnyProtocol, DeniedUpgrade>) {
        if let ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) = event {
            let (stream, protocol) = protocol;
            self.protocols.deliver(self.peer, stream, &protocol);
        }
    }
}

impl NetworkBehaviour for IncomingBehaviour {
    type ConnectionHandler = IncomingHandler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<IncomingHandler, ConnectionDenied> {
        Ok(self.handler(peer))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<IncomingHandler, ConnectionDenied> {
        Ok(self.handler(peer))
    }

    fn on_swarm_event(&mut self, _: FromSwarm<'_>) {}

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, never: THandlerOutEvent<Self>) {
        match never {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}
