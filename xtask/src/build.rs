//! Everything that runs: the web folder and the native programs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::assets::{self, Sources};
use crate::check;
use crate::compress::Effort;
use crate::process;
use crate::setup;
use crate::toolchain::WasmToolchain;
use crate::wasm;
use crate::workspace::Workspace;

/// The feature with which the page is inside the program, and the variable that says where the page is.
pub(crate) const PAGE_FEATURE: &str = "barnraise-native/page";
const PAGE_FOLDER: &str = "BARNRAISE_PAGE";

/// How the native binary is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NativeProfile {
    /// Quick to build; what computes is optimized all the same.
    Dev,
    /// Likewise, linted, the page inside, together with the tests and with the features that they add
    /// to dependencies.
    Tests,
    /// Everything optimized, and the page inside.
    Release,
}

impl NativeProfile {
    /// What is worth waiting for where the result is to be served to others.
    pub(crate) fn effort(self) -> Effort {
        match self {
            Self::Dev | Self::Tests => Effort::Quick,
            Self::Release => Effort::Best,
        }
    }
}

/// Installs what is missing, then builds the web folder and the binary.
pub(crate) fn everything(workspace: &Workspace, profile: NativeProfile) -> Result<()> {
    let toolchain = setup::for_build()?;
    web(workspace, toolchain, profile.effort())?;
    let binary = native(workspace, profile)?;
    println!("build: {}\nbuild: {}", workspace.web_root().display(), binary.display());
    Ok(())
}

/// The page that was built before is put into the program.
pub(crate) fn with_page(command: &mut Command, workspace: &Workspace) {
    command.args(["--features", PAGE_FEATURE]).env(PAGE_FOLDER, workspace.web_root());
}

/// The folder that a backbone serves.
pub(crate) fn web(workspace: &Workspace, toolchain: WasmToolchain, effort: Effort) -> Result<()> {
    let mut sources = Sources::default();
    for folder in wasm::build(workspace, toolchain)? {
        sources.add_bindgen(&folder)?;
    }
    sources.add_folder(&workspace.root.join("web"))?;
    println!("build: the web folder");
    assets::write(&workspace.web_root(), &sources.resolve()?, effort)
}

/// The `barnraise` binary; returns where it is.
pub(crate) fn native(workspace: &Workspace, profile: NativeProfile) -> Result<PathBuf> {
    println!("build: the native binary");
    let mut command = workspace.cargo();
    command.arg("build").args(Workspace::native_selection()).arg("--bins");
    let folder = match profile {
        NativeProfile::Dev => "debug",
        NativeProfile::Tests => {
            check::with_lints(command.arg("--all-targets"));
            with_page(&mut command, workspace);
            "debug"
        }
        NativeProfile::Release => {
            command.arg("--release");
            with_page(&mut command, workspace);
            "release"
        }
    };
    process::run(&mut command)?;
    Ok(workspace.target.join(folder).join("barnraise"))
}

/// Builds and runs the benchmark program.
pub(crate) fn bench(workspace: &Workspace, args: &[String]) -> Result<()> {
    let browser = setup::for_tests()?;
    let toolchain = setup::for_build()?;
    web(workspace, toolchain, Effort::Best)?;
    let bench_peer = wasm::build_bench(workspace, toolchain)?;
    let binary = native(workspace, NativeProfile::Release)?;
    let mut command = Command::new(binary.with_file_name("barnraise-benches"));
    command.args(args);
    command.env("CHROME", browser.chrome).env("CHROMEDRIVER", browser.chromedriver);
    command.env("BARNRAISE_BIN", binary).env("BARNRAISE_WEB_ROOT", workspace.web_root());
    process::run(command.env("BARNRAISE_BENCH_PEER", bench_peer))
}
