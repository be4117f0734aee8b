//! Mutants: the code of a folder, changed in one small way at a time. A change that no test notices is a test
//! that is missing, or code that does nothing.
//!
//! All mutants are compiled once, as branches on a number (mutant schemata; Untch, Offutt and Harrold 1993), and
//! each is tried with those tests alone that reach it. The checkout is never changed: what is compiled is a copy.
//! What it is compiled with is the checkout's own build of the dependencies, because a second one would take half an hour.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::build;
use crate::process;
use crate::workspace::{self, BROWSER_MODULES, Workspace};

use schema::{MutatedSource, Schema};
use trial::{MutantOutcome, TrialProgram, Trials};

mod schema;
mod trial;
mod values;

/// Share of the mutants of a folder that no test may notice, in percent.
const MISSED_PERCENT_MAX: usize = 5;
/// Mutants that mean the same as the code, with the reason of each.
const EQUAL: &str = include_str!("mutants/equal.txt");
/// The compiler finds the mutants that are no Rust in steps: what it cannot resolve, what has another type, what is
/// borrowed twice, and what it only sees when the others are gone.
const ATTEMPTS_MAX: usize = 30;

/// Makes the mutants of `folders`, all of one member, and fails if more than [`MISSED_PERCENT_MAX`] of them pass the tests.
pub(crate) fn run(workspace: &Workspace, folders: &[PathBuf]) -> Result<()> {
    let real =
        |folder: &PathBuf| folder.canonicalize().with_context(|| format!("there is no {}", folder.display()));
    let folders = folders.iter().map(real).collect::<Result<Vec<_>>>()?;
    let metadata = workspace::metadata()?;
    let mut members =
        folders.iter().map(|folder| WorkspaceMember::of(&metadata, folder)).collect::<Result<Vec<_>>>()?;
    members.dedup();
    let [member] = members.as_slice() else {
        bail!("folders of one member are wanted, such as native/src/storage")
    };
    let tree = Tree::copy(workspace)?;
    let root = workspace.root.canonicalize()?;
    let folders: Vec<&Path> = folders.iter().filter_map(|folder| folder.strip_prefix(&root).ok()).collect();
    let mut mutant_set = MutantSet::find(&tree, member, &folders)?;
    if mutant_set.names.is_empty() {
        bail!("nothing there can be mutated");
    }
    println!("mutants: {} of {}, compiled all at once: minutes", mutant_set.names.len(), member.name);
    let programs = mutant_set.compile(&tree, member)?;
    println!(
        "mutants: {} are Rust; each test is run once to see which it reaches",
        mutant_set.viable().len()
    );
    let scratch = tree.scratch(member)?;
    let programs = programs.iter().map(|program| program.keep(&scratch)).collect::<Result<Vec<_>>>()?;
    let trials = Trials::measure(&programs, &scratch)?;
    let viable = mutant_set.viable();
    let started = Instant::now();
    let outcomes = trials.outcomes(&viable, &mutant_set.names, |mutant, outcome| {
        let missed = match outcome {
            MutantOutcome::Caught => return,
            MutantOutcome::Timeout => "timeout",
            MutantOutcome::Missed => "missed",
            MutantOutcome::Unreached => "reached by no test",
        };
        println!("{missed}: {}", mutant_set.names[mutant]);
    })?;
    println!("mutants: tried in {} s", started.elapsed().as_secs());
    let outcomes: Vec<MutantOutcome> = outcomes.into_iter().map(|(_, outcome)| outcome).collect();
    report(&outcomes, mutant_set.dropped.len() - mutant_set.n_equal)
}

fn report(outcomes: &[MutantOutcome], n_unviable: usize) -> Result<()> {
    let count = |wanted| outcomes.iter().filter(|&&outcome| outcome == wanted).count();
    let [caught, timeout, missed, unreached] =
        [MutantOutcome::Caught, MutantOutcome::Timeout, MutantOutcome::Missed, MutantOutcome::Unreached]
            .map(count);
    println!("\n| caught | timeout | missed | reached by no test | no Rust |");
    println!("|--------|---------|--------|--------------------|---------|");
    println!("| {caught} | {timeout} | {missed} | {unreached} | {n_unviable} |\n");
    let n_missed = missed + unreached;
    if n_missed * 100 > outcomes.len() * MISSED_PERCENT_MAX {
        bail!("no test noticed {n_missed} of {} mutants, more than {MISSED_PERCENT_MAX} %", outcomes.len());
    }
    println!("mutants: {n_missed} of {} were noticed by no test", outcomes.len());
    Ok(())
}

/// The member of the workspace that a folder is in.
#[derive(Debug, PartialEq, Eq)]
struct WorkspaceMember {
    name: String,
    /// From the workspace's root on.
    folder: PathBuf,
    /// Its integration tests decide and open no socket: they are asked too. Its dependencies are few, and it is
    /// compiled by itself.
    is_shared: bool,
}

impl WorkspaceMember {
    fn of(metadata: &Value, folder: &Path) -> Result<Self> {
        let packages =
            metadata.get("packages").and_then(Value::as_array).context("cargo metadata has no packages")?;
        let root = metadata.get("workspace_root").and_then(Value::as_str).map(Path::new);
        let root = root.context("cargo metadata has no root")?;
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
        let folder = owner.strip_prefix(root)?.to_owned();
        Ok(Self { name: name.to_owned(), is_shared: folder.starts_with("shared"), folder })
    }
}

/// The copy of the checkout.
struct Tree {
    workspace: Workspace,
    root: PathBuf,
}

impl Tree {
    /// A file whose bytes are the same stays as it is, so that cargo compiles no more than has to be.
    fn copy(workspace: &Workspace) -> Result<Self> {
        let root = workspace.target.join("mutants/tree");
        let mut git = Command::new("git");
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&workspace.root);
        let listed = process::output(&mut git)?;
        let files: BTreeSet<&Path> =
            listed.split('\0').filter(|name| !name.is_empty()).map(Path::new).collect();
        for file in &files {
            let from = workspace.root.join(file);
            // A file that is deleted and not committed is listed all the same; a link is a folder's other name.
            if from.is_file() {
                let bytes = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
                write(&root.join(file), &bytes)?;
            }
        }
        remove_others(&root, &root, &files)?;
        Ok(Self { workspace: workspace.clone(), root })
    }

    /// An empty folder.
    fn scratch(&self, member: &WorkspaceMember) -> Result<PathBuf> {
        let folder = self.workspace.target.join("mutants/scratch").join(&member.name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

fn remove_others(root: &Path, folder: &Path, keep: &BTreeSet<&Path>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(root, &path, keep)?;
        } else if !keep.contains(path.strip_prefix(root)?) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// All mutants of a folder, by their numbers.
struct MutantSet {
    /// Each file, from the workspace's root on, and the number of its first mutant.
    files: BTreeMap<PathBuf, (MutatedSource, usize)>,
    /// File, line, column and change.
    names: Vec<String>,
    /// Those that are no Rust, and those that mean the same.
    dropped: BTreeSet<usize>,
    n_equal: usize,
}

impl MutantSet {
    /// Those of the member's library that are in `folders`, or in the files that they are.
    fn find(tree: &Tree, member: &WorkspaceMember, folders: &[&Path]) -> Result<Self> {
        let mut mutant_set =
            Self { files: BTreeMap::new(), names: Vec::new(), dropped: BTreeSet::new(), n_equal: 0 };
        let src = member.folder.join("src");
        let mut modules = vec![PathBuf::from("lib")];
        while let Some(module) = modules.pop() {
            let candidates = [module.with_extension("rs"), module.join("mod.rs")];
            let Some(path) = candidates.iter().find(|path| tree.root.join(&src).join(path).is_file()) else {
                bail!("{}: there is no file of the module {}", src.display(), module.display());
            };
            let file = src.join(path);
            let text = fs::read_to_string(tree.root.join(&file))?;
            let source = MutatedSource::parse(path, text)
                .with_context(|| format!("cannot parse {}", file.display()))?;
            modules.extend(source.modules.iter().cloned());
            if folders.iter().any(|folder| file.starts_with(folder)) {
                let first = mutant_set.names.len();
                mutant_set.names.extend(source.names.iter().map(|name| format!("{}:{name}", file.display())));
                mutant_set.files.insert(file, (source, first));
            }
        }
        let equal: BTreeSet<&str> =
            EQUAL.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        for (mutant, name) in mutant_set.names.iter().enumerate() {
            if equal.contains(without_place(name).as_str()) {
                mutant_set.dropped.insert(mutant);
                mutant_set.n_equal += 1;
            }
        }
        Ok(mutant_set)
    }

    fn viable(&self) -> Vec<usize> {
        (0..self.names.len()).filter(|mutant| !self.dropped.contains(mutant)).collect()
    }

    /// Compiles the test programs, and drops the mutants that cannot be.
    fn compile(&mut self, tree: &Tree, member: &WorkspaceMember) -> Result<Vec<TrialProgram>> {
        for _ in 0..ATTEMPTS_MAX {
            let schemata = self.write(tree, member)?;
            let errors = match build(tree, member)? {
                Build::Programs(programs) => return Ok(programs),
                Build::Errors(errors) => errors,
            };
            let mut n_dropped = 0;
            for error in &errors {
                let mut blamed = BTreeSet::new();
                for (file, schema) in &schemata {
                    let places: Vec<_> = error
                        .places
                        .iter()
                        .filter(|place| &place.0 == file)
                        .map(|place| place.1.clone())
                        .collect();
                    blamed
                        .extend(schema.blamed(&places).into_iter().map(|mutant| mutant + self.files[file].1));
                }
                n_dropped += blamed.iter().filter(|&&mutant| self.dropped.insert(mutant)).count();
            }
            if n_dropped == 0 {
                let texts: Vec<&str> = errors.iter().map(|error| error.text.as_str()).collect();
                bail!("the copy does not compile, and no mutant is the reason:\n{}", texts.join("\n"));
            }
            println!("mutants: {n_dropped} are no Rust: once more without them");
        }
        bail!("the copy does not compile after {ATTEMPTS_MAX} attempts")
    }

    fn write(&self, tree: &Tree, member: &WorkspaceMember) -> Result<BTreeMap<PathBuf, Schema>> {
        let root = member.folder.join("src/lib.rs");
        let mut schemata = BTreeMap::new();
        for (file, (source, first)) in &self.files {
            let schema = source.schema(*first, |mutant| !self.dropped.contains(&(first + mutant)));
            if *file != root {
                write(&tree.root.join(file), schema.text.as_bytes())?;
            }
            schemata.insert(file.clone(), schema);
        }
        let text = match schemata.get(&root) {
            Some(schema) => schema.text.clone(),
            None => fs::read_to_string(tree.workspace.root.join(&root))?,
        };
        write(&tree.root.join(&root), (text + &schema::switch_module()).as_bytes())?;
        Ok(schemata)
    }
}

/// `file: change`: a line more above it makes it no other one.
fn without_place(name: &str) -> String {
    let mut parts = name.splitn(4, ':');
    let file = parts.next().unwrap_or_default();
    format!("{file}:{}", parts.nth(2).unwrap_or_default())
}

enum Build {
    Programs(Vec<TrialProgram>),
    Errors(Vec<CompileError>),
}

struct CompileError {
    text: String,
    /// Files, from the root on, and bytes of them; the first is the one that the error is about.
    places: Vec<(PathBuf, Range<usize>)>,
}

/// Unit tests of the member, and its integration tests where they open no socket.
fn build(tree: &Tree, member: &WorkspaceMember) -> Result<Build> {
    let mut command = tree.workspace.cargo();
    command.current_dir(&tree.root).args(["test", "--no-run", "--message-format=json", "--lib"]);
    if member.is_shared {
        command.args(["--tests", "--package", &member.name]);
    } else {
        // Others would leave out what is behind a feature, and compile the dependencies once more.
        build::as_in_tests(&mut command, &tree.workspace)?;
    }
    // What a wrapper compiles has names of its own: no program of the copy is taken for one of the checkout.
    command.env("CARGO_TARGET_DIR", &tree.workspace.target).env("RUSTC_WORKSPACE_WRAPPER", "env");
    command.stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("cannot start {}", process::describe(&command)))?;
    let messages = String::from_utf8(output.stdout).context("cargo printed no text")?;
    let messages: Vec<Value> = messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if output.status.success() {
        let package = tree.root.join(&member.folder);
        let programs = messages.iter().filter_map(|message| {
            let is_ours = Path::new(message["manifest_path"].as_str()?).parent()? == package;
            let path = PathBuf::from(message["executable"].as_str()?);
            (is_ours && message["profile"]["test"] == true)
                .then(|| TrialProgram { path, package: package.clone() })
        });
        return Ok(Build::Programs(programs.collect()));
    }
    let errors = messages.iter().filter(|message| message["message"]["level"] == "error");
    Ok(Build::Errors(errors.map(|message| CompileError::of(&message["message"])).collect()))
}

impl CompileError {
    fn of(message: &Value) -> Self {
        let text = message["rendered"].as_str().unwrap_or_default().to_owned();
        let mut spans: Vec<&Value> = message["spans"].as_array().into_iter().flatten().collect();
        spans.sort_by_key(|span| span["is_primary"] != true);
        let places = spans.into_iter().filter_map(|span| {
            // What a macro wrote is where the macro is called.
            let mut span = span;
            while let Some(outer) = span["expansion"].get("span") {
                span = outer;
            }
            let [start, end] = ["byte_start", "byte_end"].map(|key| span[key].as_u64());
            let range = usize::try_from(start?).ok()?..usize::try_from(end?).ok()?;
            Some((PathBuf::from(span["file_name"].as_str()?), range))
        });
        Self { places: places.collect(), text }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_folder_belongs_to_the_innermost_member() {
        let package = |name: &str, folder: &str| json!({ "name": name, "manifest_path": format!("/w/{folder}/Cargo.toml") });
        let packages = json!([
            package("benches", "benches"),
            package("benches-inner", "benches/wasm"),
            package("protocol", "shared/protocol"),
            package("native", "native"),
            package(BROWSER_MODULES[0], "wasm/page"),
        ]);
        let metadata = json!({ "workspace_root": "/w", "packages": packages });
        let member = |folder: &str| WorkspaceMember::of(&metadata, Path::new(folder));
        let of = |name: &str, folder: &str, is_shared| WorkspaceMember {
            name: name.to_owned(),
            folder: folder.into(),
            is_shared,
        };
        assert_eq!(member("/w/shared/protocol/src/access").unwrap(), of("protocol", "shared/protocol", true));
        assert_eq!(member("/w/benches/wasm/src").unwrap(), of("benches-inner", "benches/wasm", false));
        assert_eq!(member("/w/native").unwrap(), of("native", "native", false));
        assert!(member("/w/docs").unwrap_err().to_string().contains("no member"));
        assert!(member("/w/wasm/page/src").unwrap_err().to_string().contains("browser"));
    }

    #[test]
    fn an_error_is_where_its_macro_is_called() {
        let span = |file: &str, start: usize, is_primary: bool| json!({ "file_name": file, "byte_start": start, "byte_end": start + 2, "is_primary": is_primary });
        let mut inside = span("core/macros.rs", 900, true);
        inside["expansion"] = json!({ "span": span("a/src/lib.rs", 7, false) });
        let error =
            CompileError::of(&json!({ "rendered": "E", "spans": [span("a/src/b.rs", 1, false), inside] }));
        assert_eq!(error.places, [("a/src/lib.rs".into(), 7..9), ("a/src/b.rs".into(), 1..3)]);
    }

    #[test]
    fn one_mutant_in_twenty_may_be_missed() {
        let outcomes = |n_caught: usize, n_missed: usize| {
            [vec![MutantOutcome::Caught; n_caught], vec![MutantOutcome::Missed; n_missed]].concat()
        };
        assert!(report(&outcomes(19, 1), 3).is_ok());
        assert!(report(&outcomes(18, 1), 3).unwrap_err().to_string().contains("1 of 19"));
    }

    #[test]
    fn a_mutant_that_means_the_same_is_known_wherever_it_moves() {
        assert_eq!(
            without_place("a/src/b.rs:1:20: replace A::b -> u8 with 0"),
            "a/src/b.rs: replace A::b -> u8 with 0"
        );
        for line in EQUAL.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            assert!(line.contains(".rs: "), "{line}");
        }
    }
}
