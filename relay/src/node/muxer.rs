//! Yamux, in pieces as large as a chunk of bulk bytes.
//!
//! `libp2p-yamux` cannot be told how large a piece may be, and sends 16 KiB in each: every piece is a message between
//! tasks, a record of TLS and a call to the system, and one more of each for its header. The protocol and the
//! implementation are the same.

use std::collections::VecDeque;
use std::future::{Ready, ready};
use std::io::{self, IoSlice};
use std::iter;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use yamux::{Config, Connection, ConnectionError, Mode, Stream};

/// Bytes of one stream that are received and not read yet: 10 MB/s at a round trip of 50 ms.
pub(super) const STREAM_WINDOW_BYTES: u32 = 512 * 1024;
/// Bytes by which the windows of all streams of a connection may grow, together, beyond what each begins with: what is
/// read quickly over a long way gets more, and one connection cannot fill the memory.
const WINDOW_GROWTH_BYTES: usize = 4 * 1024 * 1024;
/// A chunk of bulk bytes with its header, in one piece. On a link of 5 Mbit/s another stream waits 0.1 s for it, as it
/// does for what the system has in its buffers.
const PIECE_BYTES: usize = 65 * 1024;
/// Streams that the other side has opened and nobody has taken: as many as it opens without being acknowledged.
const INBOUND_MAX: usize = 256;
/// Of each piece.
const HEADER_BYTES: usize = 12;
/// Headers that are held back until something is written behind them, or all is flushed.
const HELD_BYTES_MAX: usize = 8 * HEADER_BYTES;

/// How connections are divided into streams.
#[derive(Clone)]
pub(super) struct Muxing(Config);

impl Muxing {
    pub(super) fn new(n_streams_max: usize) -> Self {
        let window_bytes_max = n_streams_max * yamux::DEFAULT_CREDIT as usize + WINDOW_GROWTH_BYTES;
        let mut config = Config::default();
        config
            .set_max_connection_receive_window(None)
            .set_max_num_streams(n_streams_max)
            .set_max_connection_receive_window(Some(window_bytes_max))
            .set_split_send_size(PIECE_BYTES)
            .set_read_after_close(false);
        Self(config)
    }

    fn begin<S: AsyncRead + AsyncWrite + Unpin>(self, socket: S, mode: Mode) -> Muxer<S> {
        let connection = Connection::new(Joined::new(socket), self.0, mode);
        Muxer { connection, inbound: VecDeque::new(), waiting: None }
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
    /// Came while others were polled.
    inbound: VecDeque<Stream>,
    /// Whoever waits for one.
    waiting: Option<Waker>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Muxer<S> {
    /// All progress of a connection and of its streams is made here.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Stream, ConnectionError>> {
        Poll::Ready(ready!(self.connection.poll_next_inbound(cx)).unwrap_or(Err(ConnectionError::Closed)))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamMuxer for Muxer<S> {
    type Substream = Stream;
    type Error = ConnectionError;

    fn poll_inbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Stream, ConnectionError>> {
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
    ) -> Poll<Result<Stream, ConnectionError>> {
        self.connection.poll_new_outbound(cx)
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

/// Writes headers together with what follows them.
struct Joined<S> {
    socket: S,
    held: [u8; HELD_BYTES_MAX],
    /// Of these, what is not written yet.
    unwritten: Range<usize>,
}

impl<S> Joined<S> {
    fn new(socket: S) -> Self {
        Self { socket, held: [0; HELD_BYTES_MAX], unwritten: 0..0 }
    }

    /// Holds a header back, if there is room.
    fn holds(&mut self, bytes: &[u8]) -> bool {
        let end = self.unwritten.end + bytes.len();
        let has_room = bytes.len() <= HEADER_BYTES && end <= HELD_BYTES_MAX;
        if has_room {
            self.held[self.unwritten.end..end].copy_from_slice(bytes);
            self.unwritten.end = end;
        }
        has_room
    }
}

impl<S: AsyncWrite + Unpin> Joined<S> {
    /// Writes all that is held, and of `bytes` as much as there is room for at once: how many of these, possibly none.
    fn poll_both(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let held = &self.held[self.unwritten.clone()];
            let pieces = [IoSlice::new(held), IoSlice::new(bytes)];
            let n_written = ready!(Pin::new(&mut self.socket).poll_write_vectored(cx, &pieces))?;
            let n_of_held = n_written.min(held.len());
            if n_written == 0 && !held.is_empty() {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unwritten.start += n_of_held;
            if self.unwritten.is_empty() {
                self.unwritten = 0..0;
                return Poll::Ready(Ok(n_written - n_of_held));
            }
        }
    }

    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.unwritten.is_empty() {
            ready!(self.poll_both(cx, &[]))?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Joined<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.holds(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        if !self.unwritten.is_empty() {
            let n_written = ready!(self.poll_both(cx, bytes))?;
            // Where what was held took all the room, nothing of what follows is written, which is no end.
            if n_written > 0 {
                return Poll::Ready(Ok(n_written));
            }
        }
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_held(cx))?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_held(cx))?;
        Pin::new(&mut self.socket).poll_close(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Joined<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

#[cfg(test)]
mod tests {
    use futures::{AsyncWriteExt as _, FutureExt as _};

    use super::*;

    /// Takes so many bytes at once, and keeps apart what was written apart.
    struct Socket {
        room: usize,
        pieces: Vec<Vec<u8>>,
        n_flushes: usize,
    }

    impl AsyncWrite for Socket {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let n_bytes = bytes.len().min(self.room);
            self.pieces.push(bytes[..n_bytes].to_vec());
            Poll::Ready(Ok(n_bytes))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            pieces: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let joined: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
            self.poll_write(cx, &joined)
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.n_flushes += 1;
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn joined(room: usize) -> Joined<Socket> {
        Joined::new(Socket { room, pieces: Vec::new(), n_flushes: 0 })
    }

    fn write(to: &mut Joined<Socket>, bytes: &[u8]) {
        to.write_all(bytes).now_or_never().unwrap().unwrap();
    }

    #[test]
    fn a_header_travels_with_what_follows_it() {
        let mut socket = joined(usize::MAX);
        write(&mut socket, &[1; HEADER_BYTES]);
        assert!(socket.socket.pieces.is_empty());
        write(&mut socket, &[2; 100]);
        write(&mut socket, &[3; 100]);
        let expected = [[vec![1; HEADER_BYTES], vec![2; 100]].concat(), vec![3; 100]];
        assert_eq!(socket.socket.pieces, expected);
    }

    #[test]
    fn a_header_with_nothing_behind_it_leaves_when_all_is_flushed() {
        let mut socket = joined(usize::MAX);
        write(&mut socket, &[1; HEADER_BYTES]);
        write(&mut socket, &[2; HEADER_BYTES]);
        socket.flush().now_or_never().unwrap().unwrap();
        let expected = [[[1; HEADER_BYTES], [2; HEADER_BYTES]].concat()];
        assert_eq!((&socket.socket.pieces[..], socket.socket.n_flushes), (&expected[..], 1));
        write(&mut socket, &[3; HEADER_BYTES]);
        socket.close().now_or_never().unwrap().unwrap();
        assert_eq!(socket.socket.pieces[1], [3; HEADER_BYTES]);
    }

    #[test]
    fn bytes_arrive_in_order_however_little_room_there_is() {
        for room in 1..40 {
            let (mut socket, mut sent) = (joined(room), Vec::new());
            for (number, n_bytes) in
                [12, 12, 50, 12, 3, 12, 12, 12, 12, 12, 12, 12, 12, 12, 1, 40].iter().enumerate()
            {
                let bytes = vec![number as u8; *n_bytes];
                write(&mut socket, &bytes);
                sent.extend(bytes);
            }
            socket.flush().now_or_never().unwrap().unwrap();
            assert_eq!(socket.socket.pieces.concat(), sent, "room for {room}");
        }
    }

    #[test]
    fn a_socket_that_takes_nothing_is_an_error() {
        let mut socket = joined(0);
        write(&mut socket, &[1; HEADER_BYTES]);
        let error = socket.flush().now_or_never().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }
}
