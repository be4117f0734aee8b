//! A runtime on idle-priority threads: its tasks use only the time of the backbone's processor that no other thread
//! wants.
//!
//! A real attacker computes on its own machine. On the machine of the attacked run it would take processor time from the
//! run, and the test would measure that.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::processors::ProcessorSet;

/// Threads that it has: as many connections as it wants, and little computing.
const THREADS: usize = 2;

/// Ends what runs on it when dropped.
#[derive(Debug)]
pub struct Background {
    runtime: Option<Runtime>,
}

impl Background {
    /// Starts its threads.
    ///
    /// # Errors
    /// Where there are none, or the system does not let them give way.
    pub fn start() -> Result<Self> {
        // Threads have the priority of the one that starts them.
        let starting = std::thread::spawn(|| {
            ProcessorSet::Backbone.run_this_thread_idle()?;
            anyhow::Ok(Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?)
        });
        let runtime = starting.join().map_err(|_| anyhow!("the thread panicked"))??;
        Ok(Self { runtime: Some(runtime) })
    }

    /// To start something on it.
    ///
    /// # Errors
    /// Never before it is dropped.
    pub fn handle(&self) -> Result<&Handle> {
        self.runtime.as_ref().map(Runtime::handle).context("it ended")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // May be dropped on a thread that must not wait.
            std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sched(7), as proc_pid_stat(5) numbers it.
    const SCHED_IDLE: &str = "5";

    #[test]
    fn its_threads_give_way() {
        let background = Background::start().unwrap();
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let policy = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            stat.rsplit(')').next().unwrap().split_whitespace().nth(38).unwrap().to_owned()
        };
        background.handle().unwrap().spawn(async move { tell.send(policy()).unwrap() });
        assert_eq!(told.recv().unwrap(), SCHED_IDLE);
        assert_ne!(policy(), SCHED_IDLE);
    }
}
