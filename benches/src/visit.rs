//! What a visitor meets: the real page in Chromium, with a backbone on loopback behind it.
//!
//! Everything is read from the page, as a visitor would; nothing here speaks to the backbone.

use std::time::Duration;

use anyhow::{Context, Result};
use barnraise_tests::artifacts;
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::process::{BackboneProcess, TestRun};
use clap::{Args, ValueEnum};
use serde::Deserialize;

use crate::ratio::{Spread, ratios, table};

/// Longer than anything waited for took on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Of `longtasks`.
const MINUTE: Duration = Duration::from_secs(60);
/// Accepted updates that bytes are counted over.
const UPDATES: u32 = 20;

#[derive(Debug, Args)]
pub(crate) struct VisitArgs {
    /// Visits of each kind
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// What the tab computes on
    #[arg(long, default_value = "cpu")]
    device: VisitDevice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum VisitDevice {
    Cpu,
    Webgpu,
}

impl VisitDevice {
    fn graphics(self) -> Graphics {
        match self {
            Self::Cpu => Graphics::NoAdapter,
            Self::Webgpu => Graphics::SoftwareAdapter,
        }
    }
}

/// Notes, in milliseconds from the click, when each kind of activity was first shown and when the
/// first update was accepted.
const STOPWATCH: &str = r#"(() => {
    const seen = globalThis.__seen = {};
    let from = NaN;
    const look = () => {
        if (Number.isNaN(from)) return;
        const now = performance.now() - from;
        seen[doing()] ??= now;
        if (value("accepted") >= 1) {
            // First, or what is written below would call this again, for ever.
            observer.disconnect();
            seen.accepted = now;
            document.body.dataset.accepted = "yes";
        }
    };
    const observer = new MutationObserver(look);
    element("toggle").addEventListener("click", () => { from = performance.now(); }, { capture: true, once: true });
    const options = { subtree: true, childList: true, attributes: true, characterData: true };
    observer.observe(document, options);
})()"#;

/// Notes every task over 50 ms on the main thread, those before included.
const LONG_TASKS: &str = r#"(() => {
    globalThis.__tasks = [];
    new PerformanceObserver((list) => {
        for (const task of list.getEntries()) __tasks.push([task.startTime, task.duration]);
    }).observe({ type: "longtask", buffered: true });
})()"#;

/// `click`
pub(crate) async fn click(args: &VisitArgs) -> Result<()> {
    let (_test_run, backbone) = start("").await?;
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    let (mut cold_start, mut warm_start) = (Vec::new(), Vec::new());
    let mut rows = vec![["round", "cache", "first shown, ms after the click"].map(String::from).to_vec()];
    for round in 1..=args.rounds {
        let tab = open(args, &backbone).await?;
        let visit = first_update(&tab).await?;
        println!("round {round}, cold cache: {:.1} s", visit.accepted_s);
        cold.push(visit.accepted_s);
        cold_start.push(visit.training_s);
        rows.push(vec![round.to_string(), "cold".into(), visit.stages]);
        tab.reload().await?;
        let visit = first_update(&tab).await?;
        println!("round {round}, warm cache: {:.1} s", visit.accepted_s);
        warm.push(visit.accepted_s);
        warm_start.push(visit.training_s);
        rows.push(vec![round.to_string(), "warm".into(), visit.stages]);
        tab.close().await?;
    }
    println!("\n{}", table(&rows));
    let heading = ["from the click", "cold cache, s", "warm cache, s", "cold, the warm one being 1"];
    let row = |to: &str, cold: &[f64], warm: &[f64]| {
        let [cold_s, warm_s] = [cold, warm].map(|seconds| Spread::of(seconds).to_string());
        vec![to.to_owned(), cold_s, warm_s, ratios(warm, cold).to_string()]
    };
    let rows = [
        heading.map(String::from).to_vec(),
        row("to the first step", &cold_start, &warm_start),
        row("to the first accepted update", &cold, &warm),
    ];
    println!("median [min to max] of {} visits\n\n{}", args.rounds, table(&rows));
    Ok(())
}

/// What was seen of one visit.
struct Visit {
    training_s: f64,
    accepted_s: f64,
    stages: String,
}

async fn first_update(tab: &Tab) -> Result<Visit> {
    tab.until("doing() === 'idle' && !element('toggle').disabled", WAIT_MAX).await?;
    tab.read(STOPWATCH).await?;
    tab.click("#toggle").await?;
    tab.until("document.body.dataset.accepted", WAIT_MAX).await?;
    let seen = tab.read("__seen").await?;
    let seen = seen.as_object().context("the page noted nothing")?;
    let mut stages: Vec<(&str, f64)> =
        seen.iter().filter_map(|(stage, ms)| Some((stage.as_str(), ms.as_f64()?))).collect();
    stages.sort_by(|a, b| a.1.total_cmp(&b.1));
    let seconds = |wanted: &str| {
        let found = stages.iter().find(|(stage, _)| *stage == wanted);
        found.map(|(_, ms)| ms / 1000.0).with_context(|| format!("`{wanted}` was never shown"))
    };
    Ok(Visit {
        training_s: seconds("training")?,
        accepted_s: seconds("accepted")?,
        stages: stages.iter().map(|(stage, ms)| format!("{stage} {ms:.0}")).collect::<Vec<_>>().join(", "),
    })
}

/// `bytes`
pub(crate) async fn bytes(args: &VisitArgs) -> Result<()> {
    let heading = ["gradients as", "samples accepted", "updates", "up, bytes/sample", "down, bytes/sample"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    let codecs = ["\"f32\"", "\"f16\"", "\"int8\"", "\"int4\"", "{ top-k = { density = 0.01 } }"];
    for codec in codecs {
        let (_test_run, backbone) =
            start(&format!("[scheme.synchronous]\ngradient_codec = {codec}\n")).await?;
        let tab = open(args, &backbone).await?;
        tab.click("#toggle").await?;
        tab.until(&format!("value('accepted') >= {UPDATES}"), WAIT_MAX).await?;
        // In one look, so that they belong together.
        let given: ContributedTotals = serde_json::from_value(
            tab.read(
                "({ samples: value('samples'), accepted: value('accepted'), up: value('bytes-up'), \
                 down: value('bytes-down') })",
            )
            .await?,
        )?;
        rows.push(vec![
            codec.into(),
            given.samples.to_string(),
            given.accepted.to_string(),
            format!("{:.1}", given.up / given.samples),
            format!("{:.1}", given.down / given.samples),
        ]);
        tab.close().await?;
    }
    println!("LeNet, 1024 samples to an update, from the first byte of the visit\n\n{}", table(&rows));
    Ok(())
}

/// The tab's totals, as the page shows them.
#[derive(Debug, Deserialize)]
struct ContributedTotals {
    samples: f64,
    accepted: f64,
    up: f64,
    down: f64,
}

/// `longtasks`
pub(crate) async fn long_tasks(args: &VisitArgs) -> Result<()> {
    let (_test_run, backbone) = start("").await?;
    let tab = open(args, &backbone).await?;
    tab.read(LONG_TASKS).await?;
    let before = tab.read("performance.now()").await?.as_f64().context("no time")?;
    tab.click("#toggle").await?;
    tab.until("value('accepted') >= 1", WAIT_MAX).await?;
    let from = tab.read("performance.now()").await?.as_f64().context("no time")?;
    tokio::time::sleep(MINUTE).await;
    let to = tab.read("performance.now()").await?.as_f64().context("no time")?;
    let tasks: Vec<(f64, f64)> = serde_json::from_value(tab.read("__tasks").await?)?;
    let mut rows = vec![["when", "seconds", "long tasks", "longest, ms"].map(String::from).to_vec()];
    for (when, from, to) in [
        ("loading the page", 0.0, before),
        ("from the click to the first update", before, from),
        ("a minute of training", from, to),
    ] {
        let within = tasks.iter().filter(|(start, _)| (from..to).contains(start));
        let durations: Vec<f64> = within.map(|(_, duration)| *duration).collect();
        let longest = durations.iter().fold(0.0_f64, |longest, duration| longest.max(*duration));
        rows.push(vec![
            when.into(),
            format!("{:.1}", (to - from) / 1000.0),
            durations.len().to_string(),
            format!("{longest:.0}"),
        ]);
    }
    println!("{}", table(&rows));
    println!("samples accepted: {}", tab.number("samples").await?);
    tab.close().await
}

/// A backbone with a run of its own, otherwise as `run.example.toml` has it.
async fn start(sections: &str) -> Result<(TestRun, BackboneProcess)> {
    let mut test_run = TestRun::new(sections)?.with_page(artifacts::web_root()?);
    let backbone = test_run.backbone().await?;
    Ok((test_run, backbone))
}

async fn open(args: &VisitArgs, backbone: &BackboneProcess) -> Result<Tab> {
    let device = args.device.to_possible_value().context("every device has a name")?;
    let url = format!("{}/?device={}", backbone.page(), device.get_name());
    let tab = Tab::open("visitor", args.device.graphics(), &url).await?;
    tab.until("doing() === 'idle' && !element('toggle').disabled", WAIT_MAX).await?;
    Ok(tab)
}
