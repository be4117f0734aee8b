//! A stream whose writes are limited by the upload rate that all shared streams have together.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use futures::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;

use super::{SharingState, lock};

/// Limits the upload rate of a stream.
pub(in super::super) struct Throttled<S> {
    stream: S,
    shared: Arc<SharingState>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes that may be written now.
    granted: usize,
}

impl<S> Throttled<S> {
    pub(super) fn new(stream: S, shared: Arc<SharingState>) -> Self {
        Self { stream, shared, timer: None, granted: 0 }
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
            if this.granted > 0 || bytes.is_empty() {
                let slice = bytes.get(..this.granted).unwrap_or(bytes);
                let written = ready!(Pin::new(&mut this.stream).poll_write(cx, slice))?;
                this.granted = this.granted.saturating_sub(written);
                this.shared.n_bytes_passed_on.fetch_add(written as u64, Ordering::Relaxed);
                return Poll::Ready(Ok(written));
            }
            let taken = lock(&this.shared.uplink).take(this.shared.now(), bytes.len());
            match taken {
                Ok(n_bytes) => this.granted = n_bytes,
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
