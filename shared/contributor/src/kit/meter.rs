//! Counts the bytes that pass through streams: for the user interface, and to notice stalled transfers.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures::io::{AsyncRead, AsyncWrite};

/// Byte counters over all streams of a peer.
#[derive(Debug, Default)]
pub(crate) struct TrafficMeter {
    up: Cell<u64>,
    down: Cell<u64>,
    of_backbone: Cell<u64>,
}

impl TrafficMeter {
    /// Bytes written.
    pub(crate) fn up(&self) -> u64 {
        self.up.get()
    }

    /// Bytes read.
    pub(crate) fn down(&self) -> u64 {
        self.down.get()
    }

    /// Bytes read from the backbone alone, without those of other contributors.
    pub(crate) fn down_from_backbone(&self) -> u64 {
        self.of_backbone.get()
    }
}

/// A stream that counts its bytes.
pub(crate) struct Metered<S> {
    inner: S,
    total: Rc<TrafficMeter>,
    moved: Rc<Cell<u64>>,
    is_of_backbone: bool,
}

impl<S> Metered<S> {
    /// A stream to the backbone, which also counts into `total`.
    pub(crate) fn new(inner: S, total: Rc<TrafficMeter>) -> Self {
        Self { inner, total, moved: Rc::default(), is_of_backbone: true }
    }

    /// Marks the stream as one to another contributor.
    pub(crate) fn with_peer(self) -> Self {
        Self { is_of_backbone: false, ..self }
    }

    /// Bytes of this stream alone, in both directions.
    pub(crate) fn moved(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.moved)
    }

    fn count(&self, counter: &Cell<u64>, n: usize) {
        counter.set(counter.get() + n as u64);
        self.moved.set(self.moved.get() + n as u64);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        if let Poll::Ready(Ok(n)) = polled {
            self.count(&self.total.down, n);
            if self.is_of_backbone {
                self.total.of_backbone.set(self.total.of_backbone.get() + n as u64);
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, buffer);
        if let Poll::Ready(Ok(n)) = polled {
            self.count(&self.total.up, n);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(context)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures::executor::block_on;
    use futures::io::{AsyncReadExt, AsyncWriteExt, Cursor};

    use super::*;

    #[test]
    fn both_directions_are_counted() {
        let meter = Rc::new(TrafficMeter::default());
        let mut stream = Metered::new(Cursor::new(vec![0; 10]), Rc::clone(&meter));
        let moved = stream.moved();
        block_on(async {
            stream.read_exact(&mut [0; 7]).await.unwrap();
            stream.write_all(&[1; 3]).await.unwrap();
        });
        assert_eq!((meter.down(), meter.up(), moved.get()), (7, 3, 10));
    }
}
