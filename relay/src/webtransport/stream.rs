//! One substream: both directions of a WebTransport stream as one `AsyncRead + AsyncWrite`.
//!
//! Closing finishes our direction; dropping a stream that was not closed resets it, so that the remote
//! never takes a message that was cut short for a whole one. A reset throws away what is still on its way, though,
//! so an answer that was flushed to a remote that has said its last is finished instead: libp2p's ping drops its
//! stream as soon as it has answered the last one.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::{AsyncRead, AsyncWrite};
use tokio::io::{AsyncRead as TokioAsyncRead, AsyncWrite as TokioAsyncWrite, ReadBuf};
use wtransport::{RecvStream, SendStream, VarInt};

/// Application error 0 as HTTP/3 carries it (WebTransport over HTTP/3, section 4.3).
const RESET_CODE: u64 = 0x52e4_a40f_a8db;

/// A substream of a [`WebTransportConnection`](super::WebTransportConnection).
#[derive(Debug)]
pub struct WebTransportStream {
    send: SendStream,
    receive: RecvStream,
    is_write_closed: bool,
    /// The remote finished its direction, and that was read.
    is_read_finished: bool,
    /// Nothing was written since the last flush.
    is_flushed: bool,
}

impl WebTransportStream {
    pub(super) fn new((send, receive): (SendStream, RecvStream)) -> Self {
        Self { send, receive, is_write_closed: false, is_read_finished: false, is_flushed: true }
    }
}

impl AsyncRead for WebTransportStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(TokioAsyncRead::poll_read(Pin::new(&mut self.receive), cx, &mut buffer))?;
        let n_bytes = buffer.filled().len();
        self.is_read_finished |= n_bytes == 0 && buffer.capacity() > 0;
        Poll::Ready(Ok(n_bytes))
    }
}

impl AsyncWrite for WebTransportStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let n_bytes = ready!(TokioAsyncWrite::poll_write(Pin::new(&mut self.send), cx, buffer))?;
        self.is_flushed = false;
        Poll::Ready(Ok(n_bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(TokioAsyncWrite::poll_flush(Pin::new(&mut self.send), cx))?;
        self.is_flushed = true;
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_write_closed {
            ready!(TokioAsyncWrite::poll_shutdown(Pin::new(&mut self.send), cx))?;
            self.is_write_closed = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for WebTransportStream {
    fn drop(&mut self) {
        if self.is_write_closed {
            return;
        }
        // Either fails only where the stream is over already. The other direction is stopped by its own drop.
        if self.is_read_finished && self.is_flushed {
            let _ = self.send.quic_stream_mut().finish();
        } else if let Ok(code) = VarInt::try_from_u64(RESET_CODE) {
            let _ = self.send.reset(code);
        }
    }
}
