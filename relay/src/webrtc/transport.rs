//! libp2p's transport, with its tasks kept together and its connections bounded.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use libp2p::core::transport::{DialOpts, ListenerId, TransportError as DialError, TransportEvent};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId};
use libp2p_webrtc::tokio::{Certificate, Connection as InnerConnection, Error as InnerError};
use tokio_util::task::AbortOnDropHandle;

use super::connection::{Connection, ConnectionLimits};
use super::runtimes::{Runtimes, Tasks};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransportError {
    /// WebRTC failed.
    #[error("WebRTC: {0}")]
    WebRtc(#[from] InnerError),
    /// The system gives no further thread.
    #[error("cannot run another WebRTC handshake: {0}")]
    Runtime(#[from] io::Error),
    /// A bug in the library, or it is being shut down.
    #[error("the WebRTC handshake was broken off")]
    Broken,
}

type Upgrade = BoxFuture<'static, Result<(PeerId, Connection), TransportError>>;

/// Listens on `/ip4|ip6/…/udp/…/webrtc-direct`.
pub(crate) struct Transport {
    inner: libp2p_webrtc::tokio::Transport,
    limits: ConnectionLimits,
    runtimes: Runtimes,
}

impl Transport {
    pub(crate) fn new(keypair: Keypair, certificate: Certificate, limits: ConnectionLimits) -> Self {
        let inner = libp2p_webrtc::tokio::Transport::new(keypair, certificate);
        Self { inner, limits, runtimes: Runtimes::default() }
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
        self.inner.listen_on(id, address).map_err(|error| error.map(TransportError::from))
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, opts: DialOpts) -> Result<Upgrade, DialError<TransportError>> {
        let dial = self.inner.dial(address, opts).map_err(|error| error.map(TransportError::from))?;
        Ok(run(dial, self.runtimes.next(), self.limits))
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TransportEvent<Upgrade, TransportError>> {
        let this = &mut *self;
        Pin::new(&mut this.inner).poll(cx).map(|event| {
            let (runtimes, limits) = (&mut this.runtimes, this.limits);
            event.map_err(TransportError::from).map_upgrade(|upgrade| run(upgrade, runtimes.next(), limits))
        })
    }
}
