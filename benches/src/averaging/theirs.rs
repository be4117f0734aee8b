//! hivemind's averagers.

use std::process::Command;

use anyhow::{Result, ensure};
use serde::Deserialize;

use super::{AveragingTask, JsonProcess, RoundResult, Swarm};
use crate::python;

const SCRIPT: &str = include_str!("../../hivemind_averaging.py");

/// A swarm of hivemind's.
pub(super) struct HivemindPeers {
    python: JsonProcess,
}

#[derive(Deserialize)]
struct Ready {
    ready: bool,
}

impl HivemindPeers {
    pub(super) fn start(task: AveragingTask) -> Result<Self> {
        let mut command = Command::new(python::environment(&python::HIVEMIND)?);
        command.args(["-c", SCRIPT, "--peers", &task.n_peers.to_string()]);
        command.args(["--values", &task.n_values.to_string(), "--codec", task.codec.name()]);
        let mut python = JsonProcess::start(&mut command)?;
        ensure!(python.answer::<Ready>()?.ready, "hivemind is not ready");
        Ok(Self { python })
    }
}

impl Swarm for HivemindPeers {
    fn round(&mut self) -> Result<RoundResult> {
        self.python.tell("round")?;
        self.python.answer()
    }

    fn processes(&self) -> Vec<u32> {
        vec![self.python.child.id()]
    }
}
