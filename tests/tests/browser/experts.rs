//! A run whose experts live on other machines: a tab trains it, with one host that it dials and one that it reaches through the
//! backbone alone. And tabs that host: others train their experts, which outlive them.

use std::time::Instant;

use anyhow::{Result, ensure};
use barnraise_tests::browser::{DESKTOP, Graphics, PHONE, Tab};
use barnraise_tests::hosted;

use super::looks::Looks;
use super::support::{LONG, SOON, contributor, stop, test_run, turn};

/// The sections before [`hosted::RUN`].
const NAMED: &str = r#"
[run]
id = "hosted-experts"
title = "Experts for garments"
purpose = "A small network that asks experts on machines of other volunteers, and learns which of them know what."

[storage]
keep_models = ["3s"]
"#;

/// What a model without knowledge is right about.
const CHANCE: f32 = 0.1;

#[tokio::test]
async fn a_tab_trains_with_experts_that_it_dials_or_reaches_through_the_backbone() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&format!("{NAMED}{}", hosted::RUN))?;
    let backbone = test_run.backbone().await?;
    let page = backbone.page();
    // For browsers it listens nowhere: they come through the backbone, with which it reserves a place.
    let native = ["--listen", "/ip4/127.0.0.1/tcp/0"];
    let behind = test_run.host_experts("behind", &[&[&page, "--experts", "4"], &native[..]].concat())?;
    behind.wait_for_log("Hosting 4 experts").await?;
    behind.wait_for_log("reached through this relay").await?;
    let open = test_run.host_experts("open", &[&page, "--experts", "4"])?;
    open.wait_for_log("Hosting 4 experts").await?;

    let tab = contributor(&backbone, "experts", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 5", LONG).await?;
    behind.wait_for_log("learned from").await?;
    open.wait_for_log("learned from").await?;
    tab.until(&format!("value('accuracy') >= {}", 5.0 * CHANCE), LONG).await?;

    // The page says how many rows went where, and draws the grid.
    tab.until("!element('experts').hidden && value('experts-said') > 0", SOON).await?;
    tab.until("text('experts-said').includes('on 2 other machines')", SOON).await?;
    let n_squares = "document.querySelectorAll('#experts-layers .square:not(.absent)').length";
    tab.until(&format!("{n_squares} === 8"), SOON).await?;
    let words = "document.querySelector('#experts-layers svg').getAttribute('aria-label')";
    tab.until(&format!("{words}.startsWith('Layer 1: 8 of 8 experts have a host. Expert ')"), SOON).await?;
    let mut looks = Looks::begin().await?;
    tab.read("void (element('experts-table').open = true)").await?;
    tab.until("element('experts-rows').rows.length === 8", SOON).await?;
    looks.at(&tab, "experts").await?;
    looks.at_forced_colors(&tab, "experts").await?;
    looks.end()?;
    for viewport in [DESKTOP, PHONE] {
        tab.resize(viewport).await?;
        tab.read("void element('experts').scrollIntoView()").await?;
        tab.picture(&format!("experts-{}", viewport.name)).await?;
    }
    tab.resize(DESKTOP).await?;

    // A host is gone without a word: the tab goes on with the other one.
    open.kill().await?;
    let epoch = tab.number("epoch").await?;
    tab.until(&format!("value('epoch') >= {}", epoch + 10.0), LONG).await?;

    // What it has learned can be tried, also without contributing. An earlier model cannot: its experts have learned on.
    stop(&tab).await?;
    ensure!(tab.read("element('experts').hidden").await? == true, "it sends nothing any more");
    tab.until("document.querySelector('#gallery button')", SOON).await?;
    tab.click("#gallery button").await?;
    // Those that are left may be found and reached only after a while: the tab asks again.
    tab.until("value('prediction-epoch') > 0", LONG).await?;
    ensure!(tab.read("element('compare').hidden").await? == true, "there is no earlier model");

    // Without any expert it would be another model.
    behind.kill().await?;
    tab.click("#gallery button:nth-child(2)").await?;
    tab.until("text('prediction').includes('none of them answered')", LONG).await?;
    Ok(())
}

/// A tab hosts all experts on an adapter in software, a native peer trains them, and another host takes over what they have learned.
#[tokio::test]
async fn a_tab_hosts_experts_for_a_native_trainer_and_hands_them_over() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&format!("{NAMED}{}", hosted::RUN))?;
    let backbone = test_run.backbone().await?;
    let page = backbone.page();
    let url = format!("{page}/?device=webgpu");
    let tab = Tab::open("hosting", Graphics::SoftwareAdapter, &url).await?;
    tab.until("!element('host').hidden && element('host').dataset.state === 'off'", SOON).await?;
    tab.click("#host-toggle").await?;
    tab.until("value('host-said') === 8", SOON).await?;
    let trainer = test_run.join(&[&page])?;
    let began = Instant::now();
    let reached = backbone.wait_for("a good model", |progress| {
        progress.test_accuracy.is_some_and(|accuracy| accuracy >= 5.0 * CHANCE)
    });
    reached.await?;
    tab.until("/[1-9][0-9,]* learned from/.test(text('host-said'))", SOON).await?;
    println!("after {:?} beside the trainer: {}", began.elapsed(), tab.read("text('host-said')").await?);
    let mut looks = Looks::begin().await?;
    looks.at(&tab, "host").await?;
    looks.end()?;
    for viewport in [DESKTOP, PHONE] {
        tab.resize(viewport).await?;
        tab.read("void element('host').scrollIntoView()").await?;
        tab.picture(&format!("hosting-{}", viewport.name)).await?;
    }

    // The visitor has enough: nothing of what the experts learned is lost.
    tab.click("#host-toggle").await?;
    tab.until("element('host').dataset.state === 'ended'", SOON).await?;
    tab.until("text('host-said').startsWith('Hosting has ended. Thank you.')", SOON).await?;
    let next = test_run.host_experts("next", &[&page, "--experts", "8"])?;
    next.wait_for_log("Hosting 8 experts").await?;
    let log = next.log()?;
    let said = log.lines().find(|line| line.contains(" steps behind them")).unwrap_or_default();
    let n_steps = said.split(" steps behind them").next().and_then(|it| it.rsplit(' ').next());
    ensure!(n_steps.is_some_and(|n| n.parse().is_ok_and(|n: u64| n > 0)), "it began anew: {said}");
    let epoch = backbone.status().await?.progress.epoch;
    backbone.wait_for_epoch(epoch + 10).await?;
    next.wait_for_log("learned from").await?;
    let log = next.log()?;
    println!("a native host: {}", log.lines().find(|line| line.contains("learned from")).unwrap_or_default());
    trainer.kill().await?;
    next.kill().await
}

/// One tab trains and hosts, another one trains with its experts; it is gone without a word, and a host takes over.
#[tokio::test]
async fn tabs_train_with_experts_of_a_tab_and_go_on_when_it_is_closed() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(&format!("{NAMED}{}", hosted::RUN))?;
    let backbone = test_run.backbone().await?;
    let page = backbone.page();
    let both = contributor(&backbone, "both", Graphics::NoAdapter, "device=cpu").await?;
    both.until("!element('host').hidden", SOON).await?;
    both.click("#host-toggle").await?;
    both.until("value('host-said') === 8", SOON).await?;
    both.until("value('accepted') >= 3", LONG).await?;
    let other = contributor(&backbone, "other", Graphics::NoAdapter, "device=cpu").await?;
    other.until("value('accepted') >= 3", LONG).await?;
    other.until("text('experts-said').includes('on 1 other machine')", SOON).await?;
    other.until(&format!("value('accuracy') >= {}", 4.0 * CHANCE), LONG).await?;

    drop(both);
    let next = test_run.host_experts("next", &[&page, "--experts", "8"])?;
    next.wait_for_log("Hosting 8 experts").await?;
    let epoch = other.number("epoch").await?;
    other.until(&format!("value('epoch') >= {}", epoch + 10.0), LONG).await?;
    next.wait_for_log("learned from").await?;
    next.kill().await
}
