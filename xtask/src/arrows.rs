//! The dependency arrows of ARCHITECTURE.md, as a test: they point one way, and the relay never
//! carries the weight of burn.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{process, workspace};

/// Members by what they may depend on, of ours. A test may look sideways (the averaging plans are
/// tested with real models), so dependencies of tests are not counted.
const ALLOWED: [(&str, &[&str]); 17] = [
    ("barnraise-protocol", &[]),
    ("barnraise-learning", &["barnraise-protocol"]),
    ("barnraise-swarm", &["barnraise-protocol"]),
    ("barnraise-planning", &[]),
    ("barnraise-averaging", &["barnraise-protocol", "barnraise-swarm"]),
    ("barnraise-simulation", &[]),
    ("barnraise-contributor", SHARED_CORE),
    ("barnraise-relay", &["barnraise-protocol", "barnraise-swarm"]),
    (
        "barnraise-native",
        &[
            "barnraise-protocol",
            "barnraise-learning",
            "barnraise-swarm",
            "barnraise-planning",
            "barnraise-averaging",
            "barnraise-contributor",
            "barnraise-relay",
        ],
    ),
    ("barnraise-messages", &["barnraise-protocol", "barnraise-swarm"]),
    ("barnraise-page", &["barnraise-protocol", "barnraise-swarm", "barnraise-messages"]),
    (
        "barnraise-peer",
        &[
            "barnraise-protocol",
            "barnraise-learning",
            "barnraise-swarm",
            "barnraise-contributor",
            "barnraise-messages",
        ],
    ),
    ("barnraise-tests", EVERYTHING_NATIVE),
    (
        "barnraise-bench-peer",
        &["barnraise-protocol", "barnraise-learning", "barnraise-swarm", "barnraise-peer"],
    ),
    (
        "barnraise-benches",
        &[
            "barnraise-planning",
            "barnraise-averaging",
            "barnraise-contributor",
            "barnraise-protocol",
            "barnraise-learning",
            "barnraise-swarm",
            "barnraise-simulation",
            "barnraise-relay",
            "barnraise-native",
            "barnraise-bench-peer",
            "barnraise-tests",
        ],
    ),
    ("barnraise-fuzz", &[]),
    ("xtask", &["barnraise-fuzz"]),
];
const SHARED_CORE: &[&str] = &["barnraise-protocol", "barnraise-learning", "barnraise-swarm"];
const EVERYTHING_NATIVE: &[&str] = &[
    "barnraise-contributor",
    "barnraise-protocol",
    "barnraise-learning",
    "barnraise-swarm",
    "barnraise-relay",
    "barnraise-native",
    "barnraise-messages",
];
/// Crates that `shared` must not depend on: sockets, clocks, runtimes.
const IMPURE: [&str; 9] =
    ["tokio", "libp2p", "axum", "reqwest", "ureq", "web-sys", "web-time", "getrandom", "object_store"];
const SHARED: [&str; 7] = [
    "barnraise-protocol",
    "barnraise-learning",
    "barnraise-swarm",
    "barnraise-planning",
    "barnraise-averaging",
    "barnraise-contributor",
    "barnraise-simulation",
];

/// Direct dependencies of each member, without those of its tests.
fn members() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = workspace::metadata().unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    packages.iter().map(|package| (text(&package["name"]), dependencies(package))).collect()
}

fn dependencies(package: &Value) -> BTreeSet<String> {
    let dependencies = package["dependencies"].as_array().unwrap().iter();
    let ordinary = dependencies.filter(|dependency| dependency["kind"] != "dev");
    ordinary.map(|dependency| text(&dependency["name"])).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

#[test]
fn arrows_point_one_way() {
    let members = members();
    let known: BTreeSet<&str> = ALLOWED.iter().map(|(name, _)| *name).collect();
    let present: BTreeSet<&str> = members.keys().map(String::as_str).collect();
    assert_eq!(present, known, "a member came or went: say here what it may depend on");
    for (name, allowed) in ALLOWED {
        for dependency in members[name].iter().filter(|dependency| known.contains(dependency.as_str())) {
            assert!(allowed.contains(&dependency.as_str()), "{name} must not depend on {dependency}");
        }
    }
}

#[test]
fn shared_crates_depend_on_nothing_that_touches_the_world() {
    let members = members();
    for name in SHARED {
        for dependency in &members[name] {
            let impure = IMPURE.iter().any(|impure| dependency == impure || dependency.starts_with("libp2p"));
            assert!(!impure, "{name} must stay pure, and depends on {dependency}");
        }
    }
}

#[test]
fn the_relay_never_depends_on_burn() {
    let mut command = process::cargo();
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.args([
        "tree",
        "-p",
        "barnraise-relay",
        "--prefix",
        "none",
        "--edges",
        "normal,build",
        "--target",
        "all",
    ]);
    let tree = process::output(&mut command).unwrap();
    assert!(
        tree.lines().any(|line| line.starts_with("libp2p ")),
        "the tree is not that of the relay: {tree}"
    );
    for line in tree.lines() {
        let heavy = ["burn", "cubecl", "cubek", "wgpu", "barnraise-learning", "barnraise-native"];
        assert!(!heavy.iter().any(|name| line.starts_with(name)), "the relay depends on {line}");
    }
}
