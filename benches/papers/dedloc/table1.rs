//! Table 1: seconds of one averaging of ResNet-50, by all-reduce (AR), by a parameter server (PS) and by our plan.

use std::path::Path;

use anyhow::Result;
use barnraise_planning::{Plan, Updates};
use barnraise_protocol::average::CHUNK_VALUES;

use super::planned::{Job, plan};
use super::round::{Round, Rules, Sharing, VALUE_BYTES};
use crate::papers::fluid::Link;
use crate::papers::plot::{Labels, Scale, bars};
use crate::ratio::table;

/// ResNet-50 (He et al., 2016).
pub(super) const RESNET50_VALUES: u64 = 25_557_032;

/// A row of the paper's table.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) name: &'static str,
    /// Of each peer, both ways, Gbit/s.
    pub(super) rates: Vec<f64>,
    /// The parameter server: the peer with the fastest link.
    pub(super) server: usize,
    /// The paper's seconds by AR, by PS and by its own averaging.
    pub(super) paper: [f64; 3],
}

/// Setups A to D.
pub(super) fn setups() -> Vec<Setup> {
    let (fast, slow) = ([1.0; 8], [0.2; 16]);
    let with = |more: &[f64]| [&slow[..], more].concat();
    vec![
        Setup { name: "A: 8 × 1 Gbit/s", rates: fast.to_vec(), server: 0, paper: [1.19, 4.73, 1.20] },
        Setup { name: "B: 16 × 0.2 Gbit/s", rates: slow.to_vec(), server: 0, paper: [5.3, 39.6, 5.3] },
        Setup { name: "C: A + B", rates: with(&fast), server: 16, paper: [5.69, 14.1, 2.96] },
        Setup { name: "D: B + 1 × 2.5 Gbit/s", rates: with(&[2.5]), server: 16, paper: [5.3, 3.22, 3.18] },
    ]
}

impl Setup {
    pub(super) fn links(&self) -> Vec<Link> {
        self.rates.iter().map(|&rate| Link::symmetric(rate)).collect()
    }

    pub(super) fn letter(&self) -> String {
        self.name.chars().take(1).collect()
    }
}

/// An averaging of ResNet-50 as f32, or of a vector of another length.
pub(super) fn job(n_values: u64) -> Job {
    Job { n_values, value_bytes: VALUE_BYTES, batch: 32_768, chunk_values: CHUNK_VALUES }
}

/// The plan for peers who all contribute, since computing takes longer than averaging, and its seconds.
pub(super) fn plan_of(links: &[Link], job: Job, sharing: Sharing) -> Result<(Plan, f64)> {
    plan(links, &vec![1.0; links.len()], job, Updates::Delayed, sharing)
}

/// A table of seconds by AR, PS and ours, the ratios beside the paper's.
pub(super) fn compare(measured: &[(Setup, [f64; 3])], folder: &Path, name: &str, title: &str) -> Result<()> {
    let heading = ["Setup", "AR, s", "PS, s", "ours, s", "AR / ours", "paper", "PS / ours", "paper"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let mut series: Vec<(String, Vec<f64>)> =
        ["AR / ours", "AR / ours, paper", "PS / ours", "PS / ours, paper"]
            .map(|name| (name.to_owned(), Vec::new()))
            .into();
    for (setup, [all_reduce, served, ours]) in measured {
        let paper = setup.paper;
        let ratios = [all_reduce / ours, paper[0] / paper[2], served / ours, paper[1] / paper[2]];
        let seconds = [all_reduce, served, ours].map(|seconds| format!("{seconds:.2}"));
        let shown = ratios.map(|ratio| format!("{ratio:.2}"));
        rows.push([&[setup.name.to_owned()][..], &seconds, &shown].concat());
        series.iter_mut().zip(ratios).for_each(|((_, values), ratio)| values.push(ratio));
    }
    println!("{}", table(&rows));
    let groups: Vec<String> = measured.iter().map(|(setup, _)| setup.letter()).collect();
    let labels = Labels { title, x: "setup", y: "times as long as ours" };
    bars(&folder.join(name), labels, &groups, &series, Scale::Linear)
}

/// Prints and draws the table in virtual time.
pub(super) fn run(folder: &Path) -> Result<()> {
    let job = job(RESNET50_VALUES);
    let heading = [
        "Setup",
        "at best, s",
        "in chunks of 16 Ki values, s",
        "links shared equally: AR, s",
        "PS, s",
        "ours, s",
    ];
    let mut variants = vec![heading.map(str::to_owned).to_vec()];
    let mut measured = Vec::new();
    for setup in setups() {
        let links = setup.links();
        let all = |job: Job, sharing: Sharing| -> Result<[f64; 3]> {
            let rules = Rules { sharing, ..job.rules() };
            let all_reduce = Round::all_reduce(links.clone(), job.n_bytes()).seconds(rules);
            let served = Round::parameter_server(links.clone(), setup.server, job.n_bytes()).seconds(rules);
            Ok([all_reduce, served, plan_of(&links, job, sharing)?.1])
        };
        let best = plan_of(&links, job, Sharing::ByLength)?.0.averaging_s;
        let [_, _, fine] = all(job.finer(), Sharing::ByLength)?;
        let [all_reduce, served, ours] = all(job, Sharing::Equal)?;
        let shown = [best, fine, all_reduce, served, ours].map(|seconds| format!("{seconds:.2}"));
        variants.push([&[setup.letter()][..], &shown].concat());
        measured.push((setup.clone(), all(job, Sharing::ByLength)?));
    }
    compare(&measured, folder, "table1.svg", "Table 1, in virtual time")?;
    println!("\n{}", table(&variants));
    Ok(())
}
