//! DeDLOC: its experiments, with the plans and the averaging of this project.
//!
//! In virtual time rates are nominal and transfers are fluids, so what is compared with the paper are ratios.

mod albert;
mod fleet;
mod groups;
mod planned;
mod round;
mod shaped;
mod stepwise;
mod swav;
mod table1;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use tokio::runtime::Runtime;

#[derive(Debug, Clone, Args)]
pub(crate) struct DedlocArgs {
    /// Which of the paper's experiments
    #[command(subcommand)]
    experiment: Experiment,
    /// Where its picture goes
    #[arg(long, global = true, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/papers/dedloc"))]
    pictures: PathBuf,
}

#[derive(Debug, Clone, Subcommand)]
enum Experiment {
    /// Seconds of one averaging by all-reduce, by a parameter server and by our plan, in virtual time
    Table1,
    /// The same by our own code, over links that the kernel shapes
    Table1Shaped(shaped::ShapedArgs),
    /// SwAV on servers, workstations and both
    Figure3,
    /// ALBERT-large on equal and unequal fleets, with helpers and part-time peers
    Figure4,
    /// Seconds of a step with 4 to 128 peers
    Figure5,
    /// The best size of groups by failure rate
    Figure8,
    /// Loss by optimizer step, of a collaboration and of one machine
    Figure10(stepwise::StepwiseArgs),
}

/// Prints an experiment as a table in Markdown, and draws its picture.
pub(crate) fn run(args: &DedlocArgs, runtime: &Runtime) -> Result<()> {
    let folder = &args.pictures;
    match &args.experiment {
        Experiment::Table1 => table1::run(folder),
        Experiment::Table1Shaped(args) => shaped::run(args, folder),
        Experiment::Figure3 => swav::run(folder),
        Experiment::Figure4 => albert::fleets(folder),
        Experiment::Figure5 => albert::scaling(folder),
        Experiment::Figure8 => groups::run(folder),
        Experiment::Figure10(args) => runtime.block_on(stepwise::run(args, folder)),
    }
}
