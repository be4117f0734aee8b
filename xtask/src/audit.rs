//! Checks all dependencies against databases of advisories. Both programs fetch their database from the network, so this is no
//! part of the tests: what somebody publishes tomorrow must not break the build of today.

use anyhow::{Result, bail};

use crate::process;
use crate::setup;
use crate::workspace::Workspace;

/// Both, each to its end: what one of them finds does not hide what the other does.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut failed = Vec::new();
    for (program, args) in [("cargo-deny", &["deny", "check"][..]), ("cargo-audit", &["audit"])] {
        setup::cargo_program(program)?;
        println!("audit: cargo {}", args.join(" "));
        if let Err(error) = process::run(workspace.cargo().args(args)) {
            failed.push(error.to_string());
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    Ok(())
}
