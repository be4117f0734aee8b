//! Bounds the buffers of a connection: received bytes that are unread, and written bytes that are unsent.
//!
//! Yamux bounds each stream, with a window that the other side fills and with a queue that we fill; a connection has
//! many streams. Here all of them together are bounded, as QUIC does it: where too much is unread, nothing more is
//! taken from the socket, and where too much is unsent, writers wait. A frame counts as well as its bytes, because one
//! of a single byte takes as much memory as one of a hundred.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::frames::{DATA, FIN, Header, RST, SYN, WINDOW_UPDATE};

/// Bytes that came on all streams of a connection and were not read: as many as QUIC takes
/// (`transport::CONNECTION_WINDOW_BYTES`), and more than the largest window of a stream.
pub(super) const UNREAD_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Frames that they came in: about 100 bytes of memory each.
pub(super) const UNREAD_FRAMES_MAX: usize = 16 * 1024;
/// Frames that may follow for a stream after this side dropped it: window updates, its end, a reset.
const LATE_PER_STREAM: usize = 3;
/// Of all streams together.
const LATE_MAX: usize = 1 << 16;
/// Bytes that were written to all streams and not sent.
pub(super) const UNSENT_BYTES_MAX: usize = 1024 * 1024;

/// Shared by a connection and its streams; clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Backlog(Arc<Mutex<BacklogState>>);

#[derive(Debug, Default)]
struct BacklogState {
    streams: HashMap<u32, Unread>,
    n_unread_bytes: usize,
    n_unread_frames: usize,
    n_dropped: usize,
    /// Frames that may come yet for streams that are gone.
    n_late: usize,
    /// The connection, where it waits until something was read.
    reader: Option<Waker>,
    n_unsent_bytes: usize,
    /// Streams that wait until something was sent.
    writers: HashMap<u32, Waker>,
    is_over: bool,
}

/// Of one stream.
#[derive(Debug, Default)]
struct Unread {
    /// Bytes of each frame.
    frames: VecDeque<u32>,
    /// The reader was dropped; Yamux may not know yet.
    is_dropped: bool,
    /// The other side opened it.
    is_theirs: bool,
    /// Something came on it, and something was sent back.
    was_used: bool,
    was_answered: bool,
}

impl Unread {
    /// Whether a frame ends it and it was opened for nothing: before a byte came, or before one was sent back.
    fn ends_in_vain(&self, header: &Header) -> bool {
        let has_said_nothing = header.has(FIN) && !self.was_used && header.n_body() == 0;
        self.is_theirs && (has_said_nothing || (header.has(RST) && !self.was_answered))
    }
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, BacklogState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an inbound frame; returns whether it can be useful. Yamux discards a frame of an unknown stream; the
    /// stream may have existed when the frame was sent. A stream that is opened and ended without use costs this side
    /// more than the remote.
    pub(super) fn on_header(&self, header: &Header) -> bool {
        let mut state = self.lock();
        if matches!(header.kind, DATA | WINDOW_UPDATE) && header.has(SYN) && !header.has(RST) {
            state.forget(header.stream);
            state.streams.insert(header.stream, Unread { is_theirs: true, ..Unread::default() });
        }
        let Some(unread) = state.streams.get_mut(&header.stream) else {
            return !header.is_idle(state.is_late());
        };
        let is_in_vain = unread.ends_in_vain(header);
        if header.n_body() > 0 && !header.has(RST) {
            unread.frames.push_back(header.length);
            unread.was_used = true;
            state.n_unread_bytes += header.n_body();
            state.n_unread_frames += 1;
        }
        !is_in_vain && !header.is_idle(true)
    }

    /// Bytes of a stream leave.
    pub(super) fn on_sent(&self, stream: u32) {
        if let Some(unread) = self.lock().streams.get_mut(&stream) {
            unread.was_answered = true;
        }
    }

    /// This side opened a stream.
    pub(super) fn on_open(&self, stream: u32) {
        self.lock().streams.insert(stream, Unread::default());
    }

    /// So many bytes of a stream were read.
    pub(super) fn on_read(&self, stream: u32, mut n_bytes: usize) {
        let mut state = self.lock();
        let Some(unread) = state.streams.get_mut(&stream) else { return };
        let (mut n_read, mut n_frames) = (0, 0);
        while let Some(first) = unread.frames.front_mut() {
            let n_of_frame = n_bytes.min(*first as usize);
            n_read += n_of_frame;
            n_bytes -= n_of_frame;
            *first -= u32::try_from(n_of_frame).unwrap_or(u32::MAX);
            if *first > 0 {
                break;
            }
            unread.frames.pop_front();
            n_frames += 1;
        }
        if unread.frames.is_empty() {
            unread.frames = VecDeque::new();
        }
        state.n_unread_bytes -= n_read;
        state.n_unread_frames -= n_frames;
        state.wake_reader();
    }

    /// Nobody reads the stream any more.
    pub(super) fn on_drop(&self, stream: u32) {
        let mut state = self.lock();
        state.writers.remove(&stream);
        let Some(unread) = state.streams.get_mut(&stream) else { return };
        if unread.frames.is_empty() {
            state.forget(stream);
        } else {
            unread.is_dropped = true;
            state.n_dropped += 1;
        }
        state.wake_reader();
    }

    /// Yamux knows of all streams that were dropped, and holds nothing of them.
    pub(super) fn forget_dropped(&self) {
        let mut state = self.lock();
        if state.n_dropped == 0 {
            return;
        }
        let dropped: Vec<u32> =
            state.streams.iter().filter(|(_, unread)| unread.is_dropped).map(|(id, _)| *id).collect();
        for stream in dropped {
            state.forget(stream);
        }
    }

    /// Ready once another frame may come.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.has_room() {
            return Poll::Ready(());
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ready once a stream may write `n_bytes`, which count as written then.
    pub(super) fn poll_reserve(&self, stream: u32, n_bytes: usize, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if !state.is_over && state.n_unsent_bytes + n_bytes > UNSENT_BYTES_MAX {
            state.writers.insert(stream, cx.waker().clone());
            return Poll::Pending;
        }
        state.n_unsent_bytes += n_bytes;
        Poll::Ready(())
    }

    /// So many bytes were sent, or not written after all.
    pub(super) fn release(&self, n_bytes: usize) {
        if n_bytes == 0 {
            return;
        }
        let mut state = self.lock();
        state.n_unsent_bytes = state.n_unsent_bytes.saturating_sub(n_bytes);
        if state.n_unsent_bytes > UNSENT_BYTES_MAX / 2 {
            return;
        }
        let waiting = std::mem::take(&mut state.writers);
        drop(state);
        waiting.into_values().for_each(Waker::wake);
    }

    /// The connection is gone: nobody waits for it any more.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.is_over = true;
        let waiting = std::mem::take(&mut state.writers);
        drop(state);
        waiting.into_values().for_each(Waker::wake);
    }

    /// Bytes and frames that are unread, and bytes that are unsent.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize, usize) {
        let state = self.lock();
        (state.n_unread_bytes, state.n_unread_frames, state.n_unsent_bytes)
    }
}

impl BacklogState {
    fn has_room(&self) -> bool {
        self.n_unread_bytes < UNREAD_BYTES_MAX && self.n_unread_frames < UNREAD_FRAMES_MAX
    }

    fn wake_reader(&mut self) {
        if (self.has_room() || self.n_dropped > 0)
            && let Some(reader) = self.reader.take()
        {
            reader.wake();
        }
    }

    /// Whether a frame for a stream that is not there may have been under way when that went.
    fn is_late(&mut self) -> bool {
        let left = self.n_late.checked_sub(1);
        self.n_late = left.unwrap_or_default();
        left.is_some()
    }

    fn forget(&mut self, stream: u32) {
        let Some(unread) = self.streams.remove(&stream) else { return };
        self.n_late = LATE_MAX.min(self.n_late + LATE_PER_STREAM);
        self.n_unread_bytes -= unread.frames.iter().map(|n_bytes| *n_bytes as usize).sum::<usize>();
        self.n_unread_frames -= unread.frames.len();
        self.n_dropped -= usize::from(unread.is_dropped);
    }
}
