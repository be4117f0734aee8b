//! Runtimes for the tasks of WebRTC, so that they can be ended.
//!
//! The WebRTC library spawns tasks that only an orderly close ends, and libp2p closes nothing of a handshake
//! that fails: a client that begins many and finishes none would fill the memory. So handshakes and their
//! connections run on small runtimes of their own, a few to each, and a runtime ends with its last connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle, Runtime};

/// Handshakes that share a runtime. Each may leave some 70 KiB behind until its runtime ends.
const HANDSHAKES_PER_RUNTIME: usize = 32;

/// Assigns handshakes to runtimes.
#[derive(Debug, Default)]
pub(super) struct Runtimes {
    newest: Option<Arc<Tasks>>,
}

/// A runtime that lives as long as a handle to it.
#[derive(Debug)]
pub(super) struct Tasks {
    /// Always there until it is dropped.
    runtime: Option<Runtime>,
    handle: Handle,
    n_handshakes: AtomicUsize,
}

impl Runtimes {
    /// The runtime for a further handshake.
    pub(super) fn next(&mut self) -> io::Result<Arc<Tasks>> {
        if let Some(newest) = &self.newest
            && newest.n_handshakes.fetch_add(1, Ordering::Relaxed) < HANDSHAKES_PER_RUNTIME
        {
            return Ok(Arc::clone(newest));
        }
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("webrtc").enable_all().build()?;
        let handle = runtime.handle().clone();
        let tasks = Tasks { runtime: Some(runtime), handle, n_handshakes: AtomicUsize::new(1) };
        Ok(Arc::clone(self.newest.insert(Arc::new(tasks))))
    }
}

impl Tasks {
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // This may be one of its own threads: nobody waits.
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tasks_end_with_the_last_who_holds_their_runtime() {
        let mut runtimes = Runtimes::default();
        let all: Vec<Arc<Tasks>> = (0..=HANDSHAKES_PER_RUNTIME).map(|_| runtimes.next().unwrap()).collect();
        assert!(Arc::ptr_eq(&all[0], &all[HANDSHAKES_PER_RUNTIME - 1]));
        assert!(!Arc::ptr_eq(&all[0], &all[HANDSHAKES_PER_RUNTIME]), "one too many for the first");
        let (sender, receiver) = std::sync::mpsc::sync_channel::<()>(1);
        all[0].handle().spawn(async move {
            std::future::pending::<()>().await;
            drop(sender);
        });
        drop(all);
        assert!(receiver.recv().is_err(), "the task was dropped, and the sender with it");
    }
}
