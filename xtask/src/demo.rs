//! One command to a page that trains.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::build::{self, NativeProfile};
use crate::compress::Effort;
use crate::setup;
use crate::workspace::Workspace;

/// Builds everything and becomes the backbone: signals reach it directly.
pub(crate) fn run(workspace: &Workspace, port: u16) -> Result<()> {
    let toolchain = setup::for_build()?;
    // For this machine: nothing is gained by the last tenth of a size.
    build::web(workspace, toolchain, Effort::Quick)?;
    let binary = build::native(workspace, NativeProfile::Release)?;
    let mut command = Command::new(&binary);
    command.args(["serve", "--dev", "--http"]).arg(format!("127.0.0.1:{port}"));
    command.arg("--web-root").arg(workspace.web_root());
    Err(command.exec()).with_context(|| format!("cannot start {}", binary.display()))
}
