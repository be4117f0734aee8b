//! `core`: how soon the core of a backbone answers while a large model steps.
//!
//! Native knows how a core is assembled, and shows it to nobody: the measurement is a test there that is ignored.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

const TEST: &str = "scheme::synchronous::core::crash::latency::answers_while_a_large_model_steps";

#[derive(Debug, Args)]
pub(crate) struct CoreArgs {
    /// Parameters of the model
    #[arg(long, default_value_t = 10_000_000)]
    parameters: u64,
    /// Steps while it is asked
    #[arg(long, default_value_t = 20)]
    steps: u64,
    /// The development profile, which optimizes what native depends on, and native not
    #[arg(long)]
    dev: bool,
}

/// Runs the measurement, which prints the table.
pub(crate) fn measure(args: &CoreArgs) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--quiet", "--package", "barnraise-native", "--lib"]);
    if !args.dev {
        command.arg("--release");
    }
    command.args(["--", "--exact", TEST, "--ignored", "--nocapture"]);
    command.env("CORE_PARAMETERS", args.parameters.to_string()).env("CORE_STEPS", args.steps.to_string());
    let status = command.status().context("cargo cannot be started")?;
    ensure!(status.success(), "the measurement failed: {status}");
    Ok(())
}
