//! `presets`: what the runs of `docs/operate/presets.md` learn in ten minutes, beside baselines.
//!
//! Each is a backbone and a native peer on this machine, told what a person would tell them: `serve`, `join`, and at the end
//! `export` and `evaluate`. The baselines of `evaluate` are there, and better ones (`baselines`).

mod baselines;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use barnraise_native::config::RunConfig;
use barnraise_tests::process::TestRun;
use clap::Args;
use serde_json::Value;

use crate::ratio::{short, table};

/// A page of runs: the sections of each behind a headline that names it.
const PAGE: &str = include_str!("../../docs/operate/presets.md");
const HEADLINE: &str = "## ";
const FENCE: [&str; 2] = ["```toml\n", "```"];
/// What an evaluation says that one number more or less is.
const NAMES: [&str; 6] =
    ["accuracy", "accuracy_of_neighbours", "bits_per_byte", "perplexity", "mean_squared_error", "loss"];

#[derive(Debug, Args)]
pub(crate) struct PresetArgs {
    /// Only these headlines of docs/operate/presets.md
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// How long the peer computes for each
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
}

/// `presets`
pub(crate) async fn measure(args: &PresetArgs) -> Result<()> {
    let wanted = |name: &&str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let runs: Vec<(&str, &str)> = runs(PAGE).filter(|(name, _)| wanted(name)).collect();
    ensure!(!runs.is_empty(), "none of these is a headline of docs/operate/presets.md");
    let head = ["run", "samples", "steps", "measure", "model", "baselines"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (name, sections) in runs {
        let learnt = learn(sections, Duration::from_secs_f64(60.0 * args.minutes));
        rows.extend(learnt.await.with_context(|| name.to_owned())?.rows(name));
        println!("{}", table(&rows));
    }
    Ok(())
}

/// The runs of a page, each with its name.
fn runs(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.split(HEADLINE).skip(1).filter_map(|section| {
        let (name, rest) = section.split_once('\n')?;
        let (_, toml) = rest.split_once(FENCE[0])?;
        Some((name, toml.split_once(FENCE[1])?.0))
    })
}

/// What came of a run.
struct Learnt {
    n_samples: u64,
    n_steps: u64,
    /// What `evaluate` says of the held-out part.
    suite: Value,
    /// Better baselines: name, measure, value.
    baselines: Vec<(&'static str, &'static str, f64)>,
}

async fn learn(sections: &str, time: Duration) -> Result<Learnt> {
    let mut test_run = TestRun::new(sections)?;
    let backbone = test_run.backbone().await?;
    let peer = test_run.join(&[&backbone.page()])?;
    tokio::time::sleep(time).await;
    peer.interrupt()?;
    let ended = peer.end().await?;
    ensure!(ended.n_samples > 0, "nothing was contributed: {ended:?}");
    let last = backbone.status_at_rest().await?.history.pop().context("no step was made")?;
    let (folder, config) = (test_run.folder().join("model"), test_run.folder().join("run.toml"));
    let [exported, configured] = [&folder, &config].map(|path| path.display().to_string());
    test_run.run(&["export", &backbone.page(), &exported]).await?;
    backbone.terminate().await?;
    let said = test_run.run(&["evaluate", &exported, "--config", &configured, "--json"]).await?;
    let said: Value = serde_json::from_str(&said)?;
    let config = RunConfig::load(&config)?;
    let baselines = tokio::task::spawn_blocking(move || baselines::of(&config)).await??;
    let suite = said["suites"][0].clone();
    Ok(Learnt { n_samples: last.n_samples_total, n_steps: last.epoch, suite, baselines })
}

impl Learnt {
    /// A row for each measure that says something.
    fn rows(&self, name: &str) -> Vec<Vec<String>> {
        let measured = NAMES.into_iter().filter_map(|measure| {
            let of = &self.suite["metrics"][measure];
            Some((measure, of["model"].as_f64()?, of["baseline"].as_f64()))
        });
        let row = |(measure, model, simple): (&str, f64, Option<f64>)| {
            let simple = simple.map(|value| {
                format!("{} {}", self.suite["baseline"].as_str().unwrap_or_default(), short3(value))
            });
            // Pixels have neighbours as features have.
            let better = self.baselines.iter().filter(|(_, of, _)| measure.starts_with(of));
            let better = better.map(|(name, _, value)| format!("{name} {}", short3(*value)));
            let baselines: Vec<String> = simple.into_iter().chain(better).collect();
            let (samples, steps) = (self.n_samples.to_string(), self.n_steps.to_string());
            vec![name.into(), samples, steps, measure.into(), short3(model), baselines.join(", ")]
        };
        measured.map(row).collect()
    }
}

/// Small numbers with three digits behind the point.
fn short3(value: f64) -> String {
    if value.abs() < 10.0 { format!("{value:.3}") } else { short(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_of_the_page_can_be_served() {
        let folder = tempfile::tempdir().unwrap();
        let mut n_runs = 0;
        for (name, sections) in runs(PAGE) {
            let file = folder.path().join("run.toml");
            std::fs::write(&file, sections).unwrap();
            let config = RunConfig::load(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(config.synchronous().is_some(), "{name}");
            n_runs += 1;
        }
        assert!(n_runs >= 8, "{n_runs} runs");
    }
}
