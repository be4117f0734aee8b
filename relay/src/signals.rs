//! Ctrl-C and SIGTERM: the first asks to leave in order, the second quits at once.

use std::io;

/// Exit code of a process that was interrupted: 128 and the number of SIGINT.
const INTERRUPTED: i32 = 130;

/// Calls `leave` at the first signal and ends the process at the second. Needs a tokio runtime.
///
/// # Errors
/// The system takes no handler.
pub fn listen(leave: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new()?;
    tokio::spawn(async move {
        signals.next().await;
        leave();
        signals.next().await;
        std::process::exit(INTERRUPTED);
    });
    Ok(())
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        // Without a handler there is nothing to wait for.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
