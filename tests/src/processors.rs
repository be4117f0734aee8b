//! Divides the processors of one machine: contributors on some of them, the backbone on another.
//!
//! A visitor's tab and the backbone do not share a processor. Where they do, a tab is slow whenever the backbone has
//! something to do, and what an attack costs the run cannot be told from that.

use std::process::Command;
use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};

/// How often threads may end while all of a process are told where to run.
const ATTEMPTS_MAX: usize = 20;

/// A set of this machine's processors; where it has only one, each set is that one.
#[derive(Debug, Clone, Copy)]
pub enum ProcessorSet {
    /// All.
    Whole,
    /// All but the last one.
    Contributors,
    /// The last one.
    Backbone,
}

impl ProcessorSet {
    fn list(self) -> Result<String> {
        let last = available()? - 1;
        Ok(match self {
            Self::Whole => format!("0-{last}"),
            Self::Contributors => format!("0-{}", last.saturating_sub(1)),
            Self::Backbone => last.to_string(),
        })
    }

    /// Pins all threads of a process to the set, and all that it starts from now on.
    ///
    /// # Errors
    /// Where the system does not allow it.
    pub fn pin_process(self, pid: u32) -> Result<()> {
        let (list, pid) = (self.list()?, pid.to_string());
        let hold = || run("taskset", &["--all-tasks", "--cpu-list", "--pid", &list, &pid]);
        // It lists the threads first: one that ends meanwhile leaves those behind it as they were.
        let again = (1..ATTEMPTS_MAX).map(|_| hold()).find(Result::is_ok);
        again.unwrap_or_else(hold)
    }

    /// Pins the calling thread to the set at idle priority, and all that it starts from now on.
    ///
    /// # Errors
    /// As [`Self::pin_process`].
    pub fn run_this_thread_idle(self) -> Result<()> {
        let own = std::fs::read_link("/proc/thread-self")?;
        let number = own.file_name().and_then(|name| name.to_str()).context("a thread without a number")?;
        run("taskset", &["--cpu-list", "--pid", &self.list()?, number])?;
        run("chrt", &["--idle", "--pid", "0", number])
    }
}

/// Of the machine, also where this process is held to some of them.
fn available() -> Result<usize> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
    let last = online.ok().and_then(|list| list.trim().rsplit(['-', ',']).next()?.parse::<usize>().ok());
    last.map_or_else(|| Ok(available_parallelism()?.get()), |last| Ok(last + 1))
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program).args(args).output().with_context(|| program.to_owned())?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
