//! The quick one: format, lints, unit tests.

use anyhow::Result;

use crate::process;
use crate::test_run::{self, Totals};
use crate::toolchain::WasmToolchain;
use crate::wasm;
use crate::workspace::{PEER_MODULE, Workspace};

/// Formats nothing, changes nothing: fails where something is not as it should be.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    lint(workspace)?;
    let mut totals = Totals::default();
    println!("check: unit tests");
    test_run::cargo_test(workspace, &["--lib", "--bins"], &[], &mut totals)?;
    totals.finish()
}

/// Format and clippy with warnings as errors.
pub(crate) fn lint(workspace: &Workspace) -> Result<()> {
    println!("check: format");
    process::run(workspace.cargo().args(["fmt", "--all", "--check"]))?;
    println!("check: clippy");
    let mut command = workspace.cargo();
    command.arg("clippy").args(Workspace::native_selection());
    process::run(command.args(["--all-targets", "--quiet", "--", "-D", "warnings"]))
}

/// The module that does not compile natively is linted for the browser: after it was built, because
/// that takes a check of all that it depends on, and not in the quick run.
pub(crate) fn lint_peer(workspace: &Workspace, toolchain: WasmToolchain) -> Result<()> {
    println!("check: clippy of {PEER_MODULE}");
    let mut command = toolchain.cargo(workspace, "clippy")?;
    command.args(["--profile", wasm::PROFILE, "-p", PEER_MODULE, "--quiet", "--", "-D", "warnings"]);
    process::run(&mut command)
}
