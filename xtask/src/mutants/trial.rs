//! Test programs of a mutated crate: finds the tests that reach each mutant, and runs them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::lanes;
use crate::process;

/// Cases of each property, and seeds of each simulation. With as many as usual all mutants would take hours.
const PROPERTY_CASES: &str = "24";
const N_SEEDS: &str = "2";
/// A test that takes longer is left out: it would run once for each mutant that it reaches.
const TEST_MAX: Duration = Duration::from_secs(15);
/// What the slow tests of one mutant may take together, the quickest of them first. A thousand mutants are an hour
/// where every tenth passes all others.
const SLOW_MAX: Duration = Duration::from_secs(30);
/// Tests that take no longer are tried before the others.
const QUICK: Duration = Duration::from_millis(300);
/// Those of the quick tests that reach the fewest mutants, and so are about this one, are tried first: as many as take so long together.
const CLOSEST: Duration = Duration::from_millis(400);
/// Tests that take this long and [`LIMIT_FACTOR`] times what they usually take have been caught in a loop.
const LIMIT_MIN: Duration = Duration::from_secs(10);
const LIMIT_FACTOR: u32 = 10;
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Address space of a test program, KiB: a loop that fills the memory ends itself.
const MEMORY_MAX_KIB: u32 = 4 << 20;
/// Seconds of a processor that a test program may take: a loop ends itself where nobody watches it any more.
const PROCESSOR_MAX_S: u32 = 600;

/// A test program, and the folder that it runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TrialProgram {
    pub(super) path: PathBuf,
    pub(super) package: PathBuf,
}

impl TrialProgram {
    /// A copy in `folder`: the next build may take the program's place.
    pub(super) fn keep(&self, folder: &Path) -> Result<Self> {
        let name = self.path.file_name().context("a program has no name")?;
        let path = folder.join(name);
        fs::copy(&self.path, &path).with_context(|| format!("cannot copy {}", self.path.display()))?;
        Ok(Self { path, package: self.package.clone() })
    }
}

#[derive(Debug)]
struct Test {
    program: usize,
    name: String,
    took: Duration,
    /// Mutants that it reaches.
    n_reached: usize,
}

/// Outcome of a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MutantOutcome {
    /// A test failed.
    Caught,
    /// A test that reached it did not end.
    Timeout,
    /// All tests that reach it passed.
    Missed,
    Unreached,
}

/// The tests that each mutant is reached by.
#[derive(Debug)]
pub(super) struct Trials<'a> {
    programs: &'a [TrialProgram],
    tests: Vec<Test>,
    reached_by: BTreeMap<usize, Vec<usize>>,
    /// Where tests write.
    scratch: PathBuf,
}

impl<'a> Trials<'a> {
    /// Runs each test once, by itself.
    pub(super) fn measure(programs: &'a [TrialProgram], scratch: &Path) -> Result<Self> {
        let mut trials =
            Self { programs, tests: Vec::new(), reached_by: BTreeMap::new(), scratch: scratch.to_owned() };
        for (index, program) in programs.iter().enumerate() {
            let list = process::output(
                Command::new(&program.path)
                    .args(["--list", "--format", "terse"])
                    .current_dir(&program.package),
            )?;
            let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
            for name in names {
                trials.measure_one(index, name)?;
            }
        }
        println!("mutants: {} tests, {} mutants reached", trials.tests.len(), trials.reached_by.len());
        Ok(trials)
    }

    fn measure_one(&mut self, program: usize, name: &str) -> Result<()> {
        let reached = self.scratch.join("reached");
        let mut command = self.command(program, "reach", &[name])?;
        command.env("BARNRAISE_MUTANTS_REACHED", &reached);
        let started = Instant::now();
        let end = watch(command, TEST_MAX)?;
        let took = started.elapsed();
        let numbers = fs::read_to_string(&reached).unwrap_or_default();
        let _ = fs::remove_file(&reached);
        match end {
            TrialEnd::Passed if numbers.is_empty() => {}
            TrialEnd::Passed => {
                let n_reached = numbers.lines().count();
                for number in numbers.lines() {
                    let number = number.parse().context("a mutant's number is none")?;
                    self.reached_by.entry(number).or_default().push(self.tests.len());
                }
                self.tests.push(Test { program, name: name.to_owned(), took, n_reached });
            }
            TrialEnd::Failed => println!("mutants: {name} fails with nothing changed, and is left out"),
            TrialEnd::TooLong => {
                println!("mutants: {name} takes more than {} s and is left out", TEST_MAX.as_secs());
            }
        }
        Ok(())
    }

    /// The outcome of each mutant; each is passed to `report` at once. The quick tests are asked about all of them first, and the
    /// slow ones about what is left.
    pub(super) fn outcomes(
        &self,
        mutants: &[usize],
        names: &[String],
        report: impl Fn(usize, MutantOutcome) + Sync,
    ) -> Result<Vec<(usize, MutantOutcome)>> {
        let quick = self.try_all(mutants, |mutant| {
            let outcome = self.outcome(mutant, self.quick(mutant))?;
            match outcome {
                MutantOutcome::Missed => println!("mutants: no quick test notices {}", names[mutant]),
                _ => report(mutant, outcome),
            }
            Ok(outcome)
        })?;
        let is_left = |(_, outcome): &(usize, MutantOutcome)| *outcome == MutantOutcome::Missed;
        let (left, mut outcomes): (Vec<_>, Vec<_>) = quick.into_iter().partition(is_left);
        let left: Vec<usize> = left.into_iter().map(|(mutant, _)| mutant).collect();
        println!("mutants: {} pass the tests that are quick", left.len());
        outcomes.extend(self.try_all(&left, |mutant| {
            let outcome = self.outcome(mutant, self.slow(mutant))?;
            report(mutant, outcome);
            Ok(outcome)
        })?);
        outcomes.sort_unstable();
        Ok(outcomes)
    }

    /// Tries each mutant, as many at once as there are processors.
    fn try_all(
        &self,
        mutants: &[usize],
        attempt: impl Fn(usize) -> Result<MutantOutcome> + Sync,
    ) -> Result<Vec<(usize, MutantOutcome)>> {
        lanes::run(lanes::one_each_processor(), mutants, |&mutant| Ok((mutant, attempt(mutant)?)))
    }

    fn reaching(&self, mutant: usize) -> impl Iterator<Item = &Test> {
        self.reached_by.get(&mutant).into_iter().flatten().map(|&test| &self.tests[test])
    }

    /// The tests that are quick, the closest before the others, and of both those of a program together.
    fn quick(&self, mutant: usize) -> Vec<Vec<&Test>> {
        let mut quick: Vec<&Test> = self.reaching(mutant).filter(|test| test.took <= QUICK).collect();
        quick.sort_by_key(|test| test.n_reached);
        let mut left = CLOSEST;
        let n_closest = quick.iter().take_while(|test| {
            left = left.saturating_sub(test.took);
            !left.is_zero()
        });
        let (closest, others) = quick.split_at(n_closest.count());
        [closest, others].into_iter().flat_map(of_each_program).collect()
    }

    /// The others, each by itself, as many as [`SLOW_MAX`] has room for.
    fn slow(&self, mutant: usize) -> Vec<Vec<&Test>> {
        let mut slow: Vec<&Test> = self.reaching(mutant).filter(|test| test.took > QUICK).collect();
        slow.sort_by_key(|test| test.took);
        let mut left = SLOW_MAX;
        slow.retain(|test| {
            let is_affordable = test.took <= left;
            left = left.saturating_sub(test.took);
            is_affordable
        });
        slow.into_iter().map(|test| vec![test]).collect()
    }

    fn outcome(&self, mutant: usize, batches: Vec<Vec<&Test>>) -> Result<MutantOutcome> {
        if !self.reached_by.contains_key(&mutant) {
            return Ok(MutantOutcome::Unreached);
        }
        for batch in batches {
            let names: Vec<&str> = batch.iter().map(|test| test.name.as_str()).collect();
            let usual: Duration = batch.iter().map(|test| test.took).sum();
            let command = self.command(batch[0].program, &mutant.to_string(), &names)?;
            match watch(command, LIMIT_MIN + usual * LIMIT_FACTOR)? {
                TrialEnd::Passed => {}
                TrialEnd::Failed => return Ok(MutantOutcome::Caught),
                TrialEnd::TooLong => return Ok(MutantOutcome::Timeout),
            }
        }
        Ok(MutantOutcome::Missed)
    }

    fn command(&self, program: usize, mutant: &str, tests: &[&str]) -> Result<Command> {
        let TrialProgram { path, package } = &self.programs[program];
        // What an ended test leaves behind is not found by the next one.
        let folder = self.scratch.join(format!("tmp-{mutant}"));
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        fs::create_dir_all(&folder)?;
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                &format!("ulimit -v {MEMORY_MAX_KIB}; ulimit -t {PROCESSOR_MAX_S}; exec \"$0\" \"$@\""),
            ])
            .arg(path);
        command.args(["--exact", "--test-threads=1"]).args(tests);
        command.current_dir(package).env("CARGO_MANIFEST_DIR", package).env("TMPDIR", folder);
        command.env("BARNRAISE_MUTANT", mutant).env("PROPTEST_CASES", PROPERTY_CASES);
        command.env("BARNRAISE_SIMULATION_SEEDS", N_SEEDS);
        command.env("PROPTEST_FAILURE_PERSISTENCE", "off").env("RUST_BACKTRACE", "0");
        Ok(command)
    }
}

/// Those of a program together, as one run of it.
fn of_each_program<'t>(tests: &[&'t Test]) -> Vec<Vec<&'t Test>> {
    let mut tests = tests.to_vec();
    tests.sort_by_key(|test| test.program);
    tests.chunk_by(|a, b| a.program == b.program).map(<[_]>::to_vec).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrialEnd {
    Passed,
    Failed,
    TooLong,
}

/// Runs a test program until it ends, a test of it fails or `limit` is over.
fn watch(mut command: Command, limit: Duration) -> Result<TrialEnd> {
    let started = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child =
        command.spawn().with_context(|| format!("cannot start {}", process::describe(&command)))?;
    let output = child.stdout.take().context("the child has no output")?;
    let (failed, failure) = mpsc::sync_channel(1);
    // It ends with the last process that writes there; nobody waits for it.
    thread::spawn(move || {
        // A test may print what is no text.
        let mut lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
        if lines.any(|line| line.ends_with(b"FAILED")) {
            let _ = failed.send(());
        }
    });
    let end = loop {
        if let Some(status) = child.try_wait()? {
            break if status.success() { TrialEnd::Passed } else { TrialEnd::Failed };
        }
        if failure.try_recv().is_ok() {
            break TrialEnd::Failed;
        }
        if started.elapsed() > limit {
            break TrialEnd::TooLong;
        }
        thread::sleep(POLL_INTERVAL);
    };
    let _ = child.kill();
    child.wait()?;
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> TrialEnd {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        watch(command, limit).unwrap()
    }

    #[test]
    fn the_tests_that_are_closest_to_a_mutant_come_first() {
        let test = |program, name: &str, millis, n_reached| Test {
            program,
            name: name.to_owned(),
            took: Duration::from_millis(millis),
            n_reached,
        };
        let tests = vec![
            test(0, "slow", 301, 1),
            test(0, "of-all", 10, 900),
            test(1, "near", 200, 3),
            test(0, "nearest", 199, 2),
            test(0, "further", 1, 4),
        ];
        let reached_by = [(7, (0..tests.len()).collect())].into();
        let trials = Trials { programs: &[], tests, reached_by, scratch: PathBuf::new() };
        let names = |batches: Vec<Vec<&Test>>| -> Vec<Vec<String>> {
            batches.iter().map(|batch| batch.iter().map(|test| test.name.clone()).collect()).collect()
        };
        assert_eq!(names(trials.quick(7)), [vec!["nearest"], vec!["near"], vec!["further", "of-all"]]);
        assert_eq!(names(trials.slow(7)), [["slow"]]);
        assert!(trials.quick(8).is_empty());
    }

    #[test]
    fn a_program_ends_with_its_first_failure() {
        let ample = Duration::from_secs(600);
        assert_eq!(shell("echo test a ... ok", ample), TrialEnd::Passed);
        assert_eq!(shell("echo test a ... ok; exit 101", ample), TrialEnd::Failed);
        assert_eq!(shell("echo test a ... FAILED; exec sleep 600", ample), TrialEnd::Failed);
        assert_eq!(shell("exec sleep 600", Duration::ZERO), TrialEnd::TooLong);
    }
}
