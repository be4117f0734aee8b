//! What happens to a tab overnight: its worker is killed, it is frozen, reloaded, without a network. It goes on.

use anyhow::{Context, Result, ensure};
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::process::BackboneProcess;
use serde_json::json;

use super::support::{LONG, QUICK, SOON, stop, test_run, turn};
use super::tabs::COUNT_WORKERS;

/// A tab that was opened without a wish, and whose button was pressed.
async fn started(backbone: &BackboneProcess, name: &str) -> Result<Tab> {
    let tab = Tab::open(name, Graphics::NoAdapter, "about:blank").await?;
    tab.cdp("Page.addScriptToEvaluateOnNewDocument", json!({ "source": COUNT_WORKERS })).await?;
    tab.goto(&format!("{}/?device=cpu", backbone.page())).await?;
    tab.until("doing() === 'idle'", SOON).await?;
    tab.click("#toggle").await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    Ok(tab)
}

#[tokio::test]
async fn a_worker_that_was_killed_is_started_anew_and_what_was_given_stays() -> Result<()> {
    const KILL: &str = r"void (() => {
        window.seen = [];
        new MutationObserver(() => seen.push(doing())).observe(element('activity'), { attributes: true });
        peer.terminate();
        peer.dispatchEvent(new ErrorEvent('error', { message: 'RuntimeError: out of memory' }));
    })()";
    /// Notes how many samples the passes have from now on.
    const RECORD: &str = r"void (() => {
        window.sizes = [];
        peer.addEventListener('message', ({ data }) => {
            const passes = (data.messages ?? []).map(({ pass }) => pass).filter(Boolean);
            sizes.push(...passes.map(({ n_samples }) => n_samples));
        });
    })()";
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = started(&backbone, "killed-worker").await?;
    let accepted = tab.number("accepted").await?;
    tab.read(KILL).await?;
    tab.until("seen.includes('reviving')", SOON).await?;
    tab.until("workers === 2", SOON).await?;
    // It ran out of memory, so it computes with less at a time, and says so.
    tab.until("text('notice').includes('8 samples at a time, where the run has 32')", SOON).await?;
    tab.read(RECORD).await?;
    tab.until(&format!("sizes.length > 0 && value('accepted') > {accepted}"), LONG).await?;
    let sizes = tab.read("sizes").await?;
    let sizes = sizes.as_array().context("the sizes of passes")?;
    ensure!(sizes.iter().all(|size| size.as_u64() == Some(8)), "{sizes:?}");
    // Once more, and then the visitor is asked.
    tab.read(KILL).await?;
    tab.until("workers === 3 && doing() === 'training'", LONG).await?;
    tab.read(KILL).await?;
    tab.until("doing() === 'broken' && text('activity').includes('little memory')", SOON).await?;
    ensure!(tab.read("element('toggle').dataset.contributing").await? == "false");
    ensure!(tab.number("accepted").await? > accepted, "what was accepted stays on show");
    tab.pictures("crash-loop").await?;
    tab.click("#toggle").await?;
    tab.until("workers === 4 && doing() === 'training'", LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_frozen_tab_goes_on_when_it_thaws() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = started(&backbone, "frozen").await?;
    tab.read("void document.addEventListener('resume', () => { document.body.dataset.thawed = 'yes'; })")
        .await?;
    tab.cdp("Page.setWebLifecycleState", json!({ "state": "frozen" })).await?;
    tab.cdp("Page.setWebLifecycleState", json!({ "state": "active" })).await?;
    tab.until("document.body.dataset.thawed === 'yes'", SOON).await?;
    let accepted = tab.number("accepted").await?;
    tab.until(&format!("value('accepted') > {accepted}"), SOON).await?;
    ensure!(tab.read("workers").await? == 1, "the same worker");
    Ok(())
}

#[tokio::test]
async fn a_tab_that_was_contributing_goes_on_after_a_reload_and_one_that_rested_rests() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = started(&backbone, "reloaded").await?;
    tab.reload().await?;
    tab.until("workers === 1 && value('accepted') >= 1", SOON).await?;
    stop(&tab).await?;
    tab.reload().await?;
    tab.until("doing() === 'idle' && text('purpose') !== ''", SOON).await?;
    ensure!(tab.read("workers").await? == 0, "nobody pressed the button");
    // Nor does a link lead back into it.
    tab.click("#toggle").await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    tab.goto(&format!("{}/?device=cpu&again=1", backbone.page())).await?;
    tab.until("doing() === 'idle'", SOON).await?;
    ensure!(tab.read("workers").await? == 0, "another visit");
    Ok(())
}

#[tokio::test]
async fn a_device_without_a_network_says_so_and_asks_at_once_when_there_is_one() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = Tab::open("no-network", Graphics::NoAdapter, &backbone.page()).await?;
    tab.until("doing() === 'idle'", SOON).await?;
    let network = |offline: bool| json!({ "offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 });
    tab.cdp("Network.enable", json!({})).await?;
    tab.cdp("Network.emulateNetworkConditions", network(true)).await?;
    tab.until("doing() === 'unreachable' && text('activity').includes('no network')", SOON).await?;
    tab.pictures("no-network").await?;
    tab.cdp("Network.emulateNetworkConditions", network(false)).await?;
    tab.until("doing() === 'idle' && element('live').dataset.state === 'live'", SOON).await?;
    Ok(())
}
