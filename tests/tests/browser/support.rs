//! What all browser tests share: a run to contribute to, and what is asked of it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use barnraise_protocol::api::DeviceCount;
use barnraise_tests::artifacts;
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::process::{BackboneProcess, TestRun};
use tokio::sync::{Semaphore, SemaphorePermit};

/// For what takes seconds on an idle machine.
pub(crate) const SOON: Duration = Duration::from_secs(120);
/// For what takes a minute on an idle machine.
pub(crate) const LONG: Duration = Duration::from_secs(480);

/// So many tests run at once: most wait most of the time, for a browser to start or for the other side.
static TURNS: Semaphore = Semaphore::const_new(3);

/// Waits for the tests before this one; hold the guard for as long as anything runs.
pub(crate) async fn turn() -> Option<SemaphorePermit<'static>> {
    TURNS.acquire().await.ok()
}

/// A run that one tab trains to a useful model in a minute. Contributions are small, so that even an
/// adapter in software finishes some.
pub(crate) const QUICK: &str = r#"
    [run]
    id = "quick"
    [model]
    kind = { mlp = { hidden = [128] } }
    [scheme.synchronous]
    target_batch_size = 2048
    micro_batch_size = 32
    optimizer = { kind = "adam" }
    schedule = { peak = 0.003, warmup_steps = 5, decay = { kind = "constant" } }
    contribution_samples_max = 512
"#;

/// [`QUICK`], whose rounds wait for what a busy machine computes: what comes too late is refused, and nothing else here may be.
pub(crate) fn unhurried() -> String {
    format!("{QUICK}    collect_timeout = \"5m\"\n")
}

/// A run whose first step is far away: what is accepted was not asked for by the backbone.
pub(crate) const SLOW: &str = r#"
    [run]
    id = "slow"
    [model]
    kind = "le-net"
    [scheme.synchronous]
    target_batch_size = 5000000
    contribution_samples_max = 5000000
"#;

/// A run with few, large shards, so that one pass over them is soon made.
pub(crate) const LARGE_SHARDS: &str = r#"
    [run]
    id = "large-shards"
    [model]
    kind = { mlp = { hidden = [16] } }
    [data]
    shard_samples = 10000
    [scheme.synchronous]
    target_batch_size = 4096
    micro_batch_size = 128
"#;

/// A run with the real page.
pub(crate) fn test_run(sections: &str) -> Result<TestRun> {
    Ok(TestRun::new(sections)?.with_page(artifacts::web_root()?))
}

/// A tab that contributes to `backbone` from the start. `query` is added to the page's address.
pub(crate) async fn contributor(
    backbone: &BackboneProcess,
    name: &str,
    graphics: Graphics,
    query: &str,
) -> Result<Tab> {
    let url = format!("{}/?autostart=1&{query}", backbone.page());
    Tab::open(name, graphics, &url).await
}

/// Waits until everybody is told of these devices, and of no contributors that the list does not have.
pub(crate) async fn until_devices(backbone: &BackboneProcess, wanted: &[DeviceCount]) -> Result<()> {
    let mut last = Vec::new();
    let told = async {
        loop {
            last = backbone.status().await?.devices;
            if last.len() == wanted.len() && wanted.iter().all(|count| last.contains(count)) {
                return anyhow::Ok(());
            }
            // Nothing tells over HTTP that a device came or went.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let told = tokio::time::timeout(SOON, told).await;
    told.with_context(|| format!("{wanted:?} were waited for, the run has {last:?}"))?
}

/// Stops a tab by its button and returns the samples of it that were accepted, all in all.
pub(crate) async fn stop(tab: &Tab) -> Result<u64> {
    tab.click("#toggle").await?;
    tab.until("doing() === 'idle'", SOON).await?;
    samples(tab).await
}

/// Samples of this tab that were accepted, as it was told.
pub(crate) async fn samples(tab: &Tab) -> Result<u64> {
    Ok(tab.number("samples").await? as u64)
}

/// What contributors were told is accepted must be in the run, once they have left it.
pub(crate) async fn ensure_counted(backbone: &BackboneProcess, told: u64) -> Result<()> {
    let counted = backbone.samples_counted().await?;
    ensure!(counted >= told, "{told} samples were said to be accepted, the run has counted {counted}");
    Ok(())
}
