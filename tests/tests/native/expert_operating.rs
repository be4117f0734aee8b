//! Experts in the process of a backbone and of a contributor, and what their operator does with them: shows, freezes, moves and
//! drains.

use std::path::Path;

use barnraise_tests::hosted;
use barnraise_tests::process::{HANG, PeerProcess, TestRun};
use serde_json::Value;

use super::experts::{accuracy_of, wait_for};

const NAMED: &str = "[run]\nid = \"hosted-experts\"\n";

/// What a host tells its operator.
async fn shown(run: &mut TestRun, folder: &Path) -> Value {
    let folder = folder.display().to_string();
    let text = run.run(&["experts", "show", "--json", "--folder", &folder]).await.unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Of all experts of a host.
fn total(view: &Value, what: &str) -> u64 {
    view["experts"].as_array().unwrap().iter().map(|expert| expert[what].as_u64().unwrap()).sum()
}

async fn wait_until(
    (run, folder): (&mut TestRun, &Path),
    what: &str,
    is_so: impl Fn(&Value) -> bool,
) -> Value {
    let began = std::time::Instant::now();
    loop {
        let view = shown(run, folder).await;
        if is_so(&view) {
            return view;
        }
        assert!(began.elapsed() < HANG, "waited for {what}: {view}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_backbone_hosts_experts_itself_and_hands_them_over_when_its_operator_drains_it() {
    let sections = format!("{NAMED}{}\n[hosting]\nexperts = 8\n", hosted::RUN);
    let mut test_run = TestRun::new(&sections).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let (page, folder) = (backbone.page(), test_run.storage().join("hosting"));
    let (own, own_text) = (folder.as_path(), folder.display().to_string());
    let own_text = own_text.as_str();
    backbone.wait_for_log("Hosting 8 experts").await.unwrap();
    let trainer = test_run.join(&[&page]).unwrap();
    let reached = accuracy_of(&backbone, 0.7).await;
    let view = shown(&mut test_run, own).await;
    assert_eq!((view["stage"].as_str(), view["experts"].as_array().unwrap().len()), (Some("serving"), 8));
    let (n_steps, n_requests) = (total(&view, "n_steps"), total(&view, "n_requests"));
    assert!(n_steps > 0 && n_requests >= n_steps, "{view}");

    // Frozen, they answer and pass gradients on, and make no steps.
    test_run.run(&["experts", "freeze", "0", "--folder", own_text]).await.unwrap();
    let frozen = shown(&mut test_run, own).await;
    let n_requests = total(&frozen, "n_requests") + 200;
    let view = wait_until((&mut test_run, own), "requests of frozen experts", |view| {
        total(view, "n_requests") > n_requests
    })
    .await;
    // Batches that were with the device before are done by then.
    let (n_frozen, n_requests) = (total(&view, "n_steps"), total(&view, "n_requests") + 200);
    let view = wait_until((&mut test_run, own), "more requests of frozen experts", |view| {
        total(view, "n_requests") > n_requests
    })
    .await;
    assert_eq!(total(&view, "n_steps"), n_frozen, "{view}");
    assert!(test_run.run(&["experts", "freeze", "7", "--folder", own_text]).await.is_err(), "no such layer");
    test_run.run(&["experts", "unfreeze", "0", "--folder", own_text]).await.unwrap();
    wait_until((&mut test_run, own), "steps", |view| total(view, "n_steps") > n_frozen + 8).await;

    // No other host has room yet.
    let nobody = ["experts", "move", "0", "3", "--limit", "2s", "--folder", own_text];
    let error = test_run.run(&nobody).await.unwrap_err().to_string();
    assert!(error.contains("it stays here"), "{error}");
    wait_until((&mut test_run, own), "its own expert", |view| {
        view["stage"] == "serving" && view["experts"].as_array().unwrap().len() == 8
    })
    .await;

    let second_folder = test_run.folder().join("second");
    let of_second = second_folder.as_path();
    let second = test_run.host_experts("second", &[&page, "--experts", "8"]).unwrap();
    wait_for(&second, "Room for 8 experts").await;
    // To the one that is named, and not to the other one with room.
    let third = test_run.host_experts("third", &[&page, "--experts", "1"]).unwrap();
    wait_for(&third, "Room for 1 experts").await;
    let third_folder = test_run.folder().join("third");
    let third_key = barnraise_relay::load_or_create_keypair(&third_folder.join("identity.key")).unwrap();
    let third_peer = third_key.public().to_peer_id().to_string();
    let itself = barnraise_relay::load_or_create_keypair(&own.join("identity.key")).unwrap();
    let itself = itself.public().to_peer_id().to_string();
    let error = test_run.run(&["experts", "move", "0", "5", "--to", &itself, "--folder", own_text]).await;
    assert!(error.unwrap_err().to_string().contains("which is this one"));
    test_run.run(&["experts", "move", "0", "5", "--to", &third_peer, "--folder", own_text]).await.unwrap();
    let of_third = wait_until((&mut test_run, &third_folder), "the expert that was moved to it", |view| {
        !view["experts"].as_array().unwrap().is_empty()
    })
    .await;
    assert_eq!(of_third["experts"][0]["uid"].as_str(), Some("5"), "{of_third}");
    test_run.run(&["experts", "move", "0", "3", "--folder", own_text]).await.unwrap();
    let moved = wait_until((&mut test_run, of_second), "the expert that was moved", |view| {
        !view["experts"].as_array().unwrap().is_empty()
    })
    .await;
    assert_eq!((total(&moved, "layer"), moved["experts"][0]["uid"].as_str()), (0, Some("3")), "{moved}");
    let before = total(&shown(&mut test_run, own).await, "n_steps");
    let said = test_run.run(&["experts", "drain", "--folder", own_text]).await.unwrap();
    assert!(said.contains("drained"), "{said}");
    let taken = wait_until((&mut test_run, of_second), "all experts", |view| {
        view["experts"].as_array().unwrap().len() == 7
    })
    .await;
    assert!(total(&taken, "n_steps") >= before, "nothing was lost: {before} steps, {taken}");
    // It has ended, or does in a moment.
    let began = std::time::Instant::now();
    let gone = ["experts", "show", "--folder", own_text];
    while !test_run.run(&gone).await.is_err_and(|error| error.to_string().contains("no host of experts runs"))
    {
        assert!(began.elapsed() < HANG, "the host is there");
    }

    // The backbone goes on without them.
    let epoch = backbone.status().await.unwrap().progress.epoch;
    backbone.wait_for_epoch(epoch + 10).await.unwrap();
    let after = accuracy_of(&backbone, reached - 0.1).await;
    println!("accuracy {reached}, {after} after {before} steps of its experts were handed over");
    trainer.kill().await.unwrap();
    second.kill().await.unwrap();
    assert!(backbone.terminate().await.unwrap().success());
}

#[tokio::test]
async fn a_contributor_hosts_experts_beside_and_waits_while_all_are_away() {
    let mut test_run = TestRun::new(&format!("{NAMED}{}", hosted::RUN)).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let page = backbone.page();
    let cache = test_run.folder().join("cache").display().to_string();
    let join = |test_run: &mut TestRun, args: &[&str]| -> PeerProcess { test_run.join(args).unwrap() };
    let alone = join(&mut test_run, &[&page]);
    let log = wait_for(&alone, "Nothing is").await;
    assert!(log.contains("none of them answered"), "{log}");
    let both = join(&mut test_run, &[&page, "--host-experts", "8", "--cache", &cache]);
    wait_for(&both, "Hosting 8 experts").await;
    // The one that waited finds them.
    accuracy_of(&backbone, 0.6).await;
    // Said every ten seconds, which a quick machine does not need for that.
    wait_for(&both, "learned from").await;
    both.interrupt().unwrap();
    wait_for(&both, "All experts are handed over").await;
    alone.kill().await.unwrap();
    both.kill().await.unwrap();
    backbone.kill().await.unwrap();
}

#[tokio::test]
async fn the_run_freezes_a_layer_at_a_host_that_comes_later() {
    let schedule = "schedule = { peak = 0.003 }\n";
    let sections = hosted::RUN.replace(schedule, &format!("{schedule}frozen = [0]\n"));
    assert_ne!(sections, hosted::RUN);
    let mut test_run = TestRun::new(&format!("{NAMED}{sections}")).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let page = backbone.page();
    let folder = test_run.folder().join("later");
    let host = test_run.host_experts("later", &[&page, "--experts", "8"]).unwrap();
    wait_for(&host, "Hosting 8 experts").await;
    let trainer = test_run.join(&[&page]).unwrap();
    let view = wait_until((&mut test_run, folder.as_path()), "requests of frozen experts", |view| {
        total(view, "n_requests") > 200
    })
    .await;
    assert_eq!((total(&view, "n_steps"), &view["frozen_layers"]), (0, &serde_json::json!([0])), "{view}");
    let folder = folder.display().to_string();
    let unfreeze = ["experts", "unfreeze", "0", "--folder", &folder];
    let error = test_run.run(&unfreeze).await.unwrap_err().to_string();
    assert!(error.contains("model.experts.frozen"), "{error}");
    trainer.kill().await.unwrap();
    host.kill().await.unwrap();
    backbone.kill().await.unwrap();
}
