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
    with_clippy(command, "-Dwarnings")
}

/// The same for native tests. The units of a member are not optimized together: it takes a third of the time that the members at
/// `opt-level` 1 and 2 take, and their tests compute a tenth longer.
pub(crate) fn with_lints_for_tests(command: &mut Command) -> &mut Command {
    with_clippy(command, "-Dwarnings__CLIPPY_HACKERY__-Clto=off")
}

/// `arguments` are for the compiler, too.
fn with_clippy<'c>(command: &'c mut Command, arguments: &str) -> &'c mut Command {
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").env("CLIPPY_ARGS", arguments)
}
