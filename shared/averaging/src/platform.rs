//! The clock and the network that a round needs.

use std::error::Error;
use std::time::Duration;

use barnraise_swarm::bandwidth::Bytes;
use barnraise_swarm::{Moment, PeerKey};
use futures::future::{Either, select};
use futures::io::{AsyncRead, AsyncWrite};

/// Why a peer cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is blocked, revoked or convicted.
    #[error("this peer takes no part here")]
    Excluded,
    /// A relay would carry the traffic of the averaging.
    #[error("it can be reached through a relay only")]
    Relayed,
    /// An error of the platform's network, with its causes.
    #[error(transparent)]
    Network(Box<dyn Error + Send + Sync>),
}

impl OpenError {
    /// An error of the platform's network.
    pub fn network(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Network(Box::new(error))
    }
}

/// Clock and network of one peer.
pub trait Platform: Sync {
    /// A libp2p stream.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Now, since an origin of the platform's choice; monotonic.
    fn now(&self) -> Moment;

    /// Completes at `at` or soon after.
    fn sleep_until(&self, at: Moment) -> impl Future<Output = ()> + Send;

    /// Opens a stream of the conversation `average` to a peer.
    fn open(&self, peer: &PeerKey) -> impl Future<Output = Result<Self::Stream, OpenError>> + Send;

    /// Whole chunks of encoded values were written to a stream, or read from one.
    fn on_moved(&self, _bytes: Bytes) {}
}

/// The output of `future`, or `None` where it takes longer than `patience`.
pub(crate) async fn within<P: Platform, F: Future + Send>(
    platform: &P,
    patience: Duration,
    future: F,
) -> Option<F::Output> {
    until(platform, platform.now() + patience, future).await
}

/// The output of `future`, or `None` where it is not ready by `at`.
pub(crate) async fn until<P: Platform, F: Future + Send>(
    platform: &P,
    at: Moment,
    future: F,
) -> Option<F::Output> {
    let future = std::pin::pin!(future);
    let sleep = std::pin::pin!(platform.sleep_until(at));
    match select(future, sleep).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}
