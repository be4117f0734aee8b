//! A libp2p stream on a data channel (libp2p/specs, `webrtc/README.md`).
//!
//! A task reads the channel until it ends, also when nobody reads the stream or it was dropped: js-libp2p closes a
//! connection only once each of its streams was told that its end has arrived (`FIN_ACK`), and rust-libp2p's own
//! streams never say so (libp2p/rust-libp2p#4600). Nothing is queued but a few messages for the reader; then SCTP
//! makes the sender wait.

#[cfg(test)]
mod fuzz;
mod message;

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use futures::future::BoxFuture;
use futures::{AsyncRead, AsyncWrite, FutureExt as _};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use webrtc::data::data_channel::DataChannel;

use self::message::{Decoder, Flag, MESSAGE_BYTES_MAX, OVERHEAD_BYTES_MAX, encode_data, encode_flag};
use crate::tasks;

/// Bytes of one write. The specification allows messages of 16 KiB; rust-libp2p's own listener reads half of that
/// and resets the stream.
const WRITE_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 2 - OVERHEAD_BYTES_MAX;
/// Messages that came and were not read.
const UNREAD_MESSAGES_MAX: usize = 4;
/// What is read of a message on a stream that was dropped: flags are shorter, and anything else resets the channel.
const FLAG_BYTES_MAX: usize = 64;

/// Receives what the streams of a connection observe of the remote.
pub(super) trait RemoteObserver: Send + Sync + 'static {
    /// A message arrived.
    fn on_message(&self);
    /// Ready once the other side is known to understand `FIN_ACK`; rust-libp2p takes it for an end.
    fn acknowledges(&self) -> &CancellationToken;
}

/// How the remote's direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    /// The remote finished it.
    Finished,
    /// The remote reset the stream.
    Reset,
    /// The channel or the connection is gone.
    Lost,
}

/// State that a stream and its reading task share.
#[derive(Debug, Default)]
struct StreamEnds {
    remote: OnceLock<StreamEnd>,
    /// The other side reads no more.
    is_stopped: AtomicBool,
    /// We will write no more.
    wrote_all: CancellationToken,
}

impl StreamEnds {
    fn is_reset(&self) -> bool {
        matches!(self.remote.get(), Some(StreamEnd::Reset | StreamEnd::Lost))
    }
}

type Writing = BoxFuture<'static, Result<usize, webrtc::data::Error>>;

/// A stream; dropping one that was not closed resets it, but for an answer that was flushed to a remote that has
/// said its last: that one is finished.
pub(super) struct DataStream {
    channel: Arc<DataChannel>,
    tasks: Handle,
    ends: Arc<StreamEnds>,
    received: mpsc::Receiver<Bytes>,
    unread: Bytes,
    writing: Option<Writing>,
    /// `FIN` was written, or is being written.
    is_finishing: bool,
    /// The end of the other direction was read.
    is_read_finished: bool,
    /// Nothing was written since the last flush.
    is_flushed: bool,
}

impl DataStream {
    /// Begins to read the channel, until it ends; `until_the_end` is dropped then.
    pub(super) fn new(
        channel: Arc<DataChannel>,
        observer: Arc<dyn RemoteObserver>,
        tasks: Handle,
        until_the_end: impl Send + 'static,
    ) -> Self {
        let (sender, received) = mpsc::channel(UNREAD_MESSAGES_MAX);
        let ends = Arc::<StreamEnds>::default();
        let listening = listen(Arc::clone(&channel), sender, Arc::clone(&ends), observer);
        tasks::spawn_on(&tasks, "webrtc stream", async move {
            listening.await;
            drop(until_the_end);
        });
        Self {
            channel,
            tasks,
            ends,
            received,
            unread: Bytes::new(),
            writing: None,
            is_finishing: false,
            is_read_finished: false,
            is_flushed: true,
        }
    }

    fn write(&mut self, message: Bytes) {
        let channel = Arc::clone(&self.channel);
        self.writing = Some(async move { channel.write(&message).await }.boxed());
    }

    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(writing) = &mut self.writing else { return Poll::Ready(Ok(())) };
        let written = ready!(writing.poll_unpin(cx));
        self.writing = None;
        Poll::Ready(written.map(drop).map_err(|error| io::Error::new(io::ErrorKind::BrokenPipe, error)))
    }
}

impl AsyncRead for DataStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.unread.is_empty() && !buffer.is_empty() {
            match ready!(self.received.poll_recv(cx)) {
                Some(bytes) => self.unread = bytes,
                None => {
                    return Poll::Ready(match self.ends.remote.get() {
                        Some(StreamEnd::Finished) => {
                            self.is_read_finished = true;
                            Ok(0)
                        }
                        Some(StreamEnd::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
                        Some(StreamEnd::Lost) | None => Err(io::ErrorKind::ConnectionAborted.into()),
                    });
                }
            }
        }
        let n_bytes = buffer.len().min(self.unread.len());
        self.unread.copy_to_slice(&mut buffer[..n_bytes]);
        Poll::Ready(Ok(n_bytes))
    }
}

impl AsyncWrite for DataStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_written(cx))?;
        if self.ends.is_reset() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if self.is_finishing || self.ends.is_stopped.load(Ordering::Relaxed) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let n_bytes = bytes.len().min(WRITE_BYTES_MAX);
        if n_bytes > 0 {
            self.write(encode_data(&bytes[..n_bytes]));
            self.is_flushed = false;
            // It begins now; that it is through, the next write or flush asks.
            if let Poll::Ready(Err(error)) = self.poll_written(cx) {
                return Poll::Ready(Err(error));
            }
        }
        Poll::Ready(Ok(n_bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_written(cx))?;
        self.is_flushed = true;
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_written(cx))?;
        if !self.is_finishing {
            if self.ends.is_reset() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            self.write(encode_flag(Flag::Fin));
            self.is_finishing = true;
            ready!(self.poll_written(cx))?;
        }
        self.ends.wrote_all.cancel();
        Poll::Ready(Ok(()))
    }
}

impl Drop for DataStream {
    fn drop(&mut self) {
        if self.ends.wrote_all.is_cancelled() {
            return;
        }
        let is_whole = self.is_read_finished && self.is_flushed || self.is_finishing;
        let last = encode_flag(if is_whole { Flag::Fin } else { Flag::Reset });
        let (writing, channel, ends) =
            (self.writing.take(), Arc::clone(&self.channel), Arc::clone(&self.ends));
        let is_said = self.is_finishing;
        tasks::spawn_on(&self.tasks, "webrtc stream", async move {
            if let Some(writing) = writing {
                // A message that was begun must not be cut: its parts have numbers.
                let _ = writing.await;
            }
            if !is_said && !ends.is_reset() {
                let _ = channel.write(&last).await;
            }
            ends.wrote_all.cancel();
        });
    }
}

/// Reads the channel until it ends.
async fn listen(
    channel: Arc<DataChannel>,
    sender: mpsc::Sender<Bytes>,
    ends: Arc<StreamEnds>,
    observer: Arc<dyn RemoteObserver>,
) {
    let mut sender = Some(sender);
    let mut decoder = Decoder::default();
    let mut is_ack_due = false;
    loop {
        let mut buffer = vec![0; if sender.is_some() { MESSAGE_BYTES_MAX + 1 } else { FLAG_BYTES_MAX }];
        let n_bytes = tokio::select! {
            biased;
            () = may_acknowledge(&ends, observer.acknowledges()), if is_ack_due => {
                is_ack_due = false;
                // Where it cannot be said the channel is gone, which the next read tells.
                let _ = channel.write(&encode_flag(Flag::FinAck)).await;
                continue;
            }
            () = left(sender.as_ref()), if sender.is_some() => {
                sender = None;
                continue;
            }
            read = channel.read(&mut buffer) => match read {
                Ok(n_bytes) if n_bytes > 0 => n_bytes,
                // The other side has closed the channel, or the connection is gone.
                Ok(_) | Err(_) => break,
            },
        };
        observer.on_message();
        decoder.push(&buffer[..n_bytes]);
        loop {
            let message = match decoder.next() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "a WebRTC stream ends");
                    let _ = ends.remote.set(StreamEnd::Reset);
                    let _ = channel.close().await;
                    return;
                }
            };
            if let Some(open) = &sender
                && !message.data.is_empty()
                && open.send(message.data).await.is_err()
            {
                sender = None;
            }
            match message.flag {
                Some(Flag::Fin) => {
                    let _ = ends.remote.set(StreamEnd::Finished);
                    (sender, is_ack_due) = (None, true);
                }
                Some(Flag::Reset) => {
                    let _ = ends.remote.set(StreamEnd::Reset);
                    sender = None;
                }
                Some(Flag::StopSending) => ends.is_stopped.store(true, Ordering::Relaxed),
                Some(Flag::FinAck) => observer.acknowledges().cancel(),
                None => {}
            }
        }
    }
    let _ = ends.remote.set(StreamEnd::Lost);
}

/// The stream was dropped.
async fn left(sender: Option<&mpsc::Sender<Bytes>>) {
    if let Some(sender) = sender {
        sender.closed().await;
    }
}

/// To a side that does not know it, `FIN_ACK` is one more end: it does no harm once ours was said.
async fn may_acknowledge(ends: &StreamEnds, acknowledges: &CancellationToken) {
    tokio::select! {
        () = ends.wrote_all.cancelled() => {}
        () = acknowledges.cancelled() => {}
    }
}
