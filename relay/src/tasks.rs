//! The one way to start a task: it has an owner, and a panic in it is logged when it happens.
//!
//! [`spawn`] starts a task that ends with its owner. [`TaskSet`] owns many. Nothing else calls `tokio::spawn`: a test in
//! `xtask` (`spawning.rs`) holds that. What fails has a result, which its owner sees; what only panics is a defect.

use std::any::Any;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio_util::task::AbortOnDropHandle;

/// Starts a task. Its owner keeps the handle, and joins the task or ends it by dropping the handle.
#[must_use = "dropping the handle ends the task"]
pub fn spawn<T: Send + 'static>(
    what: &'static str,
    task: impl Future<Output = T> + Send + 'static,
) -> AbortOnDropHandle<T> {
    AbortOnDropHandle::new(spawn_on(&Handle::current(), what, task))
}

/// Starts a task that the handles at the other end of its channel own together: it ends by itself, in order, once the
/// last of them is dropped.
pub(crate) fn spawn_for_handles(what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    drop(spawn_on(&Handle::current(), what, task));
}

/// Starts a task on a runtime that is its owner.
pub(crate) fn spawn_on<T: Send + 'static>(
    runtime: &Handle,
    what: &'static str,
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    runtime.spawn(logged(what, task))
}

/// Tasks of one owner, which end when it is dropped.
#[derive(Debug, Default)]
pub struct TaskSet(Mutex<JoinSet<()>>);

impl TaskSet {
    /// Starts a task.
    pub fn spawn(&self, what: &'static str, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut tasks = self.lock();
        // Those that are done take no more memory.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(logged(what, task))
    }

    /// Starts a task that goes on to its end also where nobody waits for what it returns. The sender is dropped without
    /// it where the task is ended before.
    pub fn answer<T: Send + 'static>(
        &self,
        what: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, answer) = oneshot::channel();
        self.spawn(what, async move { drop(sender.send(task.await)) });
        answer
    }

    /// Waits for the tasks that are running, and ends those that take longer than `patience`.
    pub async fn finish(&self, patience: Duration) {
        let mut tasks = std::mem::take(&mut *self.lock());
        let all = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(patience, all).await.is_err() {
            tracing::warn!(n_left = tasks.len(), "tasks are ended that were not done in time");
        }
    }

    fn lock(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs a panic, and passes it on to the task's owner.
async fn logged<T>(what: &'static str, task: impl Future<Output = T>) -> T {
    match AssertUnwindSafe(task).catch_unwind().await {
        Ok(done) => done,
        Err(panic) => {
            tracing::error!(task = what, panic = panic_message(&*panic), "a task panicked");
            resume_unwind(panic)
        }
    }
}

/// What a panic said.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::future::pending;
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_task_ends_with_its_owner() {
        let held = Arc::new(());
        let holding = held.clone();
        let task = spawn("test", async move {
            let () = pending().await;
            drop(holding);
        });
        let tasks = TaskSet::default();
        let holding = held.clone();
        let answer = tasks.answer("test", async move {
            let () = pending().await;
            drop(holding);
        });
        drop((task, tasks));
        assert!(answer.await.is_err());
        while Arc::strong_count(&held) > 1 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_nobody_waits_for_goes_on_to_its_end() {
        let tasks = TaskSet::default();
        let (go, gone) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        drop(tasks.answer("test", async move {
            gone.await.unwrap();
            done.send(()).unwrap();
        }));
        go.send(()).unwrap();
        tasks.finish(Duration::from_secs(60)).await;
        is_done.await.unwrap();
        // One that does not end is ended.
        let never = tasks.answer("test", pending::<()>());
        tasks.finish(Duration::from_millis(1)).await;
        assert!(never.await.is_err());
    }

    #[tokio::test]
    async fn a_panic_is_that_of_the_owner() {
        let panic = spawn("test", broken()).await.unwrap_err().into_panic();
        assert_eq!(panic_message(&*panic), "gone");
        assert!(TaskSet::default().answer("test", broken()).await.is_err());
    }

    async fn broken() {
        panic!("gone");
    }
}
