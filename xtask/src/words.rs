//! The words of the code, as a test: a type's name leads to one place, and nothing is said with words that say nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

use crate::modules::file_of;
use crate::process;
use crate::workspace::Workspace;

/// Places that one type name may have.
const PLACES_MAX: usize = 2;
/// Every conversation calls its two directions so, and its module says which conversation it is.
const DIRECTIONS: [&str; 2] = ["BackboneToContributor", "ContributorToBackbone"];
/// Words that leave open which peer or value is meant.
const VAGUE: [&str; 2] = ["whoever", "whatever"];
/// Of all of those in the whole repository, in sentences where no better word was found.
const VAGUE_MAX: usize = 5;

/// Crates whose public modules implement papers, or say here that they are of none.
const OF_PAPERS: [&str; 7] = [
    "shared/averaging",
    "shared/contributor",
    "shared/learning",
    "shared/planning",
    "shared/protocol",
    "shared/simulation",
    "shared/swarm",
];
/// Public modules that no paper is behind.
const OF_NO_PAPER: [&str; 33] = [
    "learning::conformance",
    "learning::device",
    "learning::error",
    "learning::frozen",
    "learning::graph",
    "learning::layout",
    "learning::optimizer",
    "learning::schedule",
    "learning::tensor_file",
    "protocol::api",
    "protocol::bulk",
    "protocol::check",
    "protocol::columns",
    "protocol::commitment",
    "protocol::display_name",
    "protocol::error",
    "protocol::evidence",
    "protocol::framing",
    "protocol::hash",
    "protocol::pieces",
    "protocol::refusal",
    "protocol::run",
    "protocol::sealed",
    "swarm::activity",
    "swarm::backoff",
    "swarm::bandwidth",
    "swarm::guard",
    "swarm::history",
    "swarm::pacing",
    "swarm::recomputation",
    "swarm::rhythm",
    "swarm::session",
    "swarm::uplink",
];

/// The types that a file defines, in functions too.
#[derive(Default)]
struct Types(Vec<String>);

impl<'ast> Visit<'ast> for Types {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.0.push(item.ident.to_string());
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.0.push(item.ident.to_string());
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.0.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.0.push(item.ident.to_string());
        visit::visit_item_type(self, item);
    }
}

/// Files of the repository, in order, without what git ignores.
fn files(root: &Path, patterns: &[&str]) -> Vec<PathBuf> {
    let mut command = std::process::Command::new("git");
    command
        .current_dir(root)
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "--"])
        .args(patterns);
    let listed = process::output(&mut command).unwrap();
    let present = listed.lines().map(|name| root.join(name)).filter(|path| path.exists());
    present.collect()
}

#[test]
fn no_type_name_stands_three_times() {
    let root = Workspace::locate().unwrap().root;
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in files(&root, &["*.rs"]) {
        let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
        let mut types = Types::default();
        types.visit_file(&file);
        for name in types.0 {
            let place = path.strip_prefix(&root).unwrap().display().to_string();
            places.entry(name).or_default().push(place);
        }
    }
    assert!(places.len() > 1000, "{} types were found: the search is wrong", places.len());
    let many =
        places.iter().filter(|(name, at)| at.len() > PLACES_MAX && !DIRECTIONS.contains(&name.as_str()));
    let many: Vec<String> = many.map(|(name, at)| format!("{name}: {}", at.join(", "))).collect();
    assert!(many.is_empty(), "names of more than {PLACES_MAX} types:\n{}", many.join("\n"));
}

#[test]
fn sentences_say_which_peer_they_mean() {
    let root = Workspace::locate().unwrap().root;
    let mut found = Vec::new();
    for path in files(&root, &["*.rs", "*.md", "*.toml", "*.html", "*.js", "*.yml", "*.yaml"]) {
        if path.ends_with("xtask/src/words.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for (at, line) in text.lines().enumerate() {
            let words = line.split(|c: char| !c.is_alphabetic()).map(str::to_lowercase);
            if words.into_iter().any(|word| VAGUE.contains(&word.as_str())) {
                found.push(format!(
                    "{}:{}: {}",
                    path.strip_prefix(&root).unwrap().display(),
                    at + 1,
                    line.trim()
                ));
            }
        }
    }
    assert!(found.len() <= VAGUE_MAX, "say which peer, or which value:\n{}", found.join("\n"));
}

/// Whether a module's documentation names where its method is from: a section, an appendix, or authors and year.
fn cites(text: &str) -> bool {
    let documentation = text.lines().filter(|line| line.starts_with("//!")).collect::<String>();
    ["§", "appendix"].iter().any(|mark| documentation.contains(mark))
        || documentation.split('(').skip(1).any(|inner| {
            let inner = inner.split(')').next().unwrap_or_default();
            inner
                .split([' ', ',', ';'])
                .any(|word| word.len() == 4 && word.starts_with("20") && word.parse::<u16>().is_ok())
        })
}

#[test]
fn each_public_module_of_a_paper_names_its_section() {
    let root = Workspace::locate().unwrap().root;
    let mut wrong = Vec::new();
    for member in OF_PAPERS {
        let folder = root.join(member).join("src");
        let name = member.trim_start_matches("shared/");
        let library = syn::parse_file(&fs::read_to_string(folder.join("lib.rs")).unwrap()).unwrap();
        for item in library.items {
            let syn::Item::Mod(module) = item else { continue };
            if !matches!(module.vis, syn::Visibility::Public(_)) {
                continue;
            }
            let file = file_of(&module, &folder);
            let path = format!("{name}::{}", module.ident);
            let is_listed = OF_NO_PAPER.contains(&path.as_str());
            match cites(&fs::read_to_string(file).unwrap()) {
                true if is_listed => wrong.push(format!("{path} names a paper, and is in OF_NO_PAPER")),
                false if !is_listed => wrong.push(format!("{path} names no paper and section in its `//!`")),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
