//! Memory of processes, as the kernel reports it.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(50);

/// Looks at processes again and again.
pub(super) struct Sampler {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Sampler {
    /// Begins to look at `processes` and their descendants.
    pub(super) fn start(processes: Vec<u32>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut most = 0;
            while !seen.load(Ordering::Relaxed) {
                most = most.max(descendants(&processes).into_iter().filter_map(proportional_bytes).sum());
                std::thread::sleep(INTERVAL);
            }
            most
        });
        Self { is_over, thread }
    }

    /// The most that was seen at once, bytes.
    pub(super) fn finish(self) -> f64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().map_or(f64::NAN, |most| most as f64)
    }
}

/// The processes and all that came of them, parents first.
pub(super) fn descendants(processes: &[u32]) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let parent = |process: u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // `pid (name) state parent …`; a name may hold anything.
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = all.filter_map(|process| Some((process, parent(process)?))).collect();
    let mut found = processes.to_vec();
    let mut next = 0;
    while next < found.len() {
        let of = found[next];
        let children = parents.iter().filter(|(_, parent)| *parent == of);
        found.extend(children.map(|(child, _)| *child));
        next += 1;
    }
    found
}

/// What a process holds, shared pages divided among those who share them.
fn proportional_bytes(process: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
