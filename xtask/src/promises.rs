//! SECURITY.md, sentence by sentence: each promise names the test that would break, and each test that is named exists.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::Workspace;

/// Documents that name tests.
const DOCUMENTS: [&str; 2] = ["SECURITY.md", "docs/open-runs.md"];
/// Folders with members of the workspace.
const MEMBERS: [&str; 7] = ["benches", "native", "relay", "shared", "tests", "wasm", "xtask"];
/// Heading of the section whose points are promises.
const PROMISES: &str = "## What is promised";
/// Lines between what marks a test and its name: other attributes.
const ATTRIBUTE_LINES_MAX: usize = 4;

/// Files by the names of the tests in them.
type Tests = BTreeMap<String, Vec<PathBuf>>;

/// The tests of all Rust files of the members.
fn tests(root: &Path) -> Tests {
    let mut tests = Tests::new();
    for member in MEMBERS {
        let mut folders = vec![root.join(member)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    for name in tests_in(&fs::read_to_string(&path).unwrap()) {
                        tests.entry(name).or_default().push(path.clone());
                    }
                }
            }
        }
    }
    tests
}

fn tests_in(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_test = |line: &&str| line.starts_with("#[test") || line.starts_with("#[tokio::test");
    let name_of = |line: &&str| {
        let named = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "))?;
        Some(named.split_once('(')?.0.to_owned())
    };
    let marked = lines.iter().enumerate().filter(|(_, line)| is_test(line));
    marked
        .filter_map(|(at, _)| lines.iter().skip(at + 1).take(ATTRIBUTE_LINES_MAX).find_map(name_of))
        .collect()
}

/// The end of a file's path and a test's name, of all tests that a text names: `file.rs::name`.
fn named(text: &str) -> Vec<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    let names = quoted.filter_map(|quoted| quoted.split_once(".rs::"));
    names.map(|(file, name)| (file, name.trim())).collect()
}

/// The points of a list in the section of promises, each with the lines that belong to it.
fn promises(text: &str) -> Vec<String> {
    let section = text.split_once(PROMISES).map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    section
        .split("\n- ")
        .skip(1)
        .map(|point| point.split("\n\n").next().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn every_test_that_is_named_exists() {
    let root = Workspace::locate().unwrap().root;
    let tests = tests(&root);
    assert!(tests.len() > 500, "{} tests are not all", tests.len());
    let mut wrong = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).unwrap();
        for (file, name) in named(&text) {
            let suffix = format!("/{file}.rs");
            let there = tests.get(name).into_iter().flatten();
            let n_there = there.filter(|path| path.display().to_string().ends_with(&suffix)).count();
            if n_there != 1 {
                wrong.push(format!("{document}: {file}.rs::{name} is in {n_there} files"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_promise_names_a_test() {
    let root = Workspace::locate().unwrap().root;
    let text = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let promises = promises(&text);
    assert!(promises.len() > 20, "{} promises", promises.len());
    let without: Vec<&String> = promises.iter().filter(|promise| named(promise).is_empty()).collect();
    assert!(without.is_empty(), "no test would break: {without:#?}");
}

#[test]
fn tests_and_their_names_are_found() {
    let text =
        "#[test]\nfn one() {\n#[tokio::test(flavor = \"x\")]\n#[cfg(unix)]\nasync fn two() {\nfn three() {\n";
    assert_eq!(tests_in(text), ["one", "two"]);
    assert_eq!(named("a `b/c.rs::one`, `c.rs` and `d::e`"), [("b/c", "one")]);
    let text =
        "# A\n- no\n## What is promised\n\n- first\n  more\n- second `a.rs::b`\n\nnot\n\n## Else\n- no\n";
    assert_eq!(promises(text), ["first\n  more", "second `a.rs::b`"]);
}
