//! Three backbones whose contributors are all at one of them: the others follow it, and one takes its place.

use std::time::{Duration, Instant};

use barnraise_tests::process::{BackboneProcess, TestRun, metric};

use super::SMALL;
use super::aggregators::{agreed, dialled, leave, leave_after_kills, wait_for_link};

/// What a contributor says that waited for a transfer to stand still for long enough: where nothing tells that a connection
/// is dead that ends it, too, many seconds after the silence of the backbone does.
const STOOD_STILL: &str = "nothing moved for";

/// Three that know each other.
pub(super) struct ThreeAggregators {
    pub(super) test_runs: Vec<TestRun>,
    ids: Vec<String>,
}

impl ThreeAggregators {
    async fn new() -> Self {
        let sections = format!("{SMALL}\n[network]\noperator = \"127.0.0.1:0\"\nupnp = false\n");
        Self::of((0..3).map(|_| TestRun::new(&sections).unwrap()).collect()).await
    }

    pub(super) async fn of(mut test_runs: Vec<TestRun>) -> Self {
        let mut ids = Vec::new();
        for test_run in &mut test_runs {
            ids.push(test_run.command(&["id"]).await.unwrap().trim().to_owned());
        }
        Self { test_runs, ids }
    }

    /// Each is told of those before it where they are, and of those after it who they are.
    pub(super) async fn start(&mut self) -> Vec<BackboneProcess> {
        let mut started: Vec<BackboneProcess> = Vec::new();
        for number in 0..3 {
            let place = |other: usize| match started.get(other) {
                Some(backbone) => dialled(backbone).to_string(),
                None => format!("/p2p/{}", self.ids[other]),
            };
            let others: Vec<String> = (0..3).filter(|other| *other != number).map(place).collect();
            self.test_runs[number].aggregate_with(&others).unwrap();
            started.push(self.test_runs[number].backbone().await.unwrap());
        }
        for (number, backbone) in started.iter().enumerate() {
            for other in (0..3).filter(|other| *other != number) {
                wait_for_link(backbone, &self.ids[other]).await;
            }
        }
        started
    }
}

async fn epoch(backbone: &BackboneProcess) -> u64 {
    backbone.status().await.unwrap().progress.epoch
}

/// Where one steps and the others follow there is nothing to average.
pub(super) async fn assert_nothing_averaged(backbones: &[BackboneProcess]) {
    for backbone in backbones {
        let metrics = backbone.metrics().await.unwrap();
        for outcome in ["averaged", "incomplete", "failed", "overtaken", "deserted"] {
            let name = format!("barnraise_averagings_total{{outcome=\"{outcome}\"}}");
            assert_eq!(metric(&metrics, &name).unwrap(), 0.0, "{outcome}: {}", backbone.log().unwrap());
        }
    }
}

/// No averaging is needed for the steps of one, so that none can hang: one that hung would last for a minute.
#[tokio::test]
async fn backbones_without_contributors_follow_the_one_that_has_them_and_take_its_place() {
    let mut three = ThreeAggregators::new().await;
    let mut backbones = three.start().await;
    let joined = three.test_runs[2].join(&[&backbones[2].page()]).unwrap();
    for target in [10, 20, 30] {
        backbones[2].wait_for_epoch(target).await.unwrap();
        for backbone in &backbones[..2] {
            backbone.wait_for_epoch(target).await.unwrap();
        }
    }
    assert_nothing_averaged(&backbones).await;
    backbones.pop().unwrap().kill().await.unwrap();
    joined.wait_for_log("another backbone of the run").await.unwrap();
    let before = epoch(&backbones[0]).await.max(epoch(&backbones[1]).await);
    for backbone in &backbones {
        backbone.wait_for_epoch(before + 6).await.unwrap();
    }
    // What was open at the one that died is counted once it is back.
    backbones.push(three.test_runs[2].backbone().await.unwrap());
    let newest = epoch(&backbones[0]).await;
    backbones[2].wait_for_epoch(newest + 2).await.unwrap();
    let given = leave_after_kills([joined]).await;
    let counted = agreed(&backbones).await;
    // What counts late counts for less.
    assert!(counted <= *given.end(), "{counted} counted, {given:?} given");
}

/// Over QUIC nobody is told that a machine is gone: neither the other backbones nor the volunteer, who moves to one of
/// them. Everything is as shipped but the size of the run. What passes until the next step is printed; that it is less
/// than five seconds on an idle machine is what the simulation of `swarm::matchmaking` shows.
#[tokio::test]
async fn when_the_active_backbone_is_killed_over_quic_the_others_go_on_soon_and_nothing_is_lost() {
    let sections = "[run]\nid = \"three\"\n\n[model]\nkind = { mlp = { hidden = [32] } }\n\n\
        [scheme.synchronous]\ntarget_batch_size = 256\nmicro_batch_size = 32\n\n[network]\noperator = \"127.0.0.1:0\"\nupnp = false\n";
    let listen = ["/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/udp/0/quic-v1/webtransport"];
    let test_runs = (0..3).map(|_| TestRun::new(sections).unwrap().with_listen(&listen)).collect();
    let mut three = ThreeAggregators::of(test_runs).await;
    let mut backbones = three.start().await;
    let joined = three.test_runs[2].join(&[&backbones[2].page()]).unwrap();
    for backbone in &backbones {
        backbone.wait_for_epoch(20).await.unwrap();
    }
    backbones.pop().unwrap().kill().await.unwrap();
    let killed_at = Instant::now();
    let before = epoch(&backbones[0]).await.max(epoch(&backbones[1]).await);
    let mut stood = Duration::ZERO;
    for backbone in &backbones {
        backbone.wait_for_epoch(before + 2).await.unwrap();
        stood = stood.max(killed_at.elapsed());
    }
    println!("killed at epoch {before}: two steps later on both others after {stood:?}");
    joined.wait_for_log("another backbone of the run").await.unwrap();
    // By a clock it would be how busy the machine is.
    let log = joined.log().unwrap();
    assert!(!log.contains(STOOD_STILL), "{stood:?}: {log}");
    backbones.push(three.test_runs[2].backbone().await.unwrap());
    let newest = epoch(&backbones[0]).await;
    backbones[2].wait_for_epoch(newest + 2).await.unwrap();
    let given = leave([joined]).await;
    let counted = agreed(&backbones).await;
    println!("{counted} samples counted, {given} given");
}
