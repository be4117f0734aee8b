//! Reads the memory limit, and returns freed memory to the system after a peak.
//!
//! The allocator of glibc keeps freed memory that lies between memory in use, so a node would stay for days as
//! large as in its busiest minute. It never looks at the memory itself: it counts connections.

use std::path::Path;

/// Peaks below this leave too little memory behind to be worth the work.
const PEAK_MIN: u32 = 64;

/// The peak number of connections, to tell when half of them have left.
#[derive(Debug, Default)]
pub(crate) struct ConnectionPeak {
    most: u32,
}

impl ConnectionPeak {
    /// Records the number of connections after one was established.
    pub(crate) fn on_come(&mut self, n_connections: u32) {
        self.most = self.most.max(n_connections);
    }

    /// Records the number of connections after one ended; true once half of the peak has left.
    pub(crate) fn has_halved(&mut self, n_connections: u32) -> bool {
        let has_halved = self.most >= PEAK_MIN && n_connections <= self.most / 2;
        if has_halved {
            self.most = n_connections;
        }
        has_halved
    }
}

/// Half of what is kept.
const SHOWN_BYTES: usize = 8 * 1024 * 1024;

/// Has the allocator keep a little of what is freed. By itself glibc gives the end of the heap back whenever 128 KiB of
/// it are free, which chunks of bulk bytes do all the time, and each comes back as pages that the system clears.
///
/// Of a large piece that it sees freed glibc learns to keep twice as much, and goes on to learn from larger ones
/// (mallopt(3), `M_MMAP_THRESHOLD`). A fixed threshold ends that: pieces above it then come as fresh pages each
/// time, which makes a pass over a vector of megabytes on the processor ten times as long.
pub(crate) fn keep_a_little() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(SHOWN_BYTES)));
}

/// Gives freed memory back to the system, where its allocator can be told to. Takes milliseconds: not for a task
/// that others wait for.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: malloc_trim(3) takes a number, may be called from any thread and touches no memory in use.
        #[expect(unsafe_code, reason = "glibc has no other way to give memory back")]
        let has_given = unsafe { libc::malloc_trim(0) } == 1;
        tracing::debug!(has_given, "freed memory goes back to the system");
    }
}

/// Bytes that the group of this process may hold (cgroup v2), where it is bounded: in a container, or as a service.
pub(crate) fn of_group() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = Path::new("/sys/fs/cgroup").join(group);
    // A group is bounded by those that it is in, too.
    let limits = limit.ancestors().filter_map(|folder| {
        std::fs::read_to_string(folder.join("memory.max")).ok().and_then(|text| text.trim().parse().ok())
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_halving_of_a_crowd_counts_once() {
        let mut peak = ConnectionPeak::default();
        (1..=300).for_each(|n| peak.on_come(n));
        let halvings: Vec<u32> = (0..300).rev().filter(|&n| peak.has_halved(n)).collect();
        assert_eq!(halvings, [150, 75, 37]);
        // A few come and go.
        assert!([20, 3, 40, 0].iter().all(|&n| !peak.has_halved(n)));
    }

    /// Pages that the system gave this thread so far.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn n_pages() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // A thread's name may have spaces in it.
        let (_, behind_name) = stat.rsplit_once(')').unwrap();
        behind_name.split_whitespace().nth(7).unwrap().parse().unwrap()
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn chunks_and_vectors_do_not_come_as_fresh_pages_each_time() {
        keep_a_little();
        // 4 MiB in pieces, and in one.
        for piece_bytes in [64 * 1024, 4 * 1024 * 1024] {
            let before = n_pages();
            for _ in 0..20 {
                let pieces: Vec<Vec<u8>> =
                    (0..4 * 1024 * 1024 / piece_bytes).map(|_| vec![1; piece_bytes]).collect();
                drop(std::hint::black_box(pieces));
            }
            let n_pages = n_pages() - before;
            // The first time they may.
            assert!(n_pages < 5 * 1024, "{n_pages} pages for pieces of {piece_bytes} bytes");
        }
    }
}
