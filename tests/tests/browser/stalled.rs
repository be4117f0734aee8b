//! A tab that stands still when its gradient is due, again and again: what it computes afterwards counts.

use std::time::Duration;

use anyhow::{Result, ensure};
use barnraise_tests::browser::Graphics;
use barnraise_tests::pause::{Paused, descendants};

use super::support::{SOON, contributor, test_run, turn};

/// Every batch is enough for a step, so that gradients are nearly always due; nobody fills a contribution.
const EAGER: &str = r#"
    [run]
    id = "eager"
    [model]
    kind = { mlp = { hidden = [32] } }
    [scheme.synchronous]
    target_batch_size = 32
    micro_batch_size = 32
    contribution_samples_max = 1000000
    collect_timeout = "500ms"
"#;
/// Longer than anybody waits, and shorter than a connection lasts without a word.
const STANDS_STILL: Duration = Duration::from_millis(1500);
const N_TIMES: usize = 8;

#[tokio::test]
async fn a_tab_that_stood_still_counts_again_with_its_next_report() -> Result<()> {
    let _turn = turn().await;
    let mut test_run = test_run(EAGER)?;
    let backbone = test_run.backbone().await?;
    let tab = contributor(&backbone, "stalled", Graphics::NoAdapter, "device=cpu").await?;
    tab.until("value('accepted') >= 3", SOON).await?;
    let renderers = || descendants(u32::try_from(tab.process_id()?)?, "--type=renderer");
    for _ in 0..N_TIMES {
        let accepted = tab.number("accepted").await?;
        let paused = Paused::new(renderers()?)?;
        tokio::time::sleep(STANDS_STILL).await;
        drop(paused);
        tab.until(&format!("value('accepted') > {accepted} + 2"), SOON).await?;
    }
    // Slow from here on, as in the background of a phone.
    tab.cdp("Emulation.setCPUThrottlingRate", serde_json::json!({ "rate": 20 })).await?;
    let accepted = tab.number("accepted").await?;
    tab.until(&format!("value('accepted') > {accepted} + 2"), SOON).await?;
    ensure!(tab.read("element('notice').hidden").await? == true, "nothing is wrong");
    Ok(())
}
