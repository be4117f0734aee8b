//! Where the things under test lie. `cargo xtask test` says so in the environment; a bare
//! `cargo test` finds them beside the test program. Nothing is built here.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// The folder that cargo builds into.
///
/// # Errors
/// Where this program does not lie in one.
pub fn target_dir() -> Result<PathBuf> {
    let target = profile_dir()?.parent().map(Path::to_owned);
    target.context("this program does not lie in a target folder")
}

/// The `barnraise` binary.
///
/// # Errors
/// Where it is not built.
pub fn barnraise() -> Result<PathBuf> {
    let path = match std::env::var_os("BARNRAISE_BIN") {
        Some(path) => PathBuf::from(path),
        None => profile_dir()?.join("barnraise"),
    };
    ensure!(path.is_file(), "{} is not there: run `cargo xtask build`", path.display());
    Ok(path)
}

/// The folder with the page and its modules.
///
/// # Errors
/// Where it is not built.
pub fn web_root() -> Result<PathBuf> {
    let path = match std::env::var_os("BARNRAISE_WEB_ROOT") {
        Some(path) => PathBuf::from(path),
        None => target_dir()?.join("web"),
    };
    ensure!(path.join("index.html").is_file(), "{} has no page: run `cargo xtask build`", path.display());
    Ok(path)
}

/// The archive of `cargo xtask dist`.
///
/// # Errors
/// Where it is not made.
pub fn archive() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("BARNRAISE_ARCHIVE") {
        return Ok(PathBuf::from(path));
    }
    let folder = profile_dir()?.join("dist");
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let archives = entries.filter(|path| path.extension().is_some_and(|extension| extension == "gz"));
    // Of the newest version.
    let newest = archives.max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok());
    newest.with_context(|| format!("{} has no archive: run `cargo xtask dist --dev`", folder.display()))
}

/// `<target>/<profile>`, where programs lie; those of tests are in `deps` below it.
fn profile_dir() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().context("this program lies in no folder")?;
    let above = if folder.ends_with("deps") { folder.parent() } else { Some(folder) };
    above.map(Path::to_owned).context("this program does not lie in a target folder")
}
