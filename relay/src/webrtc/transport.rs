//! libp2p's transport behind its front, with its tasks kept together and its connections bounded.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use libp2p::core::transport::{DialOpts, ListenerId, TransportError as DialError, TransportEvent};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId};
use libp2p_webrtc::tokio::{Certificate, Connection as InnerConnection, Error as InnerError};
use tokio_util::task::AbortOnDropHandle;

use super::connection::{Connection, ConnectionLimits};
use super::listener::{Change, Listener, inward, to_socket_address};
use super::runtimes::{Runtimes, Tasks};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransportError {
    /// WebRTC failed.
    #[error("WebRTC: {0}")]
    WebRtc(#[from] InnerError),
    /// No socket, or no further thread, of the system.
    #[error("WebRTC: {0}")]
    System(#[from] io::Error),
    /// A bug in the library, or it is being shut down.
    #[error("the WebRTC handshake was broken off")]
    Broken,
}

type Upgrade = BoxFuture<'static, Result<(PeerId, Connection), TransportError>>;
type Event = TransportEvent<Upgrade, TransportError>;

/// Listens on `/ip4|ip6/…/udp/…/webrtc-direct`.
pub(crate) struct Transport {
    inner: libp2p_webrtc::tokio::Transport,
    listeners: Vec<Listener>,
    limits: ConnectionLimits,
    runtimes: Runtimes,
    waker: Option<Waker>,
}

impl Transport {
    pub(crate) fn new(keypair: Keypair, certificate: Certificate, limits: ConnectionLimits) -> Self {
        let inner = libp2p_webrtc::tokio::Transport::new(keypair, certificate);
        Self { inner, listeners: Vec::new(), limits, runtimes: Runtimes::default(), waker: None }
    }

    fn listener(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.listeners.iter_mut().find(|listener| listener.id == id)
    }

    fn poll_listeners(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        for listener in &mut self.listeners {
            let listener_id = listener.id;
            if let Poll::Ready(change) = listener.poll(cx) {
                return Poll::Ready(match change {
                    Ok(Change::Up(listen_addr)) => TransportEvent::NewAddress { listener_id, listen_addr },
                    Ok(Change::Down(listen_addr)) => {
                        TransportEvent::AddressExpired { listener_id, listen_addr }
                    }
                    Err(error) => TransportEvent::ListenerError { listener_id, error: error.into() },
                });
            }
        }
        Poll::Pending
    }

    /// What the listener behind the front says, as others see it; `None` where they don't.
    fn outward(&mut self, event: Event) -> Option<Event> {
        match event {
            TransportEvent::NewAddress { listener_id, listen_addr } => {
                self.listener(listener_id)?.begin(&listen_addr);
                None
            }
            TransportEvent::AddressExpired { .. } => None,
            TransportEvent::Incoming { listener_id, upgrade, send_back_addr, .. } => {
                let listener = self.listener(listener_id)?;
                // One that was forgotten meanwhile has nobody to answer to.
                let send_back_addr = listener.client(&send_back_addr)?;
                let local_addr = listener.local();
                Some(TransportEvent::Incoming { listener_id, upgrade, local_addr, send_back_addr })
            }
            TransportEvent::ListenerClosed { listener_id, reason } => {
                self.listeners.retain(|listener| listener.id != listener_id);
                Some(TransportEvent::ListenerClosed { listener_id, reason })
            }
            other @ TransportEvent::ListenerError { .. } => Some(other),
        }
    }
}

fn run(
    handshake: impl Future<Output = Result<(PeerId, InnerConnection), InnerError>> + Send + 'static,
    tasks: io::Result<Arc<Tasks>>,
    limits: ConnectionLimits,
) -> Upgrade {
    async move {
        let tasks = tasks?;
        let running = AbortOnDropHandle::new(tasks.handle().spawn(handshake));
        let (peer, connection) = running.await.map_err(|_| TransportError::Broken)??;
        Ok((peer, Connection::new(connection, limits, tasks)))
    }
    .boxed()
}

impl libp2p::Transport for Transport {
    type Output = (PeerId, Connection);
    type Error = TransportError;
    type ListenerUpgrade = Upgrade;
    type Dial = Upgrade;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), DialError<TransportError>> {
        let Some(socket_address) = to_socket_address(&address) else {
            return Err(DialError::MultiaddrNotSupported(address));
        };
        let listener = Listener::bind(id, socket_address).map_err(|error| DialError::Other(error.into()))?;
        self.inner.listen_on(id, inward()).map_err(|error| error.map(TransportError::from))?;
        self.listeners.push(listener);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        Ok(())
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, opts: DialOpts) -> Result<Upgrade, DialError<TransportError>> {
        let dial = self.inner.dial(address, opts).map_err(|error| error.map(TransportError::from))?;
        Ok(run(dial, self.runtimes.next(), self.limits))
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Event> {
        let this = &mut *self;
        loop {
            if let Poll::Ready(event) = this.poll_listeners(cx) {
                return Poll::Ready(event);
            }
            let Poll::Ready(event) = Pin::new(&mut this.inner).poll(cx) else {
                this.waker = Some(cx.waker().clone());
                return Poll::Pending;
            };
            let (runtimes, limits) = (&mut this.runtimes, this.limits);
            let event = event
                .map_err(TransportError::from)
                .map_upgrade(|upgrade| run(upgrade, runtimes.next(), limits));
            if let Some(event) = this.outward(event) {
                return Poll::Ready(event);
            }
        }
    }
}
