//! A run as it is shipped, and one machine that wants to own it: honest peers train on, and what it gave counts nothing.
//!
//! Which attacks with how many keys leave how much of the speed is compared in virtual time
//! (`shared/swarm/tests/open_run.rs`); here it is real processes that are attacked.

use std::time::Duration;

use barnraise_protocol::TensorCodec;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::contribute::BackboneToContributor;
use barnraise_protocol::gradient::Offer;
use barnraise_tests::client::Client;
use barnraise_tests::process::{World, metric};
use libp2p::Multiaddr;
use tokio::task::JoinSet;

use super::RUN;
use super::doorway::Doorway;
use super::siege::alone;

const KEYS: u32 = 12;
/// Steps that are made while it attacks.
const STEPS: u64 = 15;
const BETWEEN: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_as_shipped_trains_on_beside_a_machine_with_many_keys() {
    let _alone = alone().await;
    let mut world = World::as_shipped(RUN).unwrap().with_listen(&["/ip4/127.0.0.1/tcp/0"]);
    let backbone = world.backbone().await.unwrap();
    let honest = [world.join(&[&backbone.page()]).unwrap(), world.join(&[&backbone.page()]).unwrap()];
    let before = backbone.wait_for_epoch(2).await.unwrap().epoch;
    let doorway = Doorway::open([127, 0, 0, 9].into(), &backbone.tcp().unwrap()).await;
    let mut attackers = JoinSet::new();
    for key in 0..KEYS {
        attackers.spawn(attack(doorway.address(), key));
    }
    backbone.wait_for_epoch(before + STEPS).await.unwrap();
    if let Some(ended) = attackers.try_join_next() {
        ended.unwrap();
    }
    attackers.shutdown().await;
    let mut given = 0;
    for peer in honest {
        peer.interrupt().unwrap();
        let end = peer.end().await.unwrap();
        assert!(end.status.success(), "{end:?}");
        given += end.n_samples;
    }
    // All that counts is theirs.
    assert_eq!(backbone.samples_counted().await.unwrap(), given);
    let metrics = backbone.metrics().await.unwrap();
    let refused = metric(&metrics, "barnraise_contributions_refused_total{reason=\"account\"}");
    assert!(refused.unwrap_or(0.0) > 0.0, "{metrics}");
}

/// Claims all that a step has, and offers something that it computed nothing for.
async fn attack(backbone: Multiaddr, key: u32) {
    loop {
        tokio::time::sleep(BETWEEN).await;
        let Ok(client) = Client::connect(backbone.clone()).await else { continue };
        let Ok(run) = client.describe().await else { continue };
        let Ok(mut session) = client.join(&run.run_id, &format!("attacker {key}")).await else { continue };
        if !matches!(session.hear().await, Ok(BackboneToContributor::Welcome(_))) {
            continue;
        }
        let bytes: Vec<u8> = (0..run.n_parameters).flat_map(|_| (key as f32).to_le_bytes()).collect();
        for contribution_id in 1.. {
            tokio::time::sleep(BETWEEN).await;
            let Ok(state) = client.state(&run).await else { break };
            let offer = Offer {
                contribution_id,
                epoch: state.epoch,
                n_samples: run.target_batch_size,
                loss: 1.0,
                n_values: run.n_parameters,
                codec: TensorCodec::F32,
                transfer: Transfer::of(&bytes),
            };
            if session.report(state.epoch, run.target_batch_size).await.is_err()
                || client.offer(&offer, &bytes).await.is_err()
            {
                break;
            }
        }
    }
}
