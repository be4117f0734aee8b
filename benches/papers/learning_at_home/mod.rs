//! Learning@home: its experiments, with the search, the calls and the runtime of this project.

mod convergence;
mod larger;
mod serving;
mod throughput;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use tokio::runtime::Runtime;

#[derive(Debug, Clone, Args)]
pub(crate) struct LearningAtHomeArgs {
    /// Which of the paper's experiments
    #[command(subcommand)]
    experiment: Experiment,
    /// Where its picture goes
    #[arg(long, global = true, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/papers/learning_at_home"))]
    pictures: PathBuf,
}

#[derive(Debug, Clone, Subcommand)]
enum Experiment {
    /// Throughput of blocks by the mean delay of an answer, in virtual time
    Figure4Top(throughput::ThroughputArgs),
    /// How well such blocks learn when answers are late or never come, in virtual time
    Figure4Bottom(convergence::ConvergenceArgs),
    /// What it costs that three of ten hosts are killed in each ten minutes, in virtual time
    Killed(convergence::ConvergenceArgs),
    /// Throughput between three regions
    Table2(throughput::ThroughputArgs),
    /// A model of a billion parameters over processes that hold a part each
    Larger(larger::LargerArgs),
    /// Experts on another process that are called, beside hivemind's server and PyTorch alone
    Serving(serving::ServingArgs),
    /// What a batch sends through a block, by precision
    AppendixD,
}

/// Prints an experiment as a table in Markdown, and draws its picture.
pub(crate) fn run(args: &LearningAtHomeArgs, runtime: &Runtime) -> Result<()> {
    match &args.experiment {
        Experiment::Figure4Top(options) => throughput::figure4_top(options, &args.pictures),
        Experiment::Figure4Bottom(options) => convergence::figure4_bottom(options, &args.pictures),
        Experiment::Killed(options) => convergence::killed(options),
        Experiment::Table2(options) => throughput::table2(options),
        Experiment::Larger(options) => runtime.block_on(larger::measure(options)),
        Experiment::Serving(options) => runtime.block_on(serving::measure(options)),
        Experiment::AppendixD => throughput::appendix_d(),
    }
}
