//! A first visit: nothing is wrong with how the page loads, and it can be read in large letters.

use anyhow::{Result, ensure};
use barnraise_tests::browser::{Graphics, PHONE, Tab};

use super::support::{QUICK, SOON, test_run, turn};

/// Browsers warn some seconds after the load of what was fetched early and not used.
const WARNED_BY_NOW: &str = "new Promise((done) => setTimeout(done, 8000 - performance.now()))";

#[tokio::test]
async fn a_load_leaves_no_warning_and_large_letters_fit_a_phone() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(QUICK)?;
    let backbone = test_run.backbone().await?;
    let tab = Tab::open("newcomer", Graphics::NoAdapter, &format!("{}/", backbone.page())).await?;
    tab.until("doing() === 'idle' && element('preflight').dataset.state !== 'asking'", SOON).await?;
    tab.read(WARNED_BY_NOW).await?;
    let mut lines = tab.console().await;
    // Chromium's own, on a machine without a graphics processor.
    lines.retain(|line| !line.contains("No available adapters"));
    ensure!(lines.is_empty(), "on the console:\n  {}", lines.join("\n  "));

    tab.read("void (document.documentElement.style.fontSize = '200%')").await?;
    tab.resize(PHONE).await?;
    let faults = tab.layout_faults(PHONE).await?;
    tab.pictures("large-letters").await?;
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}
