//! Packages as PyPI has them, in a virtual environment in the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::paths;

/// hivemind, and what it is measured with.
pub(crate) const HIVEMIND: [(&str, &str); 2] = [("hivemind", "1.1.12"), ("numpy", "2.3.5")];
/// PyTorch, and models in it.
pub(crate) const TORCH: [(&str, &str); 3] =
    [("torch", "2.15.0"), ("transformers", "5.24.0"), ("numpy", "2.4.6")];

/// Makes an environment with packages of these versions, unless it is there; returns its Python.
pub(crate) fn environment(packages: &[(&str, &str)]) -> Result<PathBuf> {
    let (name, version) = packages.first().context("an environment of nothing")?;
    let folder = paths::target_dir()?.join("bench").join(format!("{name}-{version}"));
    let python = folder.join("bin").join("python");
    if is_installed(&python, packages) {
        return Ok(python);
    }
    let wanted: Vec<String> = packages.iter().map(|(name, version)| format!("{name}=={version}")).collect();
    println!("installing {} with pip", wanted.join(" and "));
    let made = Command::new("python3").args(["-m", "venv"]).arg(&folder).status();
    ensure!(made.context("python3 cannot be started: install Python with venv")?.success(), "no environment");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(&wanted);
    ensure!(pip.status()?.success(), "pip could not install {name}");
    Ok(python)
}

fn is_installed(python: &Path, packages: &[(&str, &str)]) -> bool {
    let script = "import importlib.metadata, sys; print(*map(importlib.metadata.version, sys.argv[1:]))";
    let names = packages.iter().map(|(name, _)| *name);
    let output = Command::new(python).args(["-c", script]).args(names).output();
    let versions: Vec<&str> = packages.iter().map(|(_, version)| *version).collect();
    output.is_ok_and(|output| output.stdout.trim_ascii() == versions.join(" ").as_bytes())
}
