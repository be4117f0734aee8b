//! The licences of what is inside: the crates of the native programs and those of the page, and the standard library.
//!
//! Cargo says which crates are built, each brings its texts in its source folder, and one that brings none gets the
//! standard text of what it names. It is no legal advice: `deny.toml` says which licences may be there at all.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build;
use crate::process;
use crate::toolchain;
use crate::workspace::{BROWSER_MODULES, Workspace};

/// Texts for crates that bring none. Of a choice the first of these is taken: that one has no line in which copyright
/// holders would have to be named.
const STANDARD: [(&str, &str); 4] = [
    ("Apache-2.0", include_str!("../../../LICENSE-APACHE")),
    ("MIT", include_str!("licences/MIT.txt")),
    ("BSD-3-Clause", include_str!("licences/BSD-3-Clause.txt")),
    ("MPL-2.0", include_str!("licences/MPL-2.0.txt")),
];
/// How the names of files with licences begin, in lower case.
const NAMES: [&str; 6] = ["license", "licence", "unlicense", "copying", "copyright", "notice"];
/// Files of these names that are something else.
const NO_TEXTS: [&str; 8] = ["c", "h", "hbs", "json", "py", "rs", "sh", "toml"];
const STANDARD_LIBRARY: &str = "https://github.com/rust-lang/rust";

const HEAD: &str = "Barnraise is under LICENSE-MIT or LICENSE-APACHE, as you prefer. Its programs, and the page inside, \
                    are made of these crates,\neach with its licence (an SPDX expression), its source, and the \
                    numbers of the texts, below, that it came with.\n\n";

/// One that is inside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: String,
    version: String,
    /// SPDX expression; empty where only a text says it.
    licence: String,
    /// Address of its repository; empty where it has none.
    source: String,
}

/// All of it, to be read by people.
pub(crate) fn text(workspace: &Workspace, host: &str) -> Result<String> {
    let mut native = vec!["--features", build::FEATURES];
    native.extend(Workspace::native_selection());
    let native = tree(workspace, host, &native)?;
    let [page, peer] = BROWSER_MODULES;
    let browser = tree(workspace, toolchain::TARGET, &["-p", page, "-p", peer])?;
    let mut crates = reachable(&native, &["barnraise-native", "barnraise-relay"]);
    crates.extend(reachable(&browser, &BROWSER_MODULES));
    let registries = registries()?;
    let mut texts = Texts::default();
    let mut list = String::new();
    for one in crates.iter().filter_map(|line| foreign(line)) {
        let mut found = Vec::new();
        read_texts(&folder(&registries, &one)?, &mut found)?;
        if found.is_empty() {
            found = standard(&one)?;
        }
        texts.list(&mut list, &one, &found);
    }
    let rust = standard_library()?;
    texts.list(&mut list, &rust, &standard(&rust)?);
    Ok([HEAD, &list, &texts.all].concat())
}

/// What the makers of the compiler say of the standard library, for browsers, where they ship it.
pub(crate) fn of_standard_library() -> Result<Option<Vec<u8>>> {
    let sysroot = process::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    Ok(fs::read(Path::new(sysroot.trim()).join("share/doc/rust/COPYRIGHT-library.html")).ok())
}

/// A tree of dependencies as cargo builds it, but for those of tests and build scripts: in each line the depth, `|`, and
/// the package.
fn tree(workspace: &Workspace, target: &str, selection: &[&str]) -> Result<String> {
    let mut command = workspace.cargo();
    command.args(["tree", "--edges", "normal", "--prefix", "depth", "--format", "|{p}|{l}|{r}"]);
    process::output(command.args(["--target", target]).args(selection))
}

/// The packages that `roots` depend on, and themselves, as they are in the lines of `tree`.
fn reachable(tree: &str, roots: &[&str]) -> BTreeSet<String> {
    // What a package depends on stands below it once, wherever it is met first.
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut above: Vec<&str> = Vec::new();
    for line in tree.lines() {
        let Some((depth, package)) = line.split_once('|') else { continue };
        let package = package.strip_suffix(" (*)").unwrap_or(package);
        above.truncate(depth.parse().unwrap_or(0));
        if let Some(parent) = above.last() {
            edges.entry(parent).or_default().insert(package);
        }
        edges.entry(package).or_default();
        above.push(package);
    }
    let is_root = |package: &&str| package.split(' ').next().is_some_and(|name| roots.contains(&name));
    let mut next: Vec<&str> = edges.keys().copied().filter(is_root).collect();
    let mut reached = BTreeSet::new();
    while let Some(package) = next.pop() {
        if reached.insert(package.to_owned()) {
            next.extend(edges.get(package).into_iter().flatten());
        }
    }
    reached
}

/// A package that is not of this workspace.
fn foreign(line: &str) -> Option<Crate> {
    let [package, licence, source] = line.splitn(3, '|').collect::<Vec<_>>().try_into().ok()?;
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    // Behind the version, in brackets: that it is a procedural macro, or the folder of ours.
    if words.any(|place| place.starts_with("(/")) {
        return None;
    }
    let [name, version, licence, source] = [name, version, licence, source].map(str::to_owned);
    Some(Crate { name, version, licence, source })
}

/// Where cargo has unpacked the sources of all that it built.
fn registries() -> Result<Vec<PathBuf>> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let folder =
        home.context("neither CARGO_HOME nor HOME says where cargo has its files")?.join("registry/src");
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

fn folder(registries: &[PathBuf], one: &Crate) -> Result<PathBuf> {
    let name = format!("{}-{}", one.name, one.version);
    let found = registries.iter().map(|registry| registry.join(&name)).find(|folder| folder.is_dir());
    found.with_context(|| format!("the sources of {name} are in none of {registries:?}: run `cargo fetch`"))
}

/// The texts in a folder and those below it: C libraries come with licences of their own.
fn read_texts(folder: &Path, texts: &mut Vec<String>) -> Result<()> {
    let entries: Result<Vec<_>, _> = fs::read_dir(folder)?.collect();
    let mut entries = entries.with_context(|| format!("cannot read {}", folder.display()))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            read_texts(&path, texts)?;
        } else if is_text(&entry.file_name().to_string_lossy()) {
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            texts.push(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    Ok(())
}

fn is_text(file_name: &str) -> bool {
    let name = file_name.to_lowercase();
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    NAMES.iter().any(|start| name.starts_with(start)) && !NO_TEXTS.contains(&extension)
}

/// The texts of what a crate names: of a choice one, and of several that hold together all.
fn standard(one: &Crate) -> Result<Vec<String>> {
    let ids: Vec<&str> = one.licence.split([' ', '/', '(', ')']).filter(|id| !id.is_empty()).collect();
    let known = STANDARD.iter().filter(|(id, _)| ids.contains(id));
    let texts: Vec<String> = known.map(|(_, text)| (*text).to_owned()).collect();
    let n_together = if ids.contains(&"AND") || ids.contains(&"WITH") {
        ids.iter().filter(|id| !["AND", "OR"].contains(id)).count()
    } else {
        1
    };
    if texts.len() < n_together {
        bail!(
            "{} {} is under {:?} and brings no text of it: add that licence to STANDARD in {}",
            one.name,
            one.version,
            one.licence,
            file!()
        );
    }
    Ok(texts.into_iter().take(n_together).collect())
}

fn standard_library() -> Result<Crate> {
    let version = process::output(Command::new("rustc").arg("--version"))?;
    Ok(Crate {
        name: "std".into(),
        version: version.trim().into(),
        licence: "Apache-2.0 OR MIT".into(),
        source: STANDARD_LIBRARY.into(),
    })
}

/// Each text once.
#[derive(Debug, Default)]
struct Texts {
    numbers: BTreeMap<String, usize>,
    all: String,
}

impl Texts {
    /// Adds a crate to `list`, and its texts to these.
    fn list(&mut self, list: &mut String, one: &Crate, texts: &[String]) {
        let numbers: BTreeSet<usize> = texts.iter().map(|text| self.number(text)).collect();
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let Crate { name, version, licence, source } = one;
        let licence = if licence.is_empty() { "as its text says" } else { licence };
        let _ = writeln!(
            list,
            "{name} {version}\n    {licence}\n    {source}\n    texts: {}\n",
            numbers.join(", ")
        );
    }

    /// Lines that are broken otherwise make no other text.
    fn number(&mut self, text: &str) -> usize {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let next = self.numbers.len() + 1;
        let all = &mut self.all;
        *self.numbers.entry(words).or_insert_with(|| {
            let _ = write!(all, "---- text {next} ----\n\n{}\n\n", text.trim_matches('\n'));
            next
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(licence: &str) -> Crate {
        Crate {
            name: "a".into(),
            version: "1.0.0".into(),
            licence: licence.into(),
            source: "https://a.example".into(),
        }
    }

    #[test]
    fn what_is_inside_follows_from_the_roots_wherever_its_dependencies_stand() {
        let tree = "0|tests v0.1.0 (/x/tests)|MIT|\n\
            1|only-tests v1.0.0|MIT|\n\
            1|shared v1.0.0|MIT|\n\
            2|below v1.0.0|MIT|\n\
            \n\
            0|program v0.1.0 (/x/program)|MIT|\n\
            1|macros v1.0.0 (proc-macro)|MIT|\n\
            1|shared v1.0.0|MIT| (*)\n";
        let reached = reachable(tree, &["program"]);
        let names: Vec<String> = reached.iter().filter_map(|line| Some(foreign(line)?.name)).collect();
        assert_eq!(names, ["below", "macros", "shared"]);
        let line = "a v1.0.0+b|MIT OR Apache-2.0|https://a.example";
        let expected = Crate { version: "1.0.0+b".into(), ..of("MIT OR Apache-2.0") };
        assert_eq!(foreign(line), Some(expected));
    }

    #[test]
    fn texts_are_told_from_other_files_by_their_names() {
        for name in ["LICENSE", "LICENSE-MIT", "license.md", "UNLICENSE", "COPYING.txt", "LICENSE.Apache-2.0"]
        {
            assert!(is_text(name), "{name}");
        }
        for name in ["license.rs", "README.md", "licenses.toml", "Cargo.toml"] {
            assert!(!is_text(name), "{name}");
        }
    }

    #[test]
    fn a_crate_without_a_text_gets_that_of_what_it_names() {
        let starts = |licence: &str| -> Vec<String> {
            let texts = standard(&of(licence)).unwrap();
            texts.iter().map(|text| text.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect()
        };
        assert_eq!(starts("MIT"), ["MIT License"]);
        for choice in ["MIT OR Apache-2.0", "MIT/Apache-2.0", "Zlib OR Apache-2.0 OR MIT"] {
            assert_eq!(starts(choice), ["Apache License"], "{choice}");
        }
        assert_eq!(starts("MIT AND BSD-3-Clause"), ["MIT License", "Copyright (c)"]);
        for unknown in ["", "GPL-3.0-only", "MIT AND Zlib", "Apache-2.0 WITH LLVM-exception"] {
            assert!(standard(&of(unknown)).is_err(), "{unknown:?}");
        }
    }

    #[test]
    fn the_same_text_stands_once() {
        let (mut texts, mut list) = (Texts::default(), String::new());
        texts.list(&mut list, &of("MIT"), &["One\ntext.\n".into(), "Another.".into()]);
        texts.list(&mut list, &of(""), &["One  text.".into()]);
        let of_first = "a 1.0.0\n    MIT\n    https://a.example\n    texts: 1, 2\n\n";
        let of_second = "a 1.0.0\n    as its text says\n    https://a.example\n    texts: 1\n\n";
        assert_eq!(list, [of_first, of_second].concat());
        assert_eq!(texts.all, "---- text 1 ----\n\nOne\ntext.\n\n---- text 2 ----\n\nAnother.\n\n");
    }
}
