//! Optimizer steps a second of small peers, beside hivemind's: `cargo xtask bench optimizer`.
//!
//! The workload of hivemind's own `benchmark_optimizer.py` without the times that it sleeps for each batch, which are the
//! same for everybody: a perceptron of 784-64-10 on the CPU, plain SGD, steps of 256 samples, 8 peers. What is left is
//! what the framework costs. hivemind waits for its peers to meet before each step; how long is an option of it, and
//! both its benchmark's value and a short one are measured.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use barnraise_tests::process::{BackboneProcess, PeerProcess, TestRun};
use clap::Args;
use serde::Deserialize;

use crate::averaging::JsonProcess;
use crate::python;
use crate::ratio::{self, Spread};

const SCRIPT: &str = include_str!("../hivemind_optimizer.py");
/// Samples of a step.
const TARGET: u32 = 256;
/// Samples of a batch: the mean of hivemind's 2 to 16.
const MICRO_BATCH: u32 = 9;
/// Peers, and how many of hivemind's cannot be dialled.
const PEERS: usize = 8;
const CLIENTS: usize = 3;
/// Steps before the clock starts.
const WARM_UP: u64 = 5;
/// Optimizer steps that are waited for together: that long no wait is a hang.
const EPOCHS_AT_ONCE: u64 = 50;

#[derive(Debug, Args)]
pub(crate) struct OptimizerArgs {
    /// Steps of ours for each measurement
    #[arg(long, default_value_t = 300)]
    epochs: u64,
    /// Steps of hivemind's for each measurement
    #[arg(long, default_value_t = 10)]
    their_epochs: u64,
    /// Measurements of each
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds that hivemind gives its peers to meet; its benchmark has 5
    #[arg(long, value_delimiter = ',', default_value = "5,1")]
    matchmaking: Vec<f64>,
    /// Folder with the four .gz files of Fashion-MNIST
    #[arg(long, default_value = "/usr/share/datasets/fashion-mnist")]
    data: PathBuf,
    /// Only ours
    #[arg(long)]
    alone: bool,
}

/// Prints the table.
pub(crate) async fn compare(args: &OptimizerArgs) -> Result<()> {
    let mut contenders = vec![OptimizerSetup::One, OptimizerSetup::Two];
    if !args.alone {
        contenders.extend(args.matchmaking.iter().map(|&seconds| OptimizerSetup::Hivemind { seconds }));
    }
    let mut rates = vec![Vec::new(); contenders.len()];
    for round in 0..args.rounds {
        for (contender, rates) in contenders.iter().zip(&mut rates) {
            let rate = contender.rate(args).await.with_context(|| contender.name())?;
            eprintln!("round {round}, {}: {rate:.3} steps/s", contender.name());
            rates.push(rate);
        }
    }
    let medians: Vec<f64> = rates.iter().map(|rates| Spread::of(rates).median).collect();
    let mut rows = vec![["", "steps/s", "two backbones, times that"].map(str::to_owned).to_vec()];
    for ((contender, rates), median) in contenders.iter().zip(&rates).zip(&medians) {
        rows.push(vec![contender.name(), Spread::of(rates).to_string(), ratio::short(medians[1] / median)]);
    }
    println!("MLP 784-64-10, steps of {TARGET} samples, {PEERS} peers\n\n{}", ratio::table(&rows));
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum OptimizerSetup {
    /// Of ours: a backbone, and peers that contribute to it.
    One,
    /// Of ours: backbones that average with each other, half of the peers at each.
    Two,
    Hivemind {
        seconds: f64,
    },
}

impl OptimizerSetup {
    fn name(self) -> String {
        match self {
            Self::One => "ours, one backbone".to_owned(),
            Self::Two => "ours, two backbones".to_owned(),
            Self::Hivemind { seconds } => format!("hivemind, matchmaking of {seconds} s"),
        }
    }

    /// Optimizer steps a second.
    async fn rate(self, args: &OptimizerArgs) -> Result<f64> {
        match self {
            Self::One => one(args.epochs).await,
            Self::Two => two(args.epochs).await,
            Self::Hivemind { seconds } => theirs(&args.data, args.their_epochs, seconds),
        }
    }
}

fn sections() -> String {
    format!(
        r#"
[model]
kind = {{ mlp = {{ hidden = [64] }} }}

[scheme.synchronous]
target_batch_size = {TARGET}
micro_batch_size = {MICRO_BATCH}
gradient_codec = "f32"
optimizer = {{ kind = "sgd-momentum", momentum = 0.0 }}
schedule = {{ peak = 0.1 }}

[network]
upnp = false

[evaluation]
every_epochs = 100000
"#
    )
}

async fn one(epochs: u64) -> Result<f64> {
    let mut test_run = TestRun::new(&sections())?;
    let backbone = test_run.backbone().await?;
    let peers = join(&mut test_run, &backbone, PEERS)?;
    let rate = steps_of(&backbone, epochs).await?;
    leave(peers).await?;
    Ok(rate)
}

async fn two(epochs: u64) -> Result<f64> {
    let (mut here, mut there) = (TestRun::new(&sections())?, TestRun::new(&sections())?);
    let id = there.command(&["id"]).await?;
    here.aggregate_with(&[format!("/p2p/{}", id.trim())])?;
    let one = here.backbone().await?;
    there.aggregate_with(&[one.tcp()?.to_string()])?;
    let other = there.backbone().await?;
    let peers = [join(&mut here, &one, PEERS / 2)?, join(&mut there, &other, PEERS / 2)?];
    let rate = steps_of(&one, epochs).await?;
    for peers in peers {
        leave(peers).await?;
    }
    Ok(rate)
}

fn join(test_run: &mut TestRun, backbone: &BackboneProcess, n: usize) -> Result<Vec<PeerProcess>> {
    (0..n).map(|_| test_run.join(&[&backbone.page()])).collect()
}

async fn leave(peers: Vec<PeerProcess>) -> Result<()> {
    for peer in peers {
        peer.interrupt()?;
        peer.end().await?;
    }
    Ok(())
}

async fn steps_of(backbone: &BackboneProcess, epochs: u64) -> Result<f64> {
    let first = backbone.wait_for_epoch(WARM_UP).await?.epoch;
    let began = Instant::now();
    let mut last = first;
    while last < first + epochs {
        last = backbone.wait_for_epoch((last + EPOCHS_AT_ONCE).min(first + epochs)).await?.epoch;
    }
    Ok((last - first) as f64 / began.elapsed().as_secs_f64())
}

#[derive(Deserialize)]
struct StartReply {
    began: u64,
}

#[derive(Deserialize)]
struct TimingReply {
    seconds: f64,
    epochs: u64,
}

fn theirs(data: &Path, epochs: u64, matchmaking: f64) -> Result<f64> {
    let mut command = Command::new(python::environment(&python::HIVEMIND)?);
    command.args(["-c", SCRIPT, "--data"]).arg(data);
    command.args(["--peers", &PEERS.to_string(), "--clients", &CLIENTS.to_string()]);
    command.args(["--target", &TARGET.to_string(), "--epochs", &epochs.to_string()]);
    command.args(["--matchmaking", &matchmaking.to_string(), "--refresh", &matchmaking.to_string()]);
    let mut python = JsonProcess::start(&mut command)?;
    let StartReply { began } = python.answer()?;
    ensure!(began > 0, "hivemind made no step");
    let TimingReply { seconds, epochs } = python.answer()?;
    Ok(epochs as f64 / seconds)
}
