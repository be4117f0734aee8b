//! A run whose experts live on other machines: a tab trains it, with one host that it dials and one that it reaches through the
//! backbone alone.

use anyhow::{Result, ensure};
use barnraise_tests::browser::{DESKTOP, Graphics, PHONE};
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
