//! The transport itself: listeners by address, no dialling.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures::StreamExt as _;
use futures::future::Pending;
use futures::stream::SelectAll;
use libp2p::core::transport::{DialOpts, ListenerId, TransportError as Libp2pTransportError, TransportEvent};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId};
use tokio_util::task::TaskTracker;

use super::address::to_socket_address;
use super::config::WebTransportConfig;
use super::error::TransportError;
use super::listener::{ListenerContext, WebTransportListener, WebTransportUpgrade};
use super::muxer::WebTransportConnection;
use crate::certificates::Certificates;
use crate::guard_metrics::GuardMetrics;
use crate::pending::PendingHandshakes;

/// Listens on `/ip4|ip6/…/udp/…/quic-v1/webtransport`. To be polled within a tokio runtime.
#[derive(Debug)]
pub struct Transport {
    config: WebTransportConfig,
    shared: ListenerContext,
    listeners: SelectAll<WebTransportListener>,
    waker: Option<Waker>,
}

impl Transport {
    /// A transport for the node with this key pair.
    #[must_use]
    pub fn new(keypair: Keypair, certificates: Certificates, config: WebTransportConfig) -> Self {
        let shared = ListenerContext {
            keypair,
            certificates,
            handshake_timeout: config.handshake_timeout,
            pending: PendingHandshakes::new(config.max_pending_handshakes, GuardMetrics::default()),
            tasks: TaskTracker::new(),
        };
        Self { config, shared, listeners: SelectAll::new(), waker: None }
    }

    /// Counts failed handshakes in the node's metrics.
    pub(crate) fn counted_by(mut self, metrics: GuardMetrics) -> Self {
        self.shared.pending = PendingHandshakes::new(self.config.max_pending_handshakes, metrics);
        self
    }
}

impl Transport {
    /// The tasks of every socket and connection. Once the transport and the connections are dropped and
    /// these have ended, the ports are free.
    #[must_use]
    pub fn tasks(&self) -> TaskTracker {
        self.shared.tasks.clone()
    }
}

impl libp2p::Transport for Transport {
    type Output = (PeerId, WebTransportConnection);
    type Error = TransportError;
    type ListenerUpgrade = WebTransportUpgrade;
    type Dial = Pending<Result<Self::Output, Self::Error>>;

    fn listen_on(
        &mut self,
        id: ListenerId,
        address: Multiaddr,
    ) -> Result<(), Libp2pTransportError<TransportError>> {
        let Some(socket_address) = to_socket_address(&address) else {
            return Err(Libp2pTransportError::MultiaddrNotSupported(address));
        };
        let quic = self.config.quic_server(&self.shared.certificates).map_err(Libp2pTransportError::Other)?;
        let listener = WebTransportListener::bind(id, socket_address, quic, self.shared.clone())
            .map_err(Libp2pTransportError::Other)?;
        self.listeners.push(listener);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        Ok(())
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        let listener = self.listeners.iter_mut().find(|listener| listener.id() == id);
        listener.map(|listener| listener.close(Ok(()))).is_some()
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        _: DialOpts,
    ) -> Result<Self::Dial, Libp2pTransportError<TransportError>> {
        Err(Libp2pTransportError::MultiaddrNotSupported(address))
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, Self::Error>> {
        match self.listeners.poll_next_unpin(cx) {
            Poll::Ready(Some(event)) => Poll::Ready(event),
            // With no listener there is nothing that wakes us but the next one.
            Poll::Ready(None) | Poll::Pending => {
                self.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
