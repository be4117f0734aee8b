//! Child processes: run one and fail with its name, read its output, look for a program.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How often a child with a time limit is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The cargo that runs this program, without the variables that describe this package.
pub(crate) fn cargo() -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    forget_this_package(&mut command);
    command
}

/// Removes what `cargo run` set for this program and a nested cargo must not see.
pub(crate) fn forget_this_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        if describes_a_package(text) {
            command.env_remove(name);
        }
    }
}

fn describes_a_package(variable: &str) -> bool {
    const PREFIXES: [&str; 3] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];
    const NAMES: [&str; 3] = ["CARGO", "CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE"];
    PREFIXES.iter().any(|prefix| variable.starts_with(prefix)) || NAMES.contains(&variable)
}

/// The same command at the lowest priority, where the system has `nice`: it takes what others leave of the processors.
pub(crate) fn at_lowest_priority(command: &Command) -> Command {
    let mut nice = Command::new("env");
    if find("nice").is_some() {
        nice = Command::new("nice");
        nice.args(["-n", "19"]);
    }
    nice.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    command.get_current_dir().map(|folder| nice.current_dir(folder));
    nice
}

/// Runs to the end with our stdout and stderr.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", describe(command)))?;
    succeed(command, status)
}

/// Runs to the end and returns what it printed on stdout; stderr passes through.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    command.stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("cannot start {}", describe(command)))?;
    succeed(command, output.status)?;
    String::from_utf8(output.stdout).with_context(|| format!("{} printed no text", describe(command)))
}

/// Like [`output`], silent, and `None` where the program is missing or fails: for questions whose
/// answer may be no.
pub(crate) fn try_output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).ok())?
}

/// Runs for at most `limit`, with our stdout and stderr; a child that takes longer is ended.
pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", describe(command)))?;
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return succeed(command, status);
        }
        if started.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            bail!("{} took more than {} s", describe(command), limit.as_secs());
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Where `PATH` has `program`.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|candidate| candidate.is_file())
}

/// The command line, for messages.
pub(crate) fn describe(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program()).to_string_lossy().into_owned();
    let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
    let line: Vec<String> = std::iter::once(name).chain(args).collect();
    format!("`{}`", line.join(" "))
}

fn succeed(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("{} ended with {status}", describe(command));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_child_is_named() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(error.to_string().contains("sh -c exit 3"), "{error}");
        assert!(error.to_string().contains('3'), "{error}");
    }

    #[test]
    fn a_command_of_low_priority_is_the_same_command() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $GIVEN; nice; pwd; echo ${CARGO_PKG_NAME:-none}"]);
        command.env("GIVEN", "a b").env_remove("CARGO_PKG_NAME").current_dir("/");
        assert_eq!(output(&mut at_lowest_priority(&command)).unwrap(), "a b\n19\n/\nnone\n");
    }

    #[test]
    fn a_missing_program_is_no_answer() {
        assert_eq!(try_output(&mut Command::new("barnraise-no-such-program")), None);
        assert_eq!(find("barnraise-no-such-program"), None);
    }

    #[test]
    fn a_child_that_takes_too_long_is_ended() {
        let error = run_within(Command::new("sleep").arg("600"), Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("took more than 0 s"), "{error}");
    }

    #[test]
    fn only_the_description_of_the_package_is_forgotten() {
        for name in ["CARGO", "CARGO_PKG_NAME", "CARGO_MANIFEST_DIR", "CARGO_CRATE_NAME"] {
            assert!(describes_a_package(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_BUILD_JOBS", "CARGO_NET_OFFLINE", "PATH"] {
            assert!(!describes_a_package(name), "{name}");
        }
    }
}
