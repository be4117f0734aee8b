//! Yamux, in pieces as large as a chunk of bulk bytes, and with all that a connection holds bounded.
//!
//! `libp2p-yamux` cannot be told how large a piece may be, and sends 16 KiB in each: every piece is a message between
//! tasks, a record of TLS and a call to the system, and one more of each for its header. Nor can it be told how much
//! all streams of a connection may hold together ([`backlog`]). The protocol and the implementation are the same.

mod backlog;
mod frames;
#[cfg(test)]
mod fuzz;
mod joined;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::{Ready, ready};
use std::io;
use std::iter;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use yamux::{Config, Connection, ConnectionError, Mode, Stream};

use self::backlog::Backlog;
use self::joined::Joined;
use crate::guard_metrics::GuardMetrics;

/// Bytes by which the windows of all streams of a connection may grow, together, beyond the 256 KiB that each begins
/// with. A window doubles where half of it was read within two round trips: one stream gets 85 MB/s at 50 ms.
const WINDOW_GROWTH_BYTES: usize = 4 * 1024 * 1024;
const _: () = assert!(yamux::DEFAULT_CREDIT as usize + WINDOW_GROWTH_BYTES <= backlog::UNREAD_BYTES_MAX);
/// A chunk of bulk bytes with its header, in one piece. On a link of 5 Mbit/s another stream waits 0.1 s for it, as it
/// does for what the system has in its buffers.
const PIECE_BYTES: usize = 65 * 1024;
/// Streams that the other side has opened and nobody has taken: as many as it opens without being acknowledged.
const INBOUND_MAX: usize = 256;
/// A connection that takes nothing for so long ends. What the system has in its buffers may take a slow link a minute.
const STALL_MAX: Duration = Duration::from_secs(120);

/// How connections are divided into streams.
#[derive(Clone)]
pub(super) struct Muxing {
    config: Config,
    stall_max: Duration,
    metrics: GuardMetrics,
}

impl Muxing {
    pub(super) fn new(n_streams_max: usize, metrics: GuardMetrics) -> Self {
        let window_bytes_max = n_streams_max * yamux::DEFAULT_CREDIT as usize + WINDOW_GROWTH_BYTES;
        let mut config = Config::default();
        config
            .set_max_connection_receive_window(None)
            .set_max_num_streams(n_streams_max)
            .set_max_connection_receive_window(Some(window_bytes_max))
            .set_split_send_size(PIECE_BYTES)
            .set_read_after_close(false);
        Self { config, stall_max: STALL_MAX, metrics }
    }

    fn begin<S: AsyncRead + AsyncWrite + Unpin>(self, socket: S, mode: Mode) -> Muxer<S> {
        let backlog = Backlog::default();
        let socket = Joined::new(socket, backlog.clone(), self.stall_max, self.metrics);
        let connection = Connection::new(socket, self.config, mode);
        Muxer { connection, backlog, inbound: VecDeque::new(), waiting: None }
    }
}

impl UpgradeInfo for Muxing {
    type Info = &'static str;
    type InfoIter = iter::Once<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        iter::once("/yamux/1.0.0")
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> InboundConnectionUpgrade<S> for Muxing {
    type Output = Muxer<S>;
    type Error = io::Error;
    type Future = Ready<io::Result<Muxer<S>>>;

    fn upgrade_inbound(self, socket: S, _: Self::Info) -> Self::Future {
        ready(Ok(self.begin(socket, Mode::Server)))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> OutboundConnectionUpgrade<S> for Muxing {
    type Output = Muxer<S>;
    type Error = io::Error;
    type Future = Ready<io::Result<Muxer<S>>>;

    fn upgrade_outbound(self, socket: S, _: Self::Info) -> Self::Future {
        ready(Ok(self.begin(socket, Mode::Client)))
    }
}

/// A connection that is divided into streams.
pub(super) struct Muxer<S> {
    connection: Connection<Joined<S>>,
    backlog: Backlog,
    /// Streams that arrived while another stream was polled.
    inbound: VecDeque<Substream>,
    /// The task that waits for an inbound stream.
    waiting: Option<Waker>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Muxer<S> {
    /// Drives the connection and its streams.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Substream, ConnectionError>> {
        let stream = ready!(self.connection.poll_next_inbound(cx)).unwrap_or(Err(ConnectionError::Closed))?;
        Poll::Ready(Ok(Substream { stream, backlog: self.backlog.clone() }))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamMuxer for Muxer<S> {
    type Substream = Substream;
    type Error = ConnectionError;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Substream, ConnectionError>> {
        if let Some(stream) = self.inbound.pop_front() {
            return Poll::Ready(Ok(stream));
        }
        let next = self.poll_next(cx);
        if next.is_pending() {
            self.waiting = Some(cx.waker().clone());
        }
        next
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Substream, ConnectionError>> {
        let stream = ready!(self.connection.poll_new_outbound(cx))?;
        self.backlog.on_open(stream.id().val());
        Poll::Ready(Ok(Substream { stream, backlog: self.backlog.clone() }))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        self.connection.poll_close(cx)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, ConnectionError>> {
        let stream = ready!(self.poll_next(cx))?;
        // One that is dropped is reset.
        if self.inbound.len() < INBOUND_MAX {
            self.inbound.push_back(stream);
            if let Some(waiting) = self.waiting.take() {
                waiting.wake();
            }
        }
        // There may be more, but others have their turn first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A stream whose bytes count against its connection's bounds.
pub(super) struct Substream {
    stream: Stream,
    backlog: Backlog,
}

impl AsyncRead for Substream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let n_bytes = ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        self.backlog.on_read(self.stream.id().val(), n_bytes);
        Poll::Ready(Ok(n_bytes))
    }
}

impl AsyncWrite for Substream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let piece = bytes.get(..PIECE_BYTES).unwrap_or(bytes);
        ready!(this.backlog.poll_reserve(this.stream.id().val(), piece.len(), cx));
        let written = Pin::new(&mut this.stream).poll_write(cx, piece);
        let n_written = if let Poll::Ready(Ok(n_written)) = written { n_written } else { 0 };
        this.backlog.release(piece.len() - n_written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

impl Drop for Substream {
    fn drop(&mut self) {
        self.backlog.on_drop(self.stream.id().val());
    }
}
