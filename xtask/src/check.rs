//! The quick one: format, lints, unit tests.

use anyhow::Result;

use crate::lints;
use crate::process;
use crate::test_run;
use crate::workspace::Workspace;

/// Formats nothing, changes nothing: fails where something is not as it should be.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    lints::format(workspace)?;
    println!("check: lints");
    let mut command = workspace.cargo();
    command.arg("build").args(Workspace::native_selection()).arg("--all-targets");
    process::run(lints::with_lints_for_tests(&mut command))?;
    println!("check: unit tests");
    let mut command = test_run::cargo_test(workspace);
    command.args(Workspace::native_selection()).args(["--lib", "--bins"]);
    test_run::quick(workspace, command)
}
