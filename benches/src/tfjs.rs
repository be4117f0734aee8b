//! TF.js as npm has it, in the target folder.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use barnraise_tests::artifacts;

/// The version that figures are compared with.
const VERSION: &str = "4.22.0";
const PACKAGES: [&str; 3] =
    ["@tensorflow/tfjs", "@tensorflow/tfjs-backend-wasm", "@tensorflow/tfjs-backend-webgpu"];

/// Fetches the packages unless they are there; returns their `node_modules`.
pub(crate) fn fetch() -> Result<PathBuf> {
    let folder = artifacts::target_dir()?.join("bench").join(format!("tfjs-{VERSION}"));
    let modules = folder.join("node_modules");
    if PACKAGES.iter().all(|package| modules.join(package).join("dist").is_dir()) {
        return Ok(modules);
    }
    println!("fetching TF.js {VERSION} with npm");
    std::fs::create_dir_all(&folder)?;
    let mut command = Command::new("npm");
    // Without the scripts of packages: none is needed, and none is trusted.
    command.args(["install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]);
    command.arg(&folder).args(PACKAGES.map(|package| format!("{package}@{VERSION}")));
    let status = command.status().context("npm cannot be started: install Node.js with npm")?;
    ensure!(status.success(), "npm could not install TF.js");
    Ok(modules)
}
