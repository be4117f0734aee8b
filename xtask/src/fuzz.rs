//! libFuzzer on the fuzz targets, which are tests in a module `fuzz` (see `tests/fuzz`).

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use barnraise_fuzz::corpus;
use clap::Args;
use serde_json::Value;

use crate::lanes;
use crate::process;
use crate::workspace::Workspace;

/// Says where what was built is.
const JSON: [&str; 2] = ["--message-format", "json-render-diagnostics"];
/// What one input may take; the slowest that counts is a hundredth of it.
const INPUT_SECONDS_MAX: u32 = 10;
/// What a target may take, with all that the fuzzer keeps.
const MEMORY_MIB_MAX: u32 = 2048;
/// Of a corpus in the repository, where `--keep` writes it.
const KEPT_INPUTS_MAX: usize = 64;
const KEPT_BYTES_MAX: usize = 16 * 1024;

#[derive(Debug, Args)]
pub(crate) struct FuzzArgs {
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Afterwards, put what reaches most into the corpora in the repository
    #[arg(long)]
    keep: bool,
    /// Names of targets, or none for all
    targets: Vec<String>,
}

/// A test in a module `fuzz`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FuzzTarget {
    name: String,
    /// The whole name of the test.
    test: String,
    program: PathBuf,
    /// Folder of its crate.
    member: PathBuf,
}

/// `cargo xtask fuzz`.
pub(crate) fn run(workspace: &Workspace, args: &FuzzArgs) -> Result<()> {
    println!("fuzz: building the tests with counters: minutes the first time");
    let all = targets(workspace)?;
    let selected: Vec<&FuzzTarget> = if args.targets.is_empty() {
        all.iter().collect()
    } else {
        args.targets.iter().map(|name| find(&all, name)).collect::<Result<_>>()?
    };
    // A finding ends no other target: in the morning all of them are there to read.
    let failed = lanes::run(lanes::one_each_processor(), &selected, |target| {
        let failure = run_one(workspace, target, args).err();
        Ok(failure.map(|error| {
            println!("fuzz: {error:#}");
            target.name.as_str()
        }))
    })?;
    let failed: Vec<&str> = failed.into_iter().flatten().collect();
    if !failed.is_empty() {
        bail!("of {} targets these failed: {}", selected.len(), failed.join(", "));
    }
    Ok(())
}

fn run_one(workspace: &Workspace, target: &FuzzTarget, args: &FuzzArgs) -> Result<()> {
    let FuzzTarget { name, .. } = target;
    println!("fuzz: {name} for {} s", args.seconds);
    let folders = Folders::new(workspace, target)?;
    let n_executions = fuzz(target, &folders, args.seconds)?;
    println!("fuzz: {name}: {n_executions} executions and no finding");
    if args.keep {
        keep(target, &folders)?;
    }
    Ok(())
}

fn find<'t>(all: &'t [FuzzTarget], name: &str) -> Result<&'t FuzzTarget> {
    let names = || all.iter().map(|target| target.name.as_str()).collect::<Vec<_>>().join(", ");
    let found = all.iter().find(|target| target.name == name);
    found.with_context(|| format!("no fuzz target is called `{name}`; there are {}", names()))
}

/// Builds the unit tests of all members with counters. Their dependencies are those of other tests.
fn targets(workspace: &Workspace) -> Result<Vec<FuzzTarget>> {
    let mut command = workspace.cargo();
    command.arg("test").args(Workspace::native_selection()).args(["--lib", "--no-run"]).args(JSON);
    command.env("RUSTC_WORKSPACE_WRAPPER", workspace.root.join("xtask/src/instrumented.sh"));
    command.env("BARNRAISE_LIBFUZZER", runtime(workspace)?);
    let messages = process::output(&mut command)?;
    let mut targets = Vec::new();
    for (program, member) in messages.lines().filter_map(test_program) {
        let list = process::output(Command::new(&program).args(["--list", "--format", "terse"]))?;
        targets.extend(list.lines().filter_map(|line| target(line, &program, &member)));
    }
    Ok(targets)
}

/// Builds libFuzzer; returns its archive.
fn runtime(workspace: &Workspace) -> Result<PathBuf> {
    let mut command = workspace.cargo();
    command.current_dir(workspace.root.join("tests/fuzz/runtime"));
    command.env("CARGO_TARGET_DIR", workspace.target.join("fuzz/runtime")).arg("build").args(JSON);
    let messages = process::output(&mut command)?;
    let archive = messages.lines().find_map(archive);
    archive.context("the build script of libfuzzer-sys has left no libfuzzer.a")
}

/// The archive, where a line of cargo's is of the build script that made it.
fn archive(line: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let archive = PathBuf::from(message.get("out_dir")?.as_str()?).join("libfuzzer.a");
    archive.is_file().then_some(archive)
}

/// Program and folder of the member, where a line of cargo's is of a test program.
fn test_program(line: &str) -> Option<(PathBuf, PathBuf)> {
    let message: Value = serde_json::from_str(line).ok()?;
    let program = message.get("executable")?.as_str()?;
    let manifest = PathBuf::from(message.get("manifest_path")?.as_str()?);
    let is_test = message.get("profile")?.get("test")?.as_bool()?;
    is_test.then(|| Some((program.into(), manifest.parent()?.to_owned())))?
}

fn target(line: &str, program: &Path, member: &Path) -> Option<FuzzTarget> {
    let test = line.strip_suffix(": test")?;
    let (module, name) = test.rsplit_once("::")?;
    let is_target = module == "fuzz" || module.ends_with("::fuzz");
    let (program, member) = (program.to_owned(), member.to_owned());
    is_target.then(|| FuzzTarget { name: name.to_owned(), test: test.to_owned(), program, member })
}

/// Where the fuzzer reads and writes, in the target directory.
struct Folders {
    /// What the repository has.
    corpus: PathBuf,
    /// What was found since.
    found: PathBuf,
    /// What the repository would better have.
    kept: PathBuf,
    /// Inputs at which the target fails.
    findings: PathBuf,
}

impl Folders {
    fn new(workspace: &Workspace, target: &FuzzTarget) -> Result<Self> {
        let folder = |kind: &str| workspace.target.join("fuzz").join(kind).join(&target.name);
        let folders = Self {
            corpus: folder("corpus"),
            found: folder("found"),
            kept: folder("kept"),
            findings: folder("findings"),
        };
        for emptied in [&folders.corpus, &folders.kept] {
            if emptied.exists() {
                fs::remove_dir_all(emptied)?;
            }
        }
        for folder in [&folders.corpus, &folders.found, &folders.kept, &folders.findings] {
            fs::create_dir_all(folder)?;
        }
        let file = corpus::file(&target.member, &target.name);
        if file.exists() {
            let inputs = corpus::read(&file).with_context(|| file.display().to_string())?;
            for (number, input) in inputs.iter().enumerate() {
                fs::write(folders.corpus.join(number.to_string()), input)?;
            }
        }
        Ok(folders)
    }
}

/// Runs a target; returns the number of executions.
fn fuzz(target: &FuzzTarget, folders: &Folders, seconds: u64) -> Result<u64> {
    let limits = [
        format!("-max_total_time={seconds}"),
        format!("-timeout={INPUT_SECONDS_MAX}"),
        format!("-rss_limit_mb={MEMORY_MIB_MAX}"),
        format!("-artifact_prefix={}/", folders.findings.display()),
        "-print_final_stats=1".to_owned(),
    ];
    let began = Instant::now();
    let log = folders.findings.with_extension("log");
    let is_good = libfuzzer(target, &limits, &[&folders.found, &folders.corpus], &log)?;
    let text = fs::read_to_string(&log)?;
    if !is_good {
        report(&text);
        bail!(
            "{} found something after {} s; all of it is in {}",
            target.name,
            began.elapsed().as_secs(),
            log.display()
        );
    }
    number_after(&text, "stat::number_of_executed_units:").context("libFuzzer ended without its numbers")
}

/// The end of what was printed, and the input as a line of a corpus.
fn report(text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].iter().for_each(|line| println!("{line}"));
    let written =
        lines.iter().find_map(|line| line.split_once("Test unit written to ")).map(|(_, file)| file);
    if let Some(input) = written.and_then(|file| fs::read(file).ok()) {
        println!("fuzz: the input, for its corpus:\n{}", corpus::line(&input));
    }
}

/// Runs libFuzzer in the test, with its output in a file; returns whether it found nothing.
fn libfuzzer(target: &FuzzTarget, args: &[String], folders: &[&PathBuf], log: &Path) -> Result<bool> {
    let output = fs::File::create(log)?;
    let mut lines: Vec<OsString> = args.iter().map(OsString::from).collect();
    lines.extend(folders.iter().map(|folder| folder.as_os_str().to_owned()));
    let mut command = Command::new(&target.program);
    process::forget_this_package(&mut command);
    command.args([&target.test, "--exact", "--nocapture", "--test-threads=1"]);
    command.current_dir(&target.member).env("BARNRAISE_FUZZ_ARGS", lines.join(&OsString::from("\n")));
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    Ok(command.status().with_context(|| format!("cannot start {}", process::describe(&command)))?.success())
}

/// Puts inputs that together reach what was reached into the repository, as many as fit there.
fn keep(target: &FuzzTarget, folders: &Folders) -> Result<()> {
    let log = folders.kept.with_extension("log");
    if !libfuzzer(target, &["-merge=1".to_owned()], &[&folders.kept, &folders.corpus, &folders.found], &log)?
    {
        bail!("no corpus can be made of {}: see {}", target.name, log.display());
    }
    let files = fs::read_dir(&folders.kept)?.map(|entry| Ok(fs::read(entry?.path())?));
    let mut inputs = files.collect::<Result<Vec<Vec<u8>>>>()?;
    inputs.retain(|input| !input.is_empty());
    inputs.sort_unstable_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    // Where they are too many: some of each length.
    let step = inputs.len().div_ceil(KEPT_INPUTS_MAX).max(1);
    let file = corpus::file(&target.member, &target.name);
    let mut text = corpus::by_hand(&fs::read_to_string(&file).unwrap_or_default());
    let n_before = text.len();
    let mut n_kept = 0;
    for input in inputs.iter().step_by(step) {
        let line = corpus::line(input);
        if text.len() - n_before + line.len() > KEPT_BYTES_MAX {
            continue;
        }
        text.push_str(&line);
        text.push('\n');
        n_kept += 1;
    }
    println!("fuzz: {}: {n_kept} of {} inputs kept in {}", target.name, inputs.len(), file.display());
    fs::create_dir_all(target.member.join("fuzz"))?;
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn number_after<T: FromStr>(text: &str, what: &str) -> Option<T> {
    text.lines().find_map(|line| line.strip_prefix(what))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn targets_are_the_tests_in_modules_called_fuzz() {
        let of = |line| target(line, Path::new("/program"), Path::new("/member"));
        assert_eq!(of("fuzz::access: test").unwrap().name, "access");
        assert_eq!(of("webrtc::front::fuzz::client_hello: test").unwrap().name, "client_hello");
        for other in
            ["refuzz::access: test", "fuzz::tests::access: test", "access: test", "fuzz::x: bench", ""]
        {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn programs_are_those_of_tests() {
        let message = |executable: Value, is_test| {
            let profile = json!({ "test": is_test });
            json!({ "executable": executable, "manifest_path": "/a/b/Cargo.toml", "profile": profile })
                .to_string()
        };
        let program = (PathBuf::from("/target/x"), PathBuf::from("/a/b"));
        assert_eq!(test_program(&message(json!("/target/x"), true)), Some(program));
        assert_eq!(test_program(&message(json!("/target/x"), false)), None);
        assert_eq!(test_program(&message(Value::Null, true)), None);
        assert_eq!(test_program("warning: x"), None);
    }

    #[test]
    fn the_number_of_executions_is_read() {
        let text = "#12\tDONE\nstat::number_of_executed_units: 1234\nstat::average_exec_per_sec: 7\n";
        assert_eq!(number_after(text, "stat::number_of_executed_units:"), Some(1234_u64));
        assert_eq!(number_after::<u64>("", "stat::number_of_executed_units:"), None);
    }
}
