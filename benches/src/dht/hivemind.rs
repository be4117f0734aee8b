//! The same of hivemind's DHT.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{DhtArgs, DhtMeasurement};
use crate::python;

const SCRIPT: &str = include_str!("../../hivemind_dht.py");

pub(super) fn measure(args: &DhtArgs, n_peers: usize) -> Result<DhtMeasurement> {
    let python = python::environment(&python::HIVEMIND)?;
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT]);
    for (name, value) in [
        ("--peers", n_peers),
        ("--initial-peers", args.initial_peers),
        ("--tasks", args.tasks),
        ("--rounds", args.rounds),
        ("--store-peers", args.store_peers),
        ("--get-peers", args.get_peers),
    ] {
        command.args([name, &value.to_string()]);
    }
    command.args(["--expiration", &args.expiration.to_string(), "--seed", &args.seed.to_string()]);
    command.args(["--failure-rate", &args.failure_rate.to_string()]);
    let output = command.output().context("the Python of the virtual environment cannot be started")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "hivemind's benchmark failed:\n{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let line =
        text.lines().rev().find(|line| line.starts_with('{')).context("no measurement in the output")?;
    Ok(serde_json::from_str(line)?)
}
