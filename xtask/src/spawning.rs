//! Tasks have owners, as a test: `tokio::spawn` is called in one file, whose functions name the owner.
//!
//! A `JoinSet` owns what it starts; so only starting without an owner is looked for. Tests may do so.

use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprMethodCall, ItemFn, ItemMod, Macro};

use crate::modules::{file_of, is_test};
use crate::workspace::Workspace;

/// The file whose functions start all tasks.
const THE_ONE: &str = "relay/src/tasks.rs";
/// Sources of programs that run on tokio.
const ROOTS: [&str; 2] = ["native/src", "relay/src"];
/// Functions that start a task without an owner, as they are called.
const SPAWNING: [&str; 3] = ["tokio::spawn", "tokio::task::spawn", "task::spawn"];

/// What starts a task in a file, and the modules that the file declares, with the folders where they lie.
#[derive(Default)]
struct Spawns {
    folder: PathBuf,
    found: Vec<String>,
    modules: Vec<(ItemMod, PathBuf)>,
}

impl<'ast> Visit<'ast> for Spawns {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if is_test(&item.attrs) {
            return;
        }
        if item.content.is_none() {
            return self.modules.push((item.clone(), self.folder.clone()));
        }
        let within = self.folder.join(item.ident.to_string());
        let folder = std::mem::replace(&mut self.folder, within);
        visit::visit_item_mod(self, item);
        self.folder = folder;
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(function) = &*call.func {
            let names: Vec<String> =
                function.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            let called = names.join("::");
            if SPAWNING.contains(&called.as_str()) {
                self.found.push(called);
            }
        }
        visit::visit_expr_call(self, call);
    }

    /// On the handle of a runtime.
    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let is_handle = match &*call.receiver {
            Expr::MethodCall(before) => before.method == "handle" || before.method == "clone",
            Expr::Path(name) => name.path.is_ident("handle") || name.path.is_ident("runtime"),
            _ => false,
        };
        if call.method == "spawn" && is_handle {
            self.found.push("spawn on the handle of a runtime".to_owned());
        }
        visit::visit_expr_method_call(self, call);
    }

    /// What is in the braces of `select!` and its like is no syntax tree.
    fn visit_macro(&mut self, item: &'ast Macro) {
        let text = item.tokens.to_string().replace(' ', "");
        let calls = SPAWNING.iter().filter(|name| text.contains(&format!("{name}(")));
        self.found.extend(calls.map(ToString::to_string));
    }
}

/// Adds what starts a task in a file and in the modules below it; `folder` is where these lie.
fn look(root: &Path, file: &Path, folder: &Path, n_files: &mut usize, wrong: &mut Vec<String>) {
    *n_files += 1;
    let source = syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap();
    let mut spawns = Spawns { folder: folder.to_owned(), ..Spawns::default() };
    spawns.visit_file(&source);
    let name = file.strip_prefix(root).unwrap().display().to_string();
    if name != THE_ONE {
        wrong.extend(spawns.found.iter().map(|found| format!("{name}: {found}")));
    }
    for (module, folder) in spawns.modules {
        let file = file_of(&module, &folder);
        let below = if file.ends_with("mod.rs") {
            file.parent().unwrap().to_owned()
        } else {
            folder.join(module.ident.to_string())
        };
        look(root, &file, &below, n_files, wrong);
    }
}

#[test]
fn every_task_has_an_owner() {
    let root = Workspace::locate().unwrap().root;
    let (mut n_files, mut wrong) = (0, Vec::new());
    for folder in ROOTS.map(|folder| root.join(folder)) {
        for entrance in ["lib.rs", "main.rs"].map(|name| folder.join(name)) {
            look(&root, &entrance, &folder, &mut n_files, &mut wrong);
        }
    }
    assert!(n_files > 200, "{n_files} files were found: the search is wrong");
    assert!(wrong.is_empty(), "start tasks with `barnraise_relay::tasks`:\n{}", wrong.join("\n"));
}

#[test]
fn a_task_without_an_owner_is_found() {
    let source = "
        fn run() { tokio::spawn(async {}); }
        fn within() { select! { () = later => drop(tokio::spawn(async {})) } }
        fn on_a_runtime() { tasks.handle().clone().spawn(async {}); }
        fn owned() { set.spawn(async {}); tasks::spawn(\"owned\", async {}); }
        #[cfg(test)] mod tests { fn run() { tokio::spawn(async {}); } }
    ";
    let mut spawns = Spawns::default();
    spawns.visit_file(&syn::parse_file(source).unwrap());
    assert_eq!(spawns.found.len(), 3, "{:?}", spawns.found);
}
