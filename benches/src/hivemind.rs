//! hivemind as PyPI has it, in a virtual environment in the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::paths;

/// The versions that figures are compared with.
const PACKAGES: [&str; 2] = ["hivemind==1.1.12", "numpy==2.3.5"];

/// Makes the environment unless it is there; returns its Python.
pub(crate) fn install() -> Result<PathBuf> {
    let folder = paths::target_dir()?.join("bench").join("hivemind-1.1.12");
    let python = folder.join("bin").join("python");
    if is_installed(&python) {
        return Ok(python);
    }
    println!("installing {} with pip", PACKAGES.join(" and "));
    let made = Command::new("python3").args(["-m", "venv"]).arg(&folder).status();
    ensure!(made.context("python3 cannot be started: install Python with venv")?.success(), "no environment");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(PACKAGES);
    ensure!(pip.status()?.success(), "pip could not install hivemind");
    Ok(python)
}

fn is_installed(python: &Path) -> bool {
    let version = "import importlib.metadata as m; print(m.version('hivemind'), m.version('numpy'))";
    let output = Command::new(python).args(["-c", version]).output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"1.1.12 2.3.5")
}
