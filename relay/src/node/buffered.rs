//! A socket that is read in large pieces while much comes, and holds no memory while little does.
//!
//! TLS reads 4 KiB at a time and Noise 8 KiB, each a call to the system. A buffer for every connection would cost a
//! relay with thousands of idle ones hundreds of megabytes, and a peer that opens sockets and sends nothing would get
//! one as well. So there is none until much has come, more than any honest handshake brings.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::AsyncRead;

use super::passing::writes_as_its_socket;

const BUFFER_BYTES: usize = 64 * 1024;
/// A reader that asks for less is negotiating, and says nothing about how much there is.
const ASKED_BYTES_MIN: usize = 1024;
/// After so many full reads in succession there is a buffer.
const FULL_READS: u8 = 8;
/// What a reader without a buffer would have got as quickly.
const SMALL_READ_BYTES: usize = 4 * 1024;
/// After so many small reads in succession the buffer is given back.
const SMALL_READS: u8 = 8;

/// Reads ahead, and writes as the socket does.
pub(super) struct Buffered<S> {
    socket: S,
    /// Of [`BUFFER_BYTES`], or of none.
    buffer: Box<[u8]>,
    unread: Range<usize>,
    n_full_reads: u8,
    n_small_reads: u8,
}

impl<S> Buffered<S> {
    pub(super) fn new(socket: S) -> Self {
        Self { socket, buffer: Box::default(), unread: 0..0, n_full_reads: 0, n_small_reads: 0 }
    }
}

impl<S: AsyncRead + Unpin> Buffered<S> {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let n_bytes = ready!(Pin::new(&mut self.socket).poll_read(cx, &mut self.buffer))?;
        self.unread = 0..n_bytes;
        self.n_small_reads = if n_bytes <= SMALL_READ_BYTES { self.n_small_reads + 1 } else { 0 };
        Poll::Ready(Ok(()))
    }

    fn poll_read_past(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let n_bytes = ready!(Pin::new(&mut self.socket).poll_read(cx, into))?;
        if n_bytes < into.len() {
            self.n_full_reads = 0;
        } else if into.len() >= ASKED_BYTES_MIN && self.buffer.is_empty() {
            self.n_full_reads += 1;
            if self.n_full_reads == FULL_READS {
                self.buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
                self.n_full_reads = 0;
            }
        }
        Poll::Ready(Ok(n_bytes))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Buffered<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.unread.is_empty() {
            if this.n_small_reads == SMALL_READS {
                this.buffer = Box::default();
                this.n_small_reads = 0;
            }
            // Nothing is won by copying what the reader has room for.
            if into.len() >= this.buffer.len() {
                return this.poll_read_past(cx, into);
            }
            ready!(this.poll_fill(cx))?;
        }
        let n_bytes = into.len().min(this.unread.len());
        let until = this.unread.start + n_bytes;
        into[..n_bytes].copy_from_slice(&this.buffer[this.unread.start..until]);
        this.unread.start = until;
        Poll::Ready(Ok(n_bytes))
    }
}

writes_as_its_socket!(Buffered);

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures::{AsyncReadExt as _, FutureExt as _};

    use super::*;

    /// What comes, piece by piece, and by how much it was asked for.
    #[derive(Default)]
    struct ScriptedSocket {
        pieces: VecDeque<Vec<u8>>,
        asked: Vec<usize>,
    }

    impl AsyncRead for ScriptedSocket {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            let Some(mut piece) = self.pieces.pop_front() else { return Poll::Pending };
            self.asked.push(into.len());
            let rest = piece.split_off(piece.len().min(into.len()));
            into[..piece.len()].copy_from_slice(&piece);
            if !rest.is_empty() {
                self.pieces.push_front(rest);
            }
            Poll::Ready(Ok(piece.len()))
        }
    }

    fn numbered(n_bytes: usize) -> Vec<u8> {
        (0..n_bytes).map(|at| (at % 251) as u8).collect()
    }

    /// All that is there, read by as much as `ask` says.
    fn drain(socket: &mut Buffered<ScriptedSocket>, ask: usize) -> Vec<u8> {
        let (mut read, mut piece) = (Vec::new(), vec![0; ask]);
        while let Some(n_bytes) = socket.read(&mut piece).now_or_never() {
            read.extend_from_slice(&piece[..n_bytes.unwrap()]);
        }
        read
    }

    #[test]
    fn a_stream_is_the_same_however_it_is_read() {
        let sent = numbered(1_000_000);
        for ask in [1, 7, 1024, 4096, 8192, 50_000, BUFFER_BYTES, 200_000] {
            for piece in [100, 1500, 4096, 70_000] {
                let mut socket = Buffered::new(ScriptedSocket::default());
                socket.socket.pieces = sent.chunks(piece).map(<[u8]>::to_vec).collect();
                assert!(drain(&mut socket, ask) == sent, "asked by {ask}, came by {piece}");
            }
        }
    }

    #[test]
    fn much_is_read_in_large_pieces() {
        let mut socket = Buffered::new(ScriptedSocket::default());
        socket.socket.pieces.push_back(numbered(1_000_000));
        drain(&mut socket, 4096);
        let large = 1 + (1_000_000 - 8 * 4096) / BUFFER_BYTES;
        let expected: Vec<_> =
            [4096; 8].into_iter().chain(std::iter::repeat_n(BUFFER_BYTES, large)).collect();
        assert_eq!(socket.socket.asked, expected);
    }

    #[test]
    fn little_takes_no_memory_and_gives_it_back() {
        let mut socket = Buffered::new(ScriptedSocket::default());
        // As many bytes as a handshake, one at a time as protocols are negotiated, and pings for a day.
        socket.socket.pieces.push_back(numbered(3000));
        drain(&mut socket, 1);
        socket.socket.pieces = std::iter::repeat_n(numbered(100), 6000).collect();
        drain(&mut socket, 4096);
        assert!(socket.buffer.is_empty());
        socket.socket.pieces.push_back(numbered(1_000_000));
        drain(&mut socket, 4096);
        assert_eq!(socket.buffer.len(), BUFFER_BYTES);
        socket.socket.pieces = std::iter::repeat_n(numbered(100), 9).collect();
        drain(&mut socket, 4096);
        assert!(socket.buffer.is_empty());
    }

    #[test]
    fn the_end_is_passed_on() {
        let mut socket = Buffered::new(ScriptedSocket::default());
        socket.socket.pieces = [numbered(100_000), Vec::new()].into();
        let mut all = Vec::new();
        socket.read_to_end(&mut all).now_or_never().unwrap().unwrap();
        assert!(all == numbered(100_000));
    }
}
