//! Stops processes for a while, as on a busy machine.

use anyhow::{Context, Result, ensure};

/// Processes that were stopped; they go on when it is dropped.
#[derive(Debug)]
pub struct Paused {
    pids: Vec<u32>,
}

impl Paused {
    /// Stops them (SIGSTOP).
    ///
    /// # Errors
    /// Where there are none, or one is gone.
    pub fn new(pids: Vec<u32>) -> Result<Self> {
        ensure!(!pids.is_empty(), "no process to stop");
        let paused = Self { pids };
        paused.signal("STOP")?;
        Ok(paused)
    }

    fn signal(&self, name: &str) -> Result<()> {
        let pids: Vec<String> = self.pids.iter().map(ToString::to_string).collect();
        let command = format!("kill -{name} {}", pids.join(" "));
        let status = std::process::Command::new("sh").args(["-c", &command]).status();
        ensure!(status.with_context(|| command.clone())?.success(), "{command} failed");
        Ok(())
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        // A process that has ended needs no signal.
        let _ = self.signal("CONT");
    }
}

/// Processes that descend from `ancestor` and have `argument` on their command line.
///
/// # Errors
/// Where the system does not list its processes.
pub fn descendants(ancestor: u32, argument: &str) -> Result<Vec<u32>> {
    let listed = std::fs::read_dir("/proc").context("no list of processes")?.flatten();
    let pids = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // One that ends meanwhile is none of them.
    let has_argument = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        // Some programs write spaces where the system writes zeros.
        line.split(|byte| matches!(byte, 0 | b' ')).any(|part| part == argument.as_bytes())
    };
    let descends =
        |pid: &u32| std::iter::successors(Some(*pid), |pid| parent(*pid)).skip(1).any(|pid| pid == ancestor);
    Ok(pids.filter(|pid| has_argument(pid) && descends(pid)).collect())
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // `pid (name) state parent …`; a name may hold anything.
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}
