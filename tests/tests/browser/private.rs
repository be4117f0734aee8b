//! Privacy: the page asks its own server only, and runs nothing but its own files.

use anyhow::{Context, Result, ensure};
use barnraise_tests::browser::Graphics;

use super::support::{QUICK, SOON, contributor, test_run, turn};

/// What stands in the document itself and would be run from there.
const INLINE: &str = "[...document.querySelectorAll('*')].filter((element) => \
    (element.localName === 'script' && !element.src) \
    || [...element.attributes].some((attribute) => attribute.name.startsWith('on')) \
    || /^javascript:/i.test(element.href ?? '')).map((element) => element.outerHTML.slice(0, 100))";

#[tokio::test]
async fn the_page_asks_its_own_server_and_runs_only_its_own_files() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "private", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 1", SOON).await?;
    let asked = tab.read("performance.getEntriesByType('resource').map((entry) => entry.name)").await?;
    let asked = asked.as_array().context("no list of what was asked for")?;
    ensure!(asked.len() > 3, "too few to be all: {asked:?}");
    let page = backbone.page();
    for url in asked.iter().filter_map(serde_json::Value::as_str) {
        let is_own = url.strip_prefix(&page).is_some_and(|rest| rest.starts_with('/'));
        ensure!(is_own || url.starts_with("blob:") || url.starts_with("data:"), "the page asked for {url}");
    }
    let inline = tab.read(INLINE).await?;
    ensure!(inline.as_array().is_some_and(Vec::is_empty), "inline code: {inline}");
    ensure!(tab.read("crossOriginIsolated").await? == true, "the page is isolated from others");
    Ok(())
}
