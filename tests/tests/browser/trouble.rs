//! When things break: the backbone dies, or was never there.

use anyhow::{Result, ensure};
use barnraise_tests::browser::{Graphics, Tab};

use super::village::{QUICK, SOON, contributor, ensure_counted, stop, turn, world};

#[tokio::test]
async fn the_same_tabs_go_on_after_the_backbone_was_killed() -> Result<()> {
    let _turn = turn().await;
    let mut world = world(QUICK)?;
    let backbone = world.backbone().await?;
    let cpu = contributor(&backbone, "killed-a", Graphics::NoAdapter, "device=cpu").await?;
    let other = contributor(&backbone, "killed-b", Graphics::NoAdapter, "device=cpu").await?;
    for tab in [&cpu, &other] {
        tab.until("value('accepted') >= 3", SOON).await?;
    }
    let before = backbone.wait_for_epoch(3).await?.epoch;
    backbone.kill().await?;
    for tab in [&cpu, &other] {
        tab.until("doing() === 'reconnecting'", SOON).await?;
    }
    cpu.pictures("reconnecting").await?;

    let backbone = world.backbone().await?;
    let resumed = backbone.status().await?.progress.epoch;
    ensure!(resumed >= before, "resumed at epoch {resumed}, was at {before}");
    for tab in [&cpu, &other] {
        let accepted = tab.number("accepted").await?;
        tab.until(&format!("value('accepted') > {accepted}"), SOON).await?;
        tab.until(&format!("value('epoch') > {}", before + 1), SOON).await?;
    }
    let told = stop(&cpu).await? + stop(&other).await?;
    ensure_counted(&backbone, told).await
}

#[tokio::test]
async fn a_page_without_its_backbone_says_so_and_recovers() -> Result<()> {
    let _turn = turn().await;
    let mut world = world(QUICK)?;
    let backbone = world.backbone().await?;
    let tab = Tab::open("unreachable", Graphics::NoAdapter, &backbone.page()).await?;
    tab.until("doing() === 'idle'", SOON).await?;
    overflows_nowhere(&tab, "resting").await?;
    backbone.kill().await?;
    // The words follow a moment later than the mark: they stay long enough to be read.
    tab.until("doing() === 'unreachable' && text('activity').includes('Trying again')", SOON).await?;
    overflows_nowhere(&tab, "unreachable").await?;
    ensure!(tab.read("element('main').dataset.stale === 'true' && !element('stale').hidden").await? == true);
    // Whoever starts now waits, and has pressed the button once and for all.
    tab.click("#toggle").await?;
    tab.until("doing() === 'unreachable' && text('activity').includes('by itself')", SOON).await?;
    overflows_nowhere(&tab, "started-unreachable").await?;

    let _backbone = world.backbone().await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    ensure!(tab.read("element('main').dataset.stale === 'false' && element('stale').hidden").await? == true);
    Ok(())
}

/// Takes pictures and makes sure that nobody has to scroll sideways.
async fn overflows_nowhere(tab: &Tab, name: &str) -> Result<()> {
    for (viewport, wider) in tab.pictures(name).await? {
        ensure!(wider == 0, "{name}: {wider} px wider than a {} of {} px", viewport.name, viewport.width);
    }
    Ok(())
}
