//! How soon the page is there on a phone: Chromium with a processor four times as slow and the network of
//! Lighthouse's mobile profile, an empty cache, and a visit after that.

use std::time::Duration;

use anyhow::{Context, Result};
use barnraise_tests::artifacts;
use barnraise_tests::browser::{Graphics, PHONE, Tab};
use barnraise_tests::process::TestRun;
use clap::Args;
use serde::Deserialize;
use serde_json::json;

use crate::ratio::{Spread, table};

/// Longer than anything waited for took on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Lighthouse's mobile profile.
const BYTES_PER_SECOND: f64 = 1.6e6 / 8.0;
const LATENCY_MS: f64 = 150.0;
const PROCESSOR_SLOWER: f64 = 4.0;
/// What is wanted (issue 5, point 1).
const FIRST_PAINT_MAX_MS: f64 = 1000.0;
const INTERACTIVE_MAX_MS: f64 = 2000.0;

/// Milliseconds from the navigation, as the page and the browser noted them.
const NOTED: &str = r"
    (() => {
        const at = (name) => performance.getEntriesByName(name)[0]?.startTime ?? null;
        const all = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
        return {
            first_paint: at('first-paint'),
            first_contentful_paint: at('first-contentful-paint'),
            button: at('barnraise:button'),
            page: at('barnraise:page'),
            bytes: all.reduce((sum, entry) => sum + entry.transferSize, 0),
        };
    })()
";

#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Visits of each kind
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// One visit.
#[derive(Debug, Deserialize)]
struct Visit {
    first_paint: f64,
    first_contentful_paint: f64,
    /// A click on the button is answered.
    button: f64,
    /// The page module runs.
    page: f64,
    bytes: f64,
}

/// `page`
pub(crate) async fn measure(args: &PageArgs) -> Result<()> {
    let mut test_run = TestRun::new("")?.with_page(artifacts::web_root()?);
    let backbone = test_run.backbone().await?;
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        let tab = Tab::open("paint", Graphics::NoAdapter, "about:blank").await?;
        tab.resize(PHONE).await?;
        throttle(&tab).await?;
        tab.goto(&backbone.page()).await?;
        cold.push(visit(&tab).await?);
        // The service worker keeps the page meanwhile.
        tab.until("!!navigator.serviceWorker.controller", WAIT_MAX).await?;
        tab.goto("about:blank").await?;
        tab.goto(&backbone.page()).await?;
        warm.push(visit(&tab).await?);
        println!("round {round}: {:?}, then {:?}", cold.last(), warm.last());
        tab.close().await?;
    }
    let heading = ["from the navigation", "first visit", "second visit", "wanted"];
    let row = |what: &str, of: fn(&Visit) -> f64, wanted: &str| {
        let spread = |visits: &[Visit]| {
            let values: Vec<f64> = visits.iter().map(of).collect();
            Spread::of(&values).to_string()
        };
        vec![what.to_owned(), spread(&cold), spread(&warm), wanted.to_owned()]
    };
    let rows = [
        heading.map(String::from).to_vec(),
        row("first paint, ms", |visit| visit.first_paint, &format!("{FIRST_PAINT_MAX_MS}")),
        row("first contentful paint, ms", |visit| visit.first_contentful_paint, ""),
        row("the button answers, ms", |visit| visit.button, &format!("{INTERACTIVE_MAX_MS}")),
        row("the page module runs, ms", |visit| visit.page, ""),
        row("bytes over the network", |visit| visit.bytes, ""),
    ];
    println!("\nmedian [min to max] of {} visits\n\n{}", args.rounds, table(&rows));
    Ok(())
}

async fn throttle(tab: &Tab) -> Result<()> {
    tab.cdp("Network.enable", json!({})).await?;
    let network = json!({
        "offline": false,
        "latency": LATENCY_MS,
        "downloadThroughput": BYTES_PER_SECOND,
        "uploadThroughput": BYTES_PER_SECOND / 2.0,
    });
    tab.cdp("Network.emulateNetworkConditions", network).await?;
    tab.cdp("Emulation.setCPUThrottlingRate", json!({ "rate": PROCESSOR_SLOWER })).await?;
    Ok(())
}

/// What was noted once the page module runs and something was painted.
async fn visit(tab: &Tab) -> Result<Visit> {
    let done = "performance.getEntriesByName('barnraise:page').length > 0 \
        && performance.getEntriesByName('first-contentful-paint').length > 0 && doing() !== 'asking'";
    tab.until(done, WAIT_MAX).await?;
    serde_json::from_value(tab.read(NOTED).await?).context("the browser noted less than was asked for")
}
