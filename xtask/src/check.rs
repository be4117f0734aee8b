//! The quick one: format, lints, unit tests.

use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::test_run;
use crate::toolchain::WasmToolchain;
use crate::wasm;
use crate::workspace::{BROWSER_MODULES, Workspace};

/// Formats nothing, changes nothing: fails where something is not as it should be.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    format(workspace)?;
    println!("check: lints");
    let mut command = workspace.cargo();
    command.arg("build").args(Workspace::native_selection()).arg("--all-targets");
    process::run(with_lints(&mut command))?;
    println!("check: unit tests");
    let mut command = test_run::cargo_test(workspace);
    command.args(["--lib", "--bins"]);
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

/// The modules as the browser gets them, linted, after they were built: what they depend on is there.
pub(crate) fn lint_browser_modules(workspace: &Workspace, toolchain: WasmToolchain) -> Result<()> {
    println!("check: lints of the browser modules");
    process::run(with_lints(&mut wasm::cargo_build(workspace, toolchain, &BROWSER_MODULES)?))
}
