//! The test programs that cargo built, run side by side.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::iter;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use super::totals::{Section, Totals};
use crate::lanes;
use crate::process;

/// Programs that run at once, each with as many tests at once as there are processors.
const SIDE_BY_SIDE: usize = 2;
/// The member whose tests start processes and browsers. One program of it runs at a time: two took no less time, and what
/// is waited for in them came late.
const OF_PROCESSES: &str = "tests";
/// Its tests that run at once for each processor: most of them wait, for what another process does after a while.
const TESTS_PER_PROCESSOR: usize = 2;
/// How many tests of a program run at once.
const TEST_THREADS: &str = "RUST_TEST_THREADS";
/// It measures what attacks leave of a speed: nothing else runs beside it.
const ALONE: &str = "tests/hostile";
/// One test that waits for its run half of the time, and measures no speed: it runs beside those of processes.
const BESIDE: &str = "tests/open_run";
/// Lines of its output that wait to be looked at.
const LINES_MAX: usize = 1024;
/// A program in which no test ends for so long hangs; the longest test takes a third of it.
const SILENCE_MAX: Duration = Duration::from_mins(10);

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// Folder of its member and name of the target.
    name: String,
    /// Of its member: where it runs.
    folder: PathBuf,
    executable: PathBuf,
    starts_processes: bool,
}

impl TestProgram {
    /// That of a message of cargo's, if it is about one.
    fn of_message(message: &Value, root: &Path) -> Option<Self> {
        let is_test = message["profile"]["test"].as_bool()?;
        let executable = message["executable"].as_str().filter(|_| is_test)?;
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
        let member = folder.strip_prefix(root).unwrap_or(folder).to_string_lossy().into_owned();
        let kind = message["target"]["kind"][0].as_str()?;
        let target = message["target"]["name"].as_str()?;
        let name = if kind == "test" { format!("{member}/{target}") } else { format!("{member} ({kind})") };
        let starts_processes = member == OF_PROCESSES && kind == "test";
        Some(Self { name, folder: folder.to_owned(), executable: executable.into(), starts_processes })
    }

    fn command(&self, environment: &[(&str, OsString)]) -> Command {
        let mut command = Command::new(&self.executable);
        command.arg("--show-output");
        // As cargo would have it.
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        if self.starts_processes && env::var_os(TEST_THREADS).is_none() {
            let n_processors = thread::available_parallelism().map_or(1, NonZero::get);
            command.env(TEST_THREADS, (TESTS_PER_PROCESSOR * n_processors).to_string());
        }
        command
    }
}

/// Builds the test programs that `command`, a `cargo test`, selects.
pub(crate) fn build(mut command: Command, root: &Path) -> Result<Vec<TestProgram>> {
    command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let messages = process::output(&mut command)?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    Ok(messages.filter_map(|message: Value| TestProgram::of_message(&message, root)).collect())
}

/// Runs all of them and adds up, and does `beside` meanwhile, but for the program that wants to be alone.
pub(crate) fn run<T: Send>(
    programs: &[TestProgram],
    environment: &[(&str, OsString)],
    beside: impl FnOnce() -> Result<T> + Send,
) -> Result<(Totals, Result<T>)> {
    let (alone, others): (Vec<_>, Vec<_>) = programs.iter().partition(|program| program.name == ALONE);
    let (of_processes, mut others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|program| program.starts_processes && program.name != BESIDE);
    others.sort_by_key(|program| program.name != BESIDE);
    let (outcomes, beside) = thread::scope(|scope| {
        let beside = scope.spawn(beside);
        let others = others.into_iter().map(|program| vec![program]);
        let series: Vec<_> = iter::once(of_processes).chain(others).collect();
        (lanes::run(SIDE_BY_SIDE, &series, |programs| in_turn(programs, environment)), beside.join())
    });
    let mut outcomes = outcomes?.concat();
    outcomes.extend(in_turn(&alone, environment)?);
    let mut sum = Totals::default();
    outcomes.into_iter().for_each(|(program, totals)| sum.add(totals.within(&program.name)));
    Ok((sum, beside.map_err(|_| anyhow!("what was done beside the tests panicked"))?))
}

/// Runs one after the other.
fn in_turn<'p>(
    programs: &[&'p TestProgram],
    environment: &[(&str, OsString)],
) -> Result<Vec<(&'p TestProgram, Totals)>> {
    let run = |&program: &&'p TestProgram| {
        let started = Instant::now();
        let totals = follow(program.command(environment), &program.name)?;
        let (n_passed, n_failed) = (totals.n_passed, totals.n_failed);
        println!(
            "test: {}: {n_passed} passed, {n_failed} failed in {:.0} s",
            program.name,
            started.elapsed().as_secs_f64()
        );
        Ok((program, totals))
    };
    programs.iter().map(run).collect()
}

/// Runs a test program, shows its output but of the tests that passed, each line with the program's name, and adds up
/// the results. One that hangs is ended, and the tests that ran then have failed.
pub(crate) fn follow(command: Command, name: &str) -> Result<Totals> {
    follow_within(command, name, SILENCE_MAX)
}

fn follow_within(mut command: Command, name: &str, silence_max: Duration) -> Result<Totals> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child =
        command.spawn().with_context(|| format!("cannot start {}", process::describe(&command)))?;
    let stdout = child.stdout.take().context("the output of a test program is not piped")?;
    let (sender, lines) = mpsc::sync_channel(LINES_MAX);
    // Reads on its own, and outlives a program that hangs where a child of that one keeps the pipe open.
    thread::spawn(move || BufReader::new(stdout).lines().try_for_each(|line| sender.send(line)));
    let (mut totals, mut section) = (Totals::default(), Section::default());
    loop {
        match lines.recv_timeout(silence_max) {
            Ok(line) => {
                let line = line.with_context(|| format!("cannot read the output of {name}"))?;
                if totals.on_line(&line, &mut section) {
                    println!("{name}: {line}");
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                child.kill()?;
                totals.on_hang();
                let minutes = silence_max.as_secs() / 60;
                println!("{name}: ended because no test ended for {minutes} minutes");
                break;
            }
        }
    }
    totals.is_broken = !child.wait()?.success() && totals.n_failed == 0;
    if totals.is_broken {
        println!("{name}: ended with an error, though no test failed");
    }
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use serde_json::json;

    use super::*;

    fn message(folder: &str, kind: &str, name: &str, is_test: bool) -> Value {
        json!({
            "reason": "compiler-artifact",
            "manifest_path": format!("/project/{folder}/Cargo.toml"),
            "target": { "kind": [kind], "name": name },
            "profile": { "test": is_test },
            "executable": format!("/target/{name}"),
        })
    }

    #[test]
    fn programs_are_what_cargo_built_to_test() {
        let read = |message| TestProgram::of_message(&message, Path::new("/project"));
        let programs: Vec<TestProgram> = [
            message("relay", "lib", "barnraise_relay", true),
            message("native", "bin", "barnraise", false),
            message("tests", "lib", "barnraise_tests", true),
            message("tests", "test", "native", true),
            message("shared/swarm", "test", "native", true),
            json!({ "reason": "build-finished", "success": true }),
        ]
        .into_iter()
        .filter_map(read)
        .collect();
        let names: Vec<_> =
            programs.iter().map(|program| (&*program.name, program.starts_processes)).collect();
        let wanted = [
            ("relay (lib)", false),
            ("tests (lib)", false),
            ("tests/native", true),
            ("shared/swarm/native", false),
        ];
        assert_eq!(names, wanted);
    }

    /// A shell that says what a test program would.
    fn says(folder: &Path, name: &str, script: &str) -> TestProgram {
        let executable = folder.join(name);
        // Another process writes it. A process that another test starts has the files of this one for a moment, and what
        // somebody may write to is not run.
        let mut writing = Command::new("sh");
        writing.args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod 755 \"$1\"", "sh"]);
        assert!(writing.arg(&executable).arg(script).status().unwrap().success());
        TestProgram { name: name.to_owned(), folder: folder.to_owned(), executable, starts_processes: true }
    }

    const PASSED: &str = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";

    #[test]
    fn what_fails_is_named_with_its_program_and_is_not_run_again() {
        let folder = tempfile::tempdir().unwrap();
        let failed = "echo once >> \"$0.runs\"; echo 'test a::b ... FAILED'; \
                      echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored'; exit 101";
        let programs = [says(folder.path(), "one", failed), says(folder.path(), "two", PASSED)];
        let (totals, beside) = run(&programs, &[], || Ok("beside")).unwrap();
        assert_eq!(beside.unwrap(), "beside");
        assert_eq!((totals.n_passed, totals.n_failed), (3, 1));
        assert_eq!(totals.failed.iter().map(|failed| failed.name.as_str()).collect::<Vec<_>>(), ["one a::b"]);
        assert!(totals.finish(false).is_err());
        assert_eq!(std::fs::read_to_string(folder.path().join("one.runs")).unwrap(), "once\n");
    }

    #[test]
    fn a_program_that_hangs_is_ended_and_names_the_test() {
        let folder = tempfile::tempdir().unwrap();
        let hangs = "echo 'test a ... ok'; for name in a b; do \
                     echo \"test $name has been running for over 60 seconds\"; done; echo 'test a ... ok'; sleep 60";
        let program = says(folder.path(), "one", hangs);
        // Its lines must come before: to start a shell takes a while on a busy machine.
        let totals = follow_within(program.command(&[]), "one", Duration::from_secs(15)).unwrap();
        assert_eq!((totals.failed.len(), totals.failed[0].name.as_str(), totals.n_failed), (1, "b", 1));
        let program = says(folder.path(), "two", "sleep 60");
        assert!(follow_within(program.command(&[]), "two", Duration::from_secs(1)).unwrap().is_broken);
    }

    #[test]
    fn a_program_that_crashes_is_no_success() {
        let folder = tempfile::tempdir().unwrap();
        let programs = [says(folder.path(), "one", "kill -SEGV $$"), says(folder.path(), "two", PASSED)];
        let (totals, beside) = run(&programs, &[], || -> Result<()> { bail!("beside") }).unwrap();
        assert!(totals.finish(false).is_err() && beside.is_err());
        assert!(run(&programs, &[], || -> Result<()> { panic!("beside") }).is_err());
    }
}
