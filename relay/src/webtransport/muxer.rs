//! A connection after its handshake: each WebTransport stream is a libp2p substream.
//!
//! Any error is the end of the connection. Limits on streams and windows are QUIC's, from the listener's
//! configuration; nothing is queued here.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::future::{BoxFuture, Fuse};
use futures::{AsyncRead, AsyncReadExt as _, FutureExt as _};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use wtransport::VarInt;
use wtransport::error::StreamOpeningError;

use super::stream::WebTransportStream;

/// The code of a close that is no failure.
const CLOSE_CODE: VarInt = VarInt::from_u32(0);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The session or the QUIC connection under it ended.
    #[error("WebTransport connection: {0}")]
    Session(#[from] wtransport::error::ConnectionError),
    /// The remote did not let us open a stream.
    #[error("cannot open a WebTransport stream: {0}")]
    Open(#[from] StreamOpeningError),
    /// The HTTP/3 driver broke on something that the remote sent.
    #[error("the HTTP/3 driver of the connection failed")]
    Driver,
}

type OpeningStream = BoxFuture<'static, Result<WebTransportStream, ConnectionError>>;

/// An authenticated WebTransport connection.
pub struct WebTransportConnection {
    session: wtransport::Connection,
    inbound: Option<OpeningStream>,
    outbound: Option<OpeningStream>,
    closed: BoxFuture<'static, wtransport::error::ConnectionError>,
    /// Holds the stream of the Noise handshake until the client has left it.
    handshake: Fuse<BoxFuture<'static, ()>>,
}

impl WebTransportConnection {
    /// The substreams of this session.
    #[must_use]
    pub fn new(session: wtransport::Connection) -> Self {
        let watched = session.clone();
        Self {
            session,
            inbound: None,
            outbound: None,
            closed: async move { watched.closed().await }.boxed(),
            handshake: Fuse::terminated(),
        }
    }

    /// Keeps the stream of the Noise handshake for as long as its client does. Were it dropped first, the
    /// client would be told to stop sending while it closes the stream, and js-libp2p takes that for a failure.
    pub(super) fn keep(&mut self, mut stream: impl AsyncRead + Send + Unpin + 'static) {
        // Nothing is said on it any more: its end, an error and a stray byte are all the same.
        let left = async move {
            let _ = stream.read(&mut [0]).await;
        };
        self.handshake = left.boxed().fuse();
    }
}

impl fmt::Debug for WebTransportConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebTransportConnection").field("session", &self.session).finish_non_exhaustive()
    }
}

impl StreamMuxer for WebTransportConnection {
    type Substream = WebTransportStream;
    type Error = ConnectionError;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<WebTransportStream, ConnectionError>> {
        let this = &mut *self;
        poll_opening(&mut this.inbound, cx, || {
            let session = this.session.clone();
            async move { Ok(WebTransportStream::new(session.accept_bi().await?)) }
        })
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<WebTransportStream, ConnectionError>> {
        let this = &mut *self;
        poll_opening(&mut this.outbound, cx, || {
            let session = this.session.clone();
            async move { Ok(WebTransportStream::new(session.open_bi().await?.await?)) }
        })
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        self.session.close(CLOSE_CODE, b"");
        Poll::Ready(Ok(()))
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, ConnectionError>> {
        // Once it is through it stays pending.
        let _ = self.handshake.poll_unpin(cx);
        let error = ready!(self.closed.poll_unpin(cx));
        // A finished future must not be polled again.
        self.closed = futures::future::pending().boxed();
        Poll::Ready(Err(error.into()))
    }
}

impl Drop for WebTransportConnection {
    fn drop(&mut self) {
        // Streams hold the QUIC connection too; without this it would outlive its muxer.
        self.session.close(CLOSE_CODE, b"");
    }
}

/// Polls the future in `slot`, or a new one; a panic of the HTTP/3 driver becomes an error.
fn poll_opening<F>(
    slot: &mut Option<OpeningStream>,
    cx: &mut Context<'_>,
    open: impl FnOnce() -> F,
) -> Poll<Result<WebTransportStream, ConnectionError>>
where
    F: Future<Output = Result<WebTransportStream, ConnectionError>> + Send + 'static,
{
    let opening = slot.get_or_insert_with(|| {
        let caught = AssertUnwindSafe(open()).catch_unwind();
        caught.map(|result| result.unwrap_or(Err(ConnectionError::Driver))).boxed()
    });
    let result = ready!(opening.poll_unpin(cx));
    *slot = None;
    Poll::Ready(result)
}
