//! Several tabs of one browser: one worker, one identity, and nobody notices which of them has it.

use anyhow::{Result, ensure};
use barnraise_protocol::api::DeviceCount;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_tests::browser::Graphics;

use super::support::{
    LONG, QUICK, SOON, contributor, ensure_counted, samples, stop, test_run, turn, until_devices,
};

/// Counts the workers of a page.
pub(crate) const COUNT_WORKERS: &str = r"
    window.workers = 0;
    const Plain = window.Worker;
    window.Worker = class extends Plain {
        constructor(...args) {
            super(...args);
            window.workers += 1;
            window.peer = this;
        }
    };
";
const IS_CONTRIBUTING: &str = "element('toggle').dataset.contributing === 'true'";

#[tokio::test]
async fn a_second_tab_shows_and_steers_the_first_and_takes_over_when_it_closes() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "tabs", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    let first = tab.window().await?;
    let url = format!("{}/?device=cpu", backbone.page());
    let second = tab.open_beside(&url, COUNT_WORKERS).await?;

    // It shows what the first one does, without a worker of its own.
    tab.until(&format!("{IS_CONTRIBUTING} && value('accepted') >= 1 && !element('tabs').hidden"), SOON)
        .await?;
    tab.until("doing() === 'training' || doing() === 'being-checked' || doing() === 'waiting-for-others' || doing() === 'sending'", SOON)
        .await?;
    ensure!(tab.read("workers").await? == 0, "no doubled load");
    let alone = DeviceCount { device: DeviceKind::BrowserCpu, n_contributors: 1 };
    until_devices(&backbone, &[alone]).await?;
    for (viewport, wider) in tab.pictures("second-tab").await? {
        ensure!(wider == 0, "{wider} px wider than a {} of {} px", viewport.name, viewport.width);
    }

    // Its button is the first one's.
    tab.click("#toggle").await?;
    tab.until("doing() === 'idle'", SOON).await?;
    tab.turn_to(&first).await?;
    tab.until(&format!("doing() === 'idle' && !({IS_CONTRIBUTING})"), SOON).await?;
    ensure!(tab.read("element('tabs').hidden").await? == true, "the first one has the work");
    tab.turn_to(&second).await?;
    tab.click("#toggle").await?;
    let accepted = tab.number("accepted").await?;
    tab.until(&format!("value('accepted') > {accepted}"), SOON).await?;
    ensure!(tab.read("workers").await? == 0, "still the first one's work");

    // It answers questions with the first one's model.
    tab.until("document.querySelector('#gallery button')", SOON).await?;
    tab.click("#gallery button").await?;
    tab.until("value('prediction-epoch') >= 0 && text('prediction-epoch') !== ''", SOON).await?;

    // And goes on when that one is closed, as the same peer.
    tab.turn_to(&first).await?;
    let told = samples(&tab).await?;
    tab.close_for(&second).await?;
    tab.until("workers === 1 && element('tabs').hidden", SOON).await?;
    let accepted = tab.number("accepted").await?;
    tab.until(&format!("{IS_CONTRIBUTING} && value('accepted') > {accepted}"), LONG).await?;
    // What the run has counted, and of whom, is known once nobody contributes any more: what the first one had on its
    // way when it was closed may have counted, though it never heard of it.
    let given = stop(&tab).await?;
    ensure_counted(&backbone, given.max(told)).await?;
    let counted = backbone.samples_counted().await?;
    ensure!(backbone.contributions(counted).await?.n_contributors == 1, "one identity");
    Ok(())
}
