//! A host in the process of a contributor or a backbone: on a thread of its own, since those compute on theirs.

use std::thread;

use anyhow::anyhow;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::super::display::Display;
use super::{HostSetup, host};

/// A host, until it has ended.
pub(crate) struct HostBeside {
    leaving: CancellationToken,
    end: oneshot::Receiver<anyhow::Result<()>>,
}

impl HostBeside {
    /// Starts it. It ends with `leaving`, or by itself where its operator has drained it; where it could not host, `on_failure` is
    /// called.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(crate) fn start(
        setup: HostSetup,
        display: Display,
        leaving: CancellationToken,
        on_failure: impl FnOnce() + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (ending, end) = oneshot::channel();
        let (runtime, token) = (Handle::current(), leaving.clone());
        let hosting = move || {
            let ended = runtime.block_on(Box::pin(host(setup, &display, token)));
            if ended.is_err() {
                on_failure();
            }
            // The receiver is dropped where the process ends before.
            let _ = ending.send(ended);
        };
        thread::Builder::new().name("host of experts".to_owned()).spawn(hosting)?;
        Ok(Self { leaving, end })
    }

    /// Has it store its experts and hand them over, and waits for its end.
    ///
    /// # Errors
    /// As of [`Self::ended`].
    pub(crate) async fn leave(self) -> anyhow::Result<()> {
        self.leaving.cancel();
        self.ended().await
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It could not host, or could not store all of its experts.
    pub(crate) async fn ended(self) -> anyhow::Result<()> {
        self.end.await.unwrap_or_else(|_| Err(anyhow!("the host of experts panicked")))
    }
}
