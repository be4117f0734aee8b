//! Arrows between the modules of a crate, as a test: siblings depend on each other in one direction.
//!
//! A module's children are compared with each other; what a child uses of its own ancestors is not counted, as in a file that is
//! split into several. Tests and fuzz targets may look anywhere. Names that a module re-exports count as the
//! module's that they come from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, UseTree, Visibility};

use crate::workspace::{self, Workspace};

/// A module's name below its crate's root.
type ModulePath = Vec<String>;

/// The modules of a crate, with the paths that each one uses.
#[derive(Debug, Default)]
struct Modules {
    uses: BTreeMap<ModulePath, BTreeSet<ModulePath>>,
    /// Where a name that a module re-exports comes from.
    exports: BTreeMap<ModulePath, ModulePath>,
}

impl Modules {
    fn of(root: &Path) -> Self {
        let mut modules = Self::default();
        let entrances = ["lib.rs", "main.rs"].map(|name| root.join(name));
        for entrance in entrances.iter().filter(|path| path.exists()) {
            modules.read(entrance, root, &[]);
        }
        modules
    }

    /// `folder` is where the modules lie that `file` declares.
    fn read(&mut self, file: &Path, folder: &Path, path: &[String]) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let items = syn::parse_file(&text).unwrap().items;
        self.visit(&items, folder, path);
    }

    fn visit(&mut self, items: &[Item], folder: &Path, path: &[String]) {
        let mut finder = Finder { path, found: BTreeSet::new() };
        items.iter().for_each(|item| finder.visit_item(item));
        let found = finder.found;
        self.uses.entry(path.to_vec()).or_default().extend(found);
        for item in items {
            match item {
                Item::Use(item) if !matches!(item.vis, Visibility::Inherited) => {
                    for (target, name) in leaves(&item.tree) {
                        let name = [path, &[name]].concat();
                        self.exports.insert(name, absolute(path, &target));
                    }
                }
                Item::Mod(module) if !is_test(&module.attrs) => {
                    let name = module.ident.to_string();
                    let child = [path, std::slice::from_ref(&name)].concat();
                    if let Some((_, items)) = &module.content {
                        self.visit(items, &folder.join(&name), &child);
                    } else {
                        let within = folder.join(&name);
                        let file = file_of(module, folder);
                        self.read(
                            &file,
                            if file.ends_with("mod.rs") { file.parent().unwrap() } else { &within },
                            &child,
                        );
                    }
                }
                _ => {}
            }
        }
    }

    /// Follows re-exports to where a name is defined.
    fn origin(&self, path: &ModulePath) -> ModulePath {
        let mut path = path.clone();
        // A chain of re-exports is short; an endless one would not compile.
        for _ in 0..8 {
            let exported = (1..=path.len()).rev().find_map(|length| {
                let (name, rest) = path.split_at(length);
                Some([self.exports.get(name)?.as_slice(), rest].concat())
            });
            match exported {
                Some(next) if next != path => path = next,
                _ => break,
            }
        }
        path
    }

    /// What the children of `parent` use of each other.
    fn arrows(&self, parent: &[String]) -> BTreeMap<&str, BTreeSet<&str>> {
        let names = self.uses.keys().filter(|path| path.len() == parent.len() + 1);
        let children: BTreeSet<&str> =
            names.filter(|path| path.starts_with(parent)).map(|path| path[parent.len()].as_str()).collect();
        let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (path, uses) in self.uses.iter().filter(|(path, _)| path.starts_with(parent)) {
            let Some(from) = path.get(parent.len()) else { continue };
            for target in uses.iter().map(|target| self.origin(target)) {
                let to = target.get(parent.len()).filter(|_| target.starts_with(parent));
                if let Some(to) = to.and_then(|to| children.get(to.as_str())).filter(|to| **to != from) {
                    arrows.entry(from).or_default().insert(to);
                }
            }
        }
        arrows
    }

    fn circles(&self) -> Vec<String> {
        let parents = self.uses.keys();
        let found = parents.filter_map(|parent| {
            let circle = circle(&self.arrows(parent))?;
            Some(format!("crate::{}: {}", parent.join("::"), circle.join(" -> ")))
        });
        found.collect()
    }
}

/// A way from a module back to itself.
fn circle<'a>(arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Option<Vec<&'a str>> {
    arrows.keys().find_map(|start| {
        let mut before: BTreeMap<&str, &str> = BTreeMap::new();
        let mut waiting = vec![*start];
        while let Some(at) = waiting.pop() {
            for to in arrows.get(at).into_iter().flatten() {
                if to == start {
                    let mut path = vec![*start, at];
                    while let Some(previous) = path.last().and_then(|last| before.get(last)) {
                        path.push(previous);
                    }
                    path.reverse();
                    if path.first() != Some(start) {
                        path.insert(0, start);
                    }
                    return Some(path);
                }
                if !before.contains_key(to) {
                    before.insert(to, at);
                    waiting.push(to);
                }
            }
        }
        None
    })
}

/// Finds the paths that begin with `crate`, `self` or `super`, in macros' arguments too.
struct Finder<'a> {
    path: &'a [String],
    found: BTreeSet<ModulePath>,
}

impl Finder<'_> {
    fn add(&mut self, segments: &[String]) {
        if segments.first().is_some_and(|first| ["crate", "self", "super"].contains(&first.as_str())) {
            self.found.insert(absolute(self.path, segments));
        }
    }

    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut segments: Vec<String> = Vec::new();
        let mut n_colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if segments.is_empty() || n_colons == 2 => {
                    segments.push(ident.to_string());
                    n_colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => n_colons += 1,
                other => {
                    self.add(&std::mem::take(&mut segments));
                    n_colons = 0;
                    match other {
                        TokenTree::Ident(ident) => segments.push(ident.to_string()),
                        TokenTree::Group(group) => self.read_tokens(group.stream()),
                        _ => {}
                    }
                }
            }
        }
        self.add(&segments);
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    /// Another module's own uses are its own.
    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for (target, _) in leaves(&item.tree) {
            self.add(&target);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add(&segments);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.read_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

/// Where a module that `folder` holds has its text.
pub(crate) fn file_of(module: &ItemMod, folder: &Path) -> PathBuf {
    let named = module.attrs.iter().find_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    let name = module.ident.to_string();
    if let (Some(named), Some(parent)) = (&named, folder.parent())
        && !folder.join(named).exists()
    {
        // It begins at the folder of the file that declares it, which lies beside the one of its modules.
        return parent.join(named);
    }
    let beside = folder.join(named.unwrap_or_else(|| format!("{name}.rs")));
    if beside.exists() { beside } else { folder.join(name).join("mod.rs") }
}

/// From the crate's root on, of a path within the module `at`.
fn absolute(at: &[String], segments: &[String]) -> ModulePath {
    let mut path = at.to_vec();
    for segment in segments {
        match segment.as_str() {
            "crate" => path.clear(),
            "self" => {}
            "super" => drop(path.pop()),
            name => path.push(name.to_owned()),
        }
    }
    path
}

/// Each name that a `use` brings, with its path.
fn leaves(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    let below = |name: String, tree: &UseTree| {
        let inner = leaves(tree).into_iter();
        inner.map(|(path, leaf)| ([vec![name.clone()], path].concat(), leaf)).collect()
    };
    match tree {
        UseTree::Path(path) => below(path.ident.to_string(), &path.tree),
        UseTree::Name(name) => vec![(vec![name.ident.to_string()], name.ident.to_string())],
        UseTree::Rename(name) => vec![(vec![name.ident.to_string()], name.rename.to_string())],
        UseTree::Glob(_) => vec![(Vec::new(), "*".into())],
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
    }
}

/// Whether an item is compiled for tests only.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let condition = list.tokens.to_string();
        list.path.is_ident("cfg") && condition.contains("test") && !condition.contains("not")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The folders of all members' sources.
fn sources() -> Vec<PathBuf> {
    let metadata = workspace::metadata().unwrap();
    let manifests = metadata["packages"].as_array().unwrap().iter();
    let folders =
        manifests.map(|package| Path::new(package["manifest_path"].as_str().unwrap()).with_file_name("src"));
    folders.filter(|folder| folder.exists()).collect()
}

#[test]
fn modules_depend_on_each_other_in_one_direction() {
    let root = Workspace::locate().unwrap().root;
    let mut found = Vec::new();
    for source in sources() {
        let name = source.strip_prefix(&root).unwrap().display().to_string();
        found.extend(Modules::of(&source).circles().into_iter().map(|circle| format!("{name}: {circle}")));
    }
    assert!(found.is_empty(), "modules that depend on each other in a circle:\n{}", found.join("\n"));
}

#[test]
fn a_circle_is_found_through_a_re_export_a_macro_and_a_grandchild() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a; mod b; mod c; pub use b::inner::B;");
    write("a.rs", "use crate::B; #[cfg(test)] mod tests { use crate::c::C; }");
    write("b.rs", "pub mod inner;");
    write("b/inner.rs", "pub struct B;");
    write("c.rs", "use super::a; pub struct C;");
    assert_eq!(Modules::of(folder.path()).circles(), [""; 0]);
    write("b/inner.rs", "pub struct B; fn f() { format!(\"{}\", super::super::c::C) }");
    let found = Modules::of(folder.path()).circles();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(["a -> b", "b -> c", "c -> a"].iter().any(|arrow| found[0].contains(arrow)), "{found:?}");
}
