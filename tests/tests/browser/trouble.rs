//! When things break: the backbone dies, or was never there.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use barnraise_protocol::api::DeviceCount;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_tests::browser::{Graphics, Tab};

use super::looks::Looks;
use super::support::{QUICK, SOON, contributor, ensure_counted, stop, test_run, turn};

#[tokio::test]
async fn the_same_tabs_go_on_after_the_backbone_was_killed() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
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

    let backbone = test_run.backbone().await?;
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
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = Tab::open("unreachable", Graphics::NoAdapter, &backbone.page()).await?;
    tab.until("doing() === 'idle'", SOON).await?;
    overflows_nowhere(&tab, "resting").await?;
    backbone.kill().await?;
    // The words follow a moment later than the mark: they stay long enough to be read.
    tab.until("doing() === 'unreachable' && text('activity').includes('Trying again')", SOON).await?;
    overflows_nowhere(&tab, "unreachable").await?;
    ensure!(tab.read("element('main').dataset.stale === 'true' && !element('stale').hidden").await? == true);
    // A visitor who starts now waits, and need not press the button again.
    tab.click("#toggle").await?;
    tab.until("doing() === 'unreachable' && text('activity').includes('by itself')", SOON).await?;
    overflows_nowhere(&tab, "started-unreachable").await?;

    let _backbone = test_run.backbone().await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    ensure!(tab.read("element('main').dataset.stale === 'false' && element('stale').hidden").await? == true);
    Ok(())
}

#[tokio::test]
async fn a_tab_goes_on_with_another_backbone_when_its_own_was_killed() -> Result<()> {
    let _turn = turn().await;
    let mut looks = Looks::begin().await?;
    let (mut one, mut another) = (test_run(QUICK)?, test_run(QUICK)?);
    let own_id = one.command(&["id"]).await?.trim().to_owned();
    let another_id = another.command(&["id"]).await?.trim().to_owned();
    one.aggregate_with(&[format!("/p2p/{another_id}")])?;
    let own = one.backbone().await?;
    another.aggregate_with(&[own.tcp()?.to_string()])?;
    let other = another.backbone().await?;
    one.aggregate_with(&[other.tcp()?.to_string()])?;
    // With the first words of this link it says where it is, which the tab is then told as it joins.
    let link = format!("averages with this aggregator peer={own_id}");
    let linked = async {
        while !other.log()?.contains(&link) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(SOON, linked).await.context("the backbones have no link")??;
    let tab = contributor(&own, "another-backbone", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 3 && value('epoch') >= 1", SOON).await?;
    own.kill().await?;

    // That it reconnects is shown for a moment only; or it has moved before, as its own one was silent on a busy machine.
    let is_tab = |count: &DeviceCount| count.device == DeviceKind::BrowserCpu && count.n_contributors == 1;
    let moved = async {
        while !other.status().await?.devices.iter().any(is_tab) {
            // Nothing tells over HTTP that a device came.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(SOON, moved).await.context("it contributes nowhere else")??;
    // Its first backbone is dead: contributions from here on are accepted by the other one.
    let accepted = tab.number("accepted").await?;
    tab.until(&format!("value('accepted') >= {accepted} + 3 && doing() === 'training'"), SOON).await?;
    let epoch = other.status().await?.progress.epoch;
    tab.until(&format!("value('epoch') >= {epoch} + 2"), SOON).await?;
    // Nobody is frightened: what is shown is true of now, and what is not says so.
    let calm = "element('live').dataset.state === 'live' && element('main').dataset.stale === 'false' \
                && text('stale').includes('goes on with the run') && element('notice').hidden";
    tab.until(calm, SOON).await?;
    looks.at(&tab, "another-backbone").await?;

    // Its own one is back, and the page is whole again; the tab may stay where it is.
    let _own = one.backbone().await?;
    tab.until("element('stale').hidden && element('live').dataset.state === 'live'", SOON).await?;
    let accepted = tab.number("accepted").await?;
    tab.until(&format!("value('accepted') > {accepted}"), SOON).await?;
    looks.end()
}

/// Takes pictures and makes sure that nobody has to scroll sideways.
async fn overflows_nowhere(tab: &Tab, name: &str) -> Result<()> {
    for (viewport, wider) in tab.pictures(name).await? {
        ensure!(wider == 0, "{name}: {wider} px wider than a {} of {} px", viewport.name, viewport.width);
    }
    Ok(())
}
