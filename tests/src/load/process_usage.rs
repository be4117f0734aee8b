//! What a process takes of the machine, as Linux tells it.

use std::time::Duration;

use anyhow::{Context, Result};

/// Clock ticks in a second, as `/proc` counts them on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Memory and processor of a process up to now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProcessUsage {
    /// Resident memory, KiB.
    pub rss_kib: u64,
    /// The most that it ever was, KiB.
    pub rss_max_kib: u64,
    /// Files and sockets that are open.
    pub n_files: usize,
    /// On all processors together.
    pub cpu: Duration,
}

impl ProcessUsage {
    /// Of the process with this number.
    ///
    /// # Errors
    /// Where there is no such process, or no `/proc`.
    pub fn of(pid: u32) -> Result<Self> {
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            std::fs::read_to_string(&path).with_context(|| path)
        };
        let files = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        Self::parse(&read("status")?, &read("stat")?, files).context("/proc is not understood")
    }

    fn parse(status: &str, stat: &str, n_files: usize) -> Option<Self> {
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().strip_suffix(" kB")?.parse().ok()
        };
        // The name in parentheses may contain anything; user and system time are the 14th and 15th field.
        let (_, fields) = stat.rsplit_once(')')?;
        let ticks = |index: usize| fields.split_whitespace().nth(index)?.parse::<u64>().ok();
        let seconds = (ticks(11)? + ticks(12)?) as f64 / TICKS_PER_SECOND;
        let cpu = Duration::from_secs_f64(seconds);
        Some(Self { rss_kib: kib("VmRSS")?, rss_max_kib: kib("VmHWM")?, n_files, cpu })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_says_is_understood() {
        let status = "Name:\ta) b\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        let stat = "42 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        let cpu = Duration::from_secs(3);
        let expected = ProcessUsage { rss_kib: 1024, rss_max_kib: 2048, n_files: 7, cpu };
        assert_eq!(ProcessUsage::parse(status, stat, 7), Some(expected));
        assert_eq!(ProcessUsage::parse("", stat, 7), None);
    }

    #[test]
    fn this_process_takes_something() {
        let usage = ProcessUsage::of(std::process::id()).unwrap_or_default();
        assert!(usage.rss_kib > 1024 && usage.rss_max_kib >= usage.rss_kib && usage.n_files > 2, "{usage:?}");
    }
}
