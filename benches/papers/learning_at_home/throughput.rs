//! Figure 4 (top), Table 2 and appendix D: what a delay costs training through blocks on other machines.
//!
//! Hosts and trainers are the state machines of this project, against each other in virtual time. Only what a device takes
//! for a block is nominal: its arithmetic at a share of what the device can do. So what is compared with the paper are ratios
//! to no delay, not samples a second.

#[path = "../../../shared/swarm/tests/experts/world.rs"]
#[allow(clippy::unwrap_used, dead_code, reason = "the simulation of the tests")]
mod world;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use barnraise_protocol::codec::TensorCodec;
use clap::Args;

use self::world::{AnswerDelay, ExpertWorld, WorldOptions, WorldReport, WorldShape};
use crate::papers::plot::{Labels, PlotLine, lines};
use crate::ratio::{mean_and_deviation, short, table};

/// Mean delays of an answer, in milliseconds.
const DELAYS_MS: [u64; 6] = [0, 10, 50, 100, 150, 200];
/// Delay between the regions, mean and standard deviation in milliseconds (§4.1).
const REGIONS_MS: (u64, u64) = (92, 32);
/// Rows of a training batch: samples of 1024 values, or tokens of four sequences of 512.
const ROWS: u32 = 2048;
const WIDTH: u32 = 1024;
/// A row of the simulation stands for so many.
const ROWS_IN_ONE: u32 = 128;
const N_BLOCKS: usize = 224;
const N_TRAINERS: usize = 64;
/// Share of a device's arithmetic that a large product reaches.
const REACHED: f64 = 0.7;

/// What is measured.
#[derive(Debug, Clone, Args)]
pub(crate) struct ThroughputArgs {
    /// Measurements, each with a seed of its own
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Virtual seconds of each, after as many in which the pipeline fills
    #[arg(long, default_value_t = 300)]
    seconds: u64,
}

/// One of the paper's two.
struct TimedBlock {
    name: &'static str,
    /// Multiplications and additions of a row, forward.
    flop_of_row: f64,
}

/// 1024 to 4096 to 4096 to 1024; and a BERT layer of 1024 units with 512 tokens.
const BLOCKS: [TimedBlock; 2] = [
    TimedBlock { name: "feed-forward", flop_of_row: 2.0 * 4096.0 * (1024.0 + 4096.0 + 1024.0) },
    TimedBlock { name: "transformer", flop_of_row: 2.0 * 12.0 * 1024.0 * 1024.0 + 4.0 * 512.0 * 1024.0 },
];

struct Machines {
    n: usize,
    /// In single precision, each second.
    flop: f64,
}

/// GTX 1080.
const AT_HOME: Machines = Machines { n: 4, flop: 8.87e12 };
/// One half of a Tesla K80.
const IN_CLOUD: Machines = Machines { n: 3, flop: 4.37e12 };

impl Machines {
    fn shape(&self, block: &TimedBlock) -> WorldShape {
        let row = Duration::from_secs_f64(block.flop_of_row * f64::from(ROWS_IN_ONE) / (self.flop * REACHED));
        WorldShape {
            n_hosts: self.n,
            n_layers: N_BLOCKS,
            n_experts: 1,
            n_active: 1,
            n_replicas: 1,
            n_rows: ROWS / ROWS_IN_ONE,
            rows_max: ROWS / ROWS_IN_ONE,
            batch_time: Duration::ZERO,
            forward_row_time: row,
            backward_row_time: row * 3,
        }
    }

    /// Samples a second where all devices compute all the time.
    fn bound(&self, block: &TimedBlock) -> f64 {
        let shape = self.shape(block);
        let row = shape.forward_row_time + shape.backward_row_time;
        f64::from(ROWS) * self.n as f64 / (row * shape.n_rows * N_BLOCKS as u32).as_secs_f64()
    }
}

/// Mean and standard deviation of the rounds, in samples a second.
struct Measured {
    mean: f64,
    deviation: f64,
    answered: f64,
}

/// `bound`: what the devices do while all of them compute.
fn measure(args: &ThroughputArgs, bound: f64, options: WorldOptions) -> Measured {
    let span = Duration::from_secs(args.seconds);
    let reports: Vec<WorldReport> = (0..args.rounds)
        .map(|seed| {
            let mut world = ExpertWorld::new(seed, options);
            world.run_until(span);
            let before = world.report();
            world.run_until(2 * span);
            world.report().since(&before)
        })
        .collect();
    let n = reports.len().max(1) as f64;
    // All that the devices compute is of use, so that no batch has to be counted: few end within the time.
    let speeds: Vec<f64> = reports.iter().map(|report| report.device_use * bound).collect();
    let (mean, deviation) = mean_and_deviation(&speeds);
    let answered = reports.iter().map(|report| report.answered).sum::<f64>() / n;
    Measured { mean, deviation, answered }
}

/// Many trainers with a batch each; of a model that is one after the other only one batch is under way.
fn options(machines: &Machines, block: &TimedBlock, delay: AnswerDelay, n_trainers: usize) -> WorldOptions {
    let shape = machines.shape(block);
    WorldOptions { n_trainers, n_in_flight: 1, delay, shape, ..WorldOptions::default() }
}

/// Prints and draws the figure.
pub(super) fn figure4_top(args: &ThroughputArgs, folder: &Path) -> Result<()> {
    let mut rows = vec![
        ["block", "mean delay, ms", "ours", "of no delay", "answered", "model-parallel", "upper bound"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let mut drawn: Vec<PlotLine> = Vec::new();
    for block in &BLOCKS {
        let bound = AT_HOME.bound(block);
        let (mut ours, mut parallel) = (Vec::new(), Vec::new());
        let mut at_once = None;
        for delay_ms in DELAYS_MS {
            let delay = AnswerDelay::Exponential(Duration::from_millis(delay_ms));
            let asynchronous = measure(args, bound, options(&AT_HOME, block, delay, N_TRAINERS));
            let one = measure(args, bound, options(&AT_HOME, block, delay, 1));
            let first = *at_once.get_or_insert(asynchronous.mean);
            rows.push(vec![
                block.name.to_owned(),
                delay_ms.to_string(),
                format!("{} ± {}", short(asynchronous.mean), short(asynchronous.deviation)),
                format!("{:.1} %", 100.0 * asynchronous.mean / first),
                format!("{:.2} %", 100.0 * asynchronous.answered),
                format!("{} ± {}", short(one.mean), short(one.deviation)),
                short(bound),
            ]);
            ours.push((delay_ms as f64, asynchronous.mean));
            parallel.push((delay_ms as f64, one.mean));
        }
        let bounds = ours.iter().map(|(delay, _)| (*delay, bound)).collect();
        drawn.push((format!("{}: ours", block.name), ours));
        drawn.push((format!("{}: model-parallel", block.name), parallel));
        drawn.push((format!("{}: pipelined, no delay", block.name), bounds));
    }
    println!("{}", table(&rows));
    let labels = Labels {
        title: "Figure 4, top: throughput by the delay of a block",
        x: "mean delay, ms",
        y: "samples a second, nominal",
    };
    lines(&folder.join("figure4_top.svg"), labels, &drawn)
}

/// Prints the table.
pub(super) fn table2(args: &ThroughputArgs) -> Result<()> {
    let (mean, deviation) = REGIONS_MS;
    let delay = AnswerDelay::Normal(Duration::from_millis(mean), Duration::from_millis(deviation));
    let heading = ["block", "ours", "of the upper bound", "model-parallel", "upper bound"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for block in &BLOCKS {
        let bound = IN_CLOUD.bound(block);
        let ours = measure(args, bound, options(&IN_CLOUD, block, delay, N_TRAINERS));
        let one = measure(args, bound, options(&IN_CLOUD, block, delay, 1));
        rows.push(vec![
            block.name.to_owned(),
            format!("{} ± {}", short(ours.mean), short(ours.deviation)),
            format!("{:.1} %", 100.0 * ours.mean / bound),
            format!("{} ± {}", short(one.mean), short(one.deviation)),
            short(bound),
        ]);
    }
    println!("{}", table(&rows));
    Ok(())
}

/// Prints what a batch sends to a block and gets from it, forward and backward.
pub(super) fn appendix_d() -> Result<()> {
    let n_values = (ROWS * WIDTH) as usize;
    let heading = [
        "precision",
        "MiB of a batch and block",
        "of f32",
        "Mbit/s of a GTX 1080, feed-forward",
        "transformer",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let whole = TensorCodec::F32.encoded_len(n_values);
    for codec in [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8, TensorCodec::Int4] {
        let n_bytes = codec.encoded_len(n_values);
        // Rows and what comes of them; rows and gradients, and the gradients of the rows.
        let n_tensors = 5.0;
        let of_batch = n_tensors * n_bytes as f64;
        let rate = |block: &TimedBlock| {
            let batches = AT_HOME.bound(block) / f64::from(ROWS) * N_BLOCKS as f64 / AT_HOME.n as f64;
            short(batches * of_batch * 8.0 / 1e6)
        };
        rows.push(vec![
            format!("{codec:?}").to_lowercase(),
            short(of_batch / f64::from(1 << 20)),
            format!("{:.1} %", 100.0 * n_bytes as f64 / whole as f64),
            rate(&BLOCKS[0]),
            rate(&BLOCKS[1]),
        ]);
    }
    println!("{}", table(&rows));
    Ok(())
}
