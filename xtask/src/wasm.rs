//! From the browser crates to the JavaScript and wasm that a page loads.
//!
//! Cargo builds both modules, wasm-bindgen writes their JavaScript, wasm-opt shrinks them. The last
//! two are skipped while cargo's output is the same, so that a warm run takes seconds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use wasm_bindgen_cli_support::Bindgen;

use crate::assets::hex;
use crate::process;
use crate::toolchain::{TARGET, WasmToolchain};
use crate::workspace::{BROWSER_MODULES, Workspace};

pub(crate) const PROFILE: &str = "wasm";
/// What the code is compiled with (.cargo/config.toml) and wasm-bindgen adds; wasm-opt has to be told.
const WASM_OPT_ARGS: [&str; 9] = [
    "-O2",
    "--strip-debug",
    "--strip-producers",
    "--enable-simd",
    "--enable-bulk-memory",
    "--enable-sign-ext",
    "--enable-nontrapping-float-to-int",
    "--enable-mutable-globals",
    "--enable-reference-types",
];
/// Raise when the steps after cargo change in a way that the versions below do not show.
const PIPELINE_VERSION: u32 = 1;

/// Builds both modules; returns the folders with their JavaScript and wasm.
pub(crate) fn build(workspace: &Workspace, toolchain: WasmToolchain) -> Result<Vec<PathBuf>> {
    compile(workspace, toolchain)?;
    BROWSER_MODULES.iter().map(|package| bind(workspace, package)).collect()
}

fn compile(workspace: &Workspace, toolchain: WasmToolchain) -> Result<()> {
    println!("build: the browser modules ({toolchain:?} toolchain; a quarter of an hour the first time)");
    let mut command = toolchain.cargo(workspace, "build")?;
    command.args(["--profile", PROFILE]);
    for package in BROWSER_MODULES {
        command.args(["-p", package]);
    }
    process::run(&mut command)
}

/// JavaScript and wasm of one package, in a folder of its own, `page.js` and `page_bg.wasm`.
fn bind(workspace: &Workspace, package: &str) -> Result<PathBuf> {
    let input = workspace.wasm_target().join(TARGET).join(PROFILE);
    let input = input.join(format!("{}.wasm", package.replace('-', "_")));
    let name = package.trim_start_matches("barnraise-");
    let folder = workspace.wasm_target().join("bindgen").join(name);
    let stamp_file = workspace.wasm_target().join("bindgen").join(format!("{name}.stamp"));
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
    bindgen.generate(&folder).with_context(|| format!("wasm-bindgen of {}", input.display()))?;
    optimize(&folder.join(format!("{name}_bg.wasm")))?;
    fs::write(&stamp_file, stamp)?;
    Ok(folder)
}

fn optimize(module: &Path) -> Result<()> {
    println!("build: wasm-opt {}", module.file_name().unwrap_or_default().to_string_lossy());
    let optimized = module.with_extension("opt");
    process::run(Command::new("wasm-opt").args(WASM_OPT_ARGS).arg(module).arg("-o").arg(&optimized))?;
    fs::rename(&optimized, module).with_context(|| format!("cannot replace {}", module.display()))
}

/// Everything that decides what [`bind`] makes.
fn stamp(input: &Path) -> Result<String> {
    let bytes = fs::read(input).with_context(|| format!("cannot read {}", input.display()))?;
    let wasm_opt = process::output(Command::new("wasm-opt").arg("--version"))?;
    Ok(format!(
        "pipeline {PIPELINE_VERSION}\ninput {}\nwasm-bindgen {}\n{}\n{}\n",
        hex(&Sha256::digest(&bytes)),
        wasm_bindgen_version(),
        wasm_opt.trim(),
        WASM_OPT_ARGS.join(" "),
    ))
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
        let Ok(first) = stamp(&input) else { return assert!(process::find("wasm-opt").is_none()) };
        assert_eq!(stamp(&input).unwrap(), first);
        fs::write(&input, b"two").unwrap();
        assert_ne!(stamp(&input).unwrap(), first);
    }
}
