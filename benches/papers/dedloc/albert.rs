//! Figures 4 and 5: ALBERT-large on fleets of unequal links, and with more and more peers.
//!
//! The paper does not say how fast its GPU was. The speed here is the one with which equal parts take as much longer
//! than high bandwidth as in the paper; the rest are predictions.

use std::path::Path;

use anyhow::Result;
use barnraise_planning::Updates;
use barnraise_protocol::average::CHUNK_VALUES;

use super::fleet::Fleet;
use super::planned::Job;
use super::round::VALUE_BYTES;
use crate::papers::plot::{AxisScale, Bars, Labels, PlotLine, bars, lines};
use crate::ratio::table;

/// ALBERT-large (Lan et al., 2020): 17.7 million parameters.
const JOB: Job =
    Job { n_values: 17_683_968, value_bytes: VALUE_BYTES, batch: 4096, chunk_values: CHUNK_VALUES };
/// The paper's slowdown of unequal peers without balancing.
const SLOWDOWN: f64 = 2.5;
/// Peers of the scaling experiment.
const PEERS: [usize; 6] = [4, 8, 16, 32, 64, 128];
/// The part-time peers train for so long, then rest for as long.
const SHIFT_H: f64 = 8.0;
const SHIFTS: usize = 6;
/// What they are, and what the paper says of their speed.
const FLEETS: [(&str, &str); 5] = [
    ("High-bandwidth: 16 × 25 Gbit/s", "1"),
    ("Heterogeneous, equal parts", "0.40 (taken)"),
    ("Heterogeneous, load balancing", "0.59"),
    ("Auxiliary: and 4 × 1 Gbit/s without a GPU", "over 0.64"),
    ("Time-varying: and 8 × 0.1 Gbit/s half of the time", "0.74"),
];

/// Samples per second of one GPU.
fn gpu_speed(job: Job) -> f64 {
    let averaging_s = Fleet::new(&unequal(1.0)).equal_parts(job).averaging_s;
    job.batch as f64 / (averaging_s / SLOWDOWN) / 16.0
}

/// The heterogeneous fleet.
fn unequal(speed: f64) -> [(usize, f64, f64); 3] {
    [(4, 0.2, speed), (8, 0.1, speed), (4, 0.05, speed)]
}

/// Prints and draws Figure 4.
pub(super) fn fleets(folder: &Path) -> Result<()> {
    let (names, papers): (Vec<&str>, Vec<&str>) = FLEETS.into_iter().unzip();
    let (measured, finer) = (rates(JOB)?, rates(JOB.finer())?);
    let mean = |rates: &[f64; SHIFTS]| rates.iter().sum::<f64>() / SHIFTS as f64;
    let heading = ["Fleet", "steps/h", "of high bandwidth", "in chunks of 4 Ki values", "paper"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let mut drawn: Vec<PlotLine> = Vec::new();
    for (index, name) in names.into_iter().enumerate() {
        let rate = mean(&measured[index]);
        rows.push(vec![
            name.to_owned(),
            format!("{rate:.0}"),
            format!("{:.2}", rate / mean(&measured[0])),
            format!("{:.2}", mean(&finer[index]) / mean(&finer[0])),
            papers[index].to_owned(),
        ]);
        let (mut steps, mut points) = (0.0, vec![(0.0, 0.0)]);
        for (shift, rate) in measured[index].iter().enumerate() {
            steps += rate * SHIFT_H;
            points.push(((shift + 1) as f64 * SHIFT_H, steps));
        }
        drawn.push((name.split(':').next().unwrap_or(name).to_owned(), points));
    }
    println!("A GPU makes {:.1} samples/s.\n\n{}", gpu_speed(JOB), table(&rows));
    let labels = Labels { title: "Figure 4 in shape: ALBERT-large", x: "hours", y: "optimizer steps" };
    lines(&folder.join("figure4.svg"), labels, &drawn)
}

/// Steps per hour of each fleet in each shift.
fn rates(job: Job) -> Result<[[f64; SHIFTS]; 5]> {
    let speed = gpu_speed(job);
    let (helpers, part_time) = ((4, 1.0, 0.0), (8, 0.1, speed));
    let planned = |groups: &[(usize, f64, f64)]| -> Result<f64> {
        Ok(3600.0 / Fleet::new(groups).planned(job, Updates::Delayed)?.delayed_s())
    };
    let with = |more: &[(usize, f64, f64)]| [&unequal(speed)[..], more].concat();
    let high = planned(&[(16, 25.0, speed)])?;
    let equal = 3600.0 / Fleet::new(&unequal(speed)).equal_parts(job).delayed_s();
    let balanced = planned(&unequal(speed))?;
    let helped = planned(&with(&[helpers]))?;
    let crowded = planned(&with(&[helpers, part_time]))?;
    let varying = std::array::from_fn(|shift| if shift % 2 == 0 { crowded } else { helped });
    Ok([[high; SHIFTS], [equal; SHIFTS], [balanced; SHIFTS], [helped; SHIFTS], varying])
}

/// Prints and draws Figure 5.
pub(super) fn scaling(folder: &Path) -> Result<()> {
    let speed = gpu_speed(JOB);
    let heading = [
        "Peers",
        "high bandwidth, s a step",
        "equal parts, s",
        "our plan, s",
        "times as fast",
        "our plan in chunks of 4 Ki values, s",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let mut drawn: Vec<Bars> =
        ["high bandwidth", "equal parts", "our plan"].map(|name| (name.to_owned(), Vec::new())).into();
    for n in PEERS {
        let quarter = n / 4;
        let fleet = Fleet::new(&[(quarter, 0.2, speed), (2 * quarter, 0.1, speed), (quarter, 0.05, speed)]);
        let steps = [
            Fleet::new(&[(n, 25.0, speed)]).equal_parts(JOB).delayed_s(),
            fleet.equal_parts(JOB).delayed_s(),
            fleet.planned(JOB, Updates::Delayed)?.delayed_s(),
        ];
        let mut row = vec![n.to_string()];
        row.extend(steps.iter().map(|seconds| format!("{seconds:.1}")));
        row.push(format!("{:.2}", steps[1] / steps[2]));
        row.push(format!("{:.1}", fleet.planned(JOB.finer(), Updates::Delayed)?.delayed_s()));
        rows.push(row);
        drawn.iter_mut().zip(steps).for_each(|((_, values), seconds)| values.push(seconds));
        eprintln!("{}", rows.last().map(|row| row.join("  ")).unwrap_or_default());
    }
    println!("{}", table(&rows));
    let labels = Labels { title: "Figure 5 in shape: ALBERT-large", x: "peers", y: "seconds a step" };
    bars(&folder.join("figure5.svg"), labels, &PEERS.map(|n| n.to_string()), &drawn, AxisScale::Linear)
}
