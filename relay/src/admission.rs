//! Bounds the handshakes of a transport that has no bound of its own: their number and their time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use libp2p::core::transport::{Boxed, DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::{Multiaddr, Transport};

use crate::guard_metrics::GuardMetrics;
use crate::pending::{PendingHandshakes, Unfinished};
use crate::source::source;

/// A transport whose inbound handshakes are bounded in number and whose handshakes all are in time.
pub(crate) struct Admission<O> {
    inner: Boxed<O>,
    pending: PendingHandshakes,
    timeout: Duration,
}

impl<O> Admission<O> {
    pub(crate) fn new(
        inner: Boxed<O>,
        n_pending_max: usize,
        timeout: Duration,
        metrics: GuardMetrics,
    ) -> Self {
        Self { inner, pending: PendingHandshakes::new(n_pending_max, metrics), timeout }
    }
}

impl<O: Send + 'static> Transport for Admission<O> {
    type Output = O;
    type Error = io::Error;
    type ListenerUpgrade = BoxFuture<'static, io::Result<O>>;
    type Dial = BoxFuture<'static, io::Result<O>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, opts: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
        let dial = self.inner.dial(address, opts)?;
        let timed = tokio::time::timeout(self.timeout, dial);
        Ok(async move { timed.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) }.boxed())
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        let this = &mut *self;
        Pin::new(&mut this.inner).poll(cx).map(|event| {
            let source = match &event {
                TransportEvent::Incoming { send_back_addr, .. } => source(send_back_addr),
                _ => None,
            };
            event.map_upgrade(|upgrade| {
                let handshake = this.pending.clone().run(source, this.timeout, upgrade);
                let ended = |unfinished| match unfinished {
                    Unfinished::Failed(error) => error,
                    Unfinished::TimedOut => io::ErrorKind::TimedOut.into(),
                    Unfinished::Evicted => io::Error::other("gave way to a newer handshake"),
                };
                async move { handshake.await.map_err(ended) }.boxed()
            })
        })
    }
}
