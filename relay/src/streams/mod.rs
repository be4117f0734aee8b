//! Streams between peers, by protocol name: opened on connections that stand, accepted into queues.
//!
//! Never dials, and never drops an incoming stream in silence: a full queue is logged, and the remote sees
//! a reset.

mod behaviour;
mod handler;
mod paced;
mod upgrade;

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use libp2p::{PeerId, Stream, StreamProtocol};
use tokio::sync::mpsc;

pub(crate) use self::behaviour::StreamBehaviour;
pub(crate) use self::handler::OpenRequest;
pub use self::paced::{PaceHandle, Paced};

/// Streams of one protocol that wait to be taken; further ones are reset.
pub const INCOMING_STREAMS_MAX: usize = 256;
/// Streams that wait to be opened on one connection.
pub const OUTGOING_STREAMS_MAX: usize = 256;

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no connection to the peer, or it ended meanwhile.
    #[error("not connected")]
    NotConnected,
    /// The remote does not speak the protocol.
    #[error("the remote does not speak the protocol")]
    Unsupported,
    /// The remote did not answer in time.
    #[error("the remote did not answer in time")]
    Timeout,
    /// Too many streams wait to be opened already.
    #[error("{OUTGOING_STREAMS_MAX} streams wait to be opened on the connection already")]
    TooMany,
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The protocol is being accepted already.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AlreadyAccepted;

/// The streams that remote peers open for one protocol. Dropping it stops the protocol.
///
/// A `futures::Stream` of the remote peer, whose id Noise attests, and the stream.
#[derive(Debug)]
pub struct IncomingStreams {
    receiver: mpsc::Receiver<(PeerId, Stream)>,
}

impl IncomingStreams {
    /// The next stream; `None` once the node is gone.
    pub async fn recv(&mut self) -> Option<(PeerId, Stream)> {
        self.receiver.recv().await
    }
}

impl futures::Stream for IncomingStreams {
    type Item = (PeerId, Stream);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(cx)
    }
}

type Accepted = HashMap<StreamProtocol, mpsc::Sender<(PeerId, Stream)>>;

/// Who accepts which protocol; shared with every connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry {
    accepted: Arc<Mutex<Accepted>>,
}

impl Registry {
    pub(crate) fn accept(&self, protocol: StreamProtocol) -> Result<IncomingStreams, AlreadyAccepted> {
        let mut accepted = self.lock();
        if accepted.get(&protocol).is_some_and(|sender| !sender.is_closed()) {
            return Err(AlreadyAccepted);
        }
        let (sender, receiver) = mpsc::channel(INCOMING_STREAMS_MAX);
        accepted.insert(protocol, sender);
        Ok(IncomingStreams { receiver })
    }

    /// Ends every [`IncomingStreams`].
    pub(crate) fn close(&self) {
        self.lock().clear();
    }

    fn protocols(&self) -> Vec<StreamProtocol> {
        let mut accepted = self.lock();
        accepted.retain(|_, sender| !sender.is_closed());
        accepted.keys().cloned().collect()
    }

    fn deliver(&self, peer: PeerId, stream: Stream, protocol: &StreamProtocol) {
        let Some(sender) = self.lock().get(protocol).cloned() else { return };
        if let Err(mpsc::error::TrySendError::Full(_)) = sender.try_send((peer, stream)) {
            tracing::warn!(%peer, %protocol, "too many streams wait, one is reset");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Accepted> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_protocol_is_accepted_once_at_a_time() {
        let registry = Registry::default();
        let protocol = StreamProtocol::new("/test/1");
        let first = registry.accept(protocol.clone()).unwrap();
        assert_eq!(registry.accept(protocol.clone()).unwrap_err(), AlreadyAccepted);
        assert_eq!(registry.protocols(), vec![protocol.clone()]);
        drop(first);
        assert!(registry.protocols().is_empty());
        assert!(registry.accept(protocol).is_ok());
    }
}
