//! Fuzz targets of the wire decoders: their own workspace, because cargo-fuzz wants it so.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process;
use crate::setup;
use crate::workspace::Workspace;

/// Runs each target for `seconds` on a nightly toolchain, which the sanitizers need.
pub(crate) fn run(workspace: &Workspace, seconds: u64) -> Result<()> {
    if process::find("rustup").is_none() {
        bail!("fuzzing needs rustup with a nightly toolchain: `rustup toolchain install nightly`");
    }
    setup::cargo_program("cargo-fuzz")?;
    for target in targets(workspace)? {
        println!("fuzz: {target} for {seconds} s");
        let mut command = nightly_cargo();
        command.current_dir(folder(workspace)).env("CARGO_TARGET_DIR", workspace.target.join("fuzz"));
        command.args(["fuzz", "run", "--fuzz-dir", "."]).arg(&target);
        process::run(command.arg("--").arg(format!("-max_total_time={seconds}")))?;
    }
    Ok(())
}

/// Compiles the targets with the toolchain in use, so that a change of a message cannot break them
/// unseen.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    if !folder(workspace).join("Cargo.toml").is_file() {
        bail!("the fuzz targets are gone: {} has no Cargo.toml", folder(workspace).display());
    }
    println!("test: fuzz targets compile");
    let mut command = process::cargo();
    command.current_dir(folder(workspace)).env("CARGO_TARGET_DIR", workspace.target.join("fuzz"));
    // The runtime of the fuzzer is C++; a check links nothing, so it is not compiled for one.
    command.env("CUSTOM_LIBFUZZER_PATH", "/nowhere/libfuzzer.a");
    process::run(command.args(["check", "--quiet"]))
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root.join("shared/protocol/fuzz")
}

fn nightly_cargo() -> Command {
    let mut command = Command::new("cargo");
    process::forget_this_package(&mut command);
    command.env_remove("RUSTUP_TOOLCHAIN").arg("+nightly").stdin(Stdio::null());
    command
}

fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let mut command = process::cargo();
    command.current_dir(folder(workspace)).args(["metadata", "--format-version", "1", "--no-deps"]);
    let metadata = serde_json::from_str(&process::output(&mut command)?)?;
    binaries(&metadata).context("the fuzz workspace has no targets")
}

/// Names of all binaries in the output of `cargo metadata`.
fn binaries(metadata: &Value) -> Option<Vec<String>> {
    let packages = metadata.get("packages")?.as_array()?;
    let targets = packages.iter().filter_map(|package| package.get("targets")?.as_array()).flatten();
    let binaries = targets.filter(|target| target["kind"][0] == "bin");
    let names: Vec<String> =
        binaries.filter_map(|target| Some(target["name"].as_str()?.to_owned())).collect();
    (!names.is_empty()).then_some(names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn targets_are_the_binaries() {
        let target = |kind: &str, name: &str| json!({ "kind": [kind], "name": name });
        let packages =
            json!([{ "targets": [target("bin", "frames"), target("lib", "x"), target("bin", "codec")] }]);
        assert_eq!(binaries(&json!({ "packages": packages })).unwrap(), ["frames", "codec"]);
        assert_eq!(binaries(&json!({ "packages": [] })), None);
    }
}
