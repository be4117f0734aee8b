//! The page's own scripts, as they are built, in Node.js with a browser of a few lines.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::process::Command;

use barnraise_tests::artifacts;

fn passes(script: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script);
    let mut node = Command::new("node");
    node.args(["--test", "--test-reporter", "tap"]).arg(&script);
    let output = node.env("BARNRAISE_WEB_ROOT", artifacts::web_root().unwrap()).output();
    let output = output.unwrap_or_else(|error| {
        panic!("install Node.js 18 or newer (Debian: nodejs): {error}");
    });
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    // A script that holds no test passes, too.
    assert!(said.contains("\n# pass ") && !said.contains("\n# pass 0"), "{said}");
}

#[test]
fn the_service_worker_keeps_a_page_whole_and_answers_with_it() {
    passes("service-worker.test.mjs");
}

#[test]
fn the_worker_starts_the_program_that_the_build_wrote_down_and_no_other() {
    passes("worker.test.mjs");
}
