//! A runtime on threads that give way: what runs there has a tenth of a processor that others want, and all of it else.
//!
//! An attacker is another machine, whose processor is its own. On one machine with the run that it attacks it would take
//! the run's, and what is measured would be that.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use tokio::runtime::{Builder, Handle, Runtime};

/// A tenth of the weight of other threads.
const NICE: &str = "10";
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
            give_way()?;
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

/// The calling thread, and those that it starts from now on.
fn give_way() -> Result<()> {
    let own = std::fs::read_link(Path::new("/proc/thread-self"))?;
    let number = own.file_name().context("a thread without a number")?;
    let renice = Command::new("renice").args(["-n", NICE, "-p"]).arg(number).output();
    let renice = renice.context("renice")?;
    ensure!(renice.status.success(), "renice: {}", String::from_utf8_lossy(&renice.stderr));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_threads_give_way() {
        let background = Background::start().unwrap();
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let nice = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap().to_owned()
        };
        background.handle().unwrap().spawn(async move { tell.send(nice()).unwrap() });
        assert_eq!(told.recv().unwrap(), NICE);
        assert_ne!(nice(), NICE);
    }
}
