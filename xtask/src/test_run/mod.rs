//! Every test there is, browsers included, and one line with the totals.

mod programs;
mod totals;

use std::collections::hash_map::RandomState;
use std::env;
use std::ffi::OsString;
use std::hash::{BuildHasher as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use self::programs::TestProgram;
use self::totals::Totals;
use crate::build::{self, NativeProfile};
use crate::dist;
use crate::lints;
use crate::process;
use crate::setup;
use crate::wasm;
use crate::workspace::Workspace;

/// The variable that property tests take their seed from.
const PROPTEST_SEED: &str = "PROPTEST_RNG_SEED";
/// Runs tests for wasm in a browser.
const TEST_RUNNER: &str = "wasm-bindgen-test-runner";

/// `cargo xtask test`.
pub(crate) fn run(workspace: &Workspace, is_strict: bool) -> Result<()> {
    let browser = setup::for_tests()?;
    let toolchain = setup::for_build()?;
    toolchain.ensure_clippy()?;
    lints::format(workspace)?;
    build::web(workspace, toolchain, NativeProfile::Tests)?;
    let binary = build::native(workspace, NativeProfile::Tests)?;
    let archive = dist::pack(workspace, NativeProfile::Tests, &binary)?;
    // What the tests that start browsers and backbones look for.
    let environment = [
        ("CHROME", browser.chrome),
        ("CHROMEDRIVER", browser.chromedriver),
        ("BARNRAISE_ARCHIVE", archive),
        ("BARNRAISE_BIN", binary),
        ("BARNRAISE_WEB_ROOT", workspace.web_root()),
    ];
    let cargo = || {
        let mut command = cargo_test(workspace);
        command.args(Workspace::native_selection());
        build::with_features(&mut command, workspace);
        command
    };
    let programs = programs(workspace, cargo())?;
    // Tests wait more than they compute: what is only compiled takes the processors that they leave.
    let beside = || {
        let mut examples = cargo();
        examples.args(["--doc", "--", "--show-output"]);
        let mut totals = programs::follow(examples, "examples in documentation")?;
        let checked = check_cuda(workspace);
        setup::cargo_program(TEST_RUNNER)?;
        let module = wasm::build_tests(workspace, toolchain)?;
        totals.add(in_a_worker(&module, &environment)?);
        checked.map(|()| totals)
    };
    let (mut totals, others) = run_programs(&programs, &environment, beside)?;
    let others = others.map(|others| totals.add(others));
    if let Err(error) = &others {
        println!("test: {error:#}");
    }
    totals.finish(is_strict)?;
    others
}

/// Runs the test programs that a `cargo test` selects, with nothing that was installed or built for them.
pub(crate) fn quick(workspace: &Workspace, cargo_test: Command) -> Result<()> {
    let (totals, nothing) = run_programs(&programs(workspace, cargo_test)?, &[], || Ok(()))?;
    nothing?;
    totals.finish(false)
}

/// All test programs that a `cargo test` selects, and this program's own.
fn programs(workspace: &Workspace, cargo_test: Command) -> Result<Vec<TestProgram>> {
    let mut programs = programs::build(cargo_test, &workspace.root)?;
    // Built as it is.
    let mut own = self::cargo_test(workspace);
    own.args(["-p", env!("CARGO_PKG_NAME")]);
    programs.extend(programs::build(own, &workspace.root)?);
    println!("test: {} programs, two at a time", programs.len());
    Ok(programs)
}

/// Runs them, and does `beside` meanwhile.
fn run_programs<T: Send>(
    programs: &[TestProgram],
    environment: &[(&str, PathBuf)],
    beside: impl FnOnce() -> Result<T> + Send,
) -> Result<(Totals, Result<T>)> {
    let drawn = || RandomState::new().build_hasher().finish().to_string();
    let seed = env::var(PROPTEST_SEED).unwrap_or_else(|_| drawn());
    println!("test: property tests draw from a seed, and draw the same with {PROPTEST_SEED}={seed}");
    let seed = (PROPTEST_SEED, OsString::from(seed));
    let environment = environment.iter().map(|(name, path)| (*name, path.clone().into_os_string()));
    programs::run(programs, &environment.chain([seed]).collect::<Vec<_>>(), beside)
}

/// `cargo test` with lints, as all that is tested is built.
pub(crate) fn cargo_test(workspace: &Workspace) -> Command {
    let mut command = workspace.cargo();
    command.args(["test", "--no-fail-fast"]);
    lints::with_lints_for_tests(&mut command);
    command
}

/// The tests of the module that trains, in a worker of a page of a browser without a window.
fn in_a_worker(module: &Path, environment: &[(&str, PathBuf)]) -> Result<Totals> {
    let mut runner = Command::new(TEST_RUNNER);
    runner.arg(module);
    runner.envs(environment.iter().map(|(name, value)| (name, value)));
    // Seconds; 20 unless it is said.
    runner.env("WASM_BINDGEN_TEST_TIMEOUT", "600");
    programs::follow(runner, "wasm/peer, in a worker")
}

/// Type-checks the CUDA path, all of which is in one member. The build script of a dependency downloads an
/// LLVM unless it believes to be on docs.rs.
fn check_cuda(workspace: &Workspace) -> Result<()> {
    println!("test: type-check of the CUDA device");
    let mut command = workspace.cargo();
    command.env("DOCS_RS", "1").args(["check", "--quiet", "-p", "barnraise-learning", "--features", "cuda"]);
    process::run(&mut process::at_lowest_priority(&command))
}
