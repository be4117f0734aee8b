//! Table 1: seconds of one averaging of ResNet-50, by all-reduce (AR), by a parameter server (PS) and by our plan.

use std::path::Path;

use anyhow::Result;
use barnraise_planning::{AveragingPlan, Updates};
use barnraise_protocol::average::CHUNK_VALUES;
use barnraise_simulation::NodeBandwidth;

use super::planned::{Job, plan};
use super::round::{Rules, Sharing, SimulatedRound, VALUE_BYTES};
use crate::papers::plot::{AxisScale, Labels, bars};
use crate::ratio::table;

/// ResNet-50 (He et al., 2016).
pub(super) const RESNET50_VALUES: u64 = 25_557_032;

/// Bytes of a value where links are taken from the paper's seconds: as f32 they would be faster than they are called.
const IMPLIED_VALUE_BYTES: f64 = 2.0;

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
pub(super) fn setups() -> [Setup; 4] {
    let (fast, slow) = ([1.0; 8], [0.2; 16]);
    let with = |more: &[f64]| [&slow[..], more].concat();
    [
        Setup { name: "A: 8 × 1 Gbit/s", rates: fast.to_vec(), server: 0, paper: [1.19, 4.73, 1.20] },
        Setup { name: "B: 16 × 0.2 Gbit/s", rates: slow.to_vec(), server: 0, paper: [5.3, 39.6, 5.3] },
        Setup { name: "C: A + B", rates: with(&fast), server: 16, paper: [5.69, 14.1, 2.96] },
        Setup { name: "D: B + 1 × 2.5 Gbit/s", rates: with(&[2.5]), server: 16, paper: [5.3, 3.22, 3.18] },
    ]
}

impl Setup {
    pub(super) fn links(&self) -> Vec<NodeBandwidth> {
        self.rates.iter().map(|&rate| NodeBandwidth::symmetric(rate)).collect()
    }

    pub(super) fn letter(&self) -> String {
        self.name.chars().take(1).collect()
    }
}

/// The setups with links at which the paper's own seconds come out, as f16: by all-reduce in A and in B, where each peer
/// sends `2 (n - 1) / n` vectors, and by the server of D, which gets 16. The links of C are those of A and of B, so all
/// of its seconds are predictions.
fn implied() -> [Setup; 4] {
    let [a, b, c, d] = setups();
    let gigabit = RESNET50_VALUES as f64 * IMPLIED_VALUE_BYTES * 8.0 / 1e9;
    let by_all_reduce = |setup: &Setup| {
        let n = setup.rates.len() as f64;
        2.0 * (n - 1.0) / n * gigabit / setup.paper[0]
    };
    let (fast, slow) = (by_all_reduce(&a), by_all_reduce(&b));
    let server = (d.rates.len() - 1) as f64 * gigabit / d.paper[1];
    let of = |setup: Setup| {
        let rate = |&nominal: &f64| match (nominal > 0.5, nominal > 2.0) {
            (false, _) => slow,
            (true, false) => fast,
            (true, true) => server,
        };
        let rates = setup.rates.iter().map(rate).collect();
        Setup { rates, ..setup }
    };
    [a, b, c, d].map(of)
}

/// An averaging of ResNet-50 as f32, or of a vector of another length.
pub(super) fn job(n_values: u64) -> Job {
    Job { n_values, value_bytes: VALUE_BYTES, batch: 32_768, chunk_values: CHUNK_VALUES }
}

/// The plan for peers who all contribute, since computing takes longer than averaging, and its seconds.
pub(super) fn plan_of(links: &[NodeBandwidth], job: Job, sharing: Sharing) -> Result<(AveragingPlan, f64)> {
    plan(links, &vec![1.0; links.len()], job, Updates::Delayed, sharing)
}

/// Seconds by AR, by PS and by ours.
fn seconds_of(setup: &Setup, job: Job, sharing: Sharing) -> Result<[f64; 3]> {
    let (links, rules) = (setup.links(), Rules { sharing, ..job.rules() });
    let all_reduce = SimulatedRound::all_reduce(links.clone(), job.n_bytes()).seconds(rules);
    let served = SimulatedRound::parameter_server(links.clone(), setup.server, job.n_bytes()).seconds(rules);
    Ok([all_reduce, served, plan_of(&links, job, sharing)?.1])
}

/// All-reduce and server by ours, each beside the paper's.
fn ratios(setup: &Setup, [all_reduce, served, ours]: [f64; 3]) -> [f64; 4] {
    let paper = setup.paper;
    [all_reduce / ours, paper[0] / paper[2], served / ours, paper[1] / paper[2]]
}

/// A table of seconds by AR, PS and ours, the ratios beside the paper's.
fn print(measured: &[(Setup, [f64; 3])]) {
    let heading = ["Setup", "AR, s", "PS, s", "ours, s", "AR / ours", "paper", "PS / ours", "paper"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for (setup, seconds) in measured {
        let (seconds, ratios) = (*seconds, ratios(setup, *seconds));
        let seconds = seconds.map(|seconds| format!("{seconds:.2}"));
        let shown = ratios.map(|ratio| format!("{ratio:.2}"));
        rows.push([&[setup.name.to_owned()][..], &seconds, &shown].concat());
    }
    println!("{}", table(&rows));
}

/// Prints that table, and draws its ratios.
pub(super) fn compare(measured: &[(Setup, [f64; 3])], folder: &Path, name: &str, title: &str) -> Result<()> {
    print(measured);
    let mut series: Vec<(String, Vec<f64>)> =
        ["AR / ours", "AR / ours, paper", "PS / ours", "PS / ours, paper"]
            .map(|name| (name.to_owned(), Vec::new()))
            .into();
    for (setup, seconds) in measured {
        let ratios = ratios(setup, *seconds);
        series.iter_mut().zip(ratios).for_each(|((_, values), ratio)| values.push(ratio));
    }
    let groups: Vec<String> = measured.iter().map(|(setup, _)| setup.letter()).collect();
    let labels = Labels { title, x: "setup", y: "times as long as ours" };
    bars(&folder.join(name), labels, &groups, &series, AxisScale::Linear)
}

/// Prints and draws the table in virtual time.
pub(super) fn run(folder: &Path) -> Result<()> {
    let job = job(RESNET50_VALUES);
    let heading = [
        "Setup",
        "at best, s",
        "in chunks of 4 Ki values, s",
        "links shared equally: AR, s",
        "PS, s",
        "ours, s",
    ];
    let mut variants = vec![heading.map(str::to_owned).to_vec()];
    let mut measured = Vec::new();
    for setup in setups() {
        let best = plan_of(&setup.links(), job, Sharing::ByLength)?.0.averaging_s;
        let [_, _, fine] = seconds_of(&setup, job.finer(), Sharing::ByLength)?;
        let [all_reduce, served, ours] = seconds_of(&setup, job, Sharing::Equal)?;
        let shown = [best, fine, all_reduce, served, ours].map(|seconds| format!("{seconds:.2}"));
        variants.push([&[setup.letter()][..], &shown].concat());
        let seconds = seconds_of(&setup, job, Sharing::ByLength)?;
        measured.push((setup, seconds));
    }
    compare(&measured, folder, "table1.svg", "Table 1, in virtual time")?;
    println!(
        "\n{}\nWith links at which the paper's seconds for A, B and the server of D come out:\n",
        table(&variants)
    );
    let job = Job { value_bytes: IMPLIED_VALUE_BYTES, ..job };
    let mut predicted = Vec::new();
    for setup in implied() {
        let seconds = seconds_of(&setup, job, Sharing::ByLength)?;
        predicted.push((setup, seconds));
    }
    print(&predicted);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// What the paper measured in A and in B says what its links carried, and that says what C takes.
    #[test]
    fn links_that_the_papers_seconds_imply_give_the_ratios_of_c() {
        let job = Job { value_bytes: IMPLIED_VALUE_BYTES, ..job(RESNET50_VALUES) };
        let [a, _, c, _] = implied();
        let all_reduce = SimulatedRound::all_reduce(a.links(), job.n_bytes()).seconds(job.rules());
        assert!((all_reduce / a.paper[0] - 1.0).abs() < 0.01, "{all_reduce}");
        let [by_all_reduce, paper, by_server, paper_server] =
            ratios(&c, seconds_of(&c, job, Sharing::ByLength).unwrap());
        assert!(by_server > paper_server, "{by_server}");
        // No plan can do better than 2 (n - 1) / n where the slowest send their vector once: 1.917.
        assert!(by_all_reduce > 0.97 * paper && by_all_reduce < 2.0 * 23.0 / 24.0 + 0.01, "{by_all_reduce}");
    }
}
