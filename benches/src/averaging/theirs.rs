//! hivemind's averagers.

use std::process::Command;

use anyhow::{Result, ensure};
use serde::Deserialize;

use super::{Answering, Round, Swarm, Task};
use crate::hivemind;

const SCRIPT: &str = include_str!("../../hivemind_averaging.py");

/// A swarm of hivemind's.
pub(super) struct Peers {
    python: Answering,
}

#[derive(Deserialize)]
struct Ready {
    ready: bool,
}

impl Peers {
    pub(super) fn start(task: Task) -> Result<Self> {
        let mut command = Command::new(hivemind::install()?);
        command.args(["-c", SCRIPT, "--peers", &task.n_peers.to_string()]);
        command.args(["--values", &task.n_values.to_string(), "--codec", task.codec.name()]);
        let mut python = Answering::start(&mut command)?;
        ensure!(python.answer::<Ready>()?.ready, "hivemind is not ready");
        Ok(Self { python })
    }
}

impl Swarm for Peers {
    fn round(&mut self) -> Result<Round> {
        self.python.tell("round")?;
        self.python.answer()
    }

    fn processes(&self) -> Vec<u32> {
        vec![self.python.child.id()]
    }
}
