//! Every test there is, browsers included, and one line with the totals.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::build::{self, NativeProfile};
use crate::check;
use crate::compress::Effort;
use crate::fuzz;
use crate::process;
use crate::setup::{self, Browser};
use crate::workspace::Workspace;

/// Sums over all test programs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    n_passed: u64,
    n_failed: u64,
    n_ignored: u64,
    /// Cargo ended with an error although no test failed: a program crashed or did not build.
    is_broken: bool,
}

impl Totals {
    /// Takes in a line of a test program's output.
    fn on_line(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        let count = |label: &str| {
            let before = counts.split(label).next().unwrap_or_default();
            before.rsplit([' ', ';', '.']).find(|word| !word.is_empty())?.parse::<u64>().ok()
        };
        self.n_passed += count(" passed").unwrap_or(0);
        self.n_failed += count(" failed").unwrap_or(0);
        self.n_ignored += count(" ignored").unwrap_or(0);
    }

    /// Prints the closing line; an error where anything failed.
    pub(crate) fn finish(self) -> Result<()> {
        println!("{} passed, {} failed, {} ignored", self.n_passed, self.n_failed, self.n_ignored);
        if self.n_failed > 0 {
            bail!("{} tests failed", self.n_failed);
        }
        if self.is_broken {
            bail!("a test program did not run to its end");
        }
        Ok(())
    }
}

/// `cargo xtask test`.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let browser = setup::for_tests()?;
    let toolchain = setup::for_build()?;
    toolchain.ensure_clippy()?;
    check::lint(workspace)?;
    build::web(workspace, toolchain, Effort::Quick)?;
    check::lint_peer(workspace, toolchain)?;
    let binary = build::native(workspace, NativeProfile::Tests)?;
    let mut totals = Totals::default();
    println!("test: everything");
    cargo_test(workspace, &[], &environment(workspace, &browser, &binary), &mut totals)?;
    check_cuda(workspace)?;
    fuzz::check(workspace)?;
    totals.finish()
}

/// What the tests that start browsers and backbones look for.
fn environment(workspace: &Workspace, browser: &Browser, binary: &Path) -> Vec<(&'static str, String)> {
    vec![
        ("CHROME", browser.chrome.display().to_string()),
        ("CHROMEDRIVER", browser.chromedriver.display().to_string()),
        ("BARNRAISE_BIN", binary.display().to_string()),
        ("BARNRAISE_WEB_ROOT", workspace.web_root().display().to_string()),
    ]
}

/// Runs tests of the native members, shows their output and adds up the results.
pub(crate) fn cargo_test(
    workspace: &Workspace,
    targets: &[&str],
    environment: &[(&str, String)],
    totals: &mut Totals,
) -> Result<()> {
    let mut command = workspace.cargo();
    command.args(["test", "--no-fail-fast"]).args(Workspace::native_selection()).args(targets);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.stdout(Stdio::piped());
    let mut child =
        command.spawn().with_context(|| format!("cannot start {}", process::describe(&command)))?;
    let stdout = child.stdout.take().context("the output of cargo test is not piped")?;
    let n_failed_before = totals.n_failed;
    for line in BufReader::new(stdout).lines() {
        let line = line.context("cannot read the output of cargo test")?;
        println!("{line}");
        totals.on_line(&line);
    }
    let status = child.wait()?;
    totals.is_broken |= !status.success() && totals.n_failed == n_failed_before;
    Ok(())
}

/// Type-checks the CUDA path. Its build script downloads an LLVM unless it believes to be on docs.rs.
/// The selection is that of clippy, so that most of it is checked already.
fn check_cuda(workspace: &Workspace) -> Result<()> {
    println!("test: type-check of the CUDA device");
    let mut command = workspace.cargo();
    command.env("DOCS_RS", "1").arg("check").args(Workspace::native_selection());
    process::run(command.args(["--all-targets", "--quiet", "--features", "barnraise-native/cuda"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_added_up() {
        let mut totals = Totals::default();
        for line in [
            "running 3 tests",
            "test a ... ok",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s",
            "test result: FAILED. 12 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.10s",
        ] {
            totals.on_line(line);
        }
        assert_eq!(totals, Totals { n_passed: 15, n_failed: 2, n_ignored: 1, is_broken: false });
    }

    #[test]
    fn a_failure_is_an_error_and_so_is_a_program_that_broke() {
        assert!(Totals { n_passed: 1, ..Totals::default() }.finish().is_ok());
        assert!(Totals { n_failed: 1, ..Totals::default() }.finish().is_err());
        assert!(Totals { is_broken: true, ..Totals::default() }.finish().is_err());
    }
}
