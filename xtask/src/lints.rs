//! Format and lints.

use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::workspace::Workspace;

/// Everything is formatted.
pub(crate) fn format(workspace: &Workspace) -> Result<()> {
    println!("check: format");
    process::run(workspace.cargo().args(["fmt", "--all", "--check"]))
}

/// Clippy compiles the members, with warnings as errors: one build lints and makes what is run, where
/// `cargo clippy` would have all dependencies checked beside their being built. The variables are those
/// that it sets itself.
pub(crate) fn with_lints(command: &mut Command) -> &mut Command {
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").env("CLIPPY_ARGS", "-Dwarnings")
}
