//! The transport itself: listeners by address, handshakes on runtimes of their own.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use libp2p::core::transport::{DialOpts, ListenerId, TransportError as DialError, TransportEvent};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId};
use libp2p_webrtc_utils::parse_webrtc_dial_addr;
use tokio_util::task::AbortOnDropHandle;

use super::certificate::Certificate;
use super::connection::{ConnectionLimits, WebRtcConnection};
use super::listener::{ListenerEvent, WebRtcListener, to_socket_address};
use super::runtimes::{Runtimes, Tasks};
use super::upgrade::{UpgradeError, WebRtcUpgrade};
use crate::tasks;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransportError {
    /// The handshake failed.
    #[error("WebRTC: {0}")]
    Upgrade(#[from] UpgradeError),
    /// No socket, or no further thread, of the system.
    #[error("WebRTC: {0}")]
    System(#[from] io::Error),
    /// A bug in the library, or it is being shut down.
    #[error("the WebRTC handshake was broken off")]
    Broken,
}

type Upgrading = BoxFuture<'static, Result<(PeerId, WebRtcConnection), TransportError>>;
type WebRtcEvent = TransportEvent<Upgrading, TransportError>;

/// Listens on `/ip4|ip6/…/udp/…/webrtc-direct`.
pub(crate) struct WebRtcTransport {
    keypair: Keypair,
    certificate: Certificate,
    listeners: Vec<WebRtcListener>,
    closed: VecDeque<ListenerId>,
    limits: ConnectionLimits,
    runtimes: Runtimes,
    waker: Option<Waker>,
}

impl WebRtcTransport {
    pub(crate) fn new(keypair: Keypair, certificate: Certificate, limits: ConnectionLimits) -> Self {
        let (listeners, closed) = (Vec::new(), VecDeque::new());
        Self { keypair, certificate, listeners, closed, limits, runtimes: Runtimes::default(), waker: None }
    }

    fn upgrade(&mut self) -> io::Result<WebRtcUpgrade> {
        Ok(WebRtcUpgrade {
            keypair: self.keypair.clone(),
            certificate: self.certificate.clone(),
            limits: self.limits,
            tasks: self.runtimes.next()?,
        })
    }

    fn poll_listeners(&mut self, cx: &mut Context<'_>) -> Poll<WebRtcEvent> {
        for at in 0..self.listeners.len() {
            let listener = &mut self.listeners[at];
            let (listener_id, local_addr) = (listener.id, listener.local());
            let Poll::Ready(happening) = listener.poll(cx) else { continue };
            return Poll::Ready(match happening {
                Ok(ListenerEvent::Up(listen_addr)) => TransportEvent::NewAddress { listener_id, listen_addr },
                Ok(ListenerEvent::Down(listen_addr)) => {
                    TransportEvent::AddressExpired { listener_id, listen_addr }
                }
                Ok(ListenerEvent::Greeted(client, send_back_addr)) => {
                    let upgrade = run(self.upgrade(), |upgrade| upgrade.inbound(client));
                    TransportEvent::Incoming { listener_id, upgrade, local_addr, send_back_addr }
                }
                Err(error) => TransportEvent::ListenerError { listener_id, error: error.into() },
            });
        }
        Poll::Pending
    }
}

fn run<F>(
    upgrade: io::Result<WebRtcUpgrade>,
    begin: impl FnOnce(WebRtcUpgrade) -> F + Send + 'static,
) -> Upgrading
where
    F: Future<Output = Result<(PeerId, WebRtcConnection), UpgradeError>> + Send + 'static,
{
    async move {
        let upgrade = upgrade?;
        let tasks: Arc<Tasks> = Arc::clone(&upgrade.tasks);
        // On a heap of its own: the library's handshake is a large future.
        let running = tasks::spawn_on(tasks.handle(), "webrtc handshake", Box::pin(begin(upgrade)));
        let running = AbortOnDropHandle::new(running);
        Ok(running.await.map_err(|_| TransportError::Broken)??)
    }
    .boxed()
}

impl libp2p::Transport for WebRtcTransport {
    type Output = (PeerId, WebRtcConnection);
    type Error = TransportError;
    type ListenerUpgrade = Upgrading;
    type Dial = Upgrading;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), DialError<TransportError>> {
        let Some(socket_address) = to_socket_address(&address) else {
            return Err(DialError::MultiaddrNotSupported(address));
        };
        let certhash = self.certificate.fingerprint().to_multihash();
        let listener = WebRtcListener::bind(id, socket_address, certhash);
        self.listeners.push(listener.map_err(|error| DialError::Other(error.into()))?);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        Ok(())
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        let n_before = self.listeners.len();
        self.listeners.retain(|listener| listener.id != id);
        let is_removed = self.listeners.len() < n_before;
        if is_removed {
            self.closed.push_back(id);
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
        is_removed
    }

    fn dial(&mut self, address: Multiaddr, _: DialOpts) -> Result<Upgrading, DialError<TransportError>> {
        match parse_webrtc_dial_addr(&address) {
            Some((socket, server)) if socket.port() != 0 && !socket.ip().is_unspecified() => {
                Ok(run(self.upgrade(), move |upgrade| upgrade.outbound(socket, server)))
            }
            _ => Err(DialError::MultiaddrNotSupported(address)),
        }
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<WebRtcEvent> {
        if let Some(listener_id) = self.closed.pop_front() {
            return Poll::Ready(TransportEvent::ListenerClosed { listener_id, reason: Ok(()) });
        }
        let polled = self.poll_listeners(cx);
        if polled.is_pending() {
            self.waker = Some(cx.waker().clone());
        }
        polled
    }
}
