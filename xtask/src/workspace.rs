//! Paths of this workspace and its build outputs, as cargo reports them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process;

/// Members that become modules of a page.
pub(crate) const BROWSER_MODULES: [&str; 2] = ["barnraise-page", "barnraise-peer"];
/// The one that is left out of native selections: with it, libp2p would be built for browsers in
/// native programs too.
pub(crate) const PEER_MODULE: &str = "barnraise-peer";
/// What the benchmarks run in a worker of a page of their own.
pub(crate) const BENCH_MODULE: &str = "barnraise-bench-peer";

/// Folders of one checkout.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// Target directory of native builds, `CARGO_TARGET_DIR` respected.
    pub(crate) target: PathBuf,
}

impl Workspace {
    pub(crate) fn locate() -> Result<Self> {
        let metadata = metadata()?;
        let folder = |key: &str| -> Result<PathBuf> {
            let path = metadata.get(key).and_then(Value::as_str);
            Ok(PathBuf::from(path.with_context(|| format!("cargo metadata has no `{key}`"))?))
        };
        Ok(Self { root: folder("workspace_root")?, target: folder("target_directory")? })
    }

    /// What wasm-bindgen makes of the browser modules, a folder for each.
    pub(crate) fn modules(&self) -> PathBuf {
        self.target.join("modules")
    }

    /// The folder that a backbone serves.
    pub(crate) fn web_root(&self) -> PathBuf {
        self.target.join("web")
    }

    /// `cargo` in the workspace's root. `cargo run` gives its child the variables of a package
    /// (ours); passed on, they would make build scripts that watch them run again each time.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = process::cargo();
        command.current_dir(&self.root);
        command
    }

    /// Selects every native member but this one, which is built before, with other features of what both depend on.
    pub(crate) fn native_selection() -> [&'static str; 5] {
        ["--workspace", "--exclude", PEER_MODULE, "--exclude", env!("CARGO_PKG_NAME")]
    }
}

/// `cargo metadata` of the members, without resolving their dependencies.
pub(crate) fn metadata() -> Result<Value> {
    let mut command = process::cargo();
    command.args(["metadata", "--format-version", "1", "--no-deps"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    let text = process::output(&mut command)?;
    serde_json::from_str(&text).context("cargo metadata did not print JSON")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::build;

    /// Crates with the features that they are built with.
    fn crates(selection: &[&str]) -> BTreeSet<String> {
        let mut command = Workspace::locate().unwrap().cargo();
        command.args(["tree", "--prefix", "none", "--format", "{p} {f}", "--locked"]).args(selection);
        let lines = process::output(&mut command).unwrap();
        lines.lines().map(|line| line.trim_end_matches(" (*)").trim_end().to_owned()).collect()
    }

    #[test]
    fn the_tests_and_the_demo_share_what_they_depend_on() {
        let demo = [&["--edges", "normal,build"], &build::PROGRAMS[..]].concat();
        let tests = [&["--features", build::FEATURES], &Workspace::native_selection()[..]].concat();
        let (demo, tests) = (crates(&demo), crates(&tests));
        assert!(demo.len() > 500, "{} crates", demo.len());
        // What graphics cards change, what nothing but the relay depends on, and a few that nothing depends on but the program.
        let own = ["barnraise", "burn", "cubecl", "object_store", "sqlx", "wtransport"];
        let differs = |line: &&String| !own.iter().any(|name| line.starts_with(name));
        let more: Vec<_> = demo.difference(&tests).filter(differs).collect();
        assert!(
            more.is_empty(),
            "native/Cargo.toml has to ask for what the tests build these with: {more:#?}"
        );
    }

    #[test]
    fn each_member_has_its_place_in_the_development_profile() {
        let workspace = Workspace::locate().unwrap();
        let manifest = std::fs::read_to_string(workspace.root.join("Cargo.toml")).unwrap();
        let metadata = metadata().unwrap();
        for member in metadata["packages"].as_array().unwrap() {
            let name = member["name"].as_str().unwrap();
            let of_member = manifest
                .lines()
                .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(" = { opt-level")));
            // Without it, it would be compiled as what others wrote.
            assert!(of_member.is_some_and(|line| line.contains("debug-assertions = true")), "{name}");
        }
        // What is not optimized natively would not be in browser modules either.
        let of_modules = std::fs::read_to_string(workspace.root.join("wasm/profile.toml")).unwrap();
        for name in manifest.lines().filter_map(|line| line.strip_suffix(" = { opt-level = 0 }")) {
            assert!(
                of_modules.lines().any(|line| line == format!("{name} = {{ opt-level = \"s\" }}")),
                "{name}"
            );
        }
    }
}
