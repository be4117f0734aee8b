//! The background tasks of a run, with one owner. A failure is seen when it happens.

use anyhow::Context as _;
use tokio::task::{JoinError, JoinSet};

/// Tasks beside a run's driver. Dropped, it aborts those that are not done.
#[derive(Debug, Default)]
pub(crate) struct RunTasks(JoinSet<anyhow::Result<()>>);

impl RunTasks {
    /// Starts a task that cannot fail but by a panic.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(async move {
            task.await;
            Ok(())
        });
    }

    /// Starts work that blocks, on a thread of its own.
    pub(crate) fn spawn_blocking(&mut self, work: impl FnOnce() -> anyhow::Result<()> + Send + 'static) {
        self.0.spawn_blocking(work);
    }

    /// Resolves when a task fails; never while none does. Nothing is lost where it is dropped before.
    pub(crate) async fn failure(&mut self) -> anyhow::Error {
        while let Some(ended) = self.0.join_next().await {
            if let Err(error) = outcome(ended) {
                return error;
            }
        }
        std::future::pending().await
    }

    /// Waits for all tasks.
    ///
    /// # Errors
    /// That of the first task that failed.
    pub(crate) async fn join(&mut self) -> anyhow::Result<()> {
        let mut joined = Ok(());
        while let Some(ended) = self.0.join_next().await {
            joined = joined.and(outcome(ended));
        }
        joined
    }
}

fn outcome(ended: Result<anyhow::Result<()>, JoinError>) -> anyhow::Result<()> {
    ended.context("a background task of the run failed")?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn a_failure_is_seen_while_other_tasks_go_on() {
        let mut tasks = RunTasks::default();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn(async {});
        tasks.spawn(async move { ended.await.unwrap() });
        tasks.spawn_blocking(|| anyhow::bail!("no device"));
        assert_eq!(tasks.failure().await.to_string(), "no device");
        end.send(()).unwrap();
        tasks.join().await.unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_a_failure() {
        let mut tasks = RunTasks::default();
        tasks.spawn_blocking(|| std::panic::resume_unwind(Box::new("gone")));
        assert!(tasks.failure().await.to_string().contains("a background task"));
    }
}
