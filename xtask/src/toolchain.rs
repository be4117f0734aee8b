//! Chooses the compiler for the browser modules, and its flags.
//!
//! Where the toolchain that runs cargo has the wasm32 standard library (or rustup can fetch it), that
//! one does. Otherwise Debian's `rustc-web`, which ships the sources of the standard library: cargo
//! builds it along. Nothing else of the workspace is ever built with Debian's toolchain.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::packages::{self, Package};
use crate::process;
use crate::workspace::Workspace;

pub(crate) const TARGET: &str = "wasm32-unknown-unknown";
/// Oldest compiler that builds the dependencies (`rust-version` of the workspace).
const RUSTC_MIN: (u32, u32) = (1, 95);
const RUSTUP_LIMIT: Duration = Duration::from_secs(180);
const DEBIAN_BIN: &str = "/usr/bin";
const DEBIAN_LINKER: &str = "wasm-ld-19";
const DEBIAN_PACKAGES: [Package; 4] =
    [Package("rustc-web"), Package("cargo-web"), Package("rust-web-src"), Package("lld-19")];

const DEBIAN_CLIPPY: Package = Package("rust-web-clippy");

/// A way to build for [`TARGET`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WasmToolchain {
    /// The toolchain in use has the target.
    Current,
    /// Debian's compiler, which builds the standard library from source.
    Debian,
}

impl WasmToolchain {
    /// The toolchain to use, installed first where it has to be.
    pub(crate) fn ensure() -> Result<Self> {
        if let Some(toolchain) = Self::installed() {
            return Ok(toolchain);
        }
        let rustup = match add_target_by_rustup() {
            Ok(()) => return Ok(Self::Current),
            Err(error) => error,
        };
        let debian = match packages::install(&DEBIAN_PACKAGES) {
            Ok(()) if debian_is_complete() => return Ok(Self::Debian),
            Ok(()) => anyhow::anyhow!("the packages are there, but not as new as needed"),
            Err(error) => error,
        };
        bail!(
            "no compiler for {TARGET}, which the browser modules need.\n\
             rustup: {rustup:#}\n\
             Debian packages: {debian:#}\n\
             Install one of the two: `rustup target add {TARGET}`, or on Debian 12 and newer \
             `apt-get install {}` (rustc {}.{} or newer).",
            DEBIAN_PACKAGES.map(|package| package.0).join(" "),
            RUSTC_MIN.0,
            RUSTC_MIN.1,
        )
    }

    /// What is there already.
    pub(crate) fn installed() -> Option<Self> {
        if current_has_target() {
            return Some(Self::Current);
        }
        debian_is_complete().then_some(Self::Debian)
    }

    /// Whether it can lint.
    pub(crate) fn has_clippy(self) -> bool {
        match self {
            Self::Current => true,
            Self::Debian => Path::new(DEBIAN_BIN).join("clippy-driver").is_file(),
        }
    }

    /// Installs what is needed to lint.
    pub(crate) fn ensure_clippy(self) -> Result<()> {
        if self.has_clippy() { Ok(()) } else { packages::install(&[DEBIAN_CLIPPY]) }
    }

    /// Where it builds: in a directory of its own, as cargo builds one thing at a time in one.
    pub(crate) fn target(self, workspace: &Workspace) -> PathBuf {
        workspace.target.join(match self {
            Self::Current => "browser",
            Self::Debian => "debian",
        })
    }

    /// `cargo <subcommand>` for the browser, in [`Self::target`].
    pub(crate) fn cargo(self, workspace: &Workspace, subcommand: &str) -> Result<Command> {
        let mut command = match self {
            Self::Current => process::cargo(),
            Self::Debian => debian_cargo()?,
        };
        command.current_dir(&workspace.root).env("CARGO_TARGET_DIR", self.target(workspace));
        // Something else may be built meanwhile, and both would draw at the same place.
        command.env("CARGO_TERM_PROGRESS_WHEN", "never");
        // Flags from the environment replace those of .cargo/config.toml, without which nothing
        // here compiles for the browser.
        command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        command.args([subcommand, "--target", TARGET]);
        if self == Self::Debian {
            command.arg("-Zbuild-std=std,panic_abort");
        }
        Ok(command)
    }
}

fn current_has_target() -> bool {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", TARGET]);
    process::try_output(&mut rustc).is_some_and(|folder| Path::new(folder.trim()).is_dir())
}

fn add_target_by_rustup() -> Result<()> {
    if process::find("rustup").is_none() {
        bail!("there is no rustup on PATH");
    }
    println!("setup: rustup target add {TARGET}");
    process::run_within(Command::new("rustup").args(["target", "add", TARGET]), RUSTUP_LIMIT)?;
    if !current_has_target() {
        bail!("rustup added the target, but to another toolchain than the one in use");
    }
    Ok(())
}

fn debian_is_complete() -> bool {
    let rustc = Path::new(DEBIAN_BIN).join("rustc");
    let Some(version) = process::try_output(Command::new(&rustc).arg("--version")) else { return false };
    let Some(sysroot) = process::try_output(Command::new(&rustc).args(["--print", "sysroot"])) else {
        return false;
    };
    let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/std/Cargo.toml");
    parse_rustc_version(&version).is_some_and(|version| version >= RUSTC_MIN)
        && sources.is_file()
        && Path::new(DEBIAN_BIN).join("cargo").is_file()
        && process::find(DEBIAN_LINKER).is_some()
}

/// `rustc 1.96.0 (…)` as (1, 96).
fn parse_rustc_version(line: &str) -> Option<(u32, u32)> {
    let mut numbers = line.strip_prefix("rustc ")?.split(['.', ' ', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn debian_cargo() -> Result<Command> {
    let mut command = Command::new(Path::new(DEBIAN_BIN).join("cargo"));
    process::forget_this_package(&mut command);
    command.env("PATH", path_starting_with(DEBIAN_BIN)?);
    // The standard library can be built from source by a stable compiler that is told it may.
    command.env("RUSTC_BOOTSTRAP", "1");
    command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", DEBIAN_LINKER);
    // Set by rustup and `cargo run` for the other compiler.
    command.env_remove("LD_LIBRARY_PATH").env_remove("RUSTUP_TOOLCHAIN");
    command.env_remove("RUSTC").env_remove("RUSTC_WRAPPER");
    Ok(command)
}

fn path_starting_with(first: &str) -> Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(PathBuf::from(first)).chain(env::split_paths(&path));
    env::join_paths(folders).context("PATH holds a folder that cannot be joined")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_rustc_are_read() {
        let debian = "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\n";
        assert_eq!(parse_rustc_version(debian), Some((1, 96)));
        assert_eq!(parse_rustc_version("rustc 1.63.0"), Some((1, 63)));
        assert_eq!(parse_rustc_version("rustc 1.97.0-nightly (x)"), Some((1, 97)));
        assert_eq!(parse_rustc_version("gcc 12"), None);
        assert!(parse_rustc_version("rustc 1.100.0") >= Some(RUSTC_MIN));
    }

    #[test]
    fn the_oldest_compiler_is_that_of_the_workspace() {
        let manifest = include_str!("../../Cargo.toml");
        let line = format!("rust-version = \"{}.{}\"", RUSTC_MIN.0, RUSTC_MIN.1);
        assert!(manifest.contains(&line), "{line}");
    }

    #[test]
    fn a_folder_is_put_in_front_of_the_path() {
        let path = path_starting_with("/somewhere").unwrap();
        assert_eq!(env::split_paths(&path).next(), Some(PathBuf::from("/somewhere")));
    }
}
