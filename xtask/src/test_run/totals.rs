//! Adds up the results that test programs print.

use anyhow::{Result, bail};

/// Sums over some test programs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(super) n_passed: u64,
    pub(super) n_failed: u64,
    n_ignored: u64,
    /// The names of those that failed.
    pub(super) failed: Vec<String>,
    /// The names of those that said that they had nothing to test with, and why.
    skipped: Vec<(String, String)>,
    /// The names of those that passed only when they were run again.
    unsteady: Vec<String>,
    /// The names of those that take long and have not ended.
    running: Vec<String>,
    /// A program ended with an error although no test failed: it crashed or did not build.
    pub(super) is_broken: bool,
}

/// What a test prints, with the reason, that passes because this machine lacks what it tests with.
const SKIPPED: &str = "SKIPPED: ";

/// What the harness says of a test that takes long, after its name.
const TAKES_LONG: &str = " has been running for over 60 seconds";

/// Where in the output of a test program the last line was.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum Section {
    /// Names of tests with their results, or the output of failed ones.
    #[default]
    Results,
    /// What tests that passed printed: of this one, if it had its head already.
    Passed(Option<String>),
}

impl Totals {
    /// Takes in a line of a test program's output; whether it is one to show.
    pub(super) fn on_line(&mut self, line: &str, section: &mut Section) -> bool {
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
        !line.is_empty()
    }

    fn on_result(&mut self, line: &str) {
        if let Some(test) = line.strip_prefix("test ") {
            self.running.extend(test.strip_suffix(TAKES_LONG).map(str::to_owned));
            if let Some((name, result)) = test.split_once(" ... ") {
                self.running.retain(|running| running != name);
                self.failed.extend((result == "FAILED").then(|| name.to_owned()));
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
        self.failed.append(&mut self.running);
        self.n_failed = self.failed.len() as u64;
    }

    /// Takes in that `again` is what came of running the failed ones a second time, if it was of all of them.
    pub(super) fn on_second_run(&mut self, again: &Self) {
        if again.is_broken || again.n_passed + again.n_failed != self.n_failed {
            return;
        }
        let (failed, unsteady) =
            std::mem::take(&mut self.failed).into_iter().partition(|name| again.failed.contains(name));
        (self.failed, self.unsteady) = (failed, unsteady);
        self.n_passed += again.n_passed;
        self.n_failed = again.n_failed;
        self.skipped.extend_from_slice(&again.skipped);
    }

    /// The same, each name with the program's before it.
    pub(super) fn within(mut self, program: &str) -> Self {
        let names = self.failed.iter_mut().chain(&mut self.unsteady);
        names.chain(self.skipped.iter_mut().map(|(name, _)| name)).for_each(|name| {
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
        self.unsteady.extend(other.unsteady);
        self.is_broken |= other.is_broken;
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
        for name in &self.failed {
            println!("failed: {name}");
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
