//! The quick one: format, lints, unit tests.

use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::test_run;
use crate::workspace::Workspace;

/// Formats nothing, changes nothing: fails where something is not as it should be.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    format(workspace)?;
    println!("check: lints");
    let mut command = workspace.cargo();
    command.arg("build").args(Workspace::native_selection()).arg("--all-targets");
    process::run(with_lints(&mut command))?;
    println!("check: unit tests");
    let mut command = test_run::cargo_test(workspace);
    command.args(Workspace::native_selection()).args(["--lib", "--bins"]);
    test_run::all(workspace, command, &[])?.finish(false)
}

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
