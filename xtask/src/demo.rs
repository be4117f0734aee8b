//! One command to a page that trains.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::build::{self, NativeProfile};
use crate::setup;
use crate::workspace::Workspace;

/// Builds everything and becomes the backbone: signals reach it directly.
///
/// The quick profile is enough for a run on one machine, and comes half an hour earlier the first time.
pub(crate) fn run(workspace: &Workspace, port: u16, profile: NativeProfile) -> Result<()> {
    let binary = build::web_and_native(workspace, setup::for_build()?, profile)?;
    let mut command = Command::new(&binary);
    command.args(["serve", "--dev", "--http"]).arg(format!("127.0.0.1:{port}"));
    command.arg("--web-root").arg(workspace.web_root());
    Err(command.exec()).with_context(|| format!("cannot start {}", binary.display()))
}
