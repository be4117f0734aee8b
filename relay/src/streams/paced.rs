//! A stream with a lowest speed for the remote: waiting too long for bytes is an error.
//!
//! `swarm::guard` decides what is too slow; here is the clock, and a timer that runs while bytes are
//! waited for.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use barnraise_protocol::framing::FrameError;
use barnraise_swarm::Moment;
use barnraise_swarm::guard::{PaceLimits, StreamPace, TooSlow};
use futures::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep};

use crate::Violation;

/// A stream with a [`StreamPace`]. To be used within a tokio runtime.
#[derive(Debug)]
pub struct Paced<S> {
    stream: S,
    pace: PaceHandle,
    timer: Pin<Box<Sleep>>,
}

/// Tells a [`Paced`] stream where its conversation stands; cheap to clone.
#[derive(Clone, Debug)]
pub struct PaceHandle {
    opened: Instant,
    pace: Arc<Mutex<StreamPace>>,
}

impl<S> Paced<S> {
    /// A stream that was just opened, on which the other side asks and this side answers.
    pub fn new(stream: S, limits: PaceLimits) -> Self {
        Self::with(stream, StreamPace::new(limits, Moment::ZERO))
    }

    /// One on which both sides speak when they like. What is read before the next [`PaceHandle::wait`] is one message, with the time
    /// of one.
    pub fn duplex(stream: S, limits: PaceLimits) -> Self {
        Self::with(stream, StreamPace::duplex(limits, Moment::ZERO))
    }

    fn with(stream: S, pace: StreamPace) -> Self {
        let pace = PaceHandle { opened: Instant::now(), pace: Arc::new(Mutex::new(pace)) };
        let timer = Box::pin(tokio::time::sleep_until(pace.opened));
        Self { stream, pace, timer }
    }

    /// To tell where the conversation stands while the stream is in use.
    pub fn pace(&self) -> PaceHandle {
        self.pace.clone()
    }

    /// Bytes are waited for: not for ever.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let (deadline, why) = self.pace.lock().deadline();
            let deadline = self.pace.opened + deadline;
            if self.timer.deadline() != deadline {
                self.timer.as_mut().reset(deadline);
            }
            ready!(self.timer.as_mut().poll(cx));
            // What moved the deadline meanwhile, on another half of the stream, counts.
            if self.timer.deadline() == self.pace.opened + self.pace.lock().deadline().0 {
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
    }
}

impl PaceHandle {
    /// The next message is waited for.
    pub fn wait(&self) {
        self.lock().on_wait(self.now());
    }

    /// An answer begins, or goes on after this side took its time.
    pub fn answer(&self) {
        self.lock().on_answer(self.now());
    }

    fn now(&self) -> Moment {
        self.opened.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, StreamPace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        match Pin::new(&mut this.stream).poll_read(cx, buffer) {
            Poll::Ready(Ok(n_bytes)) if n_bytes > 0 => {
                this.pace.lock().on_read(this.pace.now(), n_bytes);
                // Bytes that trickle in one by one are there each time.
                match this.pace.lock().deadline() {
                    (deadline, why) if deadline <= this.pace.now() => {
                        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
                    }
                    _ => Poll::Ready(Ok(n_bytes)),
                }
            }
            Poll::Pending => this.poll_late(cx).map(Err),
            ready => ready,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.pace.lock().on_writing(this.pace.now());
        match Pin::new(&mut this.stream).poll_write(cx, bytes) {
            Poll::Ready(Ok(n_bytes)) => {
                this.pace.lock().on_written(this.pace.now(), n_bytes);
                Poll::Ready(Ok(n_bytes))
            }
            Poll::Pending => this.poll_late(cx).map(Err),
            ready => ready,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        match Pin::new(&mut this.stream).poll_flush(cx) {
            Poll::Pending => this.poll_late(cx).map(Err),
            ready => ready,
        }
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        match Pin::new(&mut this.stream).poll_close(cx) {
            Poll::Pending => this.poll_late(cx).map(Err),
            ready => ready,
        }
    }
}

impl Violation {
    /// The violation behind a frame error; `None` where the stream just
    /// ended or broke.
    #[must_use]
    pub fn of_frame(error: &FrameError) -> Option<Self> {
        match error {
            FrameError::TooLong { .. } => Some(Self::OversizedFrame),
            FrameError::Payload(_) | FrameError::TrailingBytes(_) => Some(Self::MalformedMessage),
            FrameError::Version { .. } => Some(Self::OtherVersion),
            FrameError::Io(error) => Self::of_pace(error),
            FrameError::Closed | FrameError::Truncated { .. } => None,
        }
    }

    /// Why a [`Paced`] stream ended, where it was for being too slow.
    #[must_use]
    pub fn of_pace(error: &io::Error) -> Option<Self> {
        let slow: &TooSlow = error.get_ref()?.downcast_ref()?;
        Some(match slow {
            TooSlow::NoFirstMessage(_) => Self::SilentStream,
            TooSlow::Idle(_) => Self::IdleStream,
            TooSlow::Message(_) => Self::SlowMessage,
            TooSlow::Stalled(_) => Self::StalledTransfer,
            TooSlow::Transfer(_) => Self::SlowTransfer,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use barnraise_protocol::framing;
    use futures::AsyncWriteExt as _;
    use tokio_util::compat::TokioAsyncReadCompatExt as _;

    use super::*;

    const LIMITS: PaceLimits = PaceLimits {
        first_message: Duration::from_millis(20),
        idle: Duration::from_millis(40),
        message: Duration::from_millis(60),
        stall: Duration::from_millis(80),
        bytes_per_second_min: 1,
    };

    #[tokio::test(start_paused = true)]
    async fn each_way_of_being_slow_ends_the_stream_and_says_which_it_was() {
        let pair = || {
            let (near, far) = tokio::io::duplex(64);
            (Paced::new(near.compat(), LIMITS), far.compat())
        };
        let (mut stream, _peer) = pair();
        let silent = framing::read::<u32, _>(&mut stream, 64).await.unwrap_err();
        assert_eq!(Violation::of_frame(&silent), Some(Violation::SilentStream));

        let (mut stream, mut peer) = pair();
        framing::write(&mut peer, &7u32, 64).await.unwrap();
        assert_eq!(framing::read::<u32, _>(&mut stream, 64).await.unwrap(), 7);
        stream.pace().wait();
        let idle = framing::read::<u32, _>(&mut stream, 64).await.unwrap_err();
        assert_eq!(Violation::of_frame(&idle), Some(Violation::IdleStream));

        let (mut stream, mut peer) = pair();
        let trickle = async {
            while peer.write_all(&[1]).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        };
        let read = framing::read::<u32, _>(&mut stream, 0x0200_0000);
        let slow = tokio::select! {
            slow = read => slow.unwrap_err(),
            () = trickle => unreachable!("it is read for as long as it is written"),
        };
        assert_eq!(Violation::of_frame(&slow), Some(Violation::SlowMessage));

        let (mut stream, _peer) = pair();
        let stalled = framing::write(&mut stream, &[0u8; 100].as_slice(), 200).await.unwrap_err();
        assert_eq!(Violation::of_frame(&stalled), Some(Violation::StalledTransfer));
    }
}
