//! The tools themselves: a wait that fails says why, and a browser ends with its tab.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use barnraise_tests::browser::{Graphics, Tab};

use super::support::{SOON, turn};

/// A page that speaks as ours does, later.
const PAGE: &str = "data:text/html,<p id=activity data-doing=waiting>Waiting for rain.</p>\
    <button id=go onclick=\"setTimeout(() => activity.dataset.doing = 'done', 50)\">Go</button>\
    <script>console.warn('no clouds')</script>";

#[tokio::test]
async fn what_is_waited_for_is_found_or_the_page_is_quoted() -> Result<()> {
    let _turn = turn().await;
    let tab = Tab::open("harness", Graphics::NoAdapter, PAGE).await?;
    tab.click("#go").await?;
    tab.until("doing() === 'done'", SOON).await?;
    let Err(error) = tab.until("doing() === 'raining'", Duration::from_millis(100)).await else {
        anyhow::bail!("it does not rain");
    };
    let error = format!("{error:#}");
    for part in ["harness", "doing() === 'raining'", "Waiting for rain.", "no clouds", "failed-harness.png"] {
        ensure!(error.contains(part), "{part} is missing in {error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_browser_ends_with_its_tab_even_after_a_panic() -> Result<()> {
    let _turn = turn().await;
    let started = tokio::spawn(async {
        let tab = Tab::open("panic", Graphics::NoAdapter, "about:blank").await?;
        let process = tab.process_id()?;
        ensure!(is_running(process), "the browser runs while its tab is open");
        std::panic::panic_any(process);
        #[expect(unreachable_code, reason = "names the type of the error")]
        anyhow::Ok(())
    });
    let Err(ended) = started.await else { anyhow::bail!("it did not get as far as the panic") };
    let Ok(process) = ended.into_panic().downcast::<u64>() else { anyhow::bail!("another panic") };
    ensure!(!is_running(*process), "the browser outlives its tab");
    Ok(())
}

/// A dead process that nobody asked after does not count.
fn is_running(process: u64) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}
