//! Mutants: the code of a folder, changed in one small way at a time. A change that no test notices is a test
//! that is missing, or code that does nothing.
//!
//! The checkout is never changed: cargo-mutants works in a copy. What it builds is in a target directory of its
//! own, because cargo takes programs of a copy for those of the checkout, and they would be mutated ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process;
use crate::setup;
use crate::workspace::{self, BROWSER_MODULES, Workspace};

/// A test that runs as long as this has been caught in a loop. A loaded machine makes a test ten times as long, no more.
const TEST_TIMEOUT_MIN_S: u32 = 120;
/// The same, as a multiple of what the tests of the unchanged code take.
const TEST_TIMEOUT_FACTOR: u32 = 10;
/// Share of the mutants of a folder that no test may notice, in percent. One that cannot be noticed, because
/// it means the same, is named in `.cargo/mutants.toml` and is no mutant.
const MISSED_PERCENT_MAX: usize = 5;
/// Exit codes of cargo-mutants that say how the mutants fared; all others say that it could not work.
const EXIT_CODES: [i32; 3] = [0, 2, 3];

/// Makes the mutants of `folder`, or those of the part `shard` (`k/n`: each n-th, beginning with the k-th from zero),
/// and fails if more than [`MISSED_PERCENT_MAX`] of them pass the tests.
pub(crate) fn run(workspace: &Workspace, folder: &Path, shard: Option<&str>) -> Result<()> {
    setup::cargo_program("cargo-mutants")?;
    let folder = folder.canonicalize().with_context(|| format!("there is no {}", folder.display()))?;
    let member = Member::of(&workspace::metadata()?, &folder)?;
    let mut select = vec!["--file".to_owned(), glob(&workspace.root, &folder)?];
    if let Some(shard) = shard {
        select.extend(["--sharding", "round-robin", "--shard", shard].map(str::to_owned));
    }
    let n_mutants =
        process::output(cargo_mutants(workspace, &member).arg("--list").args(&select))?.lines().count();
    if n_mutants == 0 {
        bail!("nothing in {} can be mutated", folder.display());
    }
    println!(
        "mutants: {n_mutants} of {}, each compiled and tested by itself: 5 to 15 s for a small crate, a minute for \
         the native one; first the dependencies, once",
        member.name
    );
    let mut fates = Fates::of(workspace, &member, Tests::Unit, &select)?;
    if member.tests_quickly && !fates.missed.is_empty() {
        println!("mutants: {} passed the unit tests; the integration tests see them now", fates.missed.len());
        let left: Vec<String> =
            fates.missed.iter().flat_map(|name| ["--re".to_owned(), exactly(name)]).collect();
        fates.missed.clear();
        fates.add(Fates::of(workspace, &member, Tests::All, &left)?);
    }
    fates.report()
}

/// The member of the workspace that a folder is in.
#[derive(Debug, PartialEq, Eq)]
struct Member {
    name: String,
    /// Its integration tests decide and open no socket: what unit tests miss is shown to them too.
    tests_quickly: bool,
}

impl Member {
    fn of(metadata: &Value, folder: &Path) -> Result<Self> {
        let packages =
            metadata.get("packages").and_then(Value::as_array).context("cargo metadata has no packages")?;
        let root = metadata.get("workspace_root").and_then(Value::as_str).map(Path::new);
        let members = packages.iter().filter_map(|package| {
            let manifest = Path::new(package.get("manifest_path")?.as_str()?);
            Some((manifest.parent()?, package))
        });
        let mut owners: Vec<_> = members.filter(|(owner, _)| folder.starts_with(owner)).collect();
        owners.sort_by_key(|(owner, _)| owner.components().count());
        let (owner, package) = owners.pop().with_context(|| {
            format!(
                "{} is in no member of the workspace: name a folder like shared/protocol",
                folder.display()
            )
        })?;
        let name = package.get("name").and_then(Value::as_str).context("a package has no name")?;
        if BROWSER_MODULES.contains(&name) {
            bail!("{name} is tested in a browser: mutants are made of what is tested natively");
        }
        let kinds = package.get("targets").and_then(Value::as_array).into_iter().flatten();
        let has_integration_tests = kinds.clone().any(|target| target["kind"][0] == "test");
        let is_shared = root.is_some_and(|root| owner.starts_with(root.join("shared")));
        Ok(Self { name: name.to_owned(), tests_quickly: is_shared && has_integration_tests })
    }
}

#[derive(Debug, Clone, Copy)]
enum Tests {
    Unit,
    All,
}

/// What became of each mutant, by the names that cargo-mutants gives them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fates {
    caught: Vec<String>,
    missed: Vec<String>,
    /// The tests did not end: a loop that the mutant made.
    timeout: Vec<String>,
    /// The mutant is not Rust.
    unviable: Vec<String>,
}

impl Fates {
    fn of(workspace: &Workspace, member: &Member, tests: Tests, select: &[String]) -> Result<Self> {
        let mut command = cargo_mutants(workspace, member);
        command.args(select).args(["--colors", "never", "--jobs", "1"]);
        command.args(["--minimum-test-timeout", &TEST_TIMEOUT_MIN_S.to_string()]);
        command.args(["--timeout-multiplier", &TEST_TIMEOUT_FACTOR.to_string()]);
        let folder = folder(workspace);
        fs::create_dir_all(&folder)?;
        command.arg("--output").arg(&folder);
        let targets: &[&str] = match tests {
            Tests::Unit => &["--lib", "--bins"],
            Tests::All => &["--lib", "--bins", "--tests"],
        };
        command.args(targets.iter().flat_map(|target| ["--cargo-arg", *target]));
        let status =
            command.status().with_context(|| format!("cannot start {}", process::describe(&command)))?;
        if !status.code().is_some_and(|code| EXIT_CODES.contains(&code)) {
            bail!("{} ended with {status}", process::describe(&command));
        }
        let list = |name: &str| -> Result<Vec<String>> {
            let path = folder.join("mutants.out").join(name);
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        Ok(Self {
            caught: list("caught.txt")?,
            missed: list("missed.txt")?,
            timeout: list("timeout.txt")?,
            unviable: list("unviable.txt")?,
        })
    }

    fn add(&mut self, other: Self) {
        self.caught.extend(other.caught);
        self.missed.extend(other.missed);
        self.timeout.extend(other.timeout);
        self.unviable.extend(other.unviable);
    }

    fn report(&self) -> Result<()> {
        for (fate, mutants) in [("missed", &self.missed), ("timeout", &self.timeout)] {
            for mutant in mutants {
                println!("{fate}: {mutant}");
            }
        }
        println!("\n| caught | missed | timeout | unviable |\n|--------|--------|---------|----------|");
        let [caught, missed, timeout] = [&self.caught, &self.missed, &self.timeout].map(Vec::len);
        println!("| {caught} | {missed} | {timeout} | {} |\n", self.unviable.len());
        let n_tested = caught + missed + timeout;
        if missed * 100 > n_tested * MISSED_PERCENT_MAX {
            bail!("no test noticed {missed} of {n_tested} mutants, more than {MISSED_PERCENT_MAX} %");
        }
        println!("mutants: {missed} of {n_tested} were noticed by no test");
        Ok(())
    }
}

/// `cargo mutants` of one member, compiled as quickly as can be: no lints, no debug information, and what it is
/// changed by is compiled anew alone.
fn cargo_mutants(workspace: &Workspace, member: &Member) -> Command {
    let mut command = workspace.cargo();
    command.args(["mutants", "--package", &member.name]);
    command.env("CARGO_TARGET_DIR", folder(workspace).join("target")).env("CARGO_INCREMENTAL", "1");
    command.env("CARGO_PROFILE_DEV_DEBUG", "false").env_remove("RUSTC_WORKSPACE_WRAPPER");
    command
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("mutants")
}

/// The files of `folder`, or the one file that it is, as cargo-mutants wants them: from the root on.
fn glob(root: &Path, folder: &Path) -> Result<String> {
    let path = folder.strip_prefix(root.canonicalize()?).context("the folder is not in the workspace")?;
    let path = path.to_str().context("the folder's name is no text")?;
    Ok(if folder.is_dir() { format!("{path}/**") } else { path.to_owned() })
}

/// A regular expression for this text and no other one.
fn exactly(text: &str) -> String {
    let mut expression = String::from("^");
    for character in text.chars() {
        if character.is_ascii_punctuation() {
            expression.push('\\');
        }
        expression.push(character);
    }
    expression.push('$');
    expression
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_folder_belongs_to_the_innermost_member() {
        let package = |name: &str, folder: &str, kind: &str| json!({ "name": name, "manifest_path": format!("/w/{folder}/Cargo.toml"), "targets": [{ "kind": ["lib"] }, { "kind": [kind] }] });
        let packages = json!([
            package("benches", "benches", "bin"),
            package("benches-inner", "benches/wasm", "bin"),
            package("protocol", "shared/protocol", "test"),
            package("native", "native", "test"),
            package(BROWSER_MODULES[0], "wasm/page", "test"),
        ]);
        let metadata = json!({ "workspace_root": "/w", "packages": packages });
        let member = |folder: &str| Member::of(&metadata, Path::new(folder));
        let of = |name: &str, tests_quickly| Member { name: name.to_owned(), tests_quickly };
        assert_eq!(member("/w/shared/protocol/src/access").unwrap(), of("protocol", true));
        assert_eq!(member("/w/benches/wasm/src").unwrap(), of("benches-inner", false));
        assert_eq!(member("/w/native").unwrap(), of("native", false));
        assert!(member("/w/docs").unwrap_err().to_string().contains("no member"));
        assert!(member("/w/wasm/page/src").unwrap_err().to_string().contains("browser"));
    }

    #[test]
    fn a_name_is_matched_by_itself_alone() {
        assert_eq!(exactly("a.rs:1:2: replace + with -"), r"^a\.rs\:1\:2\: replace \+ with \-$");
    }

    #[test]
    fn one_mutant_in_twenty_may_be_missed() {
        let fates = |n_caught: usize, n_missed: usize| Fates {
            caught: vec![String::new(); n_caught],
            missed: vec![String::new(); n_missed],
            ..Fates::default()
        };
        assert!(fates(19, 1).report().is_ok());
        assert!(fates(18, 1).report().unwrap_err().to_string().contains("1 of 19"));
    }
}
