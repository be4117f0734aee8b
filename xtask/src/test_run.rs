//! Every test there is, browsers included, and one line with the totals.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::build::{self, NativeProfile};
use crate::check;
use crate::compress::Effort;
use crate::fuzz;
use crate::process;
use crate::setup::{self, Browser};
use crate::workspace::Workspace;

/// More failures than this are no accident: nothing is run again.
const N_AGAIN_MAX: usize = 3;

/// Sums over all test programs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Totals {
    n_passed: u64,
    n_failed: u64,
    n_ignored: u64,
    /// The names of those that failed.
    failed: Vec<String>,
    /// The names of those that said that they had nothing to test with, and why.
    skipped: Vec<(String, String)>,
    /// The names of those that passed only when they were run again.
    unsteady: Vec<String>,
    /// Cargo ended with an error although no test failed: a program crashed or did not build.
    is_broken: bool,
}

/// What a test prints, with the reason, that passes because this machine lacks what it tests with.
const SKIPPED: &str = "SKIPPED: ";

/// Where in the output of a test program the last line was.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
enum Section {
    /// Names of tests and what became of them, or what those that failed printed.
    #[default]
    Results,
    /// What tests that passed printed: of this one, if it had its head already.
    Passed(Option<String>),
}

impl Totals {
    /// Takes in a line of a test program's output; whether it is one to show.
    fn on_line(&mut self, line: &str, section: &mut Section) -> bool {
        match line {
            "successes:" => *section = Section::Passed(None),
            "failures:" => *section = Section::Results,
            _ if line.starts_with("test result: ") => *section = Section::Results,
            _ => {}
        }
        if let Section::Passed(test) = section {
            if let Some(head) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
            {
                *test = Some(head.to_owned());
            } else if let Some(reason) = line.strip_prefix(SKIPPED)
                // Once, however often it says so.
                && let Some(test) = test.take()
            {
                self.skipped.push((test, reason.to_owned()));
            }
            return false;
        }
        self.on_result(line);
        true
    }

    fn on_result(&mut self, line: &str) {
        let failed = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"));
        self.failed.extend(failed.map(str::to_owned));
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        let count = |label: &str| {
            let before = counts.split(label).next().unwrap_or_default();
            before.rsplit([' ', ';', '.']).find(|word| !word.is_empty())?.parse::<u64>().ok()
        };
        self.n_passed += count(" passed").unwrap_or(0);
        self.n_failed += count(" failed").unwrap_or(0);
        self.n_ignored += count(" ignored").unwrap_or(0);
    }

    /// Takes in that `again` is what came of running the failed ones a second time.
    fn on_second_run(&mut self, again: &Self) {
        let (failed, unsteady) =
            std::mem::take(&mut self.failed).into_iter().partition(|name| again.failed.contains(name));
        (self.failed, self.unsteady) = (failed, unsteady);
        self.n_passed += again.n_passed;
        self.skipped.extend_from_slice(&again.skipped);
        self.n_failed = self.n_failed.saturating_sub(again.n_passed);
        self.is_broken |= again.is_broken;
    }

    /// Prints the closing lines; an error where anything failed, and where `is_strict` also where anything was
    /// skipped.
    pub(crate) fn finish(self, is_strict: bool) -> Result<()> {
        for name in &self.unsteady {
            println!("unsteady: {name} failed, and passed when it was run again by itself");
        }
        for (name, reason) in &self.skipped {
            println!("skipped: {name}: {reason}");
        }
        let n_skipped = self.skipped.len() as u64;
        let n_passed = self.n_passed.saturating_sub(n_skipped);
        let n_ignored = match self.n_ignored {
            0 => String::new(),
            n => format!(", {n} that are run by hand"),
        };
        println!("{n_passed} passed, {} failed, {n_skipped} skipped{n_ignored}", self.n_failed);
        if self.n_failed > 0 {
            bail!("{} tests failed", self.n_failed);
        }
        if is_strict && n_skipped > 0 {
            bail!("{n_skipped} tests were skipped: install what they say, or leave out --strict");
        }
        if self.is_broken {
            bail!("a test program did not run to its end");
        }
        Ok(())
    }
}

/// `cargo xtask test`.
pub(crate) fn run(workspace: &Workspace, is_strict: bool) -> Result<()> {
    let browser = setup::for_tests()?;
    let toolchain = setup::for_build()?;
    toolchain.ensure_clippy()?;
    check::format(workspace)?;
    build::web(workspace, toolchain, Effort::Quick)?;
    check::lint_browser_modules(workspace, toolchain)?;
    let binary = build::native(workspace, NativeProfile::Tests)?;
    let mut totals = Totals::default();
    println!("test: everything");
    let test = || {
        let mut command = cargo_test(workspace);
        build::with_page(&mut command, workspace);
        command.envs(environment(workspace, &browser, &binary));
        command
    };
    add_up(test(), &[], &mut totals)?;
    run_again(test(), &mut totals)?;
    check_cuda(workspace)?;
    fuzz::check(workspace)?;
    totals.finish(is_strict)
}

/// What the tests that start browsers and backbones look for.
fn environment(workspace: &Workspace, browser: &Browser, binary: &Path) -> [(&'static str, PathBuf); 4] {
    [
        ("CHROME", browser.chrome.clone()),
        ("CHROMEDRIVER", browser.chromedriver.clone()),
        ("BARNRAISE_BIN", binary.to_owned()),
        ("BARNRAISE_WEB_ROOT", workspace.web_root()),
    ]
}

/// `cargo test` of the native members, as they are built for it.
pub(crate) fn cargo_test(workspace: &Workspace) -> Command {
    let mut command = workspace.cargo();
    command.args(["test", "--no-fail-fast"]).args(Workspace::native_selection());
    check::with_lints(&mut command);
    command
}

/// Runs the tests with these arguments for the test programs, shows the output but of those that passed, and adds up
/// the results.
pub(crate) fn add_up(mut command: Command, args: &[String], totals: &mut Totals) -> Result<()> {
    command.args(["--", "--show-output"]).args(args).stdout(Stdio::piped());
    let mut child =
        command.spawn().with_context(|| format!("cannot start {}", process::describe(&command)))?;
    let stdout = child.stdout.take().context("the output of cargo test is not piped")?;
    let n_failed_before = totals.n_failed;
    let mut section = Section::default();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("cannot read the output of cargo test")?;
        if totals.on_line(&line, &mut section) {
            println!("{line}");
        }
    }
    let status = child.wait()?;
    totals.is_broken |= !status.success() && totals.n_failed == n_failed_before;
    Ok(())
}

/// Processes and browsers share the machine with whatever else runs there. Where few tests failed and
/// all are of that kind, each gets a second run, and whoever passes only then is named at the end.
fn run_again(mut test: Command, totals: &mut Totals) -> Result<()> {
    let names = totals.failed.clone();
    if names.is_empty() || names.len() > N_AGAIN_MAX || names.len() as u64 != totals.n_failed {
        return Ok(());
    }
    println!("test: once more what failed: {}", names.join(", "));
    test.args(["--test", "*"]);
    let mut again = Totals::default();
    let args: Vec<String> = std::iter::once("--exact".to_owned()).chain(names).collect();
    add_up(test, &args, &mut again)?;
    // Unit tests are not among those: what failed there has failed.
    if again.n_passed + again.n_failed == totals.n_failed {
        totals.on_second_run(&again);
    }
    Ok(())
}

/// Type-checks the CUDA path, all of which is in one member. The build script of a dependency downloads an
/// LLVM unless it believes to be on docs.rs.
fn check_cuda(workspace: &Workspace) -> Result<()> {
    println!("test: type-check of the CUDA device");
    let mut command = workspace.cargo();
    command.env("DOCS_RS", "1").args(["check", "--quiet", "-p", "barnraise-learning", "--features", "cuda"]);
    process::run(&mut command)
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
            assert!(totals.on_line(line, &mut Section::default()));
        }
        assert_eq!(totals, Totals { n_passed: 15, n_failed: 2, n_ignored: 1, ..Totals::default() });
    }

    #[test]
    fn what_passes_the_second_time_is_named_and_what_fails_again_has_failed() {
        let read = |lines: &[&str]| {
            let mut totals = Totals::default();
            for line in lines {
                totals.on_line(line, &mut Section::default());
            }
            totals
        };
        let mut totals = read(&[
            "test relay::one ... FAILED",
            "test relay::two ... FAILED",
            "test result: FAILED. 12 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.10s",
        ]);
        totals.on_second_run(&read(&[
            "test relay::one ... ok",
            "test relay::two ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.10s",
        ]));
        let (failed, unsteady) = (vec!["relay::two".to_owned()], vec!["relay::one".to_owned()]);
        let expected = Totals { n_passed: 13, n_failed: 1, failed, unsteady, ..Totals::default() };
        assert_eq!(totals, expected);
        assert!(totals.finish(false).is_err());
    }

    #[test]
    fn what_had_nothing_to_test_with_is_named_and_no_success_where_it_is_strict() {
        let output = "running 3 tests\n\
            test nat::one ... ok\n\
            test nat::two ... ok\n\
            test nat::three ... FAILED\n\
            \n\
            successes:\n\
            \n\
            ---- nat::one stdout ----\n\
            test nat::three ... FAILED\n\
            \n\
            ---- nat::two stdout ----\n\
            SKIPPED: no namespaces here\n\
            \n\
            successes:\n    nat::one\n    nat::two\n\
            \n\
            failures:\n\
            \n\
            ---- nat::three stdout ----\n\
            SKIPPED: who fails is not skipped\n\
            \n\
            test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.10s";
        let (mut totals, mut section) = (Totals::default(), Section::default());
        let shown: Vec<&str> = output.lines().filter(|line| totals.on_line(line, &mut section)).collect();
        assert!(shown.contains(&"SKIPPED: who fails is not skipped"), "{shown:?}");
        assert!(!shown.contains(&"SKIPPED: no namespaces here"), "{shown:?}");
        let skipped = vec![("nat::two".to_owned(), "no namespaces here".to_owned())];
        let failed = vec!["nat::three".to_owned()];
        assert_eq!(totals, Totals { n_passed: 2, n_failed: 1, failed, skipped, ..Totals::default() });
        let only_skipped = Totals { n_failed: 0, ..totals };
        assert!(only_skipped.clone().finish(false).is_ok());
        assert!(only_skipped.finish(true).is_err());
    }

    #[test]
    fn a_failure_is_an_error_and_so_is_a_program_that_broke() {
        assert!(Totals { n_passed: 1, ..Totals::default() }.finish(true).is_ok());
        assert!(Totals { n_failed: 1, ..Totals::default() }.finish(true).is_err());
        assert!(Totals { is_broken: true, ..Totals::default() }.finish(true).is_err());
    }
}
