//! Bounds the close of a connection: it is dropped where the remote does not read the last bytes. Otherwise a peer
//! that closes its receive window would hold a connection slot for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use tokio::time::Sleep;

use crate::guard_metrics::{GuardMetrics, Violation};

/// A muxer whose close waits a bounded time for the remote.
pub(super) struct Patient<M> {
    inner: M,
    limit: Duration,
    closing: Option<Pin<Box<Sleep>>>,
    metrics: GuardMetrics,
}

impl<M> Patient<M> {
    pub(super) fn new(inner: M, limit: Duration, metrics: GuardMetrics) -> Self {
        Self { inner, limit, closing: None, metrics }
    }
}

impl<M> StreamMuxer for Patient<M>
where
    M: StreamMuxer<Error = io::Error> + Unpin,
{
    type Substream = M::Substream;
    type Error = io::Error;

    fn poll_inbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<M::Substream>> {
        Pin::new(&mut self.inner).poll_inbound(cx)
    }

    fn poll_outbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<M::Substream>> {
        Pin::new(&mut self.inner).poll_outbound(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Poll::Ready(closed) = Pin::new(&mut this.inner).poll_close(cx) {
            return Poll::Ready(closed);
        }
        let limit = this.limit;
        let timer = this.closing.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        timer.as_mut().poll(cx).map(|()| {
            this.metrics.count(Violation::CloseTimeout, 1);
            Err(io::ErrorKind::TimedOut.into())
        })
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<StreamMuxerEvent>> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::future::poll_fn;

    use super::*;

    /// Never says that it is closed.
    struct Stubborn;

    impl StreamMuxer for Stubborn {
        type Substream = futures::io::Cursor<Vec<u8>>;
        type Error = io::Error;

        fn poll_inbound(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Result<Self::Substream, io::Error>> {
            Poll::Pending
        }

        fn poll_outbound(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Result<Self::Substream, io::Error>> {
            Poll::Pending
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
            Poll::Pending
        }

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, io::Error>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_connection_that_does_not_end_is_ended() {
        let mut muxer = Patient::new(Stubborn, Duration::from_millis(10), GuardMetrics::default());
        let closed = poll_fn(|cx| Pin::new(&mut muxer).poll_close(cx)).await;
        assert_eq!(closed.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
