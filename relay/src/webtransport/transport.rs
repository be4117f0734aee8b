//! The transport itself: listeners by address, no dialling.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::{BoxFuture, Pending};
use futures::stream::SelectAll;
use libp2p::core::transport::{DialOpts, ListenerId, TransportError as Libp2pTransportError, TransportEvent};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId};
use tokio_util::task::TaskTracker;

use super::address::to_socket_address;
use super::config::WebTransportConfig;
use super::handshake::HandshakeError;
use super::listener::{Listener, Shared};
use super::muxer::Connection;
use crate::certificates::Certificates;
use crate::node::GuardMetrics;
use crate::pending::PendingHandshakes;

/// Why a listener or a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The UDP socket cannot be had.
    #[error("cannot listen on UDP {address}: {source}")]
    Bind {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The interfaces of the machine cannot be watched.
    #[error("cannot watch the network interfaces: {0}")]
    Interfaces(io::Error),
    /// The endpoint's task ended: the socket failed.
    #[error("the UDP socket of the listener failed")]
    EndpointLost,
    /// TLS refuses its configuration.
    #[error("TLS configuration: {0}")]
    Tls(#[from] rustls::Error),
    /// TLS lacks the cipher suite that QUIC begins with.
    #[error("TLS lacks TLS13_AES_128_GCM_SHA256, which QUIC begins with")]
    NoInitialCipherSuite,
    /// The idle timeout does not fit QUIC's 62 bits of milliseconds.
    #[error("an idle timeout of {0:?} does not fit QUIC")]
    IdleTimeout(Duration),
    /// A client did not become a peer.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

pub(super) type Upgrade = BoxFuture<'static, Result<(PeerId, Connection), TransportError>>;

/// Listens on `/ip4|ip6/…/udp/…/quic-v1/webtransport`. To be polled within a tokio runtime.
#[derive(Debug)]
pub struct Transport {
    config: WebTransportConfig,
    shared: Shared,
    listeners: SelectAll<Listener>,
    waker: Option<Waker>,
}

impl Transport {
    /// A transport for the node with this key pair.
    #[must_use]
    pub fn new(keypair: Keypair, certificates: Certificates, config: WebTransportConfig) -> Self {
        let shared = Shared {
            keypair,
            certificates,
            handshake_timeout: config.handshake_timeout,
            pending: PendingHandshakes::new(config.max_pending_handshakes, GuardMetrics::default()),
            tasks: TaskTracker::new(),
        };
        Self { config, shared, listeners: SelectAll::new(), waker: None }
    }

    /// Counts handshakes that come to nothing where the node counts.
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
    type Output = (PeerId, Connection);
    type Error = TransportError;
    type ListenerUpgrade = Upgrade;
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
        let listener = Listener::bind(id, socket_address, quic, self.shared.clone())
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
