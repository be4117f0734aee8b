//! What a tab computes on, and how right it is.

use anyhow::{Result, ensure};
use barnraise_tests::browser::{Graphics, Tab};
use serde_json::json;

use super::village::{LONG, QUICK, SOON, contributor, turn, world};

/// The checks that ran, with those that fail.
const CHECKS: &str = r#"
    [...element("selfcheck").rows].map(({ dataset }) => ({
        name: dataset.name,
        passed: Number(dataset.deviation) <= Number(dataset.tolerance),
        deviation: dataset.deviation,
        tolerance: dataset.tolerance,
    }))
"#;

/// Every check passes on this tab's device, and what it computes is accepted.
async fn computes_right(tab: &Tab, device: &str) -> Result<()> {
    tab.until("element('selfcheck').rows.length > 0", LONG).await?;
    let checks = tab.read(CHECKS).await?;
    let checks = checks.as_array().cloned().unwrap_or_default();
    let failed: Vec<_> = checks.iter().filter(|check| check["passed"] != true).collect();
    ensure!(failed.is_empty(), "{}: {failed:?} of {}", tab.name(), checks.len());
    let gradient =
        checks.iter().filter(|check| check["name"].as_str().is_some_and(|of| of.contains("gradient")));
    ensure!(gradient.count() > 0, "{}: no gradient among {checks:?}", tab.name());
    ensure!(tab.read("element('device').dataset.device").await? == device, "{}", tab.text("device").await?);
    tab.until("value('accepted') >= 1", LONG).await?;
    ensure!(tab.number("refused").await? == 0.0, "refused: {}", tab.text("refusal").await?);
    tab.pictures(&format!("selfcheck-{}", tab.name())).await?;
    Ok(())
}

#[tokio::test]
async fn webgpu_computes_what_the_reference_computes() -> Result<()> {
    let _turn = turn().await;
    let mut world = world(QUICK)?;
    let backbone = world.backbone().await?;
    let query = "selfcheck=1&device=webgpu";
    let tab = contributor(&backbone, "webgpu", Graphics::SoftwareAdapter, query).await?;
    computes_right(&tab, "browser-web-gpu").await
}

#[tokio::test]
async fn the_processor_computes_what_the_reference_computes() -> Result<()> {
    let _turn = turn().await;
    let mut world = world(QUICK)?;
    let backbone = world.backbone().await?;
    let tab = contributor(&backbone, "cpu", Graphics::NoAdapter, "selfcheck=1&device=cpu").await?;
    computes_right(&tab, "browser-cpu").await
}

#[tokio::test]
async fn without_an_adapter_the_processor_computes_and_the_page_says_so() -> Result<()> {
    let _turn = turn().await;
    let mut world = world(QUICK)?;
    let backbone = world.backbone().await?;
    let tab = contributor(&backbone, "no-adapter", Graphics::NoAdapter, "").await?;
    tab.until("value('accepted') >= 1", LONG).await?;
    ensure!(tab.read("element('device').dataset.device").await? == "browser-cpu");
    let line = tab.text("device").await?;
    ensure!(line.starts_with("On the processor"), "{line}");
    // Whoever asks for WebGPU and nothing else is told why there is none.
    let url = format!("{}/?autostart=1&device=webgpu", backbone.page());
    tab.goto(&url).await?;
    tab.until("doing() === 'broken' && text('activity').includes('WebGPU')", SOON).await?;
    tab.pictures("no-webgpu").await?;
    Ok(())
}

#[tokio::test]
async fn a_lost_adapter_does_not_end_the_training() -> Result<()> {
    let _turn = turn().await;
    let mut world = world(QUICK)?;
    let backbone = world.backbone().await?;
    let tab = contributor(&backbone, "lost-adapter", Graphics::SoftwareAdapter, "").await?;
    tab.until("value('accepted') >= 1", LONG).await?;
    ensure!(tab.read("element('device').dataset.device").await? == "browser-web-gpu");
    tab.cdp("Browser.crashGpuProcess", json!({})).await?;
    tab.until("!element('notice').hidden && text('notice') !== ''", SOON).await?;
    let device = tab.read("element('device').dataset.device").await?;
    // What was accepted on the lost device stays counted, or begins anew with a new worker.
    let accepted = tab.number("accepted").await?;
    tab.until(&format!("value('accepted') > {accepted}"), LONG).await?;
    tab.pictures("lost-adapter").await?;
    ensure!(device == "browser-cpu" || device == "browser-web-gpu", "{device}");
    Ok(())
}
