//! Events for the driver of a run, from modules that do not know which driver it is.
//!
//! A driver receives all its events through one bounded channel, as one closed enum. What it is built on sends one kind of
//! them, and the driver's enum is made from that kind.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::mpsc;

/// The driver does not receive events any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the driver of the run has ended")]
pub struct DriverEnded;

/// Sends events of one kind to the driver of a run. Cheap to clone.
pub struct EventSender<T>(Arc<dyn EventChannel<T>>);

trait EventChannel<T>: Send + Sync {
    fn send(&self, event: T) -> BoxFuture<'_, Result<(), DriverEnded>>;
    fn closed(&self) -> BoxFuture<'_, ()>;
}

impl<T: Send + 'static, E: From<T> + Send + 'static> EventChannel<T> for mpsc::Sender<E> {
    fn send(&self, event: T) -> BoxFuture<'_, Result<(), DriverEnded>> {
        async move { Self::send(self, event.into()).await.map_err(|_| DriverEnded) }.boxed()
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        Self::closed(self).boxed()
    }
}

impl<T: Send + 'static> EventSender<T> {
    /// Sends into the channel of all events of a driver.
    pub fn new<E: From<T> + Send + 'static>(channel: mpsc::Sender<E>) -> Self {
        Self(Arc::new(channel))
    }

    /// Waits for room in the channel, and sends.
    ///
    /// # Errors
    /// The driver has ended.
    pub async fn send(&self, event: T) -> Result<(), DriverEnded> {
        self.0.send(event).await
    }

    /// Waits until the driver ends.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

impl<T> Clone for EventSender<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for EventSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventSender")
    }
}
