//! Figure 3: SwAV on servers, on workstations and on both together.
//!
//! The paper says how much sooner the hybrid fleet is done, and in Table 1 how long each fleet averages, and not how
//! fast its GPUs are. Both together fix the speeds: those with which steps that compute and then average, as the paper
//! averages, make the hybrid fleet as much sooner as the paper has it. Everything else here is a prediction.

use std::path::Path;

use anyhow::{Result, ensure};
use barnraise_planning::Updates;
use barnraise_protocol::average::CHUNK_VALUES;

use super::fleet::{Fleet, StepTime};
use super::planned::Job;
use super::table1::RESNET50_VALUES;
use crate::papers::plot::{Labels, PlotLine, lines};
use crate::ratio::table;

/// As f16: the paper's seconds are fewer than f32 could take over its links.
const JOB: Job =
    Job { n_values: RESNET50_VALUES, value_bytes: 2.0, batch: 32_768, chunk_values: CHUNK_VALUES };
/// By how much of the time the hybrid fleet beats the servers and the workstations.
const SOONER: [f64; 2] = [0.40, 0.52];
/// The paper's averaging by its own strategy: servers, workstations, hybrid.
const PAPER_S: [f64; 3] = [1.20, 5.3, 2.96];
const N_SERVERS: usize = 8;
const N_WORKSTATIONS: usize = 16;
/// Of the picture.
const HOURS: f64 = 10.0;

/// Prints and draws the figure.
pub(super) fn run(folder: &Path) -> Result<()> {
    let hybrid_s = calibrate()?;
    let speed =
        |of: usize, n: usize| JOB.batch as f64 / (hybrid_s / (1.0 - SOONER[of]) - PAPER_S[of]) / n as f64;
    let (server, workstation) = (speed(0, N_SERVERS), speed(1, N_WORKSTATIONS));
    println!(
        "A step of the paper's hybrid fleet takes {hybrid_s:.1} s; a V100 makes {server:.0} samples/s, a 1080 Ti \
         {workstation:.0}.\n"
    );
    let servers = (N_SERVERS, 1.0, server);
    let workstations = (N_WORKSTATIONS, 0.2, workstation);
    let fleets = [
        ("SERVER", Fleet::new(&[servers])),
        ("WORKSTATION", Fleet::new(&[workstations])),
        ("HYBRID", Fleet::new(&[workstations, servers])),
    ];
    let ways: [(&str, &str, StepSeconds); 3] = [
        ("our plan, averaging after computing", "0.40 and 0.52 (taken)", |fleet| {
            Ok(fleet.planned(JOB, Updates::Immediate)?.immediate_s())
        }),
        ("our plan, averaging while computing", "", |fleet| {
            Ok(fleet.planned(JOB, Updates::Delayed)?.delayed_s())
        }),
        ("equal parts, averaging after computing", "", |fleet| Ok(fleet.equal_parts(JOB).immediate_s())),
    ];
    let heading = [
        "A step",
        "SERVER, s",
        "WORKSTATION, s",
        "HYBRID, s",
        "sooner than SERVER",
        "than WORKSTATION",
        "paper",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let mut drawn: Vec<PlotLine> = Vec::new();
    for (index, (name, paper, way)) in ways.into_iter().enumerate() {
        let steps: Vec<f64> = fleets.iter().map(|(_, fleet)| way(fleet)).collect::<Result<_>>()?;
        let mut row = vec![name.to_owned()];
        row.extend(steps.iter().map(|seconds| format!("{seconds:.1}")));
        row.extend(steps[..2].iter().map(|seconds| format!("{:.2}", 1.0 - steps[2] / seconds)));
        row.push(paper.to_owned());
        rows.push(row);
        if index == 0 {
            let line = |(fleet, seconds): (&(&str, Fleet), &f64)| {
                (fleet.0.to_owned(), vec![(0.0, 0.0), (HOURS, HOURS * 3600.0 / seconds)])
            };
            drawn = fleets.iter().zip(&steps).map(line).collect();
        }
    }
    println!("{}", table(&rows));
    let labels = Labels { title: "Figure 3 in shape: SwAV", x: "hours", y: "optimizer steps" };
    lines(&folder.join("figure3.svg"), labels, &drawn)
}

type StepSeconds = fn(&Fleet) -> Result<f64>;

/// Seconds of a step of the paper's hybrid fleet, whose speed is that of the other two together.
fn calibrate() -> Result<f64> {
    let excess = |hybrid_s: f64| {
        let rate = |of: usize| (hybrid_s / (1.0 - SOONER[of]) - PAPER_S[of]).recip();
        let hybrid = StepTime { compute_s: (rate(0) + rate(1)).recip(), averaging_s: PAPER_S[2] };
        hybrid.immediate_s() - hybrid_s
    };
    // Too much averaging for short steps, too little for long ones.
    let (mut short, mut long) = (2.0 * PAPER_S[2], 1000.0);
    ensure!(excess(short) > 0.0 && excess(long) < 0.0, "the paper's numbers contradict one another");
    for _ in 0..60 {
        let middle = f64::midpoint(short, long);
        if excess(middle) > 0.0 { short = middle } else { long = middle }
    }
    Ok(short)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_speeds_repeat_what_the_paper_says() {
        let hybrid_s = calibrate().unwrap();
        let compute = |of: usize| hybrid_s / (1.0 - SOONER[of]) - PAPER_S[of];
        let together = (compute(0).recip() + compute(1).recip()).recip() + PAPER_S[2];
        assert!((together - hybrid_s).abs() < 1e-6, "{together} {hybrid_s}");
    }
}
