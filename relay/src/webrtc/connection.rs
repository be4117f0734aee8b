//! A WebRTC connection with bounds, which libp2p's has not.
//!
//! Streams are counted, at once and in all, since each leaves something behind until the connection ends.
//! A connection on which nothing arrives any more ends, and one that is dropped is closed: libp2p's would
//! keep its tasks for ever.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{BoxFuture, poll_fn};
use futures::task::AtomicWaker;
use futures::{AsyncRead, AsyncWrite, FutureExt as _};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p_webrtc::tokio::{Connection as Inner, Error as InnerError};
use tokio::time::Instant;

use super::runtimes::Tasks;

/// Streams that a connection may have in its whole life. A tab opens a few dozen.
const STREAMS_PER_LIFE_MAX: usize = 4096;
/// Bytes of one write, so that its message has at most 8 KiB: libp2p's listener reads no larger ones, since
/// the copy of the channel that it reads from has forgotten that it was told to.
const WRITE_BYTES_MAX: usize = 8 * 1024 - 16;
/// How long a dropped connection may take to say goodbye.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

type InnerStream = <Inner as StreamMuxer>::Substream;

/// What bounds a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Streams at once, in both directions together; one more of the remote's is reset, of ours waits.
    pub(crate) n_streams_max: usize,
    /// The longest time without a byte.
    pub(crate) silence_max: Duration,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    /// WebRTC failed.
    #[error("WebRTC: {0}")]
    WebRtc(#[from] InnerError),
    /// It was closed already.
    #[error("the WebRTC connection is closed")]
    Closed,
    /// Too many streams in its life.
    #[error("the WebRTC connection has had {STREAMS_PER_LIFE_MAX} streams, a new one must take its place")]
    WornOut,
    /// The other side is gone.
    #[error("nothing came on the WebRTC connection for {0:?}")]
    Silent(Duration),
}

/// What a connection and its streams share.
#[derive(Debug)]
struct Shared {
    /// Of WebRTC, which go on until the last stream is gone.
    tasks: Arc<Tasks>,
    begun: Instant,
    /// Milliseconds after `begun` at which a byte arrived last.
    heard_ms: AtomicU64,
    n_open: AtomicUsize,
    /// Woken when a stream ends.
    waiting: AtomicWaker,
}

impl Shared {
    fn is_full(&self, limits: ConnectionLimits) -> bool {
        self.n_open.load(Ordering::Relaxed) >= limits.n_streams_max
    }

    fn hear(&self) {
        let elapsed = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(elapsed, Ordering::Relaxed);
    }

    fn heard(&self) -> Instant {
        self.begun + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed))
    }
}

/// A bounded WebRTC connection.
pub(crate) struct Connection {
    /// Gone once it is closed.
    inner: Option<Inner>,
    limits: ConnectionLimits,
    shared: Arc<Shared>,
    n_opened: usize,
    watch: BoxFuture<'static, ()>,
}

impl Connection {
    /// Needs a tokio runtime.
    pub(crate) fn new(inner: Inner, limits: ConnectionLimits, tasks: Arc<Tasks>) -> Self {
        let begun = Instant::now();
        let shared = Shared {
            tasks,
            begun,
            heard_ms: AtomicU64::new(0),
            n_open: AtomicUsize::new(0),
            waiting: AtomicWaker::new(),
        };
        Self {
            inner: Some(inner),
            limits,
            shared: Arc::new(shared),
            n_opened: 0,
            watch: tokio::time::sleep_until(begun + limits.silence_max).boxed(),
        }
    }

    /// Counts a stream; `None` where the connection has had too many.
    fn count(&mut self, stream: InnerStream) -> Option<Stream> {
        self.n_opened += 1;
        if self.n_opened > STREAMS_PER_LIFE_MAX {
            return None;
        }
        self.shared.n_open.fetch_add(1, Ordering::Relaxed);
        Some(Stream { inner: stream, is_flushed: true, shared: Arc::clone(&self.shared) })
    }
}

impl StreamMuxer for Connection {
    type Substream = Stream;
    type Error = ConnectionError;

    fn poll_inbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Stream, ConnectionError>> {
        loop {
            let inner = self.inner.as_mut().ok_or(ConnectionError::Closed)?;
            let stream = ready!(Pin::new(inner).poll_inbound(cx))?;
            let is_one_too_many = self.shared.is_full(self.limits);
            let stream = self.count(stream).ok_or(ConnectionError::WornOut)?;
            if !is_one_too_many {
                return Poll::Ready(Ok(stream));
            }
            // Dropping it resets it.
        }
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Stream, ConnectionError>> {
        self.shared.waiting.register(cx.waker());
        if self.shared.is_full(self.limits) {
            return Poll::Pending;
        }
        let tasks = Arc::clone(&self.shared.tasks);
        let _context = tasks.handle().enter();
        let inner = self.inner.as_mut().ok_or(ConnectionError::Closed)?;
        let stream = ready!(Pin::new(inner).poll_outbound(cx))?;
        Poll::Ready(self.count(stream).ok_or(ConnectionError::WornOut))
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, ConnectionError>> {
        while self.watch.poll_unpin(cx).is_ready() {
            let until = self.shared.heard() + self.limits.silence_max;
            if until <= Instant::now() {
                return Poll::Ready(Err(ConnectionError::Silent(self.limits.silence_max)));
            }
            self.watch = tokio::time::sleep_until(until).boxed();
        }
        let inner = self.inner.as_mut().ok_or(ConnectionError::Closed)?;
        Pin::new(inner).poll(cx).map_err(ConnectionError::from)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        let tasks = Arc::clone(&self.shared.tasks);
        let _context = tasks.handle().enter();
        let Some(inner) = self.inner.as_mut() else { return Poll::Ready(Ok(())) };
        let closed = ready!(Pin::new(inner).poll_close(cx));
        self.inner = None;
        Poll::Ready(closed.map_err(ConnectionError::from))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(mut inner) = self.inner.take() else { return };
        let tasks = Arc::clone(&self.shared.tasks);
        let handle = tasks.handle().clone();
        handle.spawn(async move {
            let closing = poll_fn(|cx| Pin::new(&mut inner).poll_close(cx));
            // Whatever comes of it: nobody is left to tell.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
            drop(tasks);
        });
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// A stream that is counted, and heard.
///
/// Each write is a message of its own: libp2p's framing would put several together, of which the other side
/// reads the beginning and loses the rest.
pub(crate) struct Stream {
    inner: InnerStream,
    is_flushed: bool,
    shared: Arc<Shared>,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let read = ready!(Pin::new(&mut self.inner).poll_read(cx, buffer));
        if matches!(read, Ok(1..)) {
            self.shared.hear();
        }
        Poll::Ready(read)
    }
}

impl Stream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_flushed {
            ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(cx))?;
        let message = &buffer[..buffer.len().min(WRITE_BYTES_MAX)];
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, message))?;
        self.is_flushed = false;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(cx))?;
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.n_open.fetch_sub(1, Ordering::Relaxed);
        self.shared.waiting.wake();
    }
}
