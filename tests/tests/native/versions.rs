//! Backbones of two builds side by side, as while a run is upgraded one after the other under load.
//!
//! There is one build here. In the place of a backbone of the next one stands a node with that backbone's key at its
//! address, which speaks the conversations by their next names and says so to contributors of this build.

use std::time::Duration;

use barnraise_protocol::{average, matchmaking, run};
use barnraise_relay::{Node, NodeConfig, NodeError, OpenError, load_or_create_keypair};
use barnraise_tests::process::{HANG, TestRun};
use libp2p::Multiaddr;
use tokio::task::JoinHandle;

use super::aggregators::wait_for_log;
use super::groups::{FourAggregators, catches_up, leave_after_three_stops};

/// By which a build begins that raised what backbones say to each other.
const NEXT_MATCHMAKING: &str = "/barnraise/matchmaking/8";
/// By which it averages with its like; the same bytes would mean something else.
const NEXT_AVERAGE: &str = "/barnraise/average/5";

/// A backbone of the build after this one.
struct NextBuild {
    node: Node,
    telling: JoinHandle<()>,
}

impl NextBuild {
    /// With the key of the backbone of `test_run`, at its address.
    async fn in_place_of(test_run: &TestRun, address: &Multiaddr) -> Self {
        assert!(matchmaking::PROTOCOL < NEXT_MATCHMAKING && average::PROTOCOL < NEXT_AVERAGE);
        let keypair = load_or_create_keypair(&test_run.storage().join("identity.key")).unwrap();
        let mut listen = address.clone();
        listen.pop();
        let starting = async {
            loop {
                let config = NodeConfig { listen: vec![listen.clone()], ..NodeConfig::default() };
                match Node::start(keypair.clone(), config).await {
                    // Another program may have got the port meanwhile. Nothing tells that it is free.
                    Err(NodeError::Listen { reason, .. }) => println!("{reason}"),
                    started => return started.unwrap(),
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let node = tokio::time::timeout(HANG, starting).await.expect("the port is free again");
        let mut asking = node.accept(run::PROTOCOL).unwrap();
        let telling = tokio::spawn(async move {
            while let Some((_, mut stream)) = asking.recv().await {
                // Who asks may leave.
                let _ = run::answer_older_version(&mut stream).await;
            }
        });
        Self { node, telling }
    }

    /// What it says first is not spoken where a backbone of this build is.
    async fn is_not_understood_by(&self, other: &Multiaddr) {
        // It dials this one, too. Where both do at once, from the ports that they listen at, it is one connection to TCP, with
        // two clients and nobody who would answer them.
        for spoken in [NEXT_MATCHMAKING, NEXT_AVERAGE] {
            let refused = async {
                while let Err(error) = self.is_refused(other, spoken).await {
                    println!("{spoken}: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            tokio::time::timeout(HANG, refused).await.unwrap();
        }
    }

    /// An error where they are not connected, or not any longer.
    async fn is_refused(&self, other: &Multiaddr, spoken: &'static str) -> Result<(), NodeError> {
        let peer = self.node.dial(other.clone()).await?;
        match self.node.open(peer, spoken).await {
            Err(NodeError::Open { source: OpenError::Unsupported, .. }) => Ok(()),
            Ok(_) => panic!("{spoken} is spoken"),
            Err(error) => Err(error),
        }
    }

    async fn stop(self) {
        self.node.shutdown().await;
        let _ = self.telling.await;
    }
}

/// One after the other is of the next build for a while, and then all are again of one: what was acknowledged meanwhile is
/// in the model of all.
#[tokio::test]
async fn three_that_are_upgraded_one_after_the_other_name_who_is_older_and_keep_all_that_was_acknowledged() {
    let mut three = FourAggregators::of(3).await;
    let mut backbones = three.start().await;
    let joined = three.join(&backbones);
    backbones[0].wait_for_epoch(3).await.unwrap();
    for number in 0..backbones.len() {
        let backbone = backbones.remove(number);
        let address = backbone.tcp().unwrap();
        assert!(backbone.terminate().await.unwrap().success());
        let newer = NextBuild::in_place_of(&three.test_runs[number], &address).await;
        for other in &backbones {
            newer.is_not_understood_by(&other.tcp().unwrap()).await;
            let named = format!("peer={}", newer.node.peer_id());
            wait_for_log(other, "so it is of another version: upgrade the older one").await;
            assert!(other.log().unwrap().contains(&named));
        }
        // Those of this build train on together.
        let epoch = backbones[0].status().await.unwrap().progress.epoch;
        for other in &backbones {
            other.wait_for_epoch(epoch + 3).await.unwrap();
        }
        newer.stop().await;
        backbones.insert(number, three.test_runs[number].backbone().await.unwrap());
        catches_up(&backbones, number).await;
    }
    leave_after_three_stops(joined, &backbones).await;
    for backbone in &backbones {
        let log = backbone.log().unwrap();
        assert!(!log.contains("panicked"), "{log}");
    }
}
