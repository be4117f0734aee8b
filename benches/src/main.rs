//! `cargo xtask bench <name>`: the figures of RESULTS.md, each from one command.
//!
//! Machines differ, so what is compared is measured in turn within one run and printed as ratios.
//! Nothing here is a test, but for `kills`: no figure makes a command fail.

mod averaging;
mod codecs;
mod compression;
mod contender;
mod dht;
mod hivemind;
mod kills;
mod lab;
mod load;
mod local_steps;
mod native;
mod optimizer;
mod order;
mod page;
#[path = "../papers/mod.rs"]
mod papers;
mod paths;
mod ratio;
mod shards;
mod size;
mod strangers;
mod swav;
mod tab;
mod tfjs;
mod transports;
mod visit;
mod ways;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::visit::VisitArgs;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", about = "The figures of RESULTS.md, each from one command")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A training step natively, with one and with two threads
    Native(SpeedArgs),
    /// A training step in Chromium, on the CPU and on WebGPU, beside TF.js
    Tab(TabArgs),
    /// From the click to the first accepted update, with a cold and a warm cache
    Click(VisitArgs),
    /// How soon the page is there on a phone's processor and network
    Page(page::PageArgs),
    /// Bytes up and down for each sample, by codec
    Bytes(VisitArgs),
    /// What a visitor downloads before training, compressed
    Size,
    /// Tasks over 50 ms on the main thread during a minute of training
    Longtasks(VisitArgs),
    /// Gradients encoded and decoded, beside a copy of them
    Codecs(codecs::CodecArgs),
    /// What a run learns and what it sends, by codec
    Compression(compression::CompressionArgs),
    /// What contributors on local steps learn and send, by seed
    LocalSteps(local_steps::LocalStepsArgs),
    /// What a model learns from pictures without their labels
    Swav(swav::SwavArgs),
    /// Batches stored in and found in the DHT, beside hivemind
    Dht(dht::DhtArgs),
    /// A vector averaged by a group of peers, beside hivemind
    Averaging(averaging::AveragingArgs),
    /// Optimizer steps a second of small peers, beside hivemind
    Optimizer(optimizer::OptimizerArgs),
    /// Bytes a second by each way between two nodes, as a share of plain TCP
    Transports(transports::TransportArgs),
    /// Bytes a second down to and up from a Chromium tab by each of its ways, as a share of a bare stream of WebTransport
    Ways(ways::WayArgs),
    /// What two thousand sessions of tabs cost a relay
    Load(load::LoadArgs),
    /// Ten minutes of sessions that come, move something and leave: does a relay's memory grow?
    Soak(load::SoakArgs),
    /// A backbone that is killed a thousand times: is anything lost that it acknowledged, or counted twice?
    Kills(kills::KillArgs),
    /// What a backbone gives away of the data where peers pass shards on, and where they do not
    Shards(shards::ShardArgs),
    /// What one machine with many keys costs an open run as it is shipped, by attack
    Strangers(strangers::StrangerArgs),
    /// The experiments of DeDLOC: its tables and figures
    Dedloc(papers::dedloc::DedlocArgs),
    /// One peer of `averaging`, in a process of its own
    #[command(hide = true)]
    AveragingPeer(averaging::PeerArgs),
    /// One measurement of `native`, in a process of its own
    #[command(hide = true)]
    NativeSteps(native::StepsArgs),
}

#[derive(Debug, Args)]
struct SpeedArgs {
    /// Measurements of each contender
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Samples in a batch
    #[arg(long, default_value_t = 64)]
    batch: usize,
}

#[derive(Debug, Args)]
struct TabArgs {
    #[command(flatten)]
    speed: SpeedArgs,
    /// Only these comparisons: cpu, webgpu
    #[arg(long, value_delimiter = ',', default_value = "cpu,webgpu")]
    only: Vec<tab::Device>,
    /// Only these models: lenet, mlp-256
    #[arg(long, value_delimiter = ',', default_value = "mlp-256,lenet")]
    models: Vec<String>,
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    match Cli::parse().command {
        Command::Native(args) => runtime.block_on(native::compare(args.rounds, args.batch)),
        Command::Tab(args) => runtime.block_on(tab::compare(&args)),
        Command::Click(args) => runtime.block_on(visit::click(&args)),
        Command::Page(args) => runtime.block_on(page::measure(&args)),
        Command::Bytes(args) => runtime.block_on(visit::bytes(&args)),
        Command::Size => size::print(),
        Command::Longtasks(args) => runtime.block_on(visit::long_tasks(&args)),
        Command::Codecs(args) => codecs::compare(&args),
        Command::Compression(args) => runtime.block_on(compression::compare(&args)),
        Command::LocalSteps(args) => runtime.block_on(local_steps::compare(&args)),
        Command::Swav(args) => runtime.block_on(swav::learn(&args)),
        Command::Dht(args) => dht::compare(&args, &runtime),
        Command::Averaging(args) => averaging::compare(&args),
        Command::AveragingPeer(args) => averaging::peer(&args, &runtime),
        Command::Optimizer(args) => runtime.block_on(optimizer::compare(&args)),
        Command::Transports(args) => runtime.block_on(transports::compare(&args)),
        Command::Ways(args) => runtime.block_on(ways::compare(&args)),
        Command::Load(args) => runtime.block_on(load::load(&args)),
        Command::Soak(args) => runtime.block_on(load::soak(&args)),
        Command::Kills(args) => runtime.block_on(kills::kill(&args)),
        Command::Shards(args) => runtime.block_on(shards::compare(&args)),
        Command::Strangers(args) => runtime.block_on(strangers::compare(&args)),
        Command::Dedloc(args) => papers::dedloc::run(&args, &runtime),
        Command::NativeSteps(args) => native::steps(&args),
    }
}
