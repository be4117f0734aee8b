//! A WebRTC connection with bounds.
//!
//! Streams are counted, at once and in all, since each leaves something behind until the connection ends. A
//! connection whose other side has closed it, or on which nothing arrives any more, ends, and one that is dropped
//! is closed: the library would keep its tasks for ever.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::task::AtomicWaker;
use futures::{AsyncRead, AsyncWrite, FutureExt as _};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use webrtc::data::data_channel::DataChannel;
use webrtc::data_channel::RTCDataChannel;
use webrtc::peer_connection::RTCPeerConnection;
use webrtc::peer_connection::peer_connection_state::RTCPeerConnectionState;

use super::runtimes::Tasks;
use super::stream::{DataStream, RemoteObserver};
use crate::tasks;

/// Streams that a connection may have in its whole life. A tab opens a few dozen.
const STREAMS_PER_LIFE_MAX: usize = 4096;
/// Channels that the remote opened and nobody has taken; one more is closed.
const ACCEPTED_MAX: usize = 16;
/// How long a dropped connection may take to say goodbye.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

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
    WebRtc(#[from] webrtc::Error),
    /// No channel could be opened.
    #[error("no further stream of the WebRTC connection")]
    NoChannel,
    /// It was closed already, or the remote has closed it.
    #[error("the WebRTC connection is closed")]
    Closed,
    /// Too many streams in its life.
    #[error("the WebRTC connection has had {STREAMS_PER_LIFE_MAX} streams, a new one must take its place")]
    WornOut,
    /// The other side is gone.
    #[error("nothing came on the WebRTC connection for {0:?}")]
    Silent(Duration),
}

/// What the streams observed of the remote.
#[derive(Debug)]
struct RemoteActivity {
    begun: Instant,
    /// Milliseconds after `begun` at which a byte arrived last.
    last_message_ms: AtomicU64,
    acknowledges: CancellationToken,
}

impl RemoteActivity {
    fn last_message_at(&self) -> Instant {
        self.begun + Duration::from_millis(self.last_message_ms.load(Ordering::Relaxed))
    }
}

impl RemoteObserver for RemoteActivity {
    fn on_message(&self) {
        let elapsed = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_message_ms.store(elapsed, Ordering::Relaxed);
    }

    fn acknowledges(&self) -> &CancellationToken {
        &self.acknowledges
    }
}

/// State that a connection and its streams share.
#[derive(Debug)]
struct ConnectionState {
    /// Of WebRTC, which go on until the last stream is gone.
    tasks: Arc<Tasks>,
    n_open: AtomicUsize,
    /// Woken when a stream ends.
    waiting: AtomicWaker,
}

impl ConnectionState {
    fn is_full(&self, limits: ConnectionLimits) -> bool {
        self.n_open.load(Ordering::Relaxed) >= limits.n_streams_max
    }
}

type OpeningChannel = BoxFuture<'static, Result<Arc<DataChannel>, ConnectionError>>;

/// A bounded WebRTC connection.
pub(crate) struct WebRtcConnection {
    /// Gone once it is closed.
    peer: Option<Arc<RTCPeerConnection>>,
    limits: ConnectionLimits,
    shared: Arc<ConnectionState>,
    activity: Arc<RemoteActivity>,
    accepted: mpsc::Receiver<Arc<DataChannel>>,
    opening: Option<OpeningChannel>,
    closing: Option<BoxFuture<'static, Result<(), webrtc::Error>>>,
    n_opened: usize,
    watch: BoxFuture<'static, ()>,
    /// Cancelled once the other side has closed the connection, or ICE has lost it.
    over: CancellationToken,
    is_over: BoxFuture<'static, ()>,
}

impl WebRtcConnection {
    /// Needs a tokio runtime.
    pub(super) fn new(peer: RTCPeerConnection, limits: ConnectionLimits, tasks: Arc<Tasks>) -> Self {
        let begun = Instant::now();
        let acknowledges = CancellationToken::new();
        let activity = Arc::new(RemoteActivity { begun, last_message_ms: AtomicU64::new(0), acknowledges });
        let shared = ConnectionState { tasks, n_open: AtomicUsize::new(0), waiting: AtomicWaker::new() };
        let over = CancellationToken::new();
        Self {
            accepted: accept_channels(&peer, shared.tasks.handle().clone()),
            is_over: over.clone().cancelled_owned().boxed(),
            over: cancel_when_lost(&peer, over),
            peer: Some(Arc::new(peer)),
            limits,
            shared: Arc::new(shared),
            activity,
            opening: None,
            closing: None,
            n_opened: 0,
            watch: tokio::time::sleep_until(begun + limits.silence_max).boxed(),
        }
    }

    /// The connection of the library.
    pub(super) fn peer(&self) -> Result<&RTCPeerConnection, ConnectionError> {
        self.peer.as_deref().ok_or(ConnectionError::Closed)
    }

    /// The stream for the handshake. Nobody closes its channel but with the connection, whose end its own end is.
    pub(super) fn handshake(&self, channel: Arc<DataChannel>) -> DataStream {
        self.stream(channel, self.over.clone().drop_guard())
    }

    fn stream(&self, channel: Arc<DataChannel>, until_the_end: impl Send + 'static) -> DataStream {
        let observer = Arc::<RemoteActivity>::clone(&self.activity);
        DataStream::new(channel, observer, self.shared.tasks.handle().clone(), until_the_end)
    }

    /// Counts a stream; fails where the connection has had too many.
    fn count(&mut self, channel: Arc<DataChannel>) -> Result<WebRtcStream, ConnectionError> {
        self.n_opened += 1;
        if self.n_opened > STREAMS_PER_LIFE_MAX {
            return Err(ConnectionError::WornOut);
        }
        self.shared.n_open.fetch_add(1, Ordering::Relaxed);
        Ok(WebRtcStream { inner: self.stream(channel, ()), shared: Arc::clone(&self.shared) })
    }
}

fn accept_channels(peer: &RTCPeerConnection, runtime: Handle) -> mpsc::Receiver<Arc<DataChannel>> {
    let (sender, accepted) = mpsc::channel(ACCEPTED_MAX);
    peer.on_data_channel(Box::new(move |channel| {
        let (sender, runtime) = (sender.clone(), runtime.clone());
        Box::pin(async move {
            // Not awaited here: the library opens the channel once this returns.
            tasks::spawn_on(&runtime, "webrtc channel", async move {
                let Some(channel) = opened(&channel).await else { return };
                if let Err(refused) = sender.try_send(channel) {
                    // An error is harmless: the channel is closed with the connection at the latest.
                    let _ = refused.into_inner().close().await;
                }
            });
        })
    }));
    accepted
}

fn cancel_when_lost(peer: &RTCPeerConnection, over: CancellationToken) -> CancellationToken {
    let lost = over.clone();
    peer.on_peer_connection_state_change(Box::new(move |state| {
        if matches!(state, RTCPeerConnectionState::Failed | RTCPeerConnectionState::Closed) {
            lost.cancel();
        }
        Box::pin(async {})
    }));
    over
}

impl StreamMuxer for WebRtcConnection {
    type Substream = WebRtcStream;
    type Error = ConnectionError;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<WebRtcStream, ConnectionError>> {
        loop {
            let channel = ready!(self.accepted.poll_recv(cx)).ok_or(ConnectionError::Closed)?;
            let is_one_too_many = self.shared.is_full(self.limits);
            let stream = self.count(channel)?;
            if !is_one_too_many {
                return Poll::Ready(Ok(stream));
            }
            // Dropping it resets it.
        }
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<WebRtcStream, ConnectionError>> {
        self.shared.waiting.register(cx.waker());
        if self.shared.is_full(self.limits) {
            return Poll::Pending;
        }
        let peer = self.peer.clone().ok_or(ConnectionError::Closed)?;
        let handle = self.shared.tasks.handle().clone();
        let opening = self.opening.get_or_insert_with(|| {
            let open = async move {
                let channel = peer.create_data_channel("", None).await?;
                opened(&channel).await.ok_or(ConnectionError::NoChannel)
            };
            let open = AbortOnDropHandle::new(tasks::spawn_on(&handle, "webrtc channel", open));
            async move { open.await.unwrap_or(Err(ConnectionError::NoChannel)) }.boxed()
        });
        let opened = ready!(opening.poll_unpin(cx));
        self.opening = None;
        Poll::Ready(opened.and_then(|channel| self.count(channel)))
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, ConnectionError>> {
        if self.over.is_cancelled() || self.is_over.poll_unpin(cx).is_ready() {
            return Poll::Ready(Err(ConnectionError::Closed));
        }
        while self.watch.poll_unpin(cx).is_ready() {
            let until = self.activity.last_message_at() + self.limits.silence_max;
            if until <= Instant::now() {
                return Poll::Ready(Err(ConnectionError::Silent(self.limits.silence_max)));
            }
            self.watch = tokio::time::sleep_until(until).boxed();
        }
        Poll::Pending
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        if let Some(peer) = self.peer.take() {
            let closing = tasks::spawn_on(self.shared.tasks.handle(), "webrtc close", close(peer));
            let closing = AbortOnDropHandle::new(closing);
            self.closing = Some(async move { closing.await.unwrap_or(Ok(())) }.boxed());
        }
        let Some(closing) = &mut self.closing else { return Poll::Ready(Ok(())) };
        let closed = ready!(closing.poll_unpin(cx));
        self.closing = None;
        Poll::Ready(closed.map_err(ConnectionError::from))
    }
}

/// Tells the other side, and waits for nobody for long.
async fn close(peer: Arc<RTCPeerConnection>) -> Result<(), webrtc::Error> {
    tokio::time::timeout(CLOSE_TIMEOUT, peer.close()).await.unwrap_or(Ok(()))
}

impl Drop for WebRtcConnection {
    fn drop(&mut self) {
        let (peer, closing) = (self.peer.take(), self.closing.take());
        let runtime = Arc::clone(&self.shared.tasks);
        tasks::spawn_on(&runtime.handle().clone(), "webrtc close", async move {
            // An error is ignored: no task is left to handle it.
            if let Some(closing) = closing {
                let _ = closing.await;
            }
            if let Some(peer) = peer {
                let _ = close(peer).await;
            }
            drop(runtime);
        });
    }
}

impl fmt::Debug for WebRtcConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebRtcConnection").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// A stream that is counted.
pub(crate) struct WebRtcStream {
    inner: DataStream,
    shared: Arc<ConnectionState>,
}

impl AsyncRead for WebRtcStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl AsyncWrite for WebRtcStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

impl Drop for WebRtcStream {
    fn drop(&mut self) {
        self.shared.n_open.fetch_sub(1, Ordering::Relaxed);
        self.shared.waiting.wake();
    }
}

/// The bytes of a channel once it is open; `None` where it never will be.
pub(super) async fn opened(channel: &Arc<RTCDataChannel>) -> Option<Arc<DataChannel>> {
    let (sender, opened) = oneshot::channel();
    let open = Arc::clone(channel);
    channel.on_open(Box::new(move || {
        Box::pin(async move {
            match open.detach().await {
                // The caller was dropped and waits no more.
                Ok(detached) => drop(sender.send(detached)),
                Err(error) => tracing::debug!(%error, "a WebRTC channel cannot be used"),
            }
        })
    }));
    opened.await.ok()
}
