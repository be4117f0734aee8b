//! Where the workload module lies: what `cargo xtask bench` says in the environment, else where it
//! builds it. Nothing is built here.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use barnraise_tests::artifacts;

/// The folder that cargo builds into.
///
/// # Errors
/// Where this program does not lie in one.
pub(crate) fn target_dir() -> Result<PathBuf> {
    artifacts::target_dir()
}

/// The folder with what wasm-bindgen made of the workload.
///
/// # Errors
/// Where it is not built.
pub(crate) fn bench_peer() -> Result<PathBuf> {
    let folder = match std::env::var_os("BARNRAISE_BENCH_PEER") {
        Some(folder) => PathBuf::from(folder),
        None => artifacts::target_dir()?.join("modules").join("bench-peer"),
    };
    let module = folder.join("bench-peer.js");
    ensure!(module.is_file(), "{} is not there: run `cargo xtask bench`", module.display());
    Ok(folder)
}
