//! A model whose experts live on other processes: one serves, others host experts, another trains. A host is killed, and
//! training goes on; it comes back with what its experts had learned. Where another host has room, it takes the experts over.

use std::collections::{BTreeMap, BTreeSet};

use barnraise_tests::hosted;
use barnraise_tests::process::{BackboneProcess, PeerProcess, TestRun};

use super::aggregators::wait_for_link;

/// The section before [`hosted::RUN`].
const NAMED: &str = "[run]\nid = \"hosted-experts\"\n";

/// Waits until a process has said something.
pub(super) async fn wait_for(peer: &PeerProcess, what: &str) -> String {
    let began = std::time::Instant::now();
    loop {
        let log = peer.log().unwrap();
        if log.contains(what) {
            return log;
        }
        assert!(began.elapsed() < barnraise_tests::process::HANG, "waited for {what:?}:\n{log}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// Optimizer steps of all experts of a host, as it said last; 0 before.
pub(super) fn steps(host: &PeerProcess) -> u64 {
    let log = host.log().unwrap();
    let said = log
        .lines()
        .rev()
        .find_map(|line| line.split_once(" steps in all")?.0.rsplit(' ').next()?.parse().ok());
    said.unwrap_or_default()
}

pub(super) async fn accuracy_of(backbone: &BackboneProcess, want: f32) -> f32 {
    let reached = backbone
        .wait_for("a good model", |progress| progress.test_accuracy.is_some_and(|accuracy| accuracy >= want));
    reached.await.unwrap().test_accuracy.unwrap()
}

#[tokio::test]
async fn experts_on_other_processes_learn_and_are_missed_and_come_back() {
    let mut test_run = TestRun::new(&format!("{NAMED}{}", hosted::RUN)).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let page = backbone.page();
    let first = test_run.host_experts("first", &[&page, "--experts", "4"]).unwrap();
    wait_for(&first, "Hosting 4 experts").await;
    let second = test_run.host_experts("second", &[&page, "--experts", "4"]).unwrap();
    wait_for(&second, "Hosting 4 experts").await;
    let trainer = test_run.join(&[&page]).unwrap();
    let reached = accuracy_of(&backbone, 0.7).await;
    wait_for(&first, "learned from").await;
    wait_for(&second, "learned from").await;

    // One host is gone without a word: the others do its part.
    second.kill().await.unwrap();
    let epoch = backbone.status().await.unwrap().progress.epoch;
    backbone.wait_for_epoch(epoch + 10).await.unwrap();
    let without = accuracy_of(&backbone, reached - 0.1).await;

    // The other one leaves, and has stored what its experts learned.
    let before = steps(&first);
    first.interrupt().unwrap();
    wait_for(&first, "All experts are handed over").await;
    trainer.kill().await.unwrap();
    let first_log = first.log().unwrap();
    first.kill().await.unwrap();
    let again = test_run.host_experts("first", &[&page, "--experts", "8"]).unwrap();
    wait_for(&again, "Hosting 8 experts").await;
    let trainer = test_run.join(&[&page]).unwrap();
    wait_for(&again, "learned from").await;
    let epoch = backbone.status().await.unwrap().progress.epoch;
    backbone.wait_for_epoch(epoch + 10).await.unwrap();
    let now = steps(&again);
    assert!(now >= before, "{now} steps after {before}:\n{first_log}\n{}", again.log().unwrap());
    println!("accuracy {reached}, {without} with half of the experts");
    trainer.kill().await.unwrap();
    again.kill().await.unwrap();
}

/// The experts that a host has said that it has begun to serve, with the steps behind each group of them.
fn taken(host: &PeerProcess) -> Vec<(BTreeSet<String>, u64)> {
    let log = host.log().unwrap();
    let said = log.lines().filter_map(|line| {
        let (_, said) = line.split_once(" of them now, with ")?;
        let (n_steps, said) = said.split_once(" steps behind them: layer 0: ")?;
        let uids = said.split(", ").map(|uid| uid.trim().to_owned()).collect();
        Some((uids, n_steps.parse().unwrap()))
    });
    said.collect()
}

pub(super) fn uids(host: &PeerProcess) -> BTreeSet<String> {
    taken(host).into_iter().flat_map(|(uids, _)| uids).collect()
}

/// Steps of each expert in the last checkpoint that its keepers have.
fn kept(host: &PeerProcess) -> BTreeMap<String, u64> {
    let log = host.log().unwrap();
    let given = log.lines().filter(|line| line.contains("a checkpoint was given to its keepers"));
    let field = |line: &str, name: &str| {
        let value = line.split_once(name)?.1;
        Some(value.split_whitespace().next()?.trim_end_matches(',').to_owned())
    };
    let given = given.filter_map(|line| {
        let n_keepers: u64 = field(line, "n_keepers=")?.parse().ok()?;
        let n_steps = field(line, "n_steps=")?.parse().ok()?;
        (n_keepers > 0).then_some((field(line, "expert=")?, n_steps))
    });
    given.collect()
}

async fn wait_until(what: &str, hosts: &[&PeerProcess], is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        let logs: Vec<String> = hosts.iter().map(|host| host.log().unwrap()).collect();
        assert!(
            began.elapsed() < barnraise_tests::process::HANG,
            "waited for {what}:\n{}",
            logs.join("\n---\n")
        );
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn the_experts_of_a_host_that_is_gone_go_on_at_another_with_what_they_have_learned() {
    let mut test_run =
        TestRun::new(&format!("{NAMED}{}", hosted::RUN)).unwrap().with_log("info,barnraise=debug");
    let backbone = test_run.backbone().await.unwrap();
    let page = backbone.page();
    // All at once, with room for half as many again: none is hosted twice.
    let host =
        |test_run: &mut TestRun, name| test_run.host_experts(name, &[&page, "--experts", "4"]).unwrap();
    let hosts = ["first", "second", "third"].map(|name| host(&mut test_run, name));
    let [first, second, third] = &hosts;
    wait_until("eight experts", &[first, second, third], || {
        hosts.iter().map(|host| uids(host).len()).sum::<usize>() >= 8
    })
    .await;
    let all: BTreeSet<String> = hosts.iter().flat_map(uids).collect();
    assert_eq!(all, (0..8).map(|index| index.to_string()).collect(), "each one has one host");
    let trainer = test_run.join(&[&page]).unwrap();
    let reached = accuracy_of(&backbone, 0.7).await;

    // The one with the most experts is killed, once others keep what each of its experts has learned.
    let mut hosts: Vec<(&str, PeerProcess)> = ["first", "second", "third"].into_iter().zip(hosts).collect();
    hosts.sort_by_key(|(_, host)| uids(host).len());
    let (name, killed) = hosts.pop().unwrap();
    let lost = uids(&killed);
    wait_until("checkpoints of what was learned", &[&killed], || {
        let kept = kept(&killed);
        lost.iter().all(|uid| kept.get(uid).is_some_and(|n_steps| *n_steps > 0))
    })
    .await;
    let n_kept: u64 = kept(&killed).values().sum();
    killed.kill().await.unwrap();
    let others: Vec<&PeerProcess> = hosts.iter().map(|(_, host)| host).collect();
    let before: Vec<usize> = others.iter().map(|host| taken(host).len()).collect();
    let followed = || {
        let after = others.iter().zip(&before).flat_map(|(host, before)| taken(host).split_off(*before));
        after.fold((BTreeSet::new(), 0), |(mut uids, n_steps), (more, n_more)| {
            uids.extend(more);
            (uids, n_steps + n_more)
        })
    };
    wait_until("the experts of the host that was killed", &others, || followed().0.is_superset(&lost)).await;
    let n_steps = followed().1;
    assert!(n_steps >= n_kept, "{n_steps} steps were taken over, {n_kept} were kept");
    let epoch = backbone.status().await.unwrap().progress.epoch;
    backbone.wait_for_epoch(epoch + 10).await.unwrap();
    let after = accuracy_of(&backbone, reached - 0.1).await;
    println!("accuracy {reached}, {after} with other hosts; {n_kept} steps were kept, {n_steps} taken over");

    // It comes back: its experts stay where they are.
    let again = host(&mut test_run, name);
    wait_until("experts that stay elsewhere", &[&again], || {
        again.log().unwrap().matches("it stays there").count() >= lost.len()
    })
    .await;
    assert!(uids(&again).is_empty());

    // One that leaves hands all over: nothing is lost, and the one that came back has room.
    let (_, leaving) = hosts.pop().unwrap();
    let left = uids(&leaving);
    leaving.interrupt().unwrap();
    leaving.wait_for_log("All experts are handed over").await.unwrap();
    wait_until("the experts of the host that left", &[&again], || uids(&again).is_superset(&left)).await;
    leaving.kill().await.unwrap();
    trainer.kill().await.unwrap();
    again.kill().await.unwrap();
    for (_, host) in hosts {
        host.kill().await.unwrap();
    }
}

/// Some backbones that aggregate one run together, once all are linked.
pub(super) async fn started_together(n_backbones: usize) -> (Vec<TestRun>, Vec<BackboneProcess>) {
    let sections = format!("{NAMED}{}\n[network]\noperator = \"127.0.0.1:0\"\nupnp = false\n", hosted::RUN);
    let run = || TestRun::new(&sections).unwrap().with_log("info,barnraise=debug");
    let mut runs: Vec<TestRun> = (0..n_backbones).map(|_| run()).collect();
    let mut ids = Vec::new();
    for run in &mut runs {
        ids.push(run.command(&["id"]).await.unwrap().trim().to_owned());
    }
    let mut backbones: Vec<BackboneProcess> = Vec::new();
    for (at, run) in runs.iter_mut().enumerate() {
        let known = backbones.iter().map(|backbone| backbone.tcp().unwrap().to_string());
        let later = ids.iter().skip(at + 1).map(|id| format!("/p2p/{id}"));
        let peers: Vec<String> = known.chain(later).collect();
        run.aggregate_with(&peers).unwrap();
        backbones.push(run.backbone().await.unwrap());
    }
    for (at, backbone) in backbones.iter().enumerate() {
        for other in ids.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, id)| id) {
            wait_for_link(backbone, other).await;
        }
    }
    (runs, backbones)
}

#[tokio::test]
async fn a_majority_of_the_backbones_grants_leases_while_one_is_gone() {
    let (mut runs, mut backbones) = started_together(3).await;
    let first = &mut runs[0];
    let page = backbones[0].page();
    let host = first.host_experts("first", &[&page, "--experts", "8"]).unwrap();
    wait_for(&host, "Hosting 8 experts").await;
    // Two of three are enough, also for another host.
    let gone = backbones.pop().unwrap();
    gone.kill().await.unwrap();
    let other = first.host_experts("second", &[&backbones[1].page(), "--experts", "8"]).unwrap();
    wait_for(&other, "Room for 8 experts").await;
    host.interrupt().unwrap();
    wait_for(&host, "All experts are handed over").await;
    wait_for(&other, "Hosting 8 experts").await;
    other.kill().await.unwrap();
    host.kill().await.unwrap();
    for backbone in backbones {
        backbone.kill().await.unwrap();
    }
}
