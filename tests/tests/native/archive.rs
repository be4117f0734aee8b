//! The archive of `cargo xtask dist`: what is in it runs on a machine that has nothing else.

use std::path::Path;
use std::process::Command;

use barnraise_tests::artifacts;
use barnraise_tests::bare::BareMachine;

/// A crate of the programs, one of the page, and what is in both.
const INSIDE: [&str; 4] = ["tokenizers", "gloo-net", "libp2p", "std"];

/// What a program of this machine prints.
fn printed(program: &str, args: &[&str], folder: &Path) -> String {
    let output = Command::new(program).args(args).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_archive_has_the_licences_of_all_that_is_in_it() {
    let archive = artifacts::archive().unwrap();
    let folder = archive.parent().unwrap();
    let name = archive.file_name().unwrap().to_str().unwrap();
    printed("sha256sum", &["--check", &format!("{name}.sha256")], folder);
    let top = name.strip_suffix(".tar.gz").unwrap();
    let list = printed("tar", &["-tzf", name], folder);
    assert!(list.lines().all(|path| path.starts_with(&format!("{top}/"))), "{list}");
    let licences = printed("tar", &["-xzOf", name, &format!("{top}/LICENSES-CRATES.txt")], folder);
    let (crates, texts) = licences.split_once("---- text 1 ----").unwrap();
    let blocks: Vec<&str> = crates.split("\n\n").skip(1).filter(|block| !block.is_empty()).collect();
    assert!(blocks.len() > 500, "{} crates", blocks.len());
    for name in INSIDE {
        let start = format!("{name} ");
        assert!(blocks.iter().any(|block| block.starts_with(&start)), "{name} is not listed");
    }
    let n_texts = texts.matches("---- text ").count() + 1;
    for block in blocks {
        let numbers = block.split_once("texts: ").unwrap().1;
        let exists = |number: &str| (1..=n_texts).contains(&number.parse::<usize>().unwrap());
        assert!(numbers.trim().split(", ").all(exists), "{block}");
    }
    // What only tests are made of is not inside.
    assert!(!crates.contains("\nfantoccini "));
}

#[tokio::test]
async fn what_is_in_the_archive_runs_where_nothing_else_is() {
    let archive = artifacts::archive().unwrap();
    let machine = tokio::task::spawn_blocking(BareMachine::new).await.unwrap();
    let mut machine = match machine {
        Ok(machine) => machine,
        Err(error) => return println!("SKIPPED: no bare root can be made here: {error:#}"),
    };
    // As INSTALL.md and docs/operate/install.md say.
    let name = archive.file_name().unwrap().to_str().unwrap();
    std::fs::copy(&archive, machine.folder().join(name)).unwrap();
    let [packed, home] = [name, ""].map(|path| machine.path(path).unwrap());
    machine.run(&["tar", "-xzf", &packed, "-C", &home]).await.unwrap();
    let top = machine.path(name.strip_suffix(".tar.gz").unwrap()).unwrap();
    let at = |path: &str| format!("{top}/{path}");
    let (barnraise, relay) = (at("bin/barnraise"), at("bin/barnraise-relay"));
    for program in [&barnraise, &relay] {
        let version = machine.run(&[program, "--version"]).await.unwrap();
        assert!(version.trim().ends_with(env!("CARGO_PKG_VERSION")), "{version}");
    }
    for run in ["native/run.example.toml", "native/swav.example.toml", "deploy/config/run.toml"] {
        machine.run(&[&barnraise, "config", "check", &at(run)]).await.unwrap();
    }
    for config in ["relay/relay.example.toml", "deploy/config/relay.toml"] {
        machine.run(&[&barnraise, "config", "check", "--kind", "relay", &at(config)]).await.unwrap();
    }

    // Other tests have the ports that are usual.
    let free = ["--http", "127.0.0.1:0", "--listen", "/ip4/127.0.0.1/tcp/0"];
    let serve = [&[barnraise.as_str(), "serve", "--dev"][..], &free].concat();
    let backbone = machine.backbone(&serve).await.unwrap();
    let (status, page) = backbone.answer("/").await.unwrap();
    assert_eq!(status, 200, "{page}");
    let script = page.split_once("type=\"module\" src=\"").unwrap().1.split_once('"').unwrap().0;
    assert_eq!(backbone.answer(script).await.unwrap().0, 200, "{script}");
    assert_eq!(backbone.status().await.unwrap().run.identity.run_id.as_str(), "fashion-mnist");
    let join = [&barnraise, "join", &backbone.page(), "--device", "cpu", "--samples", "200"];
    let given = machine.join(&join).unwrap().end().await.unwrap();
    assert!(given.status.success() && given.n_samples > 0, "{given:?}");
    let ended = backbone.terminate().await.unwrap();
    assert_eq!(ended.code(), Some(0), "{ended}");
}
