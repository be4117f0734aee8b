//! What a crowd leaves behind goes back to the system.
//!
//! The allocator of glibc keeps freed memory that lies between memory in use, so a node would stay for days as
//! large as in its busiest minute. It never looks at the memory itself: it counts connections.

/// With fewer connections nothing worth the work is left behind.
const CROWD_MIN: u32 = 64;

/// How many connections there were, to tell when most of them have left.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    most: u32,
}

impl Crowd {
    /// There are so many connections after one more came.
    pub(crate) fn on_come(&mut self, n_connections: u32) {
        self.most = self.most.max(n_connections);
    }

    /// There are so many after one left: has half of a crowd gone since the last time that this was so?
    pub(crate) fn has_halved(&mut self, n_connections: u32) -> bool {
        let has_halved = self.most >= CROWD_MIN && n_connections <= self.most / 2;
        if has_halved {
            self.most = n_connections;
        }
        has_halved
    }
}

/// Freed memory at the end of the heap that is kept for what comes next.
const KEPT_BYTES: i32 = 16 * 1024 * 1024;
/// What is larger is got from the system, and given back to it, each time.
const LARGE_BYTES: i32 = 1024 * 1024;

/// Has the allocator keep a little of what is freed. By itself glibc gives the end of the heap back whenever 128 KiB of
/// it are free, which chunks of bulk bytes do all the time, and each comes back as pages that the system clears.
pub(crate) fn keep_a_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (what, n_bytes) in [(libc::M_TRIM_THRESHOLD, KEPT_BYTES), (libc::M_MMAP_THRESHOLD, LARGE_BYTES)] {
        // SAFETY: mallopt(3) takes two numbers, and may be called from any thread.
        #[expect(unsafe_code, reason = "glibc has no other way to be told")]
        let is_taken = unsafe { libc::mallopt(what, n_bytes) } == 1;
        tracing::trace!(is_taken, n_bytes, "what the allocator keeps");
    }
}

/// Gives freed memory back to the system, where its allocator can be told to. Takes milliseconds: not for a task
/// that others wait for.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: malloc_trim(3) takes a number, may be called from any thread and touches no memory in use.
        #[expect(unsafe_code, reason = "glibc has no other way to give memory back")]
        let has_given = unsafe { libc::malloc_trim(0) } == 1;
        tracing::debug!(has_given, "freed memory goes back to the system");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_halving_of_a_crowd_counts_once() {
        let mut crowd = Crowd::default();
        (1..=300).for_each(|n| crowd.on_come(n));
        let halvings: Vec<u32> = (0..300).rev().filter(|&n| crowd.has_halved(n)).collect();
        assert_eq!(halvings, [150, 75, 37]);
        // A few come and go.
        assert!([20, 3, 40, 0].iter().all(|&n| !crowd.has_halved(n)));
    }
}
