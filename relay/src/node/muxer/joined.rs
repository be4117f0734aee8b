//! The socket under Yamux: joins headers with what follows them, and follows the frames in both directions.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use barnraise_swarm::guard::RateLimiter;
use futures::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep};

use super::backlog::Backlog;
use super::frames::{FramePart, Frames, GO_AWAY, HEADER_BYTES, Header, SYN, WINDOW_UPDATE};
use crate::guard_metrics::{GuardMetrics, Violation};

/// Headers that are held back until something is written behind them, or all is flushed.
const HELD_BYTES_MAX: usize = 8 * HEADER_BYTES;

/// A Yamux pings a few times a minute, says something of a stream that is gone once or twice for each, and takes back few
/// of those that it opens before it has an answer.
pub(super) const IDLE_FRAMES_PER_MINUTE: u32 = 600;

/// The other side sent what no implementation of Yamux sends.
#[derive(Debug, thiserror::Error)]
enum FrameViolation {
    /// Each costs this side more than the other one: pings, which are answered, frames for nobody, and streams that are
    /// ended before anything could come of them.
    #[error(
        "more than {IDLE_FRAMES_PER_MINUTE} frames a minute that no stream waits for, or that end one which was opened for \
        nothing"
    )]
    Idle,
    /// Yamux would add that to what a stream begins with, and have more than 32 bits hold.
    #[error("a stream that begins with credit of {0} bytes")]
    Credit(u32),
    /// Yamux found it, and said so to the other side.
    #[error("frames that no Yamux sends, or more streams than there may be")]
    Refused,
}

/// Writes headers together with what follows them, and counts what passes.
pub(super) struct Joined<S> {
    socket: S,
    held: [u8; HELD_BYTES_MAX],
    /// Of these, what is not written yet.
    unwritten: Range<usize>,
    incoming: Frames,
    outgoing: Frames,
    backlog: Backlog,
    /// Bounds frames that no stream waits for.
    idle: RateLimiter<()>,
    began: Instant,
    /// Yamux says goodbye because of what came, and goes on reading.
    is_refused: bool,
    /// How long the socket may take nothing.
    stall_max: Duration,
    /// Runs while it takes nothing.
    stall: Option<Pin<Box<Sleep>>>,
    is_stalled: bool,
    metrics: GuardMetrics,
}

impl<S> Joined<S> {
    pub(super) fn new(socket: S, backlog: Backlog, stall_max: Duration, metrics: GuardMetrics) -> Self {
        Self {
            socket,
            held: [0; HELD_BYTES_MAX],
            unwritten: 0..0,
            incoming: Frames::default(),
            outgoing: Frames::default(),
            backlog,
            idle: RateLimiter::new(IDLE_FRAMES_PER_MINUTE, 1),
            began: Instant::now(),
            is_refused: false,
            stall_max,
            stall: None,
            is_stalled: false,
            metrics,
        }
    }

    fn violates(&self, violation: FrameViolation) -> io::Error {
        self.metrics.count(Violation::BrokenFrames, 1);
        io::Error::new(io::ErrorKind::InvalidData, violation)
    }

    /// Bytes came, which Yamux has not seen yet.
    fn on_read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(part) = self.incoming.next(&mut bytes) {
            let FramePart::Header(header) = part else { continue };
            let Header { kind, length, .. } = header;
            if kind == WINDOW_UPDATE && header.has(SYN) && length.checked_add(yamux::DEFAULT_CREDIT).is_none()
            {
                return Err(self.violates(FrameViolation::Credit(length)));
            }
            if !self.backlog.on_header(&header) && !self.idle.take(self.began.elapsed(), &()) {
                return Err(self.violates(FrameViolation::Idle));
            }
        }
        Ok(())
    }

    /// Yamux wrote bytes.
    fn on_written(&mut self, mut bytes: &[u8]) {
        self.stall = None;
        while let Some(part) = self.outgoing.next(&mut bytes) {
            match part {
                FramePart::Body(n_bytes) => self.backlog.release(n_bytes),
                FramePart::Header(header) => {
                    if header.n_body() > 0 {
                        self.backlog.on_sent(header.stream);
                    }
                    // A farewell that is none has no reason.
                    self.is_refused |= header.kind == GO_AWAY && header.length > 0;
                }
            }
        }
    }

    /// The socket takes nothing: an error where that lasts.
    fn poll_stalled<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let limit = self.stall_max;
        let timer = self.stall.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if !self.is_stalled && timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        // Yamux asks again before it ends.
        if !std::mem::replace(&mut self.is_stalled, true) {
            self.metrics.count(Violation::ClosedWindow, 1);
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
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

    fn poll_joined(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Joined<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = self.poll_joined(cx, bytes) else { return self.poll_stalled(cx) };
        if let Ok(n_written) = written {
            self.on_written(bytes.get(..n_written).unwrap_or_default());
        }
        Poll::Ready(written)
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
        let this = &mut *self;
        if this.is_refused {
            return Poll::Ready(Err(this.violates(FrameViolation::Refused)));
        }
        // While the socket takes nothing, Yamux cannot say that a stream was reset, and keeps it.
        if this.stall.is_none() {
            this.backlog.forget_dropped();
        }
        // A frame that began has its place.
        if this.incoming.is_between() {
            ready!(this.backlog.poll_room(cx));
        }
        let n_bytes = ready!(Pin::new(&mut this.socket).poll_read(cx, into))?;
        this.on_read(into.get(..n_bytes).unwrap_or_default())?;
        Poll::Ready(Ok(n_bytes))
    }
}

impl<S> Drop for Joined<S> {
    fn drop(&mut self) {
        self.backlog.end();
    }
}

#[cfg(test)]
mod tests {
    use futures::{AsyncWriteExt as _, FutureExt as _};

    use super::*;

    /// Takes so many bytes at once, and keeps apart what was written apart.
    struct RecordingSocket {
        room: usize,
        pieces: Vec<Vec<u8>>,
        n_flushes: usize,
    }

    impl AsyncWrite for RecordingSocket {
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

    fn joined(room: usize) -> Joined<RecordingSocket> {
        let socket = RecordingSocket { room, pieces: Vec::new(), n_flushes: 0 };
        Joined::new(socket, Backlog::default(), Duration::from_secs(60), GuardMetrics::default())
    }

    fn write(to: &mut Joined<RecordingSocket>, bytes: &[u8]) {
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
