//! From the browser crates to the JavaScript and wasm that a page loads.
//!
//! Cargo builds both modules and wasm-bindgen writes their JavaScript, which is skipped while cargo's
//! output is the same. No wasm-opt: it makes the files smaller and what a visitor downloads larger,
//! because Brotli finds less to share in what it leaves (page, -O2: 394 KB instead of 425 KB, and
//! compressed 122 KB instead of 120 KB).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use wasm_bindgen_cli_support::Bindgen;

use crate::assets::hex;
use crate::lints;
use crate::process;
use crate::toolchain::{TARGET, WasmToolchain};
use crate::workspace::{BENCH_MODULE, BROWSER_MODULES, PEER_MODULE, Workspace};

/// How browser modules are compiled, for tests as for others: small where nothing computes.
const PROFILE: &str = "wasm/profile.toml";
/// Raise when the steps after cargo change in a way that the versions below do not show.
const PIPELINE_VERSION: u32 = 3;

/// Builds both modules, and has them linted where that is wanted; returns the folders with their JavaScript and wasm.
pub(crate) fn build(
    workspace: &Workspace,
    toolchain: WasmToolchain,
    with_lints: bool,
) -> Result<Vec<PathBuf>> {
    println!("build: the browser modules ({toolchain:?} toolchain; 10 minutes the first time, on two cores)");
    let mut command = cargo_build(workspace, toolchain, &BROWSER_MODULES)?;
    if with_lints {
        lints::with_lints(&mut command);
    }
    process::run(&mut command)?;
    BROWSER_MODULES.iter().map(|package| bind(workspace, toolchain, package)).collect()
}

/// Builds what the benchmarks run in a worker, together with the others, so that dependencies have
/// the same features and are built once; returns its folder.
pub(crate) fn build_bench(workspace: &Workspace, toolchain: WasmToolchain) -> Result<PathBuf> {
    let [page, peer] = BROWSER_MODULES;
    process::run(&mut cargo_build(workspace, toolchain, &[page, peer, BENCH_MODULE])?)?;
    bind(workspace, toolchain, BENCH_MODULE)
}

/// Compiles the module that trains with its tests inside, at the lowest priority; where it is. With it what the benchmarks
/// run, which no test loads.
pub(crate) fn build_tests(workspace: &Workspace, toolchain: WasmToolchain) -> Result<PathBuf> {
    let [page, peer] = BROWSER_MODULES;
    let mut command = cargo_build(workspace, toolchain, &[page, peer, BENCH_MODULE])?;
    command.args(["--features", &format!("{PEER_MODULE}/tests")]);
    process::run(&mut process::at_lowest_priority(lints::with_lints(&mut command)))?;
    Ok(compiled(workspace, toolchain, PEER_MODULE))
}

/// The command that compiles some of the modules.
fn cargo_build(workspace: &Workspace, toolchain: WasmToolchain, packages: &[&str]) -> Result<Command> {
    let mut command = toolchain.cargo(workspace, "build")?;
    command.args(["--config", PROFILE]);
    for package in packages {
        command.args(["-p", package]);
    }
    Ok(command)
}

/// What cargo made of one package.
fn compiled(workspace: &Workspace, toolchain: WasmToolchain, package: &str) -> PathBuf {
    let name = format!("{}.wasm", package.replace('-', "_"));
    toolchain.target(workspace).join(TARGET).join("debug").join(name)
}

/// JavaScript and wasm of one package, in a folder of its own, `page.js` and `page_bg.wasm`.
fn bind(workspace: &Workspace, toolchain: WasmToolchain, package: &str) -> Result<PathBuf> {
    let input = compiled(workspace, toolchain, package);
    let name = package.trim_start_matches("barnraise-");
    let folder = workspace.modules().join(name);
    let stamp_file = workspace.modules().join(format!("{name}.stamp"));
    let stamp = stamp(&input)?;
    if fs::read_to_string(&stamp_file).is_ok_and(|known| known == stamp) {
        return Ok(folder);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    println!("build: wasm-bindgen {name}");
    let mut bindgen = Bindgen::new();
    bindgen.input_path(&input).out_name(name).web(true)?.typescript(false);
    bindgen.remove_name_section(true).remove_producers_section(true);
    bindgen.generate(&folder).with_context(|| format!("wasm-bindgen of {}", input.display()))?;
    fs::write(&stamp_file, stamp)?;
    Ok(folder)
}

/// Everything that decides what [`bind`] makes.
fn stamp(input: &Path) -> Result<String> {
    let bytes = fs::read(input).with_context(|| format!("cannot read {}", input.display()))?;
    let hash = hex(&Sha256::digest(&bytes));
    Ok(format!("pipeline {PIPELINE_VERSION}\ninput {hash}\n{}\n", wasm_bindgen_version()))
}

/// From the manifest that pins it.
fn wasm_bindgen_version() -> &'static str {
    let manifest = include_str!("../../Cargo.toml");
    manifest.lines().find(|line| line.starts_with("wasm-bindgen-cli-support")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_wasm_bindgen_is_that_of_the_crate() {
        let manifest = include_str!("../../Cargo.toml");
        let library = manifest.lines().find(|line| line.starts_with("wasm-bindgen =")).unwrap();
        let version = |line: &str| line.split('"').nth(1).unwrap().to_owned();
        assert_eq!(version(wasm_bindgen_version()), version(library));
    }

    #[test]
    fn the_stamp_follows_the_input() {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("module.wasm");
        fs::write(&input, b"one").unwrap();
        let first = stamp(&input).unwrap();
        assert_eq!(stamp(&input).unwrap(), first);
        fs::write(&input, b"two").unwrap();
        assert_ne!(stamp(&input).unwrap(), first);
    }
}
