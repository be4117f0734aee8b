//! The documents, as a test: the book is built, and every link and every path in it leads somewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use mdbook_driver::MDBook;

use crate::assets::files_below;
use crate::workspace::Workspace;

/// Beside the book: documents, and the lines that each has at most.
const LINES_MAX: [(&str, usize); 2] = [("README.md", 120), ("ARCHITECTURE.md", 300)];
/// Documents that are not of the book.
const BESIDE: [&str; 5] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];
/// Generated pages with no text of ours, or all of it at once.
const GENERATED: [&str; 3] = ["404.html", "print.html", "toc.html"];
/// How the names of files begin that a document may name.
const FOLDERS: [&str; 11] = [
    "benches/", "deploy/", "docs/", "native/", "relay/", "shared/", "tests/", "wasm/", "web/", "xtask/",
    ".ci/",
];

/// Files below a folder whose names end so.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let found = files_below(folder).unwrap().into_iter();
    found.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// The values of an attribute in HTML.
fn attribute<'t>(html: &'t str, name: &str) -> Vec<&'t str> {
    let start = format!(" {name}=\"");
    html.split(&start).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// What links in Markdown lead to, code excepted.
fn links(markdown: &str) -> Vec<&str> {
    let prose =
        markdown.split("```").step_by(2).flat_map(str::lines).filter(|line| !line.starts_with("    "));
    let targets = prose.flat_map(|line| line.split("](").skip(1).filter_map(|rest| rest.split(')').next()));
    targets.collect()
}

/// Texts between backticks that look like files of the repository.
fn named_files(markdown: &str) -> Vec<&str> {
    let prose = markdown.split("```").step_by(2).flat_map(str::lines);
    let quoted = prose.flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_file = |text: &&str| {
        FOLDERS.iter().any(|folder| text.starts_with(folder))
            && !text.contains([' ', '*', '<', '{', ':'])
            && text.rsplit('/').next().is_some_and(|name| name.contains('.'))
    };
    quoted.filter(is_file).collect()
}

fn is_elsewhere(link: &str) -> bool {
    ["http://", "https://", "mailto:", "data:"].iter().any(|scheme| link.starts_with(scheme))
}

/// Without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

#[test]
fn the_book_is_built_and_its_links_lead_somewhere() {
    let root = Workspace::locate().unwrap().root;
    let folder = tempfile::tempdir().unwrap();
    let mut book = MDBook::load(root.join("docs")).unwrap();
    book.config.build.build_dir = folder.path().to_owned();
    book.build().unwrap();
    let pages = files(folder.path(), "html");
    assert!(pages.len() > 15, "the book has {} pages", pages.len());
    let mut dead = Vec::new();
    for page in pages.iter().filter(|page| !GENERATED.iter().any(|name| page.ends_with(name))) {
        let html = fs::read_to_string(page).unwrap();
        for link in [attribute(&html, "href"), attribute(&html, "src")].concat() {
            if is_elsewhere(link) || link.is_empty() {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { plain(&page.with_file_name(file)) };
            let is_there = target.is_file()
                && (anchor.is_empty() || {
                    let html = fs::read_to_string(&target).unwrap_or_default();
                    attribute(&html, "id").contains(&anchor)
                });
            if !is_there {
                dead.push(format!("{}: {link}", page.strip_prefix(folder.path()).unwrap().display()));
            }
        }
    }
    assert!(dead.is_empty(), "links of the book that lead nowhere:\n{}", dead.join("\n"));
}

#[test]
fn documents_name_files_that_are_there() {
    let root = Workspace::locate().unwrap().root;
    let beside = BESIDE.map(|name| root.join(name)).to_vec();
    let mut stale = BTreeSet::new();
    for path in [beside, files(&root.join("docs"), "md")].concat() {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        for link in links(&text).into_iter().filter(|link| !is_elsewhere(link) && !link.starts_with('#')) {
            let file = link.split('#').next().unwrap_or(link);
            if !path.with_file_name(file).exists() {
                stale.insert(format!("{name}: ({link})"));
            }
        }
        for file in named_files(&text).into_iter().filter(|file| !root.join(file).exists()) {
            stale.insert(format!("{name}: `{file}`"));
        }
    }
    let stale: Vec<String> = stale.into_iter().collect();
    assert!(stale.is_empty(), "documents name what is not there:\n{}", stale.join("\n"));
}

#[test]
fn what_is_read_first_is_short() {
    let root = Workspace::locate().unwrap().root;
    for (name, lines_max) in LINES_MAX {
        let n_lines = fs::read_to_string(root.join(name)).unwrap().lines().count();
        assert!(
            n_lines <= lines_max,
            "{name} has {n_lines} lines, at most {lines_max} are read: move some to docs/"
        );
    }
}
