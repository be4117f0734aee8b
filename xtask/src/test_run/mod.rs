//! Every test there is, browsers included, and one line with the totals.

mod programs;
mod totals;

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

pub(crate) use self::totals::Totals;
use crate::build::{self, NativeProfile};
use crate::check;
use crate::compress::Effort;
use crate::fuzz;
use crate::process;
use crate::setup;
use crate::workspace::Workspace;

/// `cargo xtask test`.
pub(crate) fn run(workspace: &Workspace, is_strict: bool) -> Result<()> {
    let browser = setup::for_tests()?;
    let toolchain = setup::for_build()?;
    toolchain.ensure_clippy()?;
    check::format(workspace)?;
    build::web(workspace, toolchain, Effort::Quick)?;
    check::lint_browser_modules(workspace, toolchain)?;
    let binary = build::native(workspace, NativeProfile::Tests)?;
    // What the tests that start browsers and backbones look for.
    let environment = [
        ("CHROME", browser.chrome),
        ("CHROMEDRIVER", browser.chromedriver),
        ("BARNRAISE_BIN", binary),
        ("BARNRAISE_WEB_ROOT", workspace.web_root()),
    ];
    let cargo = || {
        let mut command = cargo_test(workspace);
        build::with_page(&mut command, workspace);
        command
    };
    let mut totals = all(workspace, cargo(), &environment)?;
    let mut examples = cargo();
    examples.args(["--doc", "--"]);
    totals.add(programs::follow(examples, "examples in documentation")?);
    check_cuda(workspace)?;
    fuzz::check(workspace)?;
    totals.finish(is_strict)
}

/// All test programs that a `cargo test` selects.
pub(crate) fn all(
    workspace: &Workspace,
    cargo_test: Command,
    environment: &[(&str, PathBuf)],
) -> Result<Totals> {
    let programs = programs::build(cargo_test, &workspace.root)?;
    println!("test: {} programs, two at a time", programs.len());
    programs::run(&programs, environment)
}

/// `cargo test` of the native members, as they are built for it.
pub(crate) fn cargo_test(workspace: &Workspace) -> Command {
    let mut command = workspace.cargo();
    command.args(["test", "--no-fail-fast"]).args(Workspace::native_selection());
    check::with_lints(&mut command);
    command
}

/// Type-checks the CUDA path, all of which is in one member. The build script of a dependency downloads an
/// LLVM unless it believes to be on docs.rs.
fn check_cuda(workspace: &Workspace) -> Result<()> {
    println!("test: type-check of the CUDA device");
    let mut command = workspace.cargo();
    command.env("DOCS_RS", "1").args(["check", "--quiet", "-p", "barnraise-learning", "--features", "cuda"]);
    process::run(&mut command)
}
