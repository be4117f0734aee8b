//! `cargo xtask bench <name>`: the figures of RESULTS.md, each from one command.
//!
//! Machines differ, so what is compared is measured in turn within one run and printed as ratios.
//! Nothing here is a test, but for `kills`: no figure makes a command fail.

mod answers;
mod averaging;
mod codecs;
mod compression;
mod contender;
mod dht;
mod kills;
mod lab;
mod load;
mod local_steps;
mod memory;
mod native;
mod native_steps;
mod optimizer;
mod order;
mod page;
#[path = "../papers/mod.rs"]
mod papers;
mod paths;
mod presets;
mod python;
mod ratio;
mod shards;
mod size;
mod step_task;
mod strangers;
mod swav;
mod tab;
mod tfjs;
mod torch;
mod transports;
mod visit;
mod ways;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::visit::VisitArgs;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", about = "The figures of RESULTS.md, each from one command")]
struct BenchCli {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// A training step natively, beside PyTorch and beside one thread
    Native(NativeArgs),
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
    /// What each preset learns in ten minutes, beside baselines
    Presets(presets::PresetArgs),
    /// What a model learns from pictures without their labels
    Swav(swav::SwavArgs),
    /// Batches stored in and found in the DHT, beside hivemind
    Dht(dht::DhtArgs),
    /// How long a trainer takes to find the experts of a batch, in virtual time, beside the paper's figures
    ExpertSearch(dht::experts::ExpertSearchArgs),
    /// A vector averaged by a group of peers, beside hivemind
    Averaging(averaging::AveragingArgs),
    /// Optimizer steps a second of small peers, beside hivemind
    Optimizer(optimizer::OptimizerArgs),
    /// Bytes a second on each transport between two nodes, as a share of plain TCP
    Transports(transports::TransportArgs),
    /// Bytes a second down to and up from a Chromium tab on each of its transports, as a share of a bare WebTransport stream
    Ways(ways::TabTransportArgs),
    /// What two thousand sessions of tabs cost a relay
    Load(load::LoadArgs),
    /// Ten minutes of sessions that come, move something and leave: does a relay's memory grow?
    Soak(load::SoakArgs),
    /// A backbone that is killed a thousand times: is anything lost that it acknowledged, or counted twice?
    Kills(kills::KillArgs),
    /// Bytes that a parameter costs a backbone and who contributes
    Memory(memory::MemoryArgs),
    /// How soon a backbone's core answers while a large model steps
    Core(answers::CoreArgs),
    /// What a backbone gives away of the data where peers pass shards on, and where they do not
    Shards(shards::ShardArgs),
    /// What one machine with many keys costs an open run as it is shipped, by attack
    Strangers(strangers::StrangerArgs),
    /// The experiments of DeDLOC: its tables and figures
    Dedloc(papers::dedloc::DedlocArgs),
    /// The experiments of Learning@home
    LearningAtHome(papers::learning_at_home::LearningAtHomeArgs),
    /// The experiments of MoDEST
    Modest(papers::modest::ModestArgs),
    /// One peer of `averaging`, in a process of its own
    #[command(hide = true)]
    AveragingPeer(averaging::PeerArgs),
    /// One measurement of `native`, in a process of its own
    #[command(hide = true)]
    NativeSteps(native_steps::StepsArgs),
}

#[derive(Debug, Args)]
struct NativeArgs {
    /// Measurements of each contender
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only these models: lenet, mlp-256, resnet-18, albert, gpt-0.4, gpt-0.8, gpt-2.7, gpt-6.4
    #[arg(long, value_delimiter = ',', default_value = "lenet,mlp-256,resnet-18,albert,gpt-0.8,gpt-6.4")]
    models: Vec<String>,
}

#[derive(Debug, Args)]
struct TabArgs {
    /// Measurements of each contender
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only these comparisons: cpu, webgpu
    #[arg(long, value_delimiter = ',', default_value = "cpu,webgpu")]
    only: Vec<tab::Device>,
    /// Only these models: lenet, mlp-256, resnet-18, albert, gpt-0.4, gpt-0.8, gpt-2.7, gpt-6.4
    #[arg(long, value_delimiter = ',', default_value = "mlp-256,lenet,gpt-0.4,gpt-2.7")]
    models: Vec<String>,
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    match BenchCli::parse().command {
        BenchCommand::Native(args) => runtime.block_on(native::compare(args.rounds, &args.models)),
        BenchCommand::Tab(args) => runtime.block_on(tab::compare(&args)),
        BenchCommand::Click(args) => runtime.block_on(visit::click(&args)),
        BenchCommand::Page(args) => runtime.block_on(page::measure(&args)),
        BenchCommand::Bytes(args) => runtime.block_on(visit::bytes(&args)),
        BenchCommand::Size => size::print(),
        BenchCommand::Longtasks(args) => runtime.block_on(visit::long_tasks(&args)),
        BenchCommand::Codecs(args) => codecs::compare(&args),
        BenchCommand::Compression(args) => runtime.block_on(compression::compare(&args)),
        BenchCommand::LocalSteps(args) => runtime.block_on(local_steps::compare(&args)),
        BenchCommand::Presets(args) => runtime.block_on(presets::measure(&args)),
        BenchCommand::Swav(args) => runtime.block_on(swav::learn(&args)),
        BenchCommand::Dht(args) => dht::compare(&args, &runtime),
        BenchCommand::ExpertSearch(args) => dht::experts::measure(&args),
        BenchCommand::Averaging(args) => averaging::compare(&args),
        BenchCommand::AveragingPeer(args) => averaging::peer(&args, &runtime),
        BenchCommand::Optimizer(args) => runtime.block_on(optimizer::compare(&args)),
        BenchCommand::Transports(args) => runtime.block_on(transports::compare(&args)),
        BenchCommand::Ways(args) => runtime.block_on(ways::compare(&args)),
        BenchCommand::Load(args) => runtime.block_on(load::load(&args)),
        BenchCommand::Soak(args) => runtime.block_on(load::soak(&args)),
        BenchCommand::Kills(args) => runtime.block_on(kills::kill(&args)),
        BenchCommand::Memory(args) => runtime.block_on(memory::measure(&args)),
        BenchCommand::Core(args) => answers::measure(&args),
        BenchCommand::Shards(args) => runtime.block_on(shards::compare(&args)),
        BenchCommand::Strangers(args) => runtime.block_on(strangers::compare(&args)),
        BenchCommand::Dedloc(args) => papers::dedloc::run(&args, &runtime),
        BenchCommand::LearningAtHome(args) => papers::learning_at_home::run(&args, &runtime),
        BenchCommand::Modest(args) => papers::modest::run(&args, &runtime),
        BenchCommand::NativeSteps(args) => native_steps::steps(&args),
    }
}
