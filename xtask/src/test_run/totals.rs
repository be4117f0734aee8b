//! Adds up the results that test programs print.

use std::collections::VecDeque;

use anyhow::{Result, bail};

/// Sums over some test programs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(super) n_passed: u64,
    pub(super) n_failed: u64,
    n_ignored: u64,
    pub(super) failed: Vec<FailedTest>,
    /// The names of those that said that they had nothing to test with, and why.
    skipped: Vec<(String, String)>,
    /// The names of those that take long and have not ended.
    running: Vec<String>,
    /// A program ended with an error although no test failed: it crashed or did not build.
    pub(super) is_broken: bool,
}

/// A test that failed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct FailedTest {
    pub(super) name: String,
    /// Where it panicked, or the error that it ended with.
    reason: Option<String>,
    /// The last lines of what it printed.
    output: VecDeque<String>,
}

/// Lines of a failed test that are told once more in the end, without stacks, which would be all of them.
const LAST_LINES: usize = 60;
/// Characters of the line that says why a test failed, in the list that ends a run: of a log that was cut, the end is left.
const REASON_CHARS: usize = 240;

/// What the runtime says of a test that panicked, before the place.
const PANICKED: &str = "panicked at ";

/// What a test prints, with the reason, that passes because this machine lacks what it tests with.
const SKIPPED: &str = "SKIPPED: ";

/// What the harness says of a test that takes long, after its name.
const TAKES_LONG: &str = " has been running for over 60 seconds";

/// Where in the output of a test program the last line was.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum Section {
    /// Names of tests with their results.
    #[default]
    Results,
    /// What failed tests printed: of this one.
    Failed(Option<String>),
    /// What tests that passed printed: of this one, if it had its head already.
    Passed(Option<String>),
}

/// Whether a line is one of a stack: `  3: a::function`, or where that is.
fn is_of_stack(line: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let line = line.trim_start();
    line.starts_with("at /")
        || line.starts_with("at ./")
        || line.split_once(": ").is_some_and(|(number, _)| is_number(number))
}

impl FailedTest {
    fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    fn on_output(&mut self, line: &str) {
        if let Some(start) = line.find(PANICKED) {
            self.reason = Some(line[start..].to_owned());
        } else if line.starts_with("Error: ") {
            self.reason = Some(line.to_owned());
        } else if self.output.back().is_some_and(|before| before.contains(PANICKED))
            && let Some(reason) = &mut self.reason
        {
            *reason = format!("{reason} {line}");
        }
        self.output.push_back(line.to_owned());
        if self.output.len() > LAST_LINES {
            self.output.pop_front();
        }
    }

    fn in_short(&self) -> String {
        let reason = self.reason.as_deref().unwrap_or("it said no reason");
        let reason: String = reason.chars().take(REASON_CHARS).collect();
        format!("{}: {reason}", self.name)
    }
}

impl Totals {
    /// Takes in a line of a test program's output; whether it is one to show.
    pub(super) fn on_line(&mut self, line: &str, section: &mut Section) -> bool {
        match line {
            "successes:" => *section = Section::Passed(None),
            "failures:" => *section = Section::Failed(None),
            _ if line.starts_with("test result: ") => *section = Section::Results,
            _ => {}
        }
        let head = || line.strip_prefix("---- ")?.strip_suffix(" stdout ----").map(str::to_owned);
        if let Section::Failed(test) = section {
            if let Some(head) = head() {
                *test = Some(head);
            } else if !is_of_stack(line)
                && let Some(name) = test
                && let Some(failed) = self.failed.iter_mut().find(|failed| failed.name == *name)
            {
                failed.on_output(line);
            }
            return !line.is_empty();
        }
        if let Section::Passed(test) = section {
            if let Some(head) = head() {
                *test = Some(head);
            } else if let Some(reason) = line.strip_prefix(SKIPPED)
                // Once, however often it says so.
                && let Some(test) = test.take()
            {
                self.skipped.push((test, reason.to_owned()));
            }
            return false;
        }
        self.on_result(line);
        !line.is_empty()
    }

    fn on_result(&mut self, line: &str) {
        if let Some(test) = line.strip_prefix("test ") {
            self.running.extend(test.strip_suffix(TAKES_LONG).map(str::to_owned));
            if let Some((name, result)) = test.split_once(" ... ") {
                self.running.retain(|running| running != name);
                self.failed.extend((result == "FAILED").then(|| FailedTest::named(name)));
            }
        }
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        let count = |label: &str| {
            let before = counts.split(label).next().unwrap_or_default();
            before.rsplit([' ', ';', '.']).find(|word| !word.is_empty())?.parse::<u64>().ok()
        };
        self.n_passed += count(" passed").unwrap_or(0);
        self.n_failed += count(" failed").unwrap_or(0);
        self.n_ignored += count(" ignored").unwrap_or(0);
    }

    /// Takes in that the program hung, and that no more comes of it.
    pub(super) fn on_hang(&mut self) {
        self.failed.extend(self.running.drain(..).map(|name| FailedTest::named(&name)));
        self.n_failed = self.failed.len() as u64;
    }

    /// The same, each name with the program's before it.
    pub(super) fn within(mut self, program: &str) -> Self {
        let failed = self.failed.iter_mut().map(|failed| &mut failed.name);
        let names = failed.chain(self.skipped.iter_mut().map(|(name, _)| name));
        names.for_each(|name| {
            name.insert_str(0, &format!("{program} "));
        });
        self
    }

    /// Adds those of another program.
    pub(super) fn add(&mut self, other: Self) {
        self.n_passed += other.n_passed;
        self.n_failed += other.n_failed;
        self.n_ignored += other.n_ignored;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.is_broken |= other.is_broken;
    }

    /// Prints the closing lines; an error where anything failed, and where `is_strict` also where anything was
    /// skipped.
    pub(crate) fn finish(self, is_strict: bool) -> Result<()> {
        for (name, reason) in &self.skipped {
            println!("skipped: {name}: {reason}");
        }
        for FailedTest { name, output, .. } in &self.failed {
            println!("failed: {name}, which said last:");
            output.iter().for_each(|line| println!("    {line}"));
        }
        self.failed.iter().for_each(|failed| println!("failed: {}", failed.in_short()));
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
            thread 'nat::three' (7) panicked at tests/nat.rs:9:5:\n\
            no gateway\n\
            stack backtrace:\n\
            \x20  0: std::panicking::begin\n\
            \x20            at ./library/std/src/panicking.rs:3:1\n\
            \n\
            test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.10s";
        let (mut totals, mut section) = (Totals::default(), Section::default());
        let shown: Vec<&str> = output.lines().filter(|line| totals.on_line(line, &mut section)).collect();
        assert!(shown.contains(&"SKIPPED: who fails is not skipped"), "{shown:?}");
        assert!(!shown.contains(&"SKIPPED: no namespaces here"), "{shown:?}");
        let skipped = vec![("nat::two".to_owned(), "no namespaces here".to_owned())];
        let panicked = "thread 'nat::three' (7) panicked at tests/nat.rs:9:5:";
        let output = ["SKIPPED: who fails is not skipped", panicked, "no gateway", "stack backtrace:", ""];
        let failed = vec![FailedTest {
            name: "nat::three".to_owned(),
            reason: Some("panicked at tests/nat.rs:9:5: no gateway".to_owned()),
            output: output.map(String::from).into(),
        }];
        assert_eq!(totals, Totals { n_passed: 2, n_failed: 1, failed, skipped, ..Totals::default() });
        let only_skipped = Totals { n_failed: 0, ..totals };
        assert!(only_skipped.clone().finish(false).is_ok());
        assert!(only_skipped.finish(true).is_err());
    }

    #[test]
    fn the_error_of_a_test_is_told_in_a_line_and_not_what_it_printed_after_it() {
        let mut failed = FailedTest::named("browser a_visit");
        assert_eq!(failed.in_short(), "browser a_visit: it said no reason");
        let error = "Error: visit: waited for doing() === 'reconnecting'";
        for line in ["a log", error, "", "Caused by:", "    0: it shows {"] {
            failed.on_output(line);
        }
        assert_eq!(failed.in_short(), format!("browser a_visit: {error}"));
        failed.on_output(&format!("Error: {}", "x".repeat(REASON_CHARS)));
        let told = failed.in_short();
        assert_eq!(told.len(), "browser a_visit: ".len() + REASON_CHARS, "{told}");
    }

    #[test]
    fn a_failure_is_an_error_and_so_is_a_program_that_broke() {
        assert!(Totals { n_passed: 1, ..Totals::default() }.finish(true).is_ok());
        assert!(Totals { n_failed: 1, ..Totals::default() }.finish(true).is_err());
        assert!(Totals { is_broken: true, ..Totals::default() }.finish(true).is_err());
    }
}
