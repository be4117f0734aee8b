//! A stream whose writes wait their turn on the uplink that all of them share.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use futures::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;

use super::{Shared, lock};

/// A stream on which no more goes out than is given away.
pub(super) struct Throttled<S> {
    stream: S,
    shared: Arc<Shared>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> Throttled<S> {
    pub(super) fn new(stream: S, shared: Arc<Shared>) -> Self {
        Self { stream, shared, timer: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Throttled<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Throttled<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        loop {
            if let Some(timer) = &mut this.timer {
                ready!(timer.as_mut().poll(cx));
                this.timer = None;
            }
            // What is taken and then does not fit into the stream is written off: at most a slice each time that
            // the other side is slower than the uplink.
            let taken = lock(&this.shared.uplink).take(this.shared.now(), bytes.len());
            match taken {
                Ok(n_bytes) => {
                    let slice = bytes.get(..n_bytes).unwrap_or(bytes);
                    let written = ready!(Pin::new(&mut this.stream).poll_write(cx, slice))?;
                    this.shared.n_bytes_passed_on.fetch_add(written as u64, Ordering::Relaxed);
                    return Poll::Ready(Ok(written));
                }
                Err(at) => {
                    let at = this.shared.started + at;
                    this.timer = Some(Box::pin(tokio::time::sleep_until(at.into())));
                }
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}
