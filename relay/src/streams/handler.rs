//! The streams of one connection.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::task::{Context, Poll};

use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
};
use libp2p::swarm::{ConnectionHandler, ConnectionHandlerEvent, StreamUpgradeError, SubstreamProtocol};
use libp2p::{PeerId, Stream, StreamProtocol};
use tokio::sync::oneshot;

use super::upgrade::AnyOf;
use super::{OUTGOING_STREAMS_MAX, OpenError, Registry};

type Reply = oneshot::Sender<Result<Stream, OpenError>>;

/// Asks for a stream on a connection; once that is gone the reply is dropped.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    pub(crate) protocol: StreamProtocol,
    pub(crate) reply: Reply,
}

pub(crate) struct Handler {
    peer: PeerId,
    registry: Registry,
    requests: VecDeque<OpenRequest>,
}

impl Handler {
    pub(super) fn new(peer: PeerId, registry: Registry) -> Self {
        Self { peer, registry, requests: VecDeque::new() }
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = OpenRequest;
    type ToBehaviour = Infallible;
    type InboundProtocol = AnyOf;
    type OutboundProtocol = AnyOf;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Reply;

    fn listen_protocol(&self) -> SubstreamProtocol<AnyOf> {
        SubstreamProtocol::new(AnyOf(self.registry.protocols()), ())
    }

    fn connection_keep_alive(&self) -> bool {
        !self.requests.is_empty()
    }

    fn on_behaviour_event(&mut self, request: OpenRequest) {
        if self.requests.len() >= OUTGOING_STREAMS_MAX {
            // The caller may have stopped waiting.
            let _ = request.reply.send(Err(OpenError::TooMany));
            return;
        }
        self.requests.push_back(request);
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<AnyOf, Reply, Infallible>> {
        // The swarm polls again after `on_behaviour_event`; no waker is needed.
        while let Some(OpenRequest { protocol, reply }) = self.requests.pop_front() {
            if !reply.is_closed() {
                let protocol = SubstreamProtocol::new(AnyOf(vec![protocol]), reply);
                return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
            }
        }
        Poll::Pending
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<AnyOf, AnyOf, (), Reply>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: (stream, protocol),
                ..
            }) => self.registry.deliver(self.peer, stream, &protocol),
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info }) => {
                let _ = info.send(Ok(protocol));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                let _ = info.send(Err(match error {
                    StreamUpgradeError::Timeout => OpenError::Timeout,
                    StreamUpgradeError::NegotiationFailed => OpenError::Unsupported,
                    StreamUpgradeError::Io(error) => OpenError::Io(error),
                    StreamUpgradeError::Apply(never) => match never {},
                }));
            }
            _ => {}
        }
    }
}
