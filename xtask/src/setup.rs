//! Installs what is missing, and nothing else.
//!
//! Each thing is looked for before the package manager is asked: on a machine that has everything no
//! package manager runs. Only apt-get is driven; elsewhere the error says what to install.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::packages::{Package, install, is_root};
use crate::process;
use crate::toolchain::WasmToolchain;

/// Folder of Debian's copy of the dataset.
const DATASET_FOLDER: &str = "/usr/share/datasets/fashion-mnist";
const DATASET_PACKAGE: Package = Package("dataset-fashion-mnist");
/// Where Debian keeps PostgreSQL's programs, which are not on PATH.
const POSTGRES_FOLDER: &str = "/usr/lib/postgresql";
/// Where graphics drivers say that they are there.
const VULKAN_FOLDER: &str = "/usr/share/vulkan/icd.d";
const BROWSERS: [&str; 5] =
    ["chromium", "google-chrome", "google-chrome-stable", "chromium-browser", "chrome"];
const DRIVERS: [&str; 2] = ["chromedriver", "chromium.chromedriver"];

/// A browser and the program that drives it.
#[derive(Debug, Clone)]
pub(crate) struct InstalledBrowser {
    pub(crate) chrome: PathBuf,
    pub(crate) chromedriver: PathBuf,
}

/// What `build` and `demo` need.
pub(crate) fn for_build() -> Result<WasmToolchain> {
    let toolchain = WasmToolchain::ensure()?;
    offer_dataset();
    Ok(toolchain)
}

/// What the browser tests need besides.
pub(crate) fn for_tests() -> Result<InstalledBrowser> {
    offer_node();
    offer_tools_of_root();
    offer_folders();
    if let Some(browser) = find_browser() {
        return Ok(browser);
    }
    // Ubuntu's packages of these names only point to its snap.
    let packages = if is_ubuntu() {
        [Package("chromium-browser"), Package("chromium-chromedriver")]
    } else {
        [Package("chromium"), Package("chromium-driver")]
    };
    let installed = install(&packages);
    match (find_browser(), installed) {
        (Some(browser), _) => Ok(browser),
        (None, Ok(())) => bail!("{BROWSER_MISSING}"),
        (None, Err(error)) => Err(error.context(BROWSER_MISSING)),
    }
}

const BROWSER_MISSING: &str = "the tests drive a real browser and found none: install Chromium or Chrome with \
    the chromedriver of the same version and put both on PATH, or name them in CHROME and CHROMEDRIVER";

fn find_browser() -> Option<InstalledBrowser> {
    Some(InstalledBrowser {
        chrome: find_program("CHROME", &BROWSERS)?,
        chromedriver: find_program("CHROMEDRIVER", &DRIVERS)?,
    })
}

/// The path in `variable` if it is set, else the first of `names` on `PATH`.
fn find_program(variable: &str, names: &[&str]) -> Option<PathBuf> {
    if let Some(path) = env::var_os(variable) {
        return Path::new(&path).is_file().then(|| PathBuf::from(path));
    }
    names.iter().find_map(|name| process::find(name))
}

/// The dataset saves a download where apt can bring it without asking anyone; the backbone fetches
/// it otherwise, so its absence is no error.
fn offer_dataset() {
    if Path::new(DATASET_FOLDER).is_dir() || process::find("apt-get").is_none() || !is_root() {
        return;
    }
    if let Err(error) = install(&[DATASET_PACKAGE]) {
        println!("setup: the backbone will download the dataset itself ({error:#})");
    }
}

/// Programs that are not ours, to test against, come from npm; the tests that need them fail without it.
fn offer_node() {
    if process::find("node").is_some() && process::find("npm").is_some() {
        return;
    }
    if let Err(error) = install(&[Package("nodejs"), Package("npm")]) {
        println!("setup: tests against programs of npm will fail: install Node.js and npm ({error:#})");
    }
}

/// Networks of hosts and routers, and machines with a bare system, take root; the tests that need them say so where they
/// are skipped.
fn offer_tools_of_root() {
    let tools = [
        (&["nft", "ip"][..], &[Package("nftables"), Package("iproute2")][..], "with routers"),
        (&["debootstrap"], &[Package("debootstrap")], "of the archive in a bare root"),
        (&["miniupnpd"], &[Package("miniupnpd-nftables")], "with a gateway that passes ports on"),
    ];
    for (programs, packages, which) in tools {
        let is_missing = programs.iter().any(|program| process::find(program).is_none());
        if !is_missing || process::find("apt-get").is_none() || !is_root() {
            continue;
        }
        if let Err(error) = install(packages) {
            println!("setup: tests {which} will be skipped ({error:#})");
        }
    }
}

/// A real server to keep contributions in, and a graphics adapter in software; the tests that need one say so where
/// they are skipped.
fn offer_folders() {
    let folders = [
        (POSTGRES_FOLDER, Package("postgresql"), "with a PostgreSQL server"),
        (VULKAN_FOLDER, Package("mesa-vulkan-drivers"), "of the native program with a graphics adapter"),
    ];
    for (folder, package, which) in folders {
        if Path::new(folder).is_dir() || process::find("apt-get").is_none() || !is_root() {
            continue;
        }
        if let Err(error) = install(&[package]) {
            println!("setup: tests {which} will be skipped ({error:#})");
        }
    }
}

/// Programs of crates.io: the crate, and the one version that was tried here: another one may be anybody's work.
const CARGO_PROGRAMS: [(&str, &str, &str); 3] = [
    ("cargo-audit", "cargo-audit", "0.22.2"),
    ("cargo-deny", "cargo-deny", "0.20.2"),
    ("wasm-bindgen-test-runner", "wasm-bindgen-cli", "0.2.130"),
];

/// Runs for seconds: quick to compile.
const CARGO_PROGRAM_PROFILE: [&str; 5] =
    ["--debug", "--config", "profile.dev.opt-level=1", "--config", "profile.dev.debug=false"];

/// A program that cargo can install, compiled where it is missing, at the lowest priority.
pub(crate) fn cargo_program(name: &str) -> Result<()> {
    let known = CARGO_PROGRAMS.iter().find(|(known, ..)| *known == name);
    let (_, package, version) = known.with_context(|| format!("{name} is none of CARGO_PROGRAMS"))?;
    if process::find(name).is_none() {
        println!("setup: cargo install {package} {version}");
        let version = format!("={version}");
        let install = |more: &[&str]| {
            let mut cargo = process::cargo();
            cargo.args(["install", package, "--version", &version]).args(CARGO_PROGRAM_PROFILE).args(more);
            process::run(&mut process::at_lowest_priority(&cargo))
        };
        // Mirrors may not have yet what it was locked to.
        install(&["--locked"]).or_else(|_| install(&[]))?;
    }
    Ok(())
}

fn is_ubuntu() -> bool {
    std::fs::read_to_string("/etc/os-release").is_ok_and(|text| os_id(&text) == Some("ubuntu"))
}

fn os_id(os_release: &str) -> Option<&str> {
    os_release.lines().find_map(|line| line.strip_prefix("ID=")).map(|id| id.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_that_is_compiled_has_one_version() {
        let users = [include_str!("audit.rs"), include_str!("test_run/mod.rs")];
        let users = users.concat();
        for (name, _, version) in CARGO_PROGRAMS {
            assert_eq!(version.split('.').filter_map(|part| part.parse::<u32>().ok()).count(), 3, "{name}");
            assert!(users.contains(&format!("\"{name}\"")), "{name} is used by nobody");
        }
        // Nothing is compiled beside them.
        let n_installs = [users.as_str(), include_str!("setup.rs")].concat().matches("\"install\", ").count();
        assert_eq!(n_installs, 1);
    }

    #[test]
    fn the_system_is_named_by_its_id() {
        assert_eq!(os_id("PRETTY_NAME=\"Ubuntu 24.04\"\nID=ubuntu\nID_LIKE=debian\n"), Some("ubuntu"));
        assert_eq!(os_id("VERSION_ID=\"12\"\nID=\"debian\"\n"), Some("debian"));
        assert_eq!(os_id(""), None);
    }
}
