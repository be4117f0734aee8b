//! Everything that runs: the web folder and the native programs.

use std::path::PathBuf;
use std::process::Command;
use std::thread;

use anyhow::{Result, anyhow, bail};

use crate::assets::{self, Sources};
use crate::compress::Effort;
use crate::lints;
use crate::process;
use crate::setup;
use crate::toolchain::WasmToolchain;
use crate::wasm;
use crate::workspace::Workspace;

/// What the programs have that are released, and those of the tests: the page inside, graphics cards, and what runs for others
/// need.
pub(crate) const FEATURES: &str = "barnraise-native/page,barnraise-native/wgpu,barnraise-native/operations";
/// The variable that says where the page is.
const PAGE_FOLDER: &str = "BARNRAISE_PAGE";
/// The members whose programs are for others.
pub(crate) const PROGRAMS: [&str; 4] = ["-p", "barnraise-native", "-p", "barnraise-relay"];

/// How the native binary is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NativeProfile {
    /// The programs alone, quick to build; what computes is optimized all the same.
    Dev,
    /// Likewise, linted, with all [`FEATURES`], together with the tests and with the features that they add
    /// to dependencies.
    Tests,
    /// The programs alone, everything optimized, with all [`FEATURES`].
    Release,
    /// The same, together with the benchmarks.
    Benches,
}

impl NativeProfile {
    /// About how long it takes with a cold cache, on two cores.
    fn minutes(self) -> u32 {
        match self {
            Self::Dev => 20,
            Self::Tests => 25,
            Self::Release => 40,
            Self::Benches => 50,
        }
    }

    /// Whether the result is served to others, or measured.
    pub(crate) fn is_optimized(self) -> bool {
        matches!(self, Self::Release | Self::Benches)
    }

    /// What is worth waiting for.
    pub(crate) fn effort(self) -> Effort {
        if self.is_optimized() { Effort::Best } else { Effort::Quick }
    }
}

/// Installs what is missing, then builds the web folder and the binary.
pub(crate) fn everything(workspace: &Workspace, profile: NativeProfile) -> Result<()> {
    let binary = web_and_native(workspace, setup::for_build()?, profile)?;
    println!("build: {}\nbuild: {}", workspace.web_root().display(), binary.display());
    Ok(())
}

/// The folder that a backbone serves, and the `barnraise` binary; returns where that is.
///
/// Where the page is not inside the program both are built at once: each build has minutes in which there is one crate to compile.
pub(crate) fn web_and_native(
    workspace: &Workspace,
    toolchain: WasmToolchain,
    profile: NativeProfile,
) -> Result<PathBuf> {
    if profile != NativeProfile::Dev {
        web(workspace, toolchain, profile)?;
        return native(workspace, profile);
    }
    thread::scope(|scope| {
        let web = scope.spawn(|| web(workspace, toolchain, profile));
        let binary = native(workspace, profile);
        let web = web.join().map_err(|_| anyhow!("building the web folder panicked"))?;
        match (web, binary) {
            (Err(web), Err(binary)) => bail!("neither was built: {web:#}; {binary:#}"),
            (web, binary) => web.and(binary),
        }
    })
}

/// Selects what the tests are compiled as, for other programs made of the same tests.
///
/// # Errors
/// The page, which is compiled into the native program, was not built yet.
pub(crate) fn as_in_tests(command: &mut Command, workspace: &Workspace) -> Result<()> {
    let page = workspace.web_root();
    if !page.is_dir() {
        bail!(
            "there is no page in {}, and the program has it inside: `cargo xtask build` makes it",
            page.display()
        );
    }
    command.args(Workspace::native_selection());
    with_features(command, workspace);
    Ok(())
}

/// With all features; the page is the one that was built before.
pub(crate) fn with_features(command: &mut Command, workspace: &Workspace) {
    command.args(["--features", FEATURES]).env(PAGE_FOLDER, workspace.web_root());
}

/// The folder that a backbone serves.
pub(crate) fn web(workspace: &Workspace, toolchain: WasmToolchain, profile: NativeProfile) -> Result<()> {
    let mut sources = Sources::default();
    for folder in wasm::build(workspace, toolchain, profile == NativeProfile::Tests)? {
        sources.add_bindgen(&folder)?;
    }
    sources.add_folder(&workspace.root.join("web"))?;
    println!("build: the web folder");
    assets::write(&workspace.web_root(), &sources.resolve()?, profile.effort())
}

/// The `barnraise` binary; returns where it is.
pub(crate) fn native(workspace: &Workspace, profile: NativeProfile) -> Result<PathBuf> {
    println!("build: the native programs ({} minutes the first time, on two cores)", profile.minutes());
    let mut command = workspace.cargo();
    command.args(["build", "--bins"]);
    match profile {
        NativeProfile::Dev => command.env("CARGO_TERM_PROGRESS_WHEN", "never").args(PROGRAMS),
        NativeProfile::Release => command.arg("--release").args(PROGRAMS),
        NativeProfile::Benches => command.arg("--release").args(Workspace::native_selection()),
        NativeProfile::Tests => {
            lints::with_lints_for_tests(command.arg("--all-targets")).args(Workspace::native_selection())
        }
    };
    if profile != NativeProfile::Dev {
        with_features(&mut command, workspace);
    }
    process::run(&mut command)?;
    let folder = if profile.is_optimized() { "release" } else { "debug" };
    Ok(workspace.target.join(folder).join("barnraise"))
}

/// Builds and runs the benchmark program.
pub(crate) fn bench(workspace: &Workspace, args: &[String]) -> Result<()> {
    let browser = setup::for_tests()?;
    let toolchain = setup::for_build()?;
    web(workspace, toolchain, NativeProfile::Benches)?;
    let bench_peer = wasm::build_bench(workspace, toolchain)?;
    let binary = native(workspace, NativeProfile::Benches)?;
    let mut command = Command::new(binary.with_file_name("barnraise-benches"));
    command.args(args);
    command.env("CHROME", browser.chrome).env("CHROMEDRIVER", browser.chromedriver);
    command.env("BARNRAISE_BIN", binary).env("BARNRAISE_WEB_ROOT", workspace.web_root());
    process::run(command.env("BARNRAISE_BENCH_PEER", bench_peer))
}
