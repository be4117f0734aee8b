//! Ctrl-C, SIGTERM and SIGHUP: the first asks to leave in order, the second quits at once.
//!
//! A terminal that is closed sends SIGHUP. Under `nohup` that is ignored from the start, and stays so.

use std::io;

use tokio_util::task::AbortOnDropHandle;

use crate::tasks;

/// Exit code of a process that was interrupted: 128 and the number of SIGINT.
const INTERRUPTED: i32 = 130;

/// Calls `leave` at the first signal and ends the process at the second, for as long as the handle lives. Needs a tokio
/// runtime.
///
/// # Errors
/// The system takes no handler.
pub fn listen(leave: impl FnOnce() + Send + 'static) -> io::Result<AbortOnDropHandle<()>> {
    let mut signals = Signals::new()?;
    Ok(tasks::spawn("signals", async move {
        signals.next().await;
        leave();
        signals.next().await;
        std::process::exit(INTERRUPTED);
    }))
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        // Asked before there is a handler.
        let is_ignored = hangup_is_ignored();
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: if is_ignored { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    async fn next(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hangup => {}
        }
    }
}

/// Whether this process was started with SIGHUP ignored, as `nohup` does, and so will be those that it starts.
#[cfg(unix)]
#[must_use]
pub fn hangup_is_ignored() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|text| ignores_hangup(&text))
}

/// Whether the mask of ignored signals in `/proc/self/status` has the first one, which is SIGHUP.
#[cfg(unix)]
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
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

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_ignores_stays_ignored() {
        assert!(ignores_hangup("Name:\tbarnraise\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("SigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"));
        assert!(!ignores_hangup(""));
    }
}
