//! Three backbones of which one computes too (`device.contributes`): the others follow it, a volunteer at one of them adds
//! to it, and all stay within a step of each other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_tests::process::{BackboneProcess, HANG, TestRun};

use super::aggregators::{agreed, leave};
use super::few::{ThreeAggregators, assert_nothing_averaged};
use super::groups::credited;
use super::{SMALL, patient};

/// Which of them computes: the one that starts last, which knows where the others are when it starts again.
const COMPUTES: usize = 2;
/// Steps in which all of them were within a step of each other.
const STEPS: u64 = 30;

async fn three() -> ThreeAggregators {
    let sections = format!("{}\n[network]\noperator = \"127.0.0.1:0\"\nupnp = false\n", patient(SMALL));
    let test_runs = (0..3).map(|_| TestRun::new(&sections).unwrap()).collect();
    let three = ThreeAggregators::of(test_runs).await;
    computes(&three, true);
    three
}

fn computes(three: &ThreeAggregators, contributes: bool) {
    let change = |config: &mut toml::Table| {
        config.insert("device".into(), toml::toml! { contributes = contributes }.into());
    };
    three.test_runs[COMPUTES].configure(change).unwrap();
}

/// When a backbone made or took the step to each model, as its log says: to the microsecond, by the clock of all.
fn steps(backbone: &BackboneProcess) -> BTreeMap<u64, String> {
    let log = backbone.log().unwrap();
    let stepped = log.lines().filter_map(|line| {
        let (before, after) = line.split_once("stepped epoch=")?;
        let epoch = after.split(' ').next()?.parse().ok()?;
        Some((epoch, before.split(' ').next()?.to_owned()))
    });
    stepped.collect()
}

/// When a backbone had met this many others, as its log says.
fn met(backbone: &BackboneProcess, n_others: usize) -> Option<String> {
    let log = backbone.log().unwrap();
    let mut others = BTreeSet::new();
    log.lines().filter(|line| line.contains("averages with this aggregator")).find_map(|line| {
        others.insert(line.split_once("peer=")?.1.split(' ').next()?.to_owned());
        (others.len() == n_others).then(|| line.split(' ').next().unwrap_or_default().to_owned())
    })
}

/// Whether one of them had the model of `epoch` while another one had less than the one before that: neither that one nor, as
/// a step is under way to those that follow when the next one is made, the one two before.
fn is_apart(steps: &[BTreeMap<u64, String>], epoch: u64) -> bool {
    let first = steps.iter().filter_map(|of| of.get(&epoch)).min();
    steps.iter().any(|of| of.get(&(epoch - 2)).is_none_or(|before| Some(before) > first))
}

/// Once they know of each other they wait for each other: when one of them has made a step, none of the others has still to
/// take the one before. Until then they may be within a step by chance.
async fn stay_within_a_step(backbones: &[BackboneProcess]) {
    let staying = async {
        loop {
            let steps: Vec<BTreeMap<u64, String>> = backbones.iter().map(steps).collect();
            let last = steps.iter().filter_map(|of| of.keys().last()).min().copied().unwrap_or_default();
            let met: Option<Vec<String>> =
                backbones.iter().map(|backbone| met(backbone, backbones.len() - 1)).collect();
            let met = met.and_then(|met| met.into_iter().max());
            let is_after = |epoch: u64| {
                let first = steps.iter().filter_map(|of| of.get(&epoch)).min();
                first.zip(met.as_ref()).is_some_and(|(first, met)| first > met)
            };
            let mut together = (3..=last).skip_while(|epoch| !is_after(*epoch) || is_apart(&steps, *epoch));
            if let Some(since) = together.next() {
                let apart = together.find(|epoch| is_apart(&steps, *epoch));
                assert_eq!(apart, None, "together since epoch {since}: {steps:?}");
                if last >= since + STEPS {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let stayed = tokio::time::timeout(HANG, staying).await;
    let logs =
        || backbones.iter().map(|backbone| backbone.log().unwrap()).collect::<Vec<_>>().join("\n---\n");
    assert!(stayed.is_ok(), "{}", logs());
}

/// The one that computes stops doing so. What each of them accepted is in the model of all, once; how much that is.
async fn all_is_counted(three: &mut ThreeAggregators, mut backbones: Vec<BackboneProcess>) -> u64 {
    assert!(backbones.pop().unwrap().terminate().await.unwrap().success());
    let log = three.test_runs[COMPUTES].logs().unwrap();
    assert!(!log.contains("panicked"), "{log}");
    computes(three, false);
    backbones.push(three.test_runs[COMPUTES].backbone().await.unwrap());
    let counted = agreed(&backbones).await;
    let late = "contributions count for a later step";
    let is_exact = !three.test_runs.iter().any(|test_run| test_run.logs().unwrap().contains(late));
    let credited = credited(&backbones, counted).await;
    assert!(credited == counted || !is_exact, "{counted} counted, {credited} credited");
    counted
}

#[tokio::test]
async fn two_that_have_nobody_stay_within_a_step_of_one_that_computes() {
    let mut three = three().await;
    let backbones = three.start().await;
    stay_within_a_step(&backbones).await;
    assert_nothing_averaged(&backbones).await;
    assert!(all_is_counted(&mut three, backbones).await > 0);
}

#[tokio::test]
async fn one_that_computes_and_one_with_a_volunteer_average_and_the_third_stays_within_a_step() {
    let mut three = three().await;
    let backbones = three.start().await;
    let joined = three.test_runs[0].join(&[&backbones[0].page()]).unwrap();
    let both = |progress: &barnraise_protocol::contribute::RunProgress| progress.n_contributors == 2;
    backbones[1].wait_for("the volunteer, and the one that computes", both).await.unwrap();
    let epoch = backbones[1].status().await.unwrap().progress.epoch;
    backbones[1].wait_for_epoch(epoch + STEPS).await.unwrap();
    stay_within_a_step(&backbones).await;
    let given = leave([joined]).await;
    let counted = all_is_counted(&mut three, backbones).await;
    assert!(given > 0 && counted > given, "{counted} counted, {given} given by the volunteer");
}
