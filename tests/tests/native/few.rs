//! Three backbones whose contributors are all at one of them: the others follow it, and one takes its place.

use barnraise_tests::process::{Backbone, World, metric};

use super::SMALL;
use super::aggregators::{agreed, leave, wait_for_link};

/// Three that know each other.
struct Three {
    worlds: Vec<World>,
    ids: Vec<String>,
}

impl Three {
    async fn new() -> Self {
        let sections = format!("{SMALL}\n[network]\noperator = \"127.0.0.1:0\"\nupnp = false\n");
        let mut worlds: Vec<World> = (0..3).map(|_| World::new(&sections).unwrap()).collect();
        let mut ids = Vec::new();
        for world in &mut worlds {
            ids.push(world.command(&["id"]).await.unwrap().trim().to_owned());
        }
        Self { worlds, ids }
    }

    /// Each is told of those before it where they are, and of those after it who they are.
    async fn start(&mut self) -> Vec<Backbone> {
        let mut started: Vec<Backbone> = Vec::new();
        for number in 0..3 {
            let place = |other: usize| match started.get(other) {
                Some(backbone) => backbone.tcp().unwrap().to_string(),
                None => format!("/p2p/{}", self.ids[other]),
            };
            let others: Vec<String> = (0..3).filter(|other| *other != number).map(place).collect();
            self.worlds[number].aggregate_with(&others).unwrap();
            started.push(self.worlds[number].backbone().await.unwrap());
        }
        for (number, backbone) in started.iter().enumerate() {
            for other in (0..3).filter(|other| *other != number) {
                wait_for_link(backbone, &self.ids[other]).await;
            }
        }
        started
    }
}

async fn epoch(backbone: &Backbone) -> u64 {
    backbone.status().await.unwrap().progress.epoch
}

/// No averaging is needed for the steps of one, so that none can hang: one that hung would last for a minute.
#[tokio::test]
async fn backbones_without_contributors_follow_the_one_that_has_them_and_take_its_place() {
    let mut three = Three::new().await;
    let mut backbones = three.start().await;
    let joined = three.worlds[2].join(&[&backbones[2].page()]).unwrap();
    for target in [10, 20, 30] {
        backbones[2].wait_for_epoch(target).await.unwrap();
        for backbone in &backbones[..2] {
            backbone.wait_for_epoch(target).await.unwrap();
        }
    }
    let words = ["averaged", "incomplete", "failed", "overtaken", "deserted"];
    for backbone in &backbones {
        let metrics = backbone.metrics().await.unwrap();
        for outcome in words {
            let name = format!("barnraise_averagings_total{{outcome=\"{outcome}\"}}");
            assert_eq!(metric(&metrics, &name).unwrap(), 0.0, "{outcome}: {}", backbone.log().unwrap());
        }
    }
    backbones.pop().unwrap().kill().await.unwrap();
    joined.wait_for_log("another backbone of the run").await.unwrap();
    let before = epoch(&backbones[0]).await.max(epoch(&backbones[1]).await);
    for backbone in &backbones {
        backbone.wait_for_epoch(before + 6).await.unwrap();
    }
    // What was open at the one that died is counted once it is back.
    backbones.push(three.worlds[2].backbone().await.unwrap());
    let newest = epoch(&backbones[0]).await;
    backbones[2].wait_for_epoch(newest + 2).await.unwrap();
    let given = leave([joined]).await;
    let counted = agreed(&backbones[0], &backbones[1]).await;
    assert_eq!(agreed(&backbones[0], &backbones[2]).await, counted);
    // One contribution at most counts and got no answer; what counts late counts for less.
    assert!(counted <= given + 1024, "{counted} counted, {given} given");
}
