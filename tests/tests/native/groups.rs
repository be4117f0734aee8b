//! Four backbones of one run that average in pairs: after two rounds all have the mean of all, and any may die.

use std::time::Duration;

use barnraise_tests::process::{BackboneProcess, HANG, PeerProcess, TestRun, metric};

use super::SMALL;
use super::aggregators::{agreed, leave, leave_after_kills, wait_for_link, wait_for_log};

const PAIRS: &str = "[aggregators]\ngroup_members_max = 2\ngather_timeout = \"3s\"\npatience = \"2s\"\n\
                     reducer_timeout = \"5s\"\ndeadline = \"30s\"\n\
                     [network]\noperator = \"127.0.0.1:0\"\nupnp = false\n";

/// Backbones that know each other.
pub(super) struct FourAggregators {
    pub(super) test_runs: Vec<TestRun>,
    ids: Vec<String>,
}

impl FourAggregators {
    async fn new() -> Self {
        Self::of(4).await
    }

    pub(super) async fn of(n: usize) -> Self {
        let sections = format!("{SMALL}\n{PAIRS}");
        let mut test_runs: Vec<TestRun> = (0..n).map(|_| TestRun::new(&sections).unwrap()).collect();
        let mut ids = Vec::new();
        for test_run in &mut test_runs {
            ids.push(test_run.command(&["id"]).await.unwrap().trim().to_owned());
        }
        Self { test_runs, ids }
    }

    /// All but the one at `number`: where they are, as far as they have been started.
    fn others(&self, started: &[BackboneProcess], number: usize) -> Vec<String> {
        let place = |other: usize| match started.get(other) {
            Some(backbone) => backbone.tcp().unwrap().to_string(),
            None => format!("/p2p/{}", self.ids[other]),
        };
        (0..self.ids.len()).filter(|other| *other != number).map(place).collect()
    }

    /// Each is told by its own configuration of those before it, and by their calls of those after it.
    pub(super) async fn start(&mut self) -> Vec<BackboneProcess> {
        let mut started: Vec<BackboneProcess> = Vec::new();
        for number in 0..self.test_runs.len() {
            self.test_runs[number].aggregate_with(&self.others(&started, number)).unwrap();
            started.push(self.test_runs[number].backbone().await.unwrap());
        }
        for (number, backbone) in started.iter().enumerate() {
            // From here on it finds the others after a restart.
            self.test_runs[number].aggregate_with(&self.others(&started, number)).unwrap();
            for other in self.ids.iter().filter(|id| **id != self.ids[number]) {
                wait_for_link(backbone, other).await;
            }
        }
        started
    }

    /// A contributor for each.
    pub(super) fn join(&mut self, backbones: &[BackboneProcess]) -> Vec<PeerProcess> {
        let all = self.test_runs.iter_mut().zip(backbones);
        all.map(|(test_run, backbone)| test_run.join(&[&backbone.page()]).unwrap()).collect()
    }
}

/// Samples that all of them credited together, once all that were acknowledged are.
pub(super) async fn credited(backbones: &[BackboneProcess], n_acknowledged: u64) -> u64 {
    let credited = async {
        loop {
            let mut credited = 0;
            for backbone in backbones {
                credited += backbone.samples_credited().await.unwrap();
            }
            if credited >= n_acknowledged {
                return credited;
            }
            // Nothing tells over HTTP that something was recorded.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let credited = tokio::time::timeout(HANG, credited).await;
    credited.expect("all that was acknowledged is credited")
}

async fn of(backbone: &BackboneProcess, name: &str) -> f64 {
    metric(&backbone.metrics().await.unwrap(), name).unwrap()
}

/// All of them together take part in a few rounds in groups.
async fn wait_for_rounds(backbones: &[BackboneProcess]) {
    let taking_part = async {
        loop {
            let mut n_rounds = 0.0;
            for backbone in backbones {
                n_rounds += of(backbone, "barnraise_averaging_group_rounds_total").await;
            }
            // Four of them in two rounds, a few times; now and then one is late, and three are a grid with an empty cell.
            if n_rounds >= 16.0 {
                return;
            }
            // Nothing tells over HTTP that something was averaged.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let taken_part = tokio::time::timeout(HANG, taking_part).await;
    let logs =
        || backbones.iter().map(|backbone| backbone.log().unwrap()).collect::<Vec<_>>().join("\n---\n");
    assert!(taken_part.is_ok(), "{}", logs());
}

#[tokio::test]
async fn four_backbones_that_average_in_pairs_have_the_same_model() {
    let mut four = FourAggregators::new().await;
    let backbones = four.start().await;
    let joined = four.join(&backbones);
    backbones[0].wait_for_epoch(10).await.unwrap();
    // Whose contributors came first made steps before, with one other or alone.
    wait_for_rounds(&backbones).await;
    let n_samples = leave(joined).await;
    let counted = agreed(&backbones).await;
    assert!(counted <= n_samples, "{counted} of {n_samples}");
    for backbone in &backbones {
        let rate = of(backbone, "barnraise_averaging_failure_rate").await;
        assert!((0.0..0.5).contains(&rate), "{rate}");
    }
    let logs: String = backbones.iter().map(|backbone| backbone.log().unwrap()).collect();
    assert!(logs.contains("averages in a grid of groups"), "{logs}");
    for backbone in backbones {
        assert!(backbone.terminate().await.unwrap().success());
    }
}

#[tokio::test]
async fn one_that_is_killed_does_not_keep_the_others_from_their_steps() {
    let mut four = FourAggregators::new().await;
    let mut backbones = four.start().await;
    let joined = four.join(&backbones);
    wait_for_log(&backbones[0], "averages in a grid of groups").await;
    backbones[0].wait_for_epoch(3).await.unwrap();
    // In the middle of its work.
    backbones.remove(2).kill().await.unwrap();
    let epoch = backbones[0].status().await.unwrap().progress.epoch;
    for backbone in &backbones {
        backbone.wait_for_epoch(epoch + 6).await.unwrap();
    }
    backbones.insert(2, four.test_runs[2].backbone().await.unwrap());
    let epoch = backbones[0].status().await.unwrap().progress.epoch;
    backbones[2].wait_for_epoch(epoch + 3).await.unwrap();
    // The contributor of the one that was killed went on with another one, or waited.
    let n_samples = leave_after_kills(joined).await;
    let counted = agreed(&backbones).await;
    assert!(counted <= *n_samples.end(), "{counted} of {n_samples:?}");
}

/// The one that was started again is back among the others, and trains on with them.
pub(super) async fn catches_up(backbones: &[BackboneProcess], number: usize) {
    let elsewhere = &backbones[(number + 1) % backbones.len()];
    let epoch = elsewhere.status().await.unwrap().progress.epoch;
    backbones[number].wait_for_epoch(epoch + 2).await.unwrap();
}

/// Three contributors leave after three backbones were stopped, one after the other: what they were acknowledged is in the
/// model of all, and theirs.
pub(super) async fn leave_after_three_stops(joined: Vec<PeerProcess>, backbones: &[BackboneProcess]) {
    let n_samples = leave_after_kills(joined).await;
    let counted = agreed(backbones).await;
    assert!(counted <= *n_samples.end(), "{counted} of {n_samples:?}");
    let credited = credited(backbones, *n_samples.start()).await;
    assert!(credited <= *n_samples.end(), "{credited} are credited, of {n_samples:?}");
}

/// As at an upgrade: each is stopped and started again, the next one once it is back among the others.
#[tokio::test]
async fn three_that_are_restarted_one_after_the_other_keep_all_that_was_acknowledged() {
    let mut three = FourAggregators::of(3).await;
    let mut backbones = three.start().await;
    let joined = three.join(&backbones);
    backbones[0].wait_for_epoch(3).await.unwrap();
    for number in 0..backbones.len() {
        assert!(backbones.remove(number).terminate().await.unwrap().success());
        backbones.insert(number, three.test_runs[number].backbone().await.unwrap());
        catches_up(&backbones, number).await;
    }
    leave_after_three_stops(joined, &backbones).await;
}
