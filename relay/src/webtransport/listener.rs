//! One bound UDP socket: its addresses, which follow the interfaces and the certificates, and its clients.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, Stream, StreamExt as _};
use if_watch::IfEvent;
use if_watch::tokio::IfWatcher;
use libp2p::PeerId;
use libp2p::core::transport::{ListenerId, TransportEvent};
use libp2p::identity::Keypair;
use tokio_stream::wrappers::WatchStream;
use tokio_util::task::TaskTracker;
use wtransport::quinn;

use super::address::to_multiaddr;
use super::error::TransportError;
use super::handshake::{self, HandshakeError};
use super::muxer::WebTransportConnection;
use super::runtime::TrackedRuntime;
use crate::certificates::{Certhash, Certificates};
use crate::pending::{PendingHandshakes, Unfinished};
use crate::source::source;
use crate::udp::bind_udp;

pub(super) type WebTransportUpgrade =
    BoxFuture<'static, Result<(PeerId, WebTransportConnection), TransportError>>;
pub(super) type WebTransportEvent = TransportEvent<WebTransportUpgrade, TransportError>;

/// Configuration that all listeners of a transport share.
#[derive(Clone, Debug)]
pub(super) struct ListenerContext {
    pub(super) keypair: Keypair,
    pub(super) certificates: Certificates,
    pub(super) handshake_timeout: Duration,
    pub(super) pending: PendingHandshakes,
    pub(super) tasks: TaskTracker,
}

pub(super) struct WebTransportListener {
    id: ListenerId,
    shared: ListenerContext,
    endpoint: quinn::Endpoint,
    port: u16,
    accept: BoxFuture<'static, Option<quinn::Incoming>>,
    /// Where the socket is bound to every interface.
    interfaces: Option<IfWatcher>,
    is_ipv4: bool,
    ips: BTreeSet<IpAddr>,
    published: WatchStream<Vec<Certhash>>,
    certhashes: Vec<Certhash>,
    events: VecDeque<WebTransportEvent>,
    is_closed: bool,
    waker: Option<Waker>,
}

impl WebTransportListener {
    /// Binds `address`. Needs a tokio runtime.
    pub(super) fn bind(
        id: ListenerId,
        address: SocketAddr,
        quic: quinn::ServerConfig,
        shared: ListenerContext,
    ) -> Result<Self, TransportError> {
        let bind_error = |source| TransportError::Bind { address, source };
        let socket = bind_udp(address).map_err(bind_error)?;
        let bound = socket.local_addr().map_err(bind_error)?;
        let runtime = Arc::new(TrackedRuntime::new(shared.tasks.clone()));
        let endpoint = quinn::Endpoint::new(quinn::EndpointConfig::default(), Some(quic), socket, runtime)
            .map_err(bind_error)?;
        let interfaces = match bound.ip().is_unspecified() {
            true => Some(IfWatcher::new().map_err(TransportError::Interfaces)?),
            false => None,
        };
        let mut subscription = shared.certificates.subscribe();
        let certhashes = subscription.borrow_and_update().clone();
        let mut listener = Self {
            id,
            accept: accept(endpoint.clone()),
            endpoint,
            port: bound.port(),
            is_ipv4: bound.is_ipv4(),
            ips: BTreeSet::new(),
            published: WatchStream::from_changes(subscription),
            certhashes,
            events: VecDeque::new(),
            is_closed: false,
            waker: None,
            shared,
            interfaces,
        };
        if listener.interfaces.is_none() {
            listener.ip_up(bound.ip());
        }
        Ok(listener)
    }

    pub(super) fn id(&self) -> ListenerId {
        self.id
    }

    /// Ends the listener. Connections that stand go on.
    pub(super) fn close(&mut self, reason: Result<(), TransportError>) {
        if self.is_closed {
            return;
        }
        self.is_closed = true;
        // New clients are refused; closing the endpoint would end the connections that stand.
        self.endpoint.set_server_config(None);
        self.events.push_back(TransportEvent::ListenerClosed { listener_id: self.id, reason });
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn ip_up(&mut self, ip: IpAddr) {
        if ip.is_ipv4() == self.is_ipv4 && self.ips.insert(ip) {
            let listen_addr = to_multiaddr(ip, self.port, &self.certhashes);
            self.events.push_back(TransportEvent::NewAddress { listener_id: self.id, listen_addr });
        }
    }

    fn ip_down(&mut self, ip: IpAddr) {
        if self.ips.remove(&ip) {
            let listen_addr = to_multiaddr(ip, self.port, &self.certhashes);
            self.events.push_back(TransportEvent::AddressExpired { listener_id: self.id, listen_addr });
        }
    }

    /// Announces the new addresses before it withdraws the old: there is no moment without one.
    fn certhashes_changed(&mut self, certhashes: Vec<Certhash>) {
        let old = std::mem::replace(&mut self.certhashes, certhashes);
        if old == self.certhashes {
            return;
        }
        let listener_id = self.id;
        for &ip in &self.ips {
            let listen_addr = to_multiaddr(ip, self.port, &self.certhashes);
            self.events.push_back(TransportEvent::NewAddress { listener_id, listen_addr });
            let listen_addr = to_multiaddr(ip, self.port, &old);
            self.events.push_back(TransportEvent::AddressExpired { listener_id, listen_addr });
        }
    }

    fn poll_addresses(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(certhashes)) = self.published.poll_next_unpin(cx) {
            self.certhashes_changed(certhashes);
        }
        while let Some(Poll::Ready(event)) = self.interfaces.as_mut().map(|watcher| watcher.poll_if_event(cx))
        {
            match event {
                Ok(IfEvent::Up(network)) => self.ip_up(network.addr()),
                Ok(IfEvent::Down(network)) => self.ip_down(network.addr()),
                Err(error) => {
                    let error = TransportError::Interfaces(error);
                    self.interfaces = None;
                    self.events.push_back(TransportEvent::ListenerError { listener_id: self.id, error });
                }
            }
        }
    }

    fn incoming(&self, incoming: quinn::Incoming) -> Option<WebTransportEvent> {
        if self.shared.pending.is_busy() && !incoming.remote_address_validated() {
            // Costs an honest client one round trip and takes spoofed addresses out of the count.
            if let Err(error) = incoming.retry() {
                tracing::debug!(%error, "no address validation");
            }
            return None;
        }
        let local = incoming.local_ip().or_else(|| self.ips.first().copied());
        let remote = incoming.remote_address();
        let send_back_addr = to_multiaddr(remote.ip(), remote.port(), &[]);
        Some(TransportEvent::Incoming {
            listener_id: self.id,
            local_addr: to_multiaddr(local.unwrap_or_else(|| self.unspecified()), self.port, &[]),
            upgrade: self.upgrade(incoming, source(&send_back_addr)),
            send_back_addr,
        })
    }

    fn upgrade(&self, incoming: quinn::Incoming, source: Option<IpAddr>) -> WebTransportUpgrade {
        let ListenerContext { keypair, certificates, handshake_timeout, pending, .. } = self.shared.clone();
        async move {
            let handshake = handshake::authenticate(incoming, keypair, certificates);
            let ended = |unfinished| match unfinished {
                Unfinished::Failed(error) => error,
                Unfinished::TimedOut => HandshakeError::Timeout(handshake_timeout),
                Unfinished::Evicted => HandshakeError::Evicted,
            };
            let result = pending.run(source, handshake_timeout, handshake).await;
            result.map_err(|unfinished| TransportError::Handshake(ended(unfinished)))
        }
        .boxed()
    }

    fn unspecified(&self) -> IpAddr {
        match self.is_ipv4 {
            true => std::net::Ipv4Addr::UNSPECIFIED.into(),
            false => std::net::Ipv6Addr::UNSPECIFIED.into(),
        }
    }
}

impl Stream for WebTransportListener {
    type Item = WebTransportEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WebTransportEvent>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.events.pop_front() {
                return Poll::Ready(Some(event));
            }
            if this.is_closed {
                return Poll::Ready(None);
            }
            this.poll_addresses(cx);
            if !this.events.is_empty() {
                continue;
            }
            match this.accept.poll_unpin(cx) {
                Poll::Ready(Some(incoming)) => {
                    this.accept = accept(this.endpoint.clone());
                    this.events.extend(this.incoming(incoming));
                }
                Poll::Ready(None) => this.close(Err(TransportError::EndpointLost)),
                Poll::Pending => {
                    this.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }
}

impl fmt::Debug for WebTransportListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebTransportListener")
            .field("id", &self.id)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

fn accept(endpoint: quinn::Endpoint) -> BoxFuture<'static, Option<quinn::Incoming>> {
    async move { endpoint.accept().await }.boxed()
}
