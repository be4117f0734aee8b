//! A backbone that gives its model to one that fell behind is killed in the middle of it.

use std::path::Path;
use std::time::Duration;

use barnraise_tests::gate::Gate;
use barnraise_tests::process::{HANG, World, metric};

use super::SMALL;
use super::aggregators::{agreed, leave, state, wait_for_link};

/// A model of some megabytes, whose journal does not reach back to its beginning: who is new needs a checkpoint.
fn sections() -> String {
    let large = SMALL.replace("hidden = [32]", "hidden = [512]");
    let sections =
        large.replace("checkpoint_every_epochs = 7", "checkpoint_every_epochs = 1\nkeep_checkpoints = 1");
    assert!(large != SMALL && sections != large);
    format!("{sections}\n[network]\noperator = \"127.0.0.1:0\"\nupnp = false\n")
}

/// Until no step leads on from the model that everybody begins with.
async fn cut(storage: &Path) {
    let first = storage.join("journal/000000000000/commit");
    let gone = async {
        while first.exists() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let gone = tokio::time::timeout(HANG, gone).await;
    assert!(gone.is_ok(), "{} is still there", first.display());
}

#[tokio::test]
async fn when_a_donor_is_killed_another_one_gives_the_rest() {
    let sections = sections();
    let mut worlds = [(); 2].map(|()| World::new(&sections).unwrap());
    // Native peers cannot dial WebTransport: nobody comes to it but through the gates.
    let mut behind =
        World::new(&sections).unwrap().with_listen(&["/ip4/127.0.0.1/udp/0/quic-v1/webtransport"]);
    let behind_id = behind.command(&["id"]).await.unwrap().trim().to_owned();
    let [one, other] = &mut worlds;
    let [one_id, other_id] = [one.command(&["id"]).await.unwrap(), other.command(&["id"]).await.unwrap()]
        .map(|id| id.trim().to_owned());
    let third = format!("/p2p/{behind_id}");
    one.aggregate_with(&[format!("/p2p/{other_id}"), third.clone()]).unwrap();
    let first = one.backbone().await.unwrap();
    other.aggregate_with(&[first.tcp().unwrap().to_string(), third]).unwrap();
    let second = other.backbone().await.unwrap();
    wait_for_link(&first, &other_id).await;
    wait_for_link(&second, &one_id).await;
    let joined = [one.join(&[&first.page()]).unwrap(), other.join(&[&second.page()]).unwrap()];
    first.wait_for_epoch(6).await.unwrap();
    leave(joined).await;
    agreed([&first, &second]).await;
    for world in &worlds {
        cut(&world.storage()).await;
    }

    let status = first.status().await.unwrap();
    let epoch = status.progress.epoch;
    // A checkpoint is parameters and as many values of the optimizer: half of it may come of either.
    let half = 4 * status.run.n_parameters;
    let first_gate = Gate::new(&first.tcp().unwrap(), half).await.unwrap();
    let second_gate = Gate::new(&second.tcp().unwrap(), half).await.unwrap();
    let ways = [&first_gate, &second_gate].map(|gate| gate.address().to_string());
    behind.aggregate_with(&ways).unwrap();
    let follower = behind.backbone().await.unwrap();
    // Whichever was heard of first gives.
    let is_first = tokio::select! {
        filled = first_gate.filled() => filled.map(|()| true),
        filled = second_gate.filled() => filled.map(|()| false),
    };
    let (one, other) = ((first, first_gate), (second, second_gate));
    let ((donor, gate), (heir, way)) = if is_first.unwrap() { (one, other) } else { (other, one) };
    // It has begun and cannot have finished, and nobody else has begun.
    assert!(gate.passed() < half + half / 4, "{} bytes came of {}", gate.passed(), 2 * half);
    assert!(way.passed() < half / 4, "{} bytes came from the other one", way.passed());
    assert_eq!(follower.status().await.unwrap().progress.epoch, 0);
    donor.kill().await.unwrap();
    drop(gate);
    way.open();
    follower.wait_for_epoch(epoch).await.unwrap();

    let metrics = follower.metrics().await.unwrap();
    let followed =
        |what: &str| metric(&metrics, &format!("barnraise_models_followed_total{{what=\"{what}\"}}"));
    assert_eq!((followed("checkpoint").unwrap(), followed("step").unwrap()), (1.0, 0.0), "{metrics}");
    let log = follower.log().unwrap();
    assert!(log.contains("asks for the rest of a checkpoint"), "{log}");
    // What was in the buffers of who was killed came twice; begun anew it would be two halves.
    assert!(way.passed() < half + half / 2, "{} bytes came after {half} of {}", way.passed(), 2 * half);
    // And it is the model: the follower still has it when it is asked by itself.
    follower.kill().await.unwrap();
    let mut behind = behind.with_listen(&["/ip4/127.0.0.1/tcp/0"]);
    let follower = behind.backbone().await.unwrap();
    assert!(state(&follower).await == state(&heir).await);
}
